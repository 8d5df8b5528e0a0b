//! Streams, lanes and priorities.

/// Logical stream of a connection. TCP, TLS and WebSocket have the control stream only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(u32);

/// Bit of the keys of unidirectional streams.
const UNI: u32 = 1 << 31;

impl StreamKey {
    /// First bidirectional stream of a connection, which carries CONNECT.
    pub const CONTROL: Self = Self(0);

    /// Greatest key.
    pub(crate) const LAST: Self = Self(u32::MAX);

    /// Maximum number of streams of one direction over the life of a connection.
    pub const COUNT_MAX: u32 = UNI;

    /// `n`-th bidirectional stream; 0 is the control stream. `n` is below [`Self::COUNT_MAX`].
    pub const fn bidi(n: u32) -> Self {
        Self(n & !UNI)
    }

    /// `n`-th unidirectional stream, from 0; `n` is below [`Self::COUNT_MAX`].
    pub const fn uni(n: u32) -> Self {
        Self(n | UNI)
    }

    /// Number given to [`StreamKey::bidi`] or [`StreamKey::uni`].
    pub const fn index(self) -> u32 {
        self.0 & !UNI
    }

    /// Whether it is the control stream.
    pub const fn is_control(self) -> bool {
        self.0 == 0
    }

    /// Whether bytes are sent by the client only.
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

/// Stream and priority of messages, which keep their order within a lane. [BQ-54]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// Stream.
    pub stream: StreamKey,
    /// Priority.
    pub priority: Priority,
}

/// Priority of sending: higher ones are sent first, equal ones take turns.
///
/// Stored with the most significant byte first: ordered like the number, without alignment. Each subscription holds
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority([u8; 2]);

impl Priority {
    /// Priority of messages without one: between the 200 that users choose for urgent messages and the 8 for bulk. It
    /// is not on the wire, so that the defaults of other implementations do not matter.
    pub const DEFAULT: Self = Self::new(100);
    /// Highest priority.
    pub const HIGHEST: Self = Self::new(u16::MAX);

    /// Priority as users write it, 0..=65535.
    pub const fn new(value: u16) -> Self {
        Self(value.to_be_bytes())
    }

    /// Number given to [`Priority::new`].
    pub const fn value(self) -> u16 {
        u16::from_be_bytes(self.0)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}
