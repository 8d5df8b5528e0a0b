//! Refusals of a client, and its reaction to violations by the server.

use std::num::NonZeroU16;

use braid_proto::packet::UserProperties;

use super::*;

/// Pair connected to a server that grants `properties`.
fn granted(properties: ConnackProperties) -> Pair {
    let mut pair = Pair::new(connect(ProtocolVersion::V5), None, ServerOptions::default());
    take(pair.client.outbox(StreamKey::CONTROL).unwrap());
    pair.forge(&connack(false, properties), ProtocolVersion::V5);
    assert!(pair.client.is_established());
    pair
}

#[test]
fn nothing_above_the_servers_maximum_qos_is_published() {
    // [MQTT-3.2.2-11]
    let properties =
        ConnackProperties { maximum_qos: Some(QoS::AtLeastOnce), ..ConnackProperties::default() };
    let mut pair = granted(properties);
    let refused = pair.client.publish(delivery("t", "m", QoS::ExactlyOnce), pair.now);
    assert_eq!(refused.unwrap_err(), SendError::QosNotSupported(QoS::AtLeastOnce));
    assert!(pair.client.outbox(StreamKey::CONTROL).unwrap().is_empty());
    assert!(pair.client.publish(delivery("t", "m", QoS::AtLeastOnce), pair.now).is_ok());
}

#[test]
fn nothing_retained_is_published_where_it_is_not_available() {
    // [MQTT-3.2.2-14]
    let mut pair =
        granted(ConnackProperties { retain_available: Some(false), ..ConnackProperties::default() });
    let mut retained = delivery("t", "m", QoS::AtMostOnce);
    retained.retain = true;
    let refused = pair.client.publish(retained, pair.now);
    assert_eq!(refused.unwrap_err(), SendError::RetainNotSupported);
}

#[test]
fn nothing_above_the_servers_maximum_packet_size_is_sent() {
    // [MQTT-3.2.2-15]
    let mut pair =
        granted(ConnackProperties { maximum_packet_size: Some(20), ..ConnackProperties::default() });
    let sent = pair.client.publish(delivery("t", "more than twenty bytes", QoS::AtLeastOnce), pair.now);
    assert!(matches!(sent, Ok(Sent::TooLarge)), "{sent:?}");
    let long = vec![entry("a/filter/that/is/too/long")];
    let refused = pair.client.subscribe(StreamKey::CONTROL, long, None, UserProperties::new(), pair.now);
    assert_eq!(refused, Err(SendError::TooLarge));
    assert!(pair.client.outbox(StreamKey::CONTROL).unwrap().is_empty());
    assert!(pair.client.session().unwrap().outbound.is_empty(), "their identifiers are free");
}

#[test]
fn no_alias_is_defined_for_a_server_without_topic_alias_maximum() {
    // [MQTT-3.2.2-18]
    let mut pair = granted(ConnackProperties::default());
    assert!(pair.client.publish(delivery("long", "m", QoS::AtMostOnce), pair.now).is_ok());
    assert_eq!(take(pair.client.outbox(StreamKey::CONTROL).unwrap()), *b"\x30\x08\0\x04long\0m");
}

#[test]
fn aliases_replace_topic_names_up_to_the_servers_maximum() {
    // [MQTT-3.2.2-17]
    let mut pair =
        granted(ConnackProperties { topic_alias_maximum: Some(1), ..ConnackProperties::default() });
    for topic in ["long", "long", "other"] {
        assert!(pair.client.publish(delivery(topic, "m", QoS::AtMostOnce), pair.now).is_ok());
    }
    let (first, again, other) =
        (b"\x30\x0B\0\x04long\x03\x23\0\x01m", b"\x30\x07\0\0\x03\x23\0\x01m", b"\x30\x09\0\x05other\0m");
    assert_eq!(take(pair.client.outbox(StreamKey::CONTROL).unwrap()), [&first[..], again, other].concat());
}

#[test]
fn subscriptions_that_the_server_does_not_offer_are_not_sent() {
    let no = Some(false);
    let mut pair = granted(ConnackProperties {
        wildcard_subscription_available: no,
        subscription_identifiers_available: no,
        shared_subscription_available: no,
        ..ConnackProperties::default()
    });
    let id = std::num::NonZeroU32::new(1);
    for (filter, id, wanted) in [
        ("a/+", None, SendError::WildcardsNotSupported),
        ("$share/g/a", None, SendError::SharedNotSupported),
        ("a", id, SendError::SubscriptionIdsNotSupported),
    ] {
        assert_eq!(
            pair.client.subscribe(
                StreamKey::CONTROL,
                vec![entry(filter)],
                id,
                UserProperties::new(),
                pair.now
            ),
            Err(wanted)
        );
    }
    assert!(
        pair.client
            .subscribe(StreamKey::CONTROL, vec![entry("a")], None, UserProperties::new(), pair.now)
            .is_ok()
    );
}

#[test]
fn no_local_is_not_sent_for_a_shared_subscription() {
    // [MQTT-3.8.3-4]
    let mut pair = granted(ConnackProperties::default());
    let shared = SubscribeEntry { no_local: true, ..entry("$share/g/a") };
    let refused =
        pair.client.subscribe(StreamKey::CONTROL, vec![shared], None, UserProperties::new(), pair.now);
    assert_eq!(refused, Err(SendError::NoLocalOnShared));
}

#[test]
fn an_assigned_client_identifier_is_the_sessions() {
    // [MQTT-3.2.2-16]
    let assigned_client_id = Some("given".into());
    let pair = granted(ConnackProperties { assigned_client_id, ..ConnackProperties::default() });
    assert_eq!(pair.client.session().unwrap().client_id.as_str(), "given");
}

#[test]
fn a_refusal_is_reported_and_closes() {
    // [MQTT-3.2.2-7]
    for version in ALL {
        let mut pair = Pair::new(connect(version), None, ServerOptions::default());
        pair.drive();
        pair.server.reject(ReasonCode::NotAuthorized);
        pair.drive();
        assert!(matches!(&pair.client_events[..], [ClientEvent::Refused(_)]), "{version}");
        assert_eq!(pair.client.cause(), Some(Cause::Refused(ReasonCode::NotAuthorized)));
    }
}

#[test]
fn packets_of_a_client_are_a_violation_when_a_server_sends_them() {
    for packet in [Packet::Pingreq, Packet::Connect(Box::new(connect(ProtocolVersion::V5)))] {
        let mut pair = granted(ConnackProperties::default());
        pair.forge(&packet, ProtocolVersion::V5);
        let violation = Violation::UnexpectedPacket(packet.packet_type());
        assert_eq!(pair.client.cause(), Some(Cause::Violation(violation)));
        // DISCONNECT with Protocol Error. [MQTT-4.13.1-1]
        assert_eq!(take(pair.client.outbox(StreamKey::CONTROL).unwrap()), [0xE0, 1, 0x82]);
    }
}

#[test]
fn a_message_before_connack_is_a_violation() {
    // [MQTT-3.2.0-1]
    let mut pair = Pair::new(connect(ProtocolVersion::V5), None, ServerOptions::default());
    pair.forge(&Packet::Pingresp, ProtocolVersion::V5);
    assert!(matches!(pair.client.cause(), Some(Cause::Violation(Violation::UnexpectedPacket(_)))));
}

#[test]
fn a_topic_alias_above_ours_is_a_violation() {
    // [MQTT-3.1.2-26], [MQTT-3.1.2-27]
    let mut pair = granted(ConnackProperties::default());
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: TopicName::parse("t").ok(),
        packet_id: None,
        topic_alias: Some(NonZeroU16::MIN),
        subscription_ids: Vec::new(),
        properties: None,
        payload: "".into(),
        spooled: false,
    };
    pair.forge(&Packet::Publish(publish), ProtocolVersion::V5);
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::TopicAlias(1))));
}

#[test]
fn more_messages_than_our_receive_maximum_are_a_violation() {
    // [MQTT-3.3.4-9]
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.receive_maximum = Some(1);
    let mut pair = Pair::new(connect, None, ServerOptions::default());
    pair.forge(&connack(false, ConnackProperties::default()), ProtocolVersion::V5);
    pair.client.handle_bytes(StreamKey::CONTROL, &[0x32, 6, 0, 1, b't', 0, 1, 0], pair.now);
    assert!(pair.client.is_established());
    pair.client.handle_bytes(StreamKey::CONTROL, &[0x32, 6, 0, 1, b't', 0, 2, 0], pair.now);
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::ReceiveMaximumExceeded)));
}

#[test]
fn a_packet_above_our_maximum_packet_size_is_a_violation() {
    // [MQTT-3.1.2-24]
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.maximum_packet_size = Some(10);
    let mut pair = Pair::new(connect, None, ServerOptions::default());
    pair.forge(&connack(false, ConnackProperties::default()), ProtocolVersion::V5);
    pair.client.handle_bytes(StreamKey::CONTROL, &[0x30, 9], pair.now);
    let violation = Violation::PacketTooLarge { size: 11, limit: 10 };
    assert_eq!(pair.client.cause(), Some(Cause::Violation(violation)));
}

#[test]
fn a_session_expiry_in_the_servers_disconnect_is_a_violation() {
    // [MQTT-3.14.2-2]
    let mut pair = granted(ConnackProperties::default());
    let mut disconnect = Disconnect::new(ReasonCode::ServerBusy);
    disconnect.session_expiry = Some(1);
    pair.forge(&Packet::Disconnect(Box::new(disconnect)), ProtocolVersion::V5);
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::PropertyNotAllowed(0x11))));
}

#[test]
fn the_servers_disconnect_is_reported_with_its_reason() {
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    pair.server.disconnect(ReasonCode::SessionTakenOver);
    pair.drive();
    assert_eq!(pair.client.cause(), Some(Cause::Disconnected(ReasonCode::SessionTakenOver)));
    let told = pair.client_events.iter().any(|event| matches!(event, ClientEvent::Disconnected(_)));
    assert!(told);
}

#[test]
fn nothing_follows_our_disconnect() {
    // [MQTT-3.14.4-1], [MQTT-3.14.4-2]
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    pair.client.disconnect(Disconnect::new(ReasonCode::Success));
    assert!(matches!(pair.publish(QoS::AtMostOnce), Sent::Blocked(_)));
    assert_eq!(take(pair.client.outbox(StreamKey::CONTROL).unwrap()), [0xE0, 0]);
    assert!(pair.client.is_closed());
}

#[test]
fn mqtt_3_sends_no_disconnect_about_a_failure() {
    let mut pair = Pair::established(connect(ProtocolVersion::V311), None, None);
    pair.client.disconnect(Disconnect::new(ReasonCode::UnspecifiedError));
    assert!(pair.client.outbox(StreamKey::CONTROL).unwrap().is_empty(), "it would delete the Will");
}

#[test]
fn auth_without_a_method_is_a_violation() {
    // [MQTT-4.12.0-6]
    let mut pair = granted(ConnackProperties::default());
    pair.client.handle_bytes(StreamKey::CONTROL, &[0xF0, 2, 0x18, 0], pair.now);
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::AuthNotNegotiated)));
}
