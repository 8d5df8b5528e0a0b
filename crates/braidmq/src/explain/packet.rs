//! One QUIC packet of the log, with the STREAM frames that it carried.

/// A packet number space of RFC 9000, section 12.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Initial,
    Handshake,
    #[default]
    Application,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packet {
    /// When it left or arrived, in milliseconds of the log.
    pub(super) time: f64,
    pub(super) space: Space,
    pub(super) number: Option<u64>,
    /// The path of a multipath connection, where the log says it.
    pub(super) path: Option<u64>,
    /// Bytes, with header and authentication tag, where the log says it.
    pub(super) logged_length: Option<u64>,
    /// In the order in which they stood in the packet.
    pub(super) frames: Vec<StreamFrame>,
    pub(super) lost: Option<Loss>,
}

/// A STREAM frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamFrame {
    pub(super) stream: u64,
    pub(super) offset: u64,
    /// Bytes of the stream.
    pub(super) length: u64,
    /// How many of them an earlier packet carried.
    pub(super) again: u64,
    pub(super) fin: bool,
}

/// When the sender took a packet for lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loss {
    /// In milliseconds of the log.
    pub(super) time: f64,
    /// How many packets had been sent by then: the index of the next.
    pub(super) before: usize,
}

impl Packet {
    /// Bytes of streams.
    pub(super) fn stream_bytes(&self) -> u64 {
        self.frames.iter().fold(0, |sum, frame| sum.saturating_add(frame.length))
    }

    /// Bytes of the packet: at least those of its streams.
    pub(super) fn length(&self) -> u64 {
        self.logged_length.unwrap_or(0).max(self.stream_bytes())
    }

    pub(super) fn bytes_of(&self, mut wanted: impl FnMut(u64) -> bool) -> u64 {
        let frames = self.frames.iter().filter(|frame| wanted(frame.stream));
        frames.fold(0, |sum, frame| sum.saturating_add(frame.length))
    }
}

impl StreamFrame {
    /// The offset behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Bytes that no earlier packet carried.
    pub(super) fn fresh(&self) -> u64 {
        self.length.saturating_sub(self.again)
    }
}
