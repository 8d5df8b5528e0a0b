use braid_client::{MessageProperties, PacketId, QoS, Received, TopicName};
use braid_proto::message::{Message, SharedMessage};
use bytes::Bytes;

use super::*;

fn message(payload: &'static [u8], properties: MessageProperties) -> Received {
    let topic = TopicName::parse("f/1").unwrap();
    let message = Message::new(topic, Bytes::from_static(payload), QoS::AtLeastOnce, true)
        .with_properties(Some(Box::new(properties)), std::time::Instant::now());
    let mut received = Received::new(SharedMessage::new(message));
    received.packet_id = Some(PacketId::FIRST);
    received
}

fn all_properties() -> MessageProperties {
    MessageProperties {
        payload_format: Some(true),
        message_expiry: Some(30),
        content_type: Some("text".into()),
        response_topic: TopicName::parse("r/t").ok(),
        correlation_data: Some(Bytes::from_static(b"cd")),
        user: [("k", "v"), ("k2", "v2")].into(),
    }
}

/// 2026-11-21 21:18:33.771531004 in UTC.
fn now() -> Zoned {
    jiff::Timestamp::new(1_795_295_913, 771_531_004).unwrap().to_zoned(jiff::tz::TimeZone::UTC)
}

fn write(format: &str, message: &Received) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(Format::parse(format).unwrap().write(message, &now(), &mut out).unwrap());
    out
}

fn text(format: &str, message: &Received) -> String {
    String::from_utf8(write(format, message)).unwrap()
}

#[test]
fn every_parameter_prints_what_mosquitto_sub_prints() {
    let message = message(b"abc", all_properties());
    let format = "[%A|%C|%D|%E|%F|%l|%m|%P|%p|%q|%R|%r|%S|%t|%x|%X]";
    assert_eq!(text(format, &message), "[|text|cd|30|1|3|1|k:v k2:v2|abc|1|r/t|1||f/1|616263|616263]");
}

#[test]
fn absent_properties_print_nothing() {
    let message = message(b"", MessageProperties::default());
    assert_eq!(text("[%A|%C|%D|%E|%F|%P|%p|%R|%S|%x]", &message), "[|||||||||]");
}

#[test]
fn widths_flags_and_maximum_widths() {
    let message = message(b"abc", all_properties());
    assert_eq!(
        text("[%10t|%-10t|%5.2t|%08l|%-8l]", &message),
        "[       f/1|f/1       |   f/|00000003|3       ]"
    );
    assert_eq!(
        text("[%010x|%10p|%3x|%8.3C|%-04l]", &message),
        "[0000616263|       abc|616263|     tex|3   ]"
    );
}

#[test]
fn payloads_are_bytes() {
    let message = message(b"\xFF\x00\xFE", MessageProperties::default());
    assert_eq!(write("%p", &message), b"\xFF\x00\xFE");
    assert_eq!(text("%x %X", &message), "ff00fe FF00FE");
    assert_eq!(write("%5p", &message), b"  \xFF\x00\xFE");
}

#[test]
fn times() {
    let message = message(b"", MessageProperties::default());
    assert_eq!(text("%I", &message), "2026-11-21T21:18:33+0000");
    assert_eq!(text("%U", &message), "1795295913.771531004");
    assert_eq!(text("@Y-@m-@dT@H:@M:@S.@N @@", &message), "2026-11-21T21:18:33.771531004 @");
}

#[test]
fn escapes() {
    let message = message(b"", MessageProperties::default());
    assert_eq!(write(r"a\\\0\a\e\n\r\t\v%%ü", &message), "a\\\0\x07\x1B\n\r\t\x0B%ü".as_bytes());
}

#[test]
fn json_has_the_members_of_mosquitto_sub_in_their_order() {
    let with = message(b"he\"y", all_properties());
    let wanted = r#"{"tst":"2026-11-21T21:18:33.771531+0000","topic":"f/1","qos":1,"retain":1,"payloadlen":4,"mid":1,"properties":{"content-type":"text","payload-format-indicator":1,"response-topic":"r/t","correlation-data":"cd","user-properties":{"k":"v","k2":"v2"},"message-expiry-interval":30},"payload":"he\"y"}"#;
    assert_eq!(text("%j", &with), wanted);
    let without = message(b"", MessageProperties::default());
    assert!(text("%j", &without).ends_with(r#""mid":1,"payload":null}"#));
}

#[test]
fn a_payload_that_is_json_is_kept_as_it_is() {
    let message = message(br#"{"a": 1.10}"#, MessageProperties::default());
    assert!(text("%J", &message).ends_with(r#""payload":{"a": 1.10}}"#), "{}", text("%J", &message));
}

#[test]
fn a_payload_that_is_no_json_prints_nothing_at_all() {
    let message = message(br#"{"a": 1"#, MessageProperties::default());
    let mut out = Vec::new();
    let format = Format::parse("before %J").unwrap();
    assert!(!format.write(&message, &now(), &mut out).unwrap());
    assert!(out.is_empty());
}

#[test]
fn mistakes_are_named() {
    let error = |format| Format::parse(format).unwrap_err();
    assert_eq!(error("%z"), FormatError::Parameter('z'));
    assert_eq!(error(r"\q"), FormatError::Escape('q'));
    assert_eq!(error("x%"), FormatError::Incomplete);
    assert_eq!(error("x%08"), FormatError::Incomplete);
    assert_eq!(error("x@"), FormatError::Incomplete);
    assert_eq!(error("x\\"), FormatError::IncompleteEscape);
    assert_eq!(error("%99999999999999999999t"), FormatError::TooWide);
}
