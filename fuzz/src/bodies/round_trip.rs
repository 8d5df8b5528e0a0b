//! Decoding and encoding of a packet are inverse.

use braid_proto::packet::{Packet, ProtocolVersion};
use bytes::BytesMut;

use super::decode::packets;
use super::peer::version;

/// The first byte is the version. A decoded packet is encoded and decoded to an equal one, and encoded to equal bytes.
pub fn round_trip(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let version = version(first % 3);
    for packet in packets(&[bytes], version).0 {
        let is_sendable = match &packet {
            Packet::Subscribe(subscribe) => subscribe.entries.iter().all(|entry| entry.filter.is_ok()),
            Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().all(Result::is_ok),
            _ => true,
        };
        if !is_sendable {
            continue; // An invalid filter is answered, never sent.
        }
        let once = encoded(&packet, version);
        let (again, violation) = packets(&[&once], version);
        assert_eq!((again.as_slice(), violation), (std::slice::from_ref(&packet), None), "{once:02X?}");
        assert_eq!(encoded(&again[0], version), once);
    }
}

fn encoded(packet: &Packet, version: ProtocolVersion) -> BytesMut {
    let mut out = BytesMut::new();
    packet.encode(version, &mut out);
    out
}
