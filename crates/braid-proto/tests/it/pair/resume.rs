//! Session State across connections.

use braid_proto::packet::UserProperties;

use super::*;

fn resuming(version: ProtocolVersion) -> Connect {
    Connect { clean_start: false, ..connect(version) }
}

/// Cut link with inflight messages of QoS 1, QoS 2, and QoS 2 after PUBREC.
fn cut_off(version: ProtocolVersion) -> (Option<Session>, Option<Session>) {
    let mut pair = Pair::established(resuming(version), Some(session()), Some(session()));
    pair.publish(QoS::ExactlyOnce);
    let up = take(pair.client.outbox(StreamKey::CONTROL).unwrap());
    pair.server.handle_bytes(StreamKey::CONTROL, &up, pair.now);
    let Some(Event::Publish(_, Some(token))) = pair.server.poll_event() else { unreachable!("one PUBLISH") };
    pair.server.handle_persisted(token);
    let down = take(pair.server.outbox(StreamKey::CONTROL).unwrap());
    pair.client.handle_bytes(StreamKey::CONTROL, &down, pair.now);
    pair.publish(QoS::AtLeastOnce);
    pair.publish(QoS::ExactlyOnce);
    pair.cut()
}

#[test]
fn inflight_messages_are_retransmitted_in_order_and_complete() {
    // [MQTT-4.4.0-1], [MQTT-4.4.0-2], [MQTT-4.6.0-1]
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let (clients, servers) = cut_off(version);
        let mut pair = Pair::new(resuming(version), clients, ServerOptions::default());
        pair.drive();
        pair.accept(servers);
        pair.drive();
        assert!(pair.connected().session_present && pair.connected().lost.is_empty());
        let ids: Vec<u16> = pair.published().iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), 3, "{version}");
        assert_eq!(pair.routed(), 2, "the released one is not sent again");
        assert!(pair.client.session().unwrap().outbound.is_empty());
    }
}

#[test]
fn resent_messages_have_dup_and_their_identifiers() {
    // [MQTT-3.3.1-1], [MQTT-2.2.1-3]
    let (clients, servers) = cut_off(ProtocolVersion::V311);
    let mut pair = Pair::new(resuming(ProtocolVersion::V311), clients, ServerOptions::default());
    pair.drive();
    pair.accept(servers);
    let down = take(pair.server.outbox(StreamKey::CONTROL).unwrap());
    pair.client.handle_bytes(StreamKey::CONTROL, &down, pair.now);
    let up = take(pair.client.outbox(StreamKey::CONTROL).unwrap());
    // PUBREL 1; PUBLISH with DUP, QoS 1, identifier 2; PUBLISH with DUP, QoS 2, identifier 3.
    let wanted: &[u8] = &[0x62, 2, 0, 1, 0x3A, 6, 0, 1, b't', 0, 2, b'm', 0x3C, 6, 0, 1, b't', 0, 3, b'm'];
    assert_eq!(up, wanted);
}

#[test]
fn a_session_that_the_server_lost_is_discarded_and_reported() {
    // [MQTT-3.2.2-5]
    let (clients, _) = cut_off(ProtocolVersion::V5);
    let mut pair = Pair::new(resuming(ProtocolVersion::V5), clients, ServerOptions::default());
    pair.drive();
    pair.accept(None);
    pair.drive();
    let lost = &pair.connected().lost;
    let told: Vec<_> = lost.iter().map(|(id, delivery)| (id.value(), delivery.is_some())).collect();
    assert_eq!(told, [(1, false), (2, true), (3, true)]);
    assert!(pair.client.session().unwrap().outbound.is_empty());
    assert_eq!(pair.routed(), 0, "nothing is resent");
}

#[test]
fn clean_start_reports_inflight_messages_as_lost() {
    let (clients, _) = cut_off(ProtocolVersion::V311);
    let pair = Pair::established(connect(ProtocolVersion::V311), clients, None);
    assert_eq!(pair.connected().lost.len(), 3);
}

#[test]
fn session_present_without_a_session_closes_the_connection() {
    // [MQTT-3.2.2-4]
    for (connect, session) in
        [(resuming(ProtocolVersion::V5), None), (connect(ProtocolVersion::V5), Some(session()))]
    {
        let mut pair = Pair::new(connect, session, ServerOptions::default());
        pair.forge(&connack(true, ConnackProperties::default()), ProtocolVersion::V5);
        let violation = Violation::SessionPresentWithoutSession;
        assert_eq!(pair.client.cause(), Some(Cause::Violation(violation)));
    }
}

#[test]
fn a_repeated_qos_2_message_is_delivered_once_after_resume() {
    // [MQTT-4.3.3-10]
    let mut pair = Pair::established(resuming(ProtocolVersion::V5), Some(session()), Some(session()));
    pair.deliver(QoS::ExactlyOnce);
    pair.drive();
    assert_eq!(pair.messages().len(), 1);
    let (clients, servers) = pair.cut();

    let pair = Pair::established(resuming(ProtocolVersion::V5), clients, servers);
    assert_eq!(pair.messages().len(), 0);
    assert!(pair.server.session().unwrap().outbound.is_empty(), "its handshake completes all the same");
}

#[test]
fn the_session_survives_a_failed_connect() {
    let (clients, _) = cut_off(ProtocolVersion::V5);
    let mut pair = Pair::new(resuming(ProtocolVersion::V5), clients, ServerOptions::default());
    pair.client.handle_link_closed();
    let (_, session) = pair.client.into_end();
    assert_eq!(session.unwrap().outbound.len(), 3);
}

#[test]
fn the_identifier_of_an_unanswered_subscribe_is_free_on_the_next_connection() {
    let mut pair = Pair::established(resuming(ProtocolVersion::V5), Some(session()), Some(session()));
    pair.client
        .subscribe(StreamKey::CONTROL, vec![entry("a")], None, UserProperties::new(), pair.now)
        .unwrap();
    pair.client.handle_link_closed();
    let (_, clients) = pair.client.into_end();
    let pair = Pair::established(resuming(ProtocolVersion::V5), clients, Some(session()));
    assert!(pair.client.session().unwrap().outbound.is_empty());
}

#[test]
fn a_pubcomp_that_was_lost_with_its_connection_is_no_failure() {
    // After a resume the server no longer knows the identifier of the PUBREL.
    let mut pair = Pair::established(resuming(ProtocolVersion::V5), Some(session()), Some(session()));
    pair.publish(QoS::ExactlyOnce);
    for ack in [
        Ack::new(AckKind::Pubrec, PacketId::FIRST, ReasonCode::Success),
        Ack::new(AckKind::Pubcomp, PacketId::FIRST, ReasonCode::PacketIdentifierNotFound),
    ] {
        pair.forge(&Packet::Ack(ack), ProtocolVersion::V5);
    }
    assert_eq!(pair.published(), [(1, ReasonCode::Success)]);
}
