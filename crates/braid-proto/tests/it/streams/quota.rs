//! Receive Maximum, in both directions.

use braid_proto::connection::{Sent, ServerOptions, StreamAction};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;

use super::{established, forge, granting, payloads};
use crate::rig::{Rig, connect, delivery, options};

// [BQ-23]
#[test]
fn the_sum_over_the_streams_may_exceed_the_receive_maximum() {
    let mut rig = established();
    let streams = [StreamKey::CONTROL, rig.open(1), rig.open(2), rig.open(3)];
    for on in streams {
        // Maximum number of messages of one stream.
        rig.read_on(on, &forge::publish(1, 1, ""));
        rig.read_on(on, &forge::publish(2, 2, ""));
    }
    let events = rig.events();
    assert_eq!(payloads(&events).len(), 8);
    assert!(!rig.server.is_closed() && rig.actions().is_empty());
    // Bounded by not reading.
    assert!(streams.iter().all(|stream| !rig.server.is_reading(*stream)));
    rig.persist(&events);
    assert!(streams.iter().all(|stream| rig.server.is_reading(*stream)));
}

// [BQ-23], [BQ-55]
#[test]
fn pending_acks_of_one_stream_do_not_stop_the_others() {
    let mut rig = established();
    let [busy, also, idle] = [1, 2, 3].map(|n| rig.open(n));
    for id in [1, 2] {
        rig.read_on(busy, &forge::publish(1, id, ""));
        rig.read_on(also, &forge::publish(1, id, ""));
    }
    assert!(!rig.server.is_reading(busy) && !rig.server.is_reading(also));
    assert!(rig.server.is_reading(idle) && rig.server.is_reading(StreamKey::CONTROL));
}

// [BQ-23], [MQTT-3.3.4-7]
#[test]
fn a_stream_that_exceeds_the_receive_maximum_is_ended_alone() {
    for qos in [1, 2] {
        let mut rig = established();
        let (a, b) = (rig.open(1), rig.open(2));
        for id in 1..=3 {
            rig.read_on(a, &forge::publish(qos, id, ""));
        }
        assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::ReceiveMaximumExceeded)]);
        assert!(!rig.server.is_closed());
        assert_eq!(payloads(&rig.events()).len(), 2);
        rig.read_on(b, &forge::publish(0, 0, "goes on"));
        assert_eq!(payloads(&rig.events()), ["goes on"]);
    }
}

// [BQ-23]
#[test]
fn acknowledged_messages_of_a_stream_make_room_on_it() {
    let mut rig = established();
    let a = rig.open(1);
    for id in 1..=20 {
        rig.read_on(a, &forge::publish(1, id, ""));
        let events = rig.events();
        rig.persist(&events);
    }
    for id in 1..=20 {
        rig.read_on(a, &forge::publish(2, id, ""));
        let events = rig.events();
        rig.persist(&events);
        rig.read_on(a, &forge::pubrel(id));
        let events = rig.events();
        rig.persist(&events);
    }
    assert!(rig.actions().is_empty() && rig.server.session().unwrap().inbound.is_empty());
}

fn deliver(rig: &mut Rig, on: StreamKey) -> bool {
    let mut delivery = delivery("t", "", QoS::AtLeastOnce);
    delivery.stream = on;
    let takes = rig.server.takes(&delivery);
    let sent = rig.server.deliver(delivery, rig.now);
    assert_eq!(takes, matches!(sent, Sent::Out(_)), "{sent:?}");
    takes
}

// [BQ-24], [BQ-55], [MQTT-4.9.0-1]
#[test]
fn a_lane_whose_client_does_not_acknowledge_leaves_room_for_others() {
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.receive_maximum = Some(20);
    let mut rig = Rig::connected(options(), connect);
    let (stuck, other) = (rig.open(1), rig.open(2));
    assert!(deliver(&mut rig, other));
    rig.read_on(other, &forge::puback(1));
    while deliver(&mut rig, stuck) {}
    let unacknowledged = |rig: &Rig| rig.server.session().unwrap().outbound.unacknowledged();
    let held = unacknowledged(&rig);
    assert!((10..20).contains(&held), "{held} of 20");
    // Without end, and never more than the client accepts.
    for _ in 0..100 {
        assert!(deliver(&mut rig, other));
        assert!(unacknowledged(&rig) <= 20);
        let sent = rig.sent_on(other).unwrap();
        rig.read_on(other, &forge::puback(sent[sent.len() - 2]));
    }
}

// [BQ-24]
#[test]
fn a_single_lane_has_the_whole_quota() {
    let mut rig = granting(ServerOptions { maximum_inflight: 15, ..options() });
    let only = rig.open(1);
    assert!((0..15).all(|_| deliver(&mut rig, only)));
    assert!(!deliver(&mut rig, only));
}

// [BQ-24]
#[test]
fn a_new_stream_finds_quota_beside_a_stuck_one() {
    for maximum in [2, 7, 64] {
        let mut rig = granting(ServerOptions { maximum_inflight: maximum, ..options() });
        let (stuck, quiet) = (rig.open(1), rig.open(2));
        while deliver(&mut rig, stuck) {}
        assert!(deliver(&mut rig, quiet), "of {maximum}");
    }
}
