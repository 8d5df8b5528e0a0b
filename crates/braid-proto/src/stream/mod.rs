//! The logical streams of a connection and their order of sending.
//!
//! A stream is a lane: it has a place in the send order and never owns session state.

mod policy;
mod queue;

pub use policy::{Choice, LogicalStream, Placement, StreamPolicy, Subject};
pub use queue::LaneQueue;

/// Names one logical stream of a connection. On TCP, TLS and WebSocket there is only the control stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(u32);

/// Set in the keys of unidirectional streams.
const UNI: u32 = 1 << 31;

impl StreamKey {
    /// The first bidirectional stream of a connection, which carries CONNECT.
    pub const CONTROL: Self = Self(0);

    /// No key is greater.
    pub(crate) const LAST: Self = Self(u32::MAX);

    /// The most streams of one direction that a connection can have over its whole life.
    pub const COUNT_MAX: u32 = UNI;

    /// The `n`-th bidirectional stream, counted from 0, the control stream; `n` is below [`Self::COUNT_MAX`].
    pub const fn bidi(n: u32) -> Self {
        Self(n & !UNI)
    }

    /// The `n`-th unidirectional stream, counted from 0; `n` is below [`Self::COUNT_MAX`].
    pub const fn uni(n: u32) -> Self {
        Self(n | UNI)
    }

    /// The number given to [`StreamKey::bidi`] or [`StreamKey::uni`].
    pub const fn index(self) -> u32 {
        self.0 & !UNI
    }

    /// Whether it is the control stream.
    pub const fn is_control(self) -> bool {
        self.0 == 0
    }

    /// Whether bytes go only from the client to the server.
    pub const fn is_uni(self) -> bool {
        self.0 & UNI != 0
    }
}

impl std::fmt::Display for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.is_control(), self.is_uni()) {
            (true, _) => f.write_str("control stream"),
            (_, false) => write!(f, "data stream {}", self.index()),
            (_, true) => write!(f, "unidirectional stream {}", self.index()),
        }
    }
}

/// A place in the order of sending: within one messages keep their order. [BQ-54]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The stream.
    pub stream: StreamKey,
    /// How soon.
    pub priority: Priority,
}

/// How soon something is sent: higher is sooner, equals share.
///
/// Most significant byte first, which orders like the number and needs no alignment: a million subscriptions hold one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority([u8; 2]);

impl Priority {
    /// What a message gets when nothing says otherwise: between the 200 that users write for what is urgent and the
    /// 8 that they write for bulk. It is never on the wire, so other implementations' defaults do not matter.
    pub const DEFAULT: Self = Self::new(100);
    /// As soon as anything.
    pub const HIGHEST: Self = Self::new(u16::MAX);

    /// A priority as users write it, 0..=65535.
    pub const fn new(value: u16) -> Self {
        Self(value.to_be_bytes())
    }

    /// The number given to [`Priority::new`].
    pub const fn value(self) -> u16 {
        u16::from_be_bytes(self.0)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}
