//! Decoder with any bytes, in any pieces.

use braid_proto::decoder::Decoder;
use braid_proto::error::Violation;
use braid_proto::packet::{Packet, ProtocolVersion};

/// The first byte selects MQTT 3.1 or 3.1.1, and how the rest is cut.
pub fn decode_v3(data: &[u8]) {
    let version = if data.first().is_some_and(|first| first & 0x80 != 0) {
        ProtocolVersion::V31
    } else {
        ProtocolVersion::V311
    };
    decode(data, version);
}

/// The first byte selects how the rest is cut.
pub fn decode_v5(data: &[u8]) {
    decode(data, ProtocolVersion::V5);
}

/// Packets and violation do not depend on how the bytes are cut.
fn decode(data: &[u8], version: ProtocolVersion) {
    let Some((first, bytes)) = data.split_first() else { return };
    let size = usize::from(first & 0x7F).max(1);
    assert_eq!(packets(&[bytes], version), packets(&bytes.chunks(size).collect::<Vec<_>>(), version));
}

pub(super) fn packets(pieces: &[&[u8]], version: ProtocolVersion) -> (Vec<Packet>, Option<Violation>) {
    let mut decoder = Decoder::default();
    decoder.configure(version, 1 << 16);
    let mut packets = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break,
                Err(violation) => return (packets, Some(violation)),
            }
        }
        assert!(input.is_empty(), "bytes are left, although no packet is");
    }
    (packets, None)
}
