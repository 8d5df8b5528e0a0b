//! Guarantees of a server to its driver, and limits for clients. Most of these tests were bugs.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::{Acceptance, Cause, Event, Sent, Server, ServerOptions};
use braid_proto::error::Violation;
use braid_proto::packet::{Connack, Connect, Packet, PacketId, ProtocolVersion, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::{MAX_LEVELS, TopicError, TopicFilter, TopicName};
use bytes::Bytes;

use crate::hex;
use crate::rig::{Rig, connect, delivery, encoded, options, packets};

const V5: ProtocolVersion = ProtocolVersion::V5;
const V311: ProtocolVersion = ProtocolVersion::V311;

/// Server that must decide about this CONNECT.
fn deciding(options: ServerOptions, connect: Connect) -> Rig {
    let mut rig = Rig::before_connect(options);
    let version = connect.version;
    rig.read(&encoded(&Packet::Connect(Box::new(connect)), version));
    assert!(matches!(rig.events()[..], [Event::Connect(_)]));
    rig
}

fn accept(rig: &mut Rig, acceptance: &Acceptance) -> Connack {
    let version = rig.server.version().unwrap();
    rig.server.accept(Session::new("c".into(), SessionExpiry::NEVER), acceptance, rig.now, |_| true);
    match packets(&rig.sent(), version).remove(0) {
        Packet::Connack(connack) => *connack,
        other => panic!("{other:?}"),
    }
}

#[test]
fn accept_after_the_end_gives_the_session_back() {
    let mut rig = deciding(options(), connect(V5));
    rig.server.handle_link_closed();
    let session = Session::new("precious".into(), SessionExpiry::NEVER);
    rig.server.accept(session, &Acceptance::default(), rig.now, |_| true);
    assert!(rig.server.is_closed());
    let end = rig.end().unwrap();
    assert_eq!(end.cause, Cause::Lost);
    assert_eq!(end.session.unwrap().client_id.as_str(), "precious");
}

// [MQTT-3.2.0-2]
#[test]
fn an_answer_without_a_request_changes_nothing() {
    let mut rig = Rig::before_connect(options());
    rig.server.accept(Session::default(), &Acceptance::default(), rig.now, |_| true);
    assert!(rig.server.session().is_none());

    let mut rig = Rig::connected(options(), connect(V5));
    rig.server.accept(Session::default(), &Acceptance::default(), rig.now, |_| true);
    rig.server.reject(ReasonCode::Banned);
    assert!(rig.sent().is_empty());
    assert_eq!(rig.server.session().unwrap().client_id.as_str(), "c");
    assert_eq!(rig.server.suback(StreamKey::CONTROL, PacketId::FIRST, vec![ReasonCode::Success]), None);
}

// [MQTT-3.1.2-24], [MQTT-3.2.0-1]
#[test]
fn a_connack_above_the_clients_maximum_packet_size_is_not_sent() {
    for (size, fits) in [(15, false), (16, true)] {
        let mut connect = connect(V5);
        connect.properties.maximum_packet_size = Some(size);
        connect.will = Some(Will {
            topic: TopicName::parse("w").unwrap(),
            payload: Bytes::new(),
            qos: QoS::AtMostOnce,
            retain: false,
            delay: 0,
            properties: None,
        });
        let mut rig = deciding(options(), connect);
        rig.server.accept(
            Session::new("c".into(), SessionExpiry::NEVER),
            &Acceptance::default(),
            rig.now,
            |_| true,
        );
        assert_eq!(rig.server.is_closed(), !fits, "{size}");
        assert_eq!(rig.sent().is_empty(), !fits, "{size}");
        if let Some(end) = rig.end() {
            assert!(end.session.is_some() && end.will.is_none());
            assert_eq!(end.cause, Cause::Closed(ReasonCode::PacketTooLarge));
        }
    }
}

#[test]
fn mqtt_3_has_no_receive_maximum() {
    let mut rig = Rig::connected(options(), connect(V311));
    for id in 1..=100 {
        rig.read(&[0x34, 5, 0, 1, b'a', 0, id]);
    }
    assert_eq!(rig.events().len(), 100);
    assert!(!rig.server.is_closed());
}

// [MQTT-4.3.3-10]: a message refused with its connection was not received.
#[test]
fn a_message_above_the_receive_maximum_is_no_duplicate_later() {
    let mut rig = Rig::connected(options(), connect(V5));
    for id in 1..=3 {
        rig.read(&[0x34, 6, 0, 1, b'a', 0, id, 0]);
    }
    assert_eq!(rig.events().len(), 2);
    let end = rig.end().unwrap();
    let mut rig = Rig::resumed(options(), connect(V5), end.session.unwrap());
    rig.read(&[0x3C, 6, 0, 1, b'a', 0, 3, 0]);
    assert!(matches!(rig.events()[..], [Event::Publish(..)]), "the message is lost");
}

// [MQTT-4.3.3-9]
#[test]
fn a_lost_refusal_is_no_success_after_resume() {
    for closes_first in [false, true] {
        let mut rig = Rig::connected(options(), connect(V5));
        rig.read(&[0x34, 6, 0, 1, b'a', 0, 1, 0, 0x34, 6, 0, 1, b'a', 0, 2, 0]);
        let events = rig.events();
        let [Event::Publish(_, Some(token)), _] = &events[..] else { panic!("{events:?}") };
        if closes_first {
            rig.server.handle_link_closed();
        }
        rig.server.set_reason(*token, ReasonCode::NotAuthorized);
        rig.server.handle_link_closed();
        let session = rig.end().unwrap().session.unwrap();
        let mut rig = Rig::resumed(options(), connect(V5), session);
        rig.read(&[0x3C, 6, 0, 1, b'a', 0, 1, 0, 0x3C, 6, 0, 1, b'a', 0, 2, 0]);
        assert!(matches!(rig.events()[..], [Event::Publish(..)]), "the second was received");
    }
}

// [MQTT-3.3.4-10], [MQTT-4.9.0-3]
#[test]
fn a_used_up_quota_delays_nothing_but_publish() {
    let mut connect = connect(V5);
    connect.properties.receive_maximum = Some(1);
    let mut rig = Rig::connected(options(), connect);
    rig.server.deliver(delivery("t", "1", QoS::ExactlyOnce), rig.now);
    rig.sent();
    assert!(!rig.server.has_send_quota());
    assert!(matches!(rig.server.deliver(delivery("t", "2", QoS::AtLeastOnce), rig.now), Sent::Blocked(_)));
    assert!(matches!(rig.server.deliver(delivery("t", "3", QoS::AtMostOnce), rig.now), Sent::Out(None)));
    rig.read(&hex::bytes("C0 00 50 02 0001"));
    assert_eq!(hex::text(&rig.sent()), hex::text(&hex::bytes(r#"30 05 0001 "t" 00 "3" D0 00 62 02 0001"#)));
    rig.read(&hex::bytes("70 02 0001"));
    assert!(rig.server.has_send_quota());
}

#[test]
fn acknowledgements_out_of_turn_do_not_widen_the_quota() {
    let mut wide = connect(V5);
    wide.properties.receive_maximum = Some(4);
    let mut rig = Rig::connected(options(), wide);
    for _ in 0..4 {
        rig.server.deliver(delivery("t", "", QoS::AtLeastOnce), rig.now);
    }
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();
    let mut narrow = connect(V5);
    narrow.properties.receive_maximum = Some(2);
    let mut rig = Rig::resumed(options(), narrow, session);
    assert_eq!(packets(&rig.sent(), V5).len(), 2);
    // The third was not sent on this connection.
    rig.read(&hex::bytes("40 02 0003"));
    assert!(rig.sent().is_empty(), "three are on their way, and the receive maximum is two");
    rig.read(&hex::bytes("40 02 0001"));
    assert_eq!(packets(&rig.sent(), V5).len(), 1);
}

// [MQTT3-3.2.2-6]
#[test]
fn a_refusal_without_a_return_code_of_mqtt_3_is_silent() {
    for (reason, v3) in [
        (ReasonCode::NotAuthorized, "20 02 00 05"),
        (ReasonCode::ServerBusy, "20 02 00 03"),
        (ReasonCode::BadUserNameOrPassword, "20 02 00 04"),
        (ReasonCode::ClientIdentifierNotValid, "20 02 00 02"), // [MQTT3-3.1.3-9]
        (ReasonCode::TopicNameInvalid, ""),
    ] {
        let mut rig = deciding(options(), connect(V311));
        rig.server.reject(reason);
        assert_eq!(hex::text(&rig.sent()), v3);
        // [MQTT-3.1.4-2], [MQTT-3.2.2-6], [MQTT-3.2.2-7], [MQTT-3.2.2-8]
        let mut rig = deciding(options(), connect(V5));
        rig.server.reject(reason);
        assert_eq!(rig.sent(), [0x20, 3, 0, reason.value(), 0]);
        assert_eq!(rig.cause(), Some(Cause::Closed(reason)));
    }
}

// [MQTT-3.1.2-21], [MQTT-3.1.2-28], [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16], [MQTT-3.2.2-22]
#[test]
fn connack_has_only_properties_that_differ_from_connect() {
    let limits = ServerOptions {
        maximum_keep_alive: 100,
        maximum_session_expiry: SessionExpiry::from_secs(60),
        response_information: Some("answers/".into()),
        ..options()
    };
    let mut modest = connect(V5);
    modest.keep_alive = 50;
    modest.properties.session_expiry = Some(60);
    let connack = accept(&mut deciding(limits.clone(), modest), &Acceptance::default());
    assert_eq!(connack.properties.server_keep_alive, None);
    assert_eq!(connack.properties.session_expiry, None);
    assert_eq!(connack.properties.response_information, None);
    assert_eq!(connack.properties.assigned_client_id, None);

    for keep_alive in [0, 101] {
        let mut greedy = Connect::new(V5, "");
        greedy.keep_alive = keep_alive;
        greedy.properties.session_expiry = Some(u32::MAX);
        greedy.properties.request_response_information = Some(true);
        let acceptance = Acceptance { assigned_client_id: Some("given".into()), ..Acceptance::default() };
        let mut rig = deciding(limits.clone(), greedy);
        let connack = accept(&mut rig, &acceptance);
        assert_eq!(connack.properties.server_keep_alive, Some(100));
        assert_eq!(connack.properties.session_expiry, Some(60));
        assert_eq!(connack.properties.response_information.as_deref(), Some("answers/"));
        assert_eq!(connack.properties.assigned_client_id.unwrap().as_str(), "given");
        rig.wait(Duration::from_millis(149_999));
        assert!(!rig.server.is_closed());
        rig.wait(Duration::from_millis(1));
        assert!(rig.server.is_closed());
    }
}

// [MQTT-3.1.2-29]
#[test]
fn reason_strings_are_sent_on_request() {
    for wants in [None, Some(true), Some(false)] {
        let mut connect = connect(V5);
        connect.properties.request_problem_information = wants;
        let mut rig = Rig::connected(options(), connect);
        rig.read(&[0xD0, 0]);
        let Packet::Disconnect(disconnect) = packets(&rig.sent(), V5).remove(0) else { panic!() };
        assert_eq!(disconnect.reason_string.is_some(), wants != Some(false));
        // [MQTT-3.14.2-2]
        assert_eq!(disconnect.session_expiry, None);
    }
}

// [MQTT-3.14.2-3], [MQTT-3.14.2-4]
#[test]
fn a_reason_string_that_does_not_fit_is_left_out() {
    let mut connect = Connect::new(V5, "c");
    connect.properties.maximum_packet_size = Some(20);
    let mut rig = Rig::connected(options(), connect);
    rig.read(&[0xD0, 0]);
    assert_eq!(rig.sent(), [0xE0, 1, 0x82]);
}

// [MQTT-3.1.3-5], [MQTT3-3.1.3-5]
#[test]
fn every_client_identifier_of_the_standard_is_accepted() {
    let all = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for version in [ProtocolVersion::V31, V311, V5] {
        for id in ["0", &all[..23], &all[39..62]] {
            deciding(options(), Connect::new(version, id));
        }
    }
}

// [MQTT3-3.1.3-6]
#[test]
fn mqtt_3_1_1_may_leave_the_client_identifier_out_with_clean_session() {
    deciding(options(), Connect::new(V311, ""));
}

/// Only MQTT 5 demands the minimal length. [MQTT-1.5.5-1]
#[test]
fn mqtt_3_may_encode_a_length_in_more_bytes() {
    for name in [&b"\0\x04MQTT\x04"[..], b"\0\x06MQIsdp\x03"] {
        let body = [name, &[2, 0, 0, 0, 1, b'c']].concat();
        let len = u8::try_from(body.len()).unwrap();
        let bytes = [&[0x10, 0x80 | len, 0x80, 0][..], &body].concat();
        let mut rig = Rig::before_connect(options());
        bytes.chunks(3).for_each(|part| rig.read(part));
        assert!(matches!(rig.events()[..], [Event::Connect(_)]));
        rig.server.accept(Session::default(), &Acceptance::default(), rig.now, |_| true);
        let _ = rig.sent();
        rig.read(&[0x30, 0x83, 0, 0, 1, b't', 0xC0, 0x80, 0x80, 0]);
        assert!(matches!(rig.events()[..], [Event::Publish(..)]));
        assert_eq!(rig.sent(), [0xD0, 0]);
    }
}

#[test]
fn session_expiry_of_disconnect_is_checked_against_that_of_connect() {
    let limits = ServerOptions { maximum_session_expiry: SessionExpiry::WITH_CONNECTION, ..options() };
    let mut lasting = connect(V5);
    lasting.properties.session_expiry = Some(100);
    let mut rig = Rig::connected(limits, lasting);
    rig.read(&hex::bytes("E0 07 00 05 11 0000000A"));
    let end = rig.end().unwrap();
    assert_eq!(end.cause, Cause::Disconnected(ReasonCode::Success));
    assert_eq!(end.session.unwrap().expiry, SessionExpiry::WITH_CONNECTION);
}

#[test]
fn a_filter_of_65535_slashes_is_refused_in_its_place() {
    let mut rig = Rig::connected(ServerOptions::default(), connect(V5));
    let mut body = vec![0, 1, 0, 0xFF, 0xFF];
    body.extend([b'/'; 65_535]);
    body.extend([0, 0, 1, b'a', 1]);
    assert_eq!(body.len(), 9 + (4 << 14));
    let mut packet = vec![0x82, 0x89, 0x80, 0x04];
    packet.extend(body);
    rig.read(&packet);
    let events = rig.events();
    let [Event::Subscribe(_, subscribe)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(subscribe.entries[0].filter, Err(TopicError::TooManyLevels));
    assert_eq!(subscribe.entries[1].filter, Ok(TopicFilter::parse("a").unwrap()));
    assert!(TopicFilter::parse(&vec!["+"; MAX_LEVELS].join("/")).is_ok());
    assert!(TopicFilter::parse(&vec!["+"; MAX_LEVELS + 1].join("/")).is_err());
}

#[test]
fn a_connection_has_five_seconds_and_64_kib_for_its_connect() {
    let mut rig = Rig::before_connect(ServerOptions::default());
    // A CONNECT of exactly 64 KiB is accepted...
    rig.read(&[0x10, 0xFC, 0xFF, 0x03]);
    rig.read(&vec![0; 65_000]);
    assert_eq!(rig.server.partial_len(), 65_004);
    rig.wait(Duration::from_millis(4_999));
    assert!(!rig.server.is_closed());
    rig.wait(Duration::from_millis(1));
    assert!(rig.server.is_closed() && rig.sent().is_empty());
}

#[test]
fn the_longest_timeout_is_no_timeout() {
    let options = ServerOptions { connect_timeout: Duration::MAX, ..options() };
    let server = Server::new(Arc::new(options), std::time::Instant::now());
    assert_eq!(server.poll_timeout(), None);
}

// [MQTT-3.12.4-1]
#[test]
fn many_packets_of_one_read_are_answered_in_one_write() {
    let mut rig = Rig::connected(options(), connect(V311));
    rig.read(&[0xC0, 0].repeat(1000));
    assert_eq!(rig.sent(), [0xD0, 0].repeat(1000));
}

/// Memory of a client that reads and never acknowledges is bounded, for any Receive Maximum.
#[test]
fn unacknowledged_payloads_are_bounded_in_bytes() {
    let options = ServerOptions { maximum_inflight_bytes: 10_000, ..options() };
    let mut rig = Rig::connected(options, connect(V5));
    let deliver = |rig: &mut Rig, qos| rig.server.deliver(delivery("t", vec![0; 6000], qos), rig.now);
    // The second begins below the limit; the third would not.
    assert!(matches!(deliver(&mut rig, QoS::AtLeastOnce), Sent::Out(Some(_))));
    assert!(matches!(deliver(&mut rig, QoS::ExactlyOnce), Sent::Out(Some(_))));
    assert!(matches!(deliver(&mut rig, QoS::AtLeastOnce), Sent::Blocked(_)));
    assert!(!rig.server.has_send_quota());
    // Small payloads are bounded by their number.
    let small = rig.server.deliver(delivery("t", "small", QoS::AtLeastOnce), rig.now);
    assert!(matches!(small, Sent::Out(Some(_))));
    rig.read(&hex::bytes("40 02 00 03"));
    // QoS 0 is not kept.
    assert!(matches!(deliver(&mut rig, QoS::AtMostOnce), Sent::Out(None)));
    // PUBREC of the second frees its payload.
    rig.read(&hex::bytes("50 02 00 02"));
    assert!(rig.server.has_send_quota());
    assert!(matches!(deliver(&mut rig, QoS::AtLeastOnce), Sent::Out(Some(_))));
    assert!(!rig.server.has_send_quota());
    // PUBACK of the first.
    rig.read(&hex::bytes("40 02 00 01"));
    assert!(rig.server.has_send_quota());
}

/// Entries of SUBSCRIBE are parsed into many times their size: the limit is below that of PUBLISH.
#[test]
fn only_a_publish_may_exceed_1_mib() {
    let options = ServerOptions { maximum_packet_size: 268_435_455, ..options() };
    let mut rig = Rig::connected(options.clone(), connect(V5));
    rig.read(&hex::bytes("82 80 80 40"));
    let limit = 1024 * 1024;
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::PacketTooLarge { size: limit + 4, limit })));
    let mut rig = Rig::connected(options, connect(V5));
    rig.read(&hex::bytes("30 80 80 40"));
    assert!(!rig.server.is_closed());
}

/// An inflight payload does not stop reading: the peer's PINGREQ would not be read.
#[test]
fn the_outbox_counts_packets_and_payloads_apart() {
    let mut rig = Rig::connected(options(), connect(V5));
    rig.server.deliver(delivery("t", vec![0; 50_000], QoS::AtMostOnce), rig.now);
    rig.read(&hex::bytes("C0 00"));
    let outbox = rig.server.outbox(StreamKey::CONTROL).unwrap();
    assert_eq!(outbox.len(), outbox.packets_len() + 50_000);
    let head = outbox.packets_len() - 2;
    bytes::Buf::advance(outbox, head + 49_999);
    assert_eq!((outbox.len(), outbox.packets_len()), (3, 2));
    bytes::Buf::advance(outbox, 1);
    assert_eq!((outbox.len(), outbox.packets_len()), (2, 2));
}
