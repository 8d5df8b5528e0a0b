//! Deliveries of an ended stream on the control stream.

use std::num::NonZeroU64;

use braid_proto::connection::{Event, Progress, Sent, ServerOptions};
use braid_proto::message::Delivery;
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::{Priority, StreamKey};

use super::{forge, granting};
use crate::rig::{Rig, connect, delivery, options};

/// More than the limit of encoded retransmissions.
const LARGE: &str = match std::str::from_utf8(&[b'x'; 20_000]) {
    Ok(text) => text,
    Err(_) => "",
};

fn rig() -> Rig {
    granting(ServerOptions { receive_maximum: 9, ..options() })
}

fn deliver(rig: &mut Rig, stream: StreamKey, qos: QoS, payload: &'static str) {
    let delivery = Delivery { stream, ..delivery("t", payload, qos) };
    let sent = rig.server.deliver(delivery, rig.now);
    assert!(matches!(sent, Sent::Out(_)), "{sent:?}");
}

// [BQ-42], [MQTT-3.3.1-1], [MQTT-4.6.0-1]
#[test]
fn unacknowledged_messages_are_retransmitted_with_dup_and_in_order() {
    for ended_by_fin in [true, false] {
        let mut rig = rig();
        let data = rig.open(1);
        deliver(&mut rig, data, QoS::ExactlyOnce, "released");
        deliver(&mut rig, data, QoS::AtLeastOnce, "two");
        deliver(&mut rig, data, QoS::AtMostOnce, "none");
        deliver(&mut rig, data, QoS::ExactlyOnce, "three");
        rig.sent_on(data);
        // Unwritten when the stream ends.
        deliver(&mut rig, data, QoS::AtLeastOnce, "four");
        rig.read_on(data, &forge::pubrec(1));
        if ended_by_fin {
            rig.finish(data);
        } else {
            rig.reset(data);
        }
        let expected = [
            &forge::pubrel(1)[..],
            &forge::publish_with_dup(1, 2, "two"),
            &forge::publish_with_dup(2, 3, "three"),
            &forge::publish_with_dup(1, 4, "four"),
        ];
        assert_eq!(rig.sent(), expected.concat());
        let outbound = &rig.server.session().unwrap().outbound;
        assert_eq!((outbound.len(), outbound.unacknowledged()), (4, 4));
        rig.events();
        rig.read(&[&forge::pubcomp(1)[..], &forge::puback(2), &forge::pubrec(3), &forge::puback(4)].concat());
        assert_eq!(rig.sent(), forge::pubrel(3));
        rig.read(&forge::pubcomp(3));
        assert_eq!(rig.events().len(), 4);
        assert!(rig.server.session().unwrap().outbound.is_empty());
    }
}

// [BQ-42]
#[test]
fn new_messages_for_an_ended_stream_go_behind_on_the_control_stream() {
    let mut rig = rig();
    let data = rig.open(1);
    deliver(&mut rig, data, QoS::AtLeastOnce, "before");
    rig.reset(data);
    assert_eq!(rig.server.resolve(data), StreamKey::CONTROL);
    deliver(&mut rig, data, QoS::AtMostOnce, "zero");
    deliver(&mut rig, data, QoS::AtLeastOnce, "after");
    let expected = [
        forge::publish_with_dup(1, 1, "before"),
        forge::publish(0, 0, "zero"),
        forge::publish(1, 2, "after"),
    ];
    assert_eq!(rig.sent(), expected.concat());
}

// [BQ-42]
#[test]
fn inflight_messages_of_other_streams_stay() {
    let mut rig = rig();
    let (a, b) = (rig.open(1), rig.open(2));
    deliver(&mut rig, a, QoS::AtLeastOnce, "of a");
    deliver(&mut rig, b, QoS::AtLeastOnce, "of b");
    rig.reset(a);
    assert_eq!(rig.sent(), forge::publish_with_dup(1, 1, "of a"));
    assert_eq!(rig.sent_on(b).unwrap(), forge::publish(1, 2, "of b"));
}

// [BQ-42]
#[test]
fn an_exchange_that_continued_elsewhere_is_not_affected() {
    let mut rig = rig();
    let (a, b) = (rig.open(1), rig.open(2));
    deliver(&mut rig, a, QoS::ExactlyOnce, "m");
    rig.read_on(b, &forge::pubrec(1));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrel(1));
    rig.reset(a);
    assert!(rig.sent().is_empty(), "its PUBREL is on b");
    rig.reset(b);
    assert_eq!(rig.sent(), forge::pubrel(1));
}

// [BQ-42]
#[test]
fn the_receive_maximum_holds_while_streams_end() {
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.receive_maximum = Some(4);
    let mut rig = Rig::connected(options(), connect);
    let (a, b) = (rig.open(1), rig.open(2));
    deliver(&mut rig, a, QoS::AtLeastOnce, "");
    deliver(&mut rig, b, QoS::AtLeastOnce, "");
    deliver(&mut rig, a, QoS::AtLeastOnce, "");
    rig.reset(a);
    rig.reset(b);
    assert_eq!(rig.server.session().unwrap().outbound.unacknowledged(), 3);
    deliver(&mut rig, b, QoS::AtLeastOnce, "");
    assert!(!rig.server.has_send_quota());
    rig.read(&[forge::puback(1), forge::puback(2), forge::puback(3), forge::puback(4)].concat());
    assert_eq!(rig.server.session().unwrap().outbound.unacknowledged(), 0);
    assert!(rig.server.has_send_quota());
}

/// Nothing is then on the wire whose acknowledgement would make room.
// [BQ-42], [MQTT-4.4.0-1]
#[test]
fn retransmission_is_not_bounded_by_inflight_bytes() {
    let options = ServerOptions { maximum_inflight_bytes: 1000, receive_maximum: 9, ..options() };
    let mut rig = granting(options.clone());
    let (a, b) = (rig.open(1), rig.open(2));
    for stream in [a, b] {
        let delivery = Delivery { stream, ..delivery("t", vec![0; 6000], QoS::AtLeastOnce) };
        assert!(matches!(rig.server.deliver(delivery, rig.now), Sent::Out(_)));
    }
    rig.reset(a);
    rig.reset(b);
    assert!(rig.sent().len() > 12_000, "what a stream left waits for ever");
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();
    let mut rig = Rig::resumed(options, connect(ProtocolVersion::V5), session);
    assert!(rig.sent().len() > 12_000, "what a connection left waits for ever");
}

// [BQ-42]
#[test]
fn completion_is_reported_after_the_end_of_the_stream() {
    let mut rig = rig();
    let data = rig.open(1);
    let queue_lsn = NonZeroU64::new(9).unwrap();
    let delivery =
        Delivery { stream: data, queue_lsn: Some(queue_lsn), ..delivery("t", "", QoS::AtLeastOnce) };
    rig.server.deliver(delivery, rig.now);
    rig.reset(data);
    assert_eq!(rig.server.poll_progress(), None);
    rig.read(&forge::puback(1));
    assert_eq!(rig.server.poll_progress(), Some(Progress::Completed(queue_lsn)));
    assert!(matches!(rig.events()[..], [Event::StreamEnded(_), Event::Complete(..)]));
}

// [BQ-42], [MQTT-4.4.0-1]
#[test]
fn a_resumed_session_continues_on_the_control_stream() {
    let mut rig = rig();
    let data = rig.open(1);
    deliver(&mut rig, data, QoS::AtLeastOnce, "m");
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();
    let mut rig = Rig::resumed(options(), connect(ProtocolVersion::V5), session);
    assert_eq!(rig.sent(), forge::publish_with_dup(1, 1, "m"));
}

// [BQ-42], [BQ-53]
#[test]
fn retransmission_is_paced_and_yields_to_urgent_messages() {
    let mut rig = rig();
    let (bulk, other) = (rig.open(1), rig.open(2));
    let payload = "x".repeat(10_000);
    for priority in [8, 8, 8, 50] {
        let delivery = delivery("t", payload.clone(), QoS::AtLeastOnce);
        let delivery = Delivery { stream: bulk, priority: Priority::new(priority), ..delivery };
        assert!(matches!(rig.server.deliver(delivery, rig.now), Sent::Out(_)));
    }
    rig.sent_on(bulk);
    rig.reset(bulk);
    assert!(rig.server.unwritten() < 30_000, "two of four messages, however many there are");
    let alarm = |priority| Delivery {
        stream: other,
        priority: Priority::new(priority),
        ..delivery("a", "a", QoS::AtLeastOnce)
    };
    assert!(matches!(rig.server.deliver(alarm(8), rig.now), Sent::Blocked(_)), "behind its equals");
    assert!(matches!(rig.server.deliver(alarm(200), rig.now), Sent::Out(_)));
    let first = rig.sent();
    assert_eq!(first[0], 0x3A, "PUBLISH with DUP and QoS 1");
    assert_eq!(u16::from_be_bytes([first[6], first[7]]), 4, "the most urgent first");
    let mut rounds = 1;
    while rig.server.is_resending() {
        rig.server.continue_resend(rig.now, |_| true);
        assert!(!rig.sent().is_empty());
        rounds += 1;
    }
    assert_eq!(rounds, 2);
    assert!(matches!(rig.server.deliver(alarm(8), rig.now), Sent::Out(_)));
}

// [BQ-42], [MQTT-4.3.3-10]: a repetition that arrives after its PUBREL would be a new message.
#[test]
fn a_pubrel_follows_its_retransmitted_publish() {
    let mut rig = rig();
    let (a, b) = (rig.open(1), rig.open(2));
    deliver(&mut rig, a, QoS::ExactlyOnce, "m");
    rig.sent_on(a);
    rig.reset(a);
    // Answer to the first one, on a stream that may overtake the control stream.
    rig.read_on(b, &forge::pubrec(1));
    let expected = [&forge::publish_with_dup(2, 1, "m")[..], &forge::pubrel(1)];
    assert_eq!(rig.sent(), expected.concat());
    assert!(rig.sent_on(b).is_none_or(|bytes| bytes.is_empty()));
    rig.read_on(b, &forge::pubcomp(1));
    assert!(rig.server.session().unwrap().outbound.is_empty());
}

// [BQ-24], [MQTT-4.9.0-1]: messages of an ended stream count until they are acknowledged; nothing urgent is sent
// beyond the quota.
#[test]
fn messages_of_an_ended_stream_count_against_the_receive_maximum() {
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.receive_maximum = Some(2);
    let mut rig = Rig::connected(options(), connect);
    let data = rig.open(1);
    deliver(&mut rig, data, QoS::AtLeastOnce, "one");
    deliver(&mut rig, data, QoS::AtLeastOnce, "two");
    rig.sent_on(data);
    // The control stream's outbox is full: nothing is retransmitted yet.
    let large = delivery("t", LARGE, QoS::AtMostOnce);
    assert!(matches!(rig.server.deliver(large, rig.now), Sent::Out(None)));
    rig.reset(data);
    let urgent = Delivery { priority: Priority::HIGHEST, ..delivery("t", "urgent", QoS::AtLeastOnce) };
    assert!(!rig.server.takes(&urgent));
    rig.sent();
    rig.read(&forge::puback(1));
    assert!(rig.server.takes(&urgent));
}
