//! Destination Connection IDs of packets of any QUIC version (RFC 8999).

/// Bit of the first byte that tells a long header.
const LONG: u8 = 0x80;

/// Bytes of a long header in front of the Destination Connection ID's length: the first one, and the version.
const VERSION_END: usize = 5;

/// Header at the front of a datagram, as far as all versions of QUIC have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicHeader<'a> {
    /// Long header, of the packets of a handshake. A client chooses the Destination Connection ID of its first ones.
    Long {
        /// Destination Connection ID.
        destination: &'a [u8],
    },
    /// Short header, of all later packets.
    Short {
        /// Bytes that begin with the Destination Connection ID, whose length only its server knows.
        rest: &'a [u8],
    },
}

impl<'a> QuicHeader<'a> {
    /// Header of the first packet in a datagram. `None` if the datagram is too short for one.
    #[must_use]
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (first, rest) = datagram.split_first()?;
        if first & LONG == 0 {
            return Some(Self::Short { rest });
        }
        let (length, rest) = datagram.get(VERSION_END..)?.split_first()?;
        let destination = rest.get(..usize::from(*length))?;
        Some(Self::Long { destination })
    }
}
