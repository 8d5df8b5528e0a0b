//! Numbers that identify sessions, messages, queue entries and claims.

use std::fmt;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u64);

        impl $name {
            /// Wraps the number.
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The number.
            pub const fn value(self) -> u64 {
                self.0
            }

            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}

numbers!(
    /// Identifies one session for ever: the broker counts up from [`NextIds`] and never uses a number twice. A client
    /// whose session ended has another one in its next session.
    SessionId,
    /// Log sequence number: orders stored messages and queue entries. The broker counts up from [`NextIds`] and never
    /// uses a number twice. Stores are fastest when batches arrive about in this order, and must not rely on it.
    Lsn,
    /// Fencing token: the right to change a client's session. Of two claims to one client the greater one is newer, and
    /// only the newest is valid.
    Claim
);

/// The next free numbers: greater than every number under which a committed change ever opened a session, stored a
/// message or queued an entry, even if it was removed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextIds {
    /// The next session's.
    pub session: SessionId,
    /// The next message's or queue entry's.
    pub lsn: Lsn,
}

impl NextIds {
    /// Next free numbers of an empty store.
    pub const FIRST: Self = Self { session: SessionId::new(1), lsn: Lsn::new(1) };
}
