//! Language-neutral vectors of `vectors/`, shared with every SDK.

use std::fs;
use std::path::Path;

use braid_proto::decoder::Decoder;
use braid_proto::error::Violation;
use braid_proto::packet::{Packet, PacketType, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicError, TopicFilter, TopicName};
use serde_json::Value;

use crate::rig::encoded;
use crate::{fields, hex};

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A list of a file, which must not be empty.
fn rows<'a>(file: &'a Value, list: &str) -> &'a [Value] {
    let rows = file[list].as_array().unwrap();
    assert!(!rows.is_empty(), "{list} is empty");
    rows
}

fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_else(|| panic!("{name} is missing in {row}"))
}

fn version(row: &Value) -> ProtocolVersion {
    match text(row, "version") {
        "3.1" => ProtocolVersion::V31,
        "3.1.1" => ProtocolVersion::V311,
        "5.0" => ProtocolVersion::V5,
        other => panic!("version {other}"),
    }
}

fn decode(row: &Value) -> Result<Option<Packet>, Violation> {
    let bytes = hex::bytes(text(row, "hex"));
    let mut decoder = Decoder::default();
    decoder.configure(version(row), 1 << 20);
    let mut input = &bytes[..];
    let packet = decoder.decode(&mut input);
    if packet.is_ok() {
        assert!(input.is_empty(), "bytes are left of {row}");
    }
    packet
}

#[test]
fn packets_decode_to_their_fields_and_encode_to_their_bytes() {
    let file = read("packets.json");
    for row in rows(&file, "packets") {
        let packet = decode(row).unwrap().unwrap();
        assert_eq!(fields::of(&packet), row["packet"], "{}", text(row, "name"));
        if row["canonical"] != false {
            assert_eq!(
                fields::hex(&encoded(&packet, version(row))),
                text(row, "hex"),
                "{}",
                text(row, "name")
            );
        }
    }
}

#[test]
fn every_type_of_packet_has_a_vector() {
    let file = read("packets.json");
    for name in ["CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE"]
        .into_iter()
        .chain(["SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"])
    {
        assert!(rows(&file, "packets").iter().any(|row| row["packet"]["type"] == name), "{name}");
    }
}

#[test]
fn malformed_packets_cause_their_reason_code() {
    let file = read("packets.json");
    for row in rows(&file, "malformed") {
        let violation = decode(row).expect_err(text(row, "name"));
        assert_eq!(
            u64::from(violation.reason().value()),
            row["reason"],
            "{}: {violation}",
            text(row, "name")
        );
    }
}

// [MQTT-3.2.2-8], [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1], [MQTT-3.9.3-2], [MQTT-3.11.3-2],
// [MQTT-3.14.2-1], [MQTT-3.15.2-1]
#[test]
fn reason_codes_are_those_of_the_standard() {
    let types = [
        PacketType::Connack,
        PacketType::Puback,
        PacketType::Pubrec,
        PacketType::Pubrel,
        PacketType::Pubcomp,
        PacketType::Suback,
        PacketType::Unsuback,
        PacketType::Disconnect,
        PacketType::Auth,
    ];
    let file = read("reason-codes.json");
    let codes = rows(&file, "codes");
    for value in 0..=u8::MAX {
        let row = codes.iter().find(|row| row["code"] == value);
        let code = ReasonCode::from_u8(value);
        assert_eq!(code.is_some(), row.is_some(), "0x{value:02X}");
        let (Some(code), Some(row)) = (code, row) else { continue };
        assert_eq!(code.value(), value);
        assert_eq!(code.connack_v3().map(u64::from), row["connack_v3"].as_u64(), "{code}");
        assert_eq!(code.text(), text(row, "name").to_lowercase().replace("qos", "QoS"));
        assert_eq!(code.is_error(), value >= 0x80);
        let packets = row["packets"].as_array().unwrap();
        for packet in types {
            let listed = packets.iter().any(|name| *name == packet.to_string());
            assert_eq!(code.is_allowed_in(packet), listed, "{code} in {packet}");
        }
    }
    assert_eq!(ReasonCode::ALL.len(), codes.len());
}

/// Name of an error in the vectors.
fn why(error: TopicError) -> &'static str {
    match error {
        TopicError::Empty => "empty",
        TopicError::TooLong => "too long",
        TopicError::Null => "null",
        TopicError::TooManyLevels => "levels",
        TopicError::WildcardInName => "wildcard",
        TopicError::MultiLevelWildcard => "multi-level wildcard",
        TopicError::SingleLevelWildcard => "single-level wildcard",
        TopicError::Share => "share",
    }
}

// [MQTT-3.3.2-2], [MQTT-4.7.0-1], [MQTT-4.7.3-1], [MQTT-4.7.3-2]
#[test]
fn topic_names_are_valid_or_not() {
    let file = read("topic-matching.json");
    for name in rows(&file, "valid_names") {
        assert_eq!(TopicName::parse(name.as_str().unwrap()).unwrap().as_str(), name);
    }
    for row in rows(&file, "invalid_names") {
        let error = TopicName::parse(text(row, "name")).unwrap_err();
        assert_eq!(why(error), text(row, "why"), "{row}");
    }
}

// [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.8.2-1], [MQTT-4.8.2-2]
#[test]
fn topic_filters_are_valid_or_not() {
    let file = read("topic-matching.json");
    for row in rows(&file, "valid_filters") {
        let filter = TopicFilter::parse(text(row, "filter")).unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(filter.as_str(), text(row, "filter"));
        assert_eq!(filter.pattern(), text(row, "pattern"));
        assert_eq!(filter.share_name(), row["share_name"].as_str());
        assert_eq!(filter.is_shared(), row["share_name"].is_string());
        assert_eq!(filter.has_wildcard(), text(row, "pattern").contains(['+', '#']));
    }
    for row in rows(&file, "invalid_filters") {
        let error = TopicFilter::parse(text(row, "filter")).expect_err(text(row, "filter"));
        assert_eq!(why(error), text(row, "why"), "{row}");
    }
}

// [MQTT-4.7.3-3]
#[test]
fn a_topic_has_at_most_65535_bytes() {
    for (len, fine) in [(65_535, true), (65_536, false)] {
        assert_eq!(TopicName::parse(&"x".repeat(len)).is_ok(), fine);
        assert_eq!(TopicFilter::parse(&"x".repeat(len)).is_ok(), fine);
    }
}

// [MQTT-3.3.2-3], [MQTT-4.7.2-1], [MQTT-4.7.3-4]
#[test]
fn filters_match_names_or_not() {
    let file = read("topic-matching.json");
    for row in rows(&file, "matches") {
        let filter = TopicFilter::parse(text(row, "filter")).unwrap();
        let name = TopicName::parse(text(row, "name")).unwrap();
        assert_eq!(filter.matches(&name), row["matches"], "{row}");
    }
}
