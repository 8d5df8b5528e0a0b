//! Messages and requests in both directions.

use braid_proto::packet::UserProperties;

use super::*;

#[test]
fn every_qos_goes_both_ways_in_every_version() {
    for version in ALL {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let mut pair = Pair::established(connect(version), None, None);
            let sent = pair.publish(qos);
            assert_eq!(matches!(sent, Sent::Out(Some(_))), qos > QoS::AtMostOnce);
            pair.drive();
            assert_eq!(pair.routed(), 1);
            assert_eq!(pair.published().len(), usize::from(qos > QoS::AtMostOnce), "{version} {qos}");

            pair.deliver(qos);
            pair.drive();
            let token = pair.messages()[0].token;
            assert_eq!(token.is_some(), qos > QoS::AtMostOnce);
            if let Some(token) = token {
                pair.client.acknowledge(token, pair.now);
            }
            pair.drive();
            assert!(pair.server.session().unwrap().outbound.is_empty(), "{version} {qos}");
            assert!(pair.client.session().unwrap().inbound.is_empty());
        }
    }
}

#[test]
fn nothing_is_acknowledged_before_the_application_takes_it() {
    // [MQTT-4.3.2-4], [MQTT-4.3.3-8]
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
        pair.deliver(qos);
        pair.drive();
        assert_eq!(pair.client.unacknowledged(), 1);
        assert_eq!(pair.server.session().unwrap().outbound.len(), 1);
    }
}

#[test]
fn a_pubrel_does_not_acknowledge_what_the_application_has_not_taken() {
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    pair.deliver(QoS::ExactlyOnce);
    pair.drive();
    let first = pair.messages()[0].token.unwrap();
    // Arrives before the PUBREL of the first.
    pair.deliver(QoS::AtLeastOnce);
    pair.drive();
    pair.client.acknowledge(first, pair.now);
    pair.drive();
    assert_eq!(pair.client.unacknowledged(), 2, "PUBCOMP waits for its turn behind the PUBACK");
    assert_eq!(pair.server.session().unwrap().outbound.len(), 2);

    let second = pair.messages()[1].token.unwrap();
    pair.client.acknowledge(second, pair.now);
    pair.drive();
    assert!(pair.server.session().unwrap().outbound.is_empty());
}

#[test]
fn acknowledgements_leave_in_the_order_of_the_messages() {
    // [MQTT-4.6.0-2], [MQTT-4.6.0-3]
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    for _ in 0..3 {
        pair.deliver(QoS::AtLeastOnce);
    }
    pair.drive();
    let tokens: Vec<Token> = pair.messages().iter().filter_map(|message| message.token).collect();
    pair.client.acknowledge(tokens[1], pair.now);
    pair.drive();
    let mut ids = Vec::new();
    for event in &pair.server_events {
        if let Event::Complete(id, _) = event {
            ids.push(id.value());
        }
    }
    assert_eq!(ids, [1, 2], "the second acknowledges the first as well, and not the third");
}

#[test]
fn the_servers_receive_maximum_blocks_and_an_acknowledgement_frees() {
    // [MQTT-3.3.4-7], [MQTT-3.3.4-9], [MQTT-4.9.0-2]
    let options = ServerOptions { receive_maximum: 2, ..ServerOptions::default() };
    let mut pair = Pair::new(connect(ProtocolVersion::V5), None, options);
    pair.drive();
    pair.accept(None);
    pair.drive();
    assert!(matches!(pair.publish(QoS::AtLeastOnce), Sent::Out(_)));
    assert!(matches!(pair.publish(QoS::ExactlyOnce), Sent::Out(_)));
    assert!(matches!(pair.publish(QoS::AtLeastOnce), Sent::Blocked(_)));
    assert!(!pair.client.has_send_quota());
    assert!(matches!(pair.publish(QoS::AtMostOnce), Sent::Out(None)), "QoS 0 is not counted");
    pair.drive();
    assert_eq!(pair.published(), [(1, ReasonCode::Success), (2, ReasonCode::Success)]);
    assert!(matches!(pair.publish(QoS::AtLeastOnce), Sent::Out(_)));
}

#[test]
fn subscribe_and_unsubscribe_are_answered_under_their_identifiers() {
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    let first = pair
        .client
        .subscribe(StreamKey::CONTROL, vec![entry("a"), entry("b")], None, UserProperties::new(), pair.now)
        .unwrap();
    let filter = TopicFilter::parse("a").unwrap();
    let second =
        pair.client.unsubscribe(StreamKey::CONTROL, vec![filter], UserProperties::new(), pair.now).unwrap();
    pair.drive();
    let answers: Vec<_> = pair
        .client_events
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Subscribed(suback) => Some((suback.packet_id, suback.codes.len())),
            ClientEvent::Unsubscribed(unsuback) => Some((unsuback.packet_id, unsuback.codes.len())),
            _ => None,
        })
        .collect();
    assert_eq!(answers, [(first, 2), (second, 1)]);
    assert!(pair.client.session().unwrap().outbound.is_empty(), "both identifiers are free again");
}

#[test]
fn a_message_has_its_subscription_identifiers() {
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    let id = std::num::NonZeroU32::new(7).unwrap();
    let mut delivery = delivery("t", "m", QoS::AtMostOnce);
    delivery.subscription_ids = SubscriptionIds::One(id);
    pair.server.deliver(delivery, pair.now);
    pair.drive();
    assert_eq!(pair.messages()[0].subscription_ids, [id]);
}

#[test]
fn a_refused_message_is_reported_and_its_identifier_free() {
    let mut pair = Pair::established(connect(ProtocolVersion::V5), None, None);
    pair.publish(QoS::ExactlyOnce);
    let reason = ReasonCode::NotAuthorized;
    let id = PacketId::FIRST;
    pair.forge(&Packet::Ack(Ack::new(AckKind::Pubrec, id, reason)), ProtocolVersion::V5);
    assert_eq!(pair.published(), [(1, reason)]);
    assert!(pair.client.session().unwrap().outbound.is_empty());
}
