//! Round trip of each packet through encoder and decoder, whole or in pieces, in every version.

use braid_proto::decoder::Decoder;
use braid_proto::error::Violation;
use braid_proto::packet::{Packet, ProtocolVersion, Publish, QoS};
use braid_proto::topic::TopicName;
use proptest::prelude::*;

use crate::arbitrary;
use crate::rig::encoded;

fn decoder(version: ProtocolVersion) -> Decoder {
    let mut decoder = Decoder::default();
    decoder.configure(version, 1 << 20);
    decoder
}

/// Decodes these pieces.
fn decode(pieces: &[&[u8]], version: ProtocolVersion) -> Result<Vec<Packet>, Violation> {
    let mut decoder = decoder(version);
    let mut packets = Vec::new();
    for piece in pieces {
        let mut input = *piece;
        while let Some(packet) = decoder.decode(&mut input)? {
            packets.push(packet);
        }
        assert!(input.is_empty(), "bytes are left, although no packet is");
    }
    Ok(packets)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    // [MQTT-1.5.4-3], [MQTT-1.5.5-1], [MQTT-2.2.2-1], [MQTT-3.1.2-16], [MQTT-3.1.2-17], [MQTT-3.1.2-18],
    // [MQTT-3.1.2-19], [MQTT-3.1.3-1], [MQTT-3.1.3-3], [MQTT-3.1.3-10], [MQTT-2.2.1-2]
    #[test]
    fn a_packet_survives_encoding(
        (version, packet) in arbitrary::version().prop_flat_map(|v| (Just(v), arbitrary::packet(v)))
    ) {
        let bytes = encoded(&packet, version);
        prop_assert_eq!(decode(&[&bytes], version), Ok(vec![packet]));
    }

    #[test]
    fn a_packet_may_come_in_two_parts(
        (version, packet) in arbitrary::version().prop_flat_map(|v| (Just(v), arbitrary::packet(v)))
    ) {
        let bytes = encoded(&packet, version);
        for at in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(at);
            prop_assert_eq!(decode(&[head, tail], version), Ok(vec![packet.clone()]));
        }
    }

    #[test]
    fn a_truncated_packet_is_a_violation(
        (version, packet) in arbitrary::version().prop_flat_map(|v| (Just(v), arbitrary::packet(v)))
    ) {
        let bytes = encoded(&packet, version);
        for at in 0..bytes.len() {
            prop_assert_eq!(decode(&[&bytes[..at]], version), Ok(vec![]));
        }
    }

    #[test]
    fn any_bytes_are_packets_or_a_violation(
        version in arbitrary::version(),
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let whole = decode(&[&bytes], version);
        let single: Vec<_> = bytes.chunks(1).collect();
        prop_assert_eq!(decode(&single, version), whole);
    }

    #[test]
    fn a_damaged_packet_is_a_packet_or_a_violation(
        (version, packet) in arbitrary::version().prop_flat_map(|v| (Just(v), arbitrary::packet(v))),
        at: prop::sample::Index,
        value: u8,
    ) {
        let mut bytes = encoded(&packet, version);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(packets) = decode(&[&bytes], version) {
            // Each decoded packet can be encoded.
            for packet in packets.into_iter().filter(has_only_valid_filters) {
                let again = encoded(&packet, version);
                prop_assert_eq!(decode(&[&again], version), Ok(vec![packet]));
            }
        }
    }
}

/// An invalid filter is decoded, to be answered, but never sent.
fn has_only_valid_filters(packet: &Packet) -> bool {
    match packet {
        Packet::Subscribe(subscribe) => subscribe.entries.iter().all(|entry| entry.filter.is_ok()),
        Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().all(Result::is_ok),
        _ => true,
    }
}

#[test]
fn an_announced_length_costs_nothing_before_its_bytes_arrive() {
    let mut decoder = Decoder::default();
    let mut input: &[u8] = &[0x30, 0xFF, 0xFF, 0xFF, 0x7F, 0, 1, b'a'];
    assert_eq!(decoder.decode(&mut input), Ok(None));
    assert_eq!(decoder.partial_len(), 8);
}

#[test]
fn remaining_lengths_around_each_width() {
    for len in [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
        let head = 2 + 1; // The topic.
        let payload = vec![7; len.max(head) - head];
        let packet = Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: Some(TopicName::parse("a").unwrap()),
            packet_id: None,
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: None,
            payload: payload.into(),
            spooled: false,
        });
        let bytes = encoded(&packet, ProtocolVersion::V311);
        let mut decoder = Decoder::default();
        let pieces: Vec<_> = bytes.chunks(100_000).collect();
        let mut decoded = None;
        for mut piece in pieces {
            decoded = decoder.decode(&mut piece).unwrap();
        }
        assert_eq!(decoded, Some(packet));
    }
}

#[test]
fn a_publish_that_no_packet_can_hold_is_not_written() {
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: Some(TopicName::parse("a").unwrap()),
        packet_id: None,
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: None,
        payload: vec![0; 268_435_455 - 2].into(),
        spooled: false,
    });
    assert!(encoded(&packet, ProtocolVersion::V311).is_empty());
}
