//! End of a data stream, and independence of the other streams from it.

use braid_proto::connection::{Cause, Event, ServerOptions, StreamAction};
use braid_proto::error::Violation;
use braid_proto::packet::{PacketId, ProtocolVersion, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;

use super::{established, forge, granting, payloads};
use crate::rig::{Rig, connect, options};

fn finish(rig: &mut Rig, stream: StreamKey) {
    rig.finish(stream);
}

fn is_end(events: &[Event], stream: StreamKey) -> bool {
    matches!(events, [Event::StreamEnded(ended)] if *ended == stream)
}

// [BQ-30]
#[test]
fn fin_is_answered_with_fin_after_the_answers() {
    let mut rig = granting(ServerOptions { receive_maximum: 9, ..options() });
    let data = rig.open(1);
    rig.read_on(data, &forge::publish(1, 1, "a"));
    rig.read_on(data, &forge::subscribe(2, "f"));
    let events = rig.events();
    finish(&mut rig, data);
    assert!(is_end(&rig.events(), data));
    assert!(rig.actions().is_empty(), "two answers are pending");
    rig.persist(&events);
    assert!(rig.actions().is_empty(), "one is pending, one is to be written");
    assert_eq!(rig.sent_on(data).unwrap(), forge::puback(1));
    assert!(rig.actions().is_empty(), "one is pending");
    let id = PacketId::new(2).unwrap();
    let token = rig.server.suback(data, id, vec![ReasonCode::Success]).unwrap();
    rig.server.handle_persisted(token);
    assert!(rig.actions().is_empty(), "one is to be written");
    assert_eq!(rig.sent_on(data).unwrap(), [0x90, 4, 0, 2, 0, 0]);
    assert_eq!(rig.actions(), [StreamAction::Finish(data)]);
    assert!(rig.sent_on(data).is_none() && !rig.server.is_reading(data));
    finish(&mut rig, data);
    assert!(rig.events().is_empty() && rig.actions().is_empty(), "it ends once");
}

// [BQ-30]
#[test]
fn fin_on_a_stream_without_a_byte_is_answered() {
    let mut rig = established();
    let data = rig.open(1);
    finish(&mut rig, data);
    assert_eq!(rig.actions(), [StreamAction::Finish(data)]);
}

// [BQ-30]
#[test]
fn fin_within_a_packet_resets_the_stream() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::publish(1, 1, "cut off")[..9]);
    finish(&mut rig, data);
    assert_eq!(rig.actions(), [StreamAction::Abort(data, ReasonCode::MalformedPacket)]);
    let events = rig.events();
    assert!(matches!(events[0], Event::StreamViolated(on, Violation::Truncated) if on == data));
    assert!(is_end(&events[1..], data));
}

// [BQ-32]
#[test]
fn a_stream_that_the_client_resets_ends() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::publish(1, 1, "heard")[..4]);
    rig.read_on(data, &forge::publish(1, 1, "heard")[4..]);
    let events = rig.events();
    assert_eq!(payloads(&events), ["heard"]);
    rig.reset(data);
    rig.reset(data);
    assert!(is_end(&rig.events(), data), "it ends once");
    assert!(rig.actions().is_empty(), "the driver has answered");
    // [BQ-35]
    rig.persist(&events);
    assert!(rig.sent().is_empty() && rig.sent_on(data).is_none());
    rig.read_on(data, &forge::publish(0, 0, "late"));
    assert!(rig.events().is_empty() && !rig.server.is_closed());
}

// [BQ-33], [BQ-35]
#[test]
fn a_stream_that_the_client_stops_is_still_read() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::publish(1, 1, "heard"));
    let events = rig.events();
    rig.server.handle_stream_stopped(data);
    assert!(is_end(&rig.events(), data), "nothing can be said there any more");
    rig.read_on(data, &forge::publish(1, 2, "still heard"));
    let more = rig.events();
    assert_eq!((payloads(&events), payloads(&more)), (vec!["heard".into()], vec!["still heard".into()]));
    rig.persist(&more);
    assert!(rig.sent().is_empty() && rig.sent_on(data).is_none_or(|sent| sent.is_empty()));
    rig.finish(data);
    assert!(rig.actions().is_empty() && rig.server.outbox(data).is_none(), "the transport has ended it");
}

// [BQ-35]
#[test]
fn acks_of_an_ended_stream_are_dropped_and_delay_nothing() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read_on(a, &forge::publish(1, 5, ""));
    rig.read_on(a, &forge::subscribe(6, "f"));
    rig.reset(a);
    let events = rig.events();
    rig.persist(&events);
    let id = PacketId::new(6).unwrap();
    let token = rig.server.suback(a, id, vec![ReasonCode::Success]).expect("its place is there");
    rig.server.handle_persisted(token);
    rig.read_on(b, &forge::publish(1, 5, ""));
    let events = rig.events();
    rig.persist(&events);
    assert_eq!(rig.sent_on(b).unwrap(), forge::puback(5));
    assert!(rig.sent().is_empty() && rig.server.is_reading(b));
}

// [BQ-34], [BQ-10]
#[test]
fn a_violation_on_a_data_stream_ends_it_alone() {
    let too_large = [0x30, 0x81, 8];
    let cases: [(&[u8], ReasonCode); 6] = [
        (&[0x00, 0x00], ReasonCode::MalformedPacket),
        (&[0x30, 0xFF, 0xFF, 0xFF, 0xFF], ReasonCode::MalformedPacket),
        (&too_large, ReasonCode::PacketTooLarge),
        (&[0xE0, 0x00], ReasonCode::ProtocolError),
        (&[0x30, 6, 0, 1, b't', 2, 0x0B, 1], ReasonCode::ProtocolError),
        (&[0x30, 4, 0, 1, b'#', 0], ReasonCode::TopicNameInvalid),
    ];
    for (bytes, reason) in cases {
        let mut connect = connect(ProtocolVersion::V5);
        connect.will = Some(will());
        let mut rig = Rig::connected(options(), connect);
        let (bad, good) = (rig.open(1), rig.open(2));
        rig.read_on(good, &forge::publish(1, 1, "torn")[..6]);
        rig.read_on(bad, &forge::publish(0, 0, "before"));
        rig.read_on(bad, &[bytes, &forge::publish(0, 0, "behind")].concat());
        assert_eq!(rig.actions(), [StreamAction::Abort(bad, reason)]);
        let events = rig.events();
        assert_eq!(payloads(&events), ["before"]);
        assert!(
            matches!(events[1], Event::StreamViolated(on, violation) if on == bad && violation.reason() == reason)
        );
        assert!(is_end(&events[2..], bad));
        assert!(rig.sent().is_empty() && rig.sent_on(bad).is_none());
        // The other streams continue.
        rig.read_on(good, &forge::publish(1, 1, "torn")[6..]);
        rig.read(&forge::PINGREQ);
        assert_eq!(payloads(&rig.events()), ["torn"]);
        assert_eq!(rig.sent(), forge::PINGRESP);
        // [BQ-40]
        rig.server.handle_link_closed();
        let end = rig.end().unwrap();
        assert!(end.will.is_some(), "the Will of the connection went with a stream");
        assert_eq!(end.cause, Cause::Lost);
    }
}

fn will() -> Will {
    Will {
        qos: braid_proto::packet::QoS::AtMostOnce,
        retain: false,
        topic: TopicName::parse("w").unwrap(),
        payload: "gone".into(),
        delay: 0,
        properties: None,
    }
}

// [BQ-34]
#[test]
fn a_violation_on_the_control_stream_ends_the_connection() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read(&[0x00, 0x00]);
    assert_eq!(rig.sent(), [0xE0, 1, 0x81]);
    assert!(rig.server.is_closed() && rig.sent_on(data).is_none() && rig.actions().is_empty());
}

// [BQ-30], [BQ-42]
#[test]
fn a_subscribe_before_fin_is_reported_before_the_end_of_its_stream() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::subscribe(1, "f"));
    finish(&mut rig, data);
    let events = rig.events();
    assert!(matches!(&events[0], Event::Subscribe(on, subscribe) if *on == data && subscribe.id.is_none()));
    assert!(is_end(&events[1..], data));
}

/// Ten thousand streams leave no memory behind.
#[test]
fn streams_come_and_go() {
    let mut rig = established();
    for n in 1..10_000 {
        let data = rig.open(n);
        rig.read_on(data, &forge::publish(1, 1, ""));
        let events = rig.events();
        rig.persist(&events);
        if n % 3 == 0 {
            rig.reset(data);
        } else {
            finish(&mut rig, data);
            assert_eq!(rig.sent_on(data).unwrap(), forge::puback(1));
            assert_eq!(rig.actions(), [StreamAction::Finish(data)]);
        }
        assert!(is_end(&rig.events(), data));
    }
    assert_eq!(rig.server.unwritten(), 0);
}
