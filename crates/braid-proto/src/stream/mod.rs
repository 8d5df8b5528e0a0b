//! The logical streams of a connection and their order of sending.
//!
//! A stream is a lane: it has a place in the send order and never owns session state.

/// Names one logical stream of a connection. On TCP, TLS and WebSocket there is only the control stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(u32);

impl StreamKey {
    /// The first stream of a connection, which carries CONNECT.
    pub const CONTROL: Self = Self(0);

    /// The `n`-th stream; 0 is the control stream.
    pub const fn new(n: u32) -> Self {
        Self(n)
    }

    /// The number given to [`StreamKey::new`].
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// How soon something is sent: higher is sooner, equals share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u16);

impl Priority {
    /// What a message gets when nothing says otherwise (msquic's default, which EMQX clients know).
    pub const DEFAULT: Self = Self(0x7FFF);
    /// The control stream's.
    pub const HIGHEST: Self = Self(u16::MAX);

    /// A priority as users write it, 0..=65535.
    pub const fn new(value: u16) -> Self {
        Self(value)
    }

    /// The number given to [`Priority::new`].
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}
