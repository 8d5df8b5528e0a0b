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
    /// Names one session for ever: the broker counts up from [`NextIds`](crate::NextIds) and never uses a
    /// number twice. A client whose session ended and began anew has another one.
    SessionId,
    /// A place in the order of everything that is queued: the broker counts up from
    /// [`NextIds`](crate::NextIds) and never uses a number twice. Stores are fastest when batches arrive
    /// about in this order; they must not rely on it.
    Lsn,
    /// The right to change a client's session (a fencing epoch). Of two claims to one client, the greater one
    /// is the newer one, and only the newest is good.
    Claim
);
