//! A client whose driver chooses stream and time of retransmissions.

use std::sync::Arc;
use std::time::Instant;

use braid_proto::connection::{Client, ClientEvent, ClientOptions, Resent, Sent};
use braid_proto::packet::{PacketId, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Session;
use braid_proto::stream::StreamKey;

use super::client::{ClientRig, publish};
use super::forge::{self, CONTROL};
use crate::rig::{connect, delivery};

/// Connected to a server that kept the session and has this Receive Maximum.
fn resumed(session: Option<Session>, receive_maximum: u8) -> ClientRig {
    let mut connect = connect(ProtocolVersion::V5);
    connect.clean_start = false;
    let now = Instant::now();
    let client = Client::new(Arc::new(ClientOptions::default()), connect, session, now);
    let mut rig = ClientRig { client, now };
    rig.client.place_resends();
    rig.sent_on(CONTROL);
    rig.read_on(CONTROL, &[0x20, 6, 1, 0, 3, 0x21, 0, receive_maximum]);
    assert!(matches!(rig.events()[..], [ClientEvent::Connected(_)]));
    rig
}

/// Message 1 of QoS 1, 2 of QoS 2 and 3 of QoS 2 after PUBREC, on several streams.
fn cut_off() -> Option<Session> {
    let mut rig = resumed(Some(Session::default()), 10);
    let (a, b) = (rig.open(1), rig.open(2));
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    publish(&mut rig, b, QoS::ExactlyOnce, "two");
    publish(&mut rig, b, QoS::ExactlyOnce, "three");
    rig.read_on(b, &forge::pubrec(3));
    rig.client.take_session()
}

fn resend(rig: &mut ClientRig, id: PacketId, on: StreamKey) -> Resent {
    let takes = rig.client.takes_resend(id, on);
    let resent = rig.client.resend(id, on, rig.now);
    assert_eq!(takes, resent != Resent::Blocked);
    resent
}

// [BQ-21], [MQTT-3.3.1-1], [MQTT-4.3.3-6], [MQTT-4.4.0-1], [MQTT-4.6.0-1]
#[test]
fn the_driver_places_retransmissions_except_pubrel() {
    let mut rig = resumed(cut_off(), 10);
    assert_eq!(rig.sent_on(CONTROL).unwrap(), forge::pubrel(3));
    let resends = rig.client.take_resends();
    let told: Vec<_> = resends.iter().map(|(id, it)| (id.value(), it.message.payload.clone())).collect();
    assert_eq!(told, [(1, "one".into()), (2, "two".into())]);
    assert!(rig.client.take_resends().is_empty(), "told once");
    rig.client.continue_resend(rig.now);
    assert!(rig.sent_on(CONTROL).unwrap().is_empty());
    let (a, b) = (rig.open(1), rig.open(2));
    assert_eq!(resend(&mut rig, resends[1].0, b), Resent::Out(b));
    assert_eq!(rig.sent_on(b).unwrap(), forge::publish_with_dup(2, 2, "two"));
    assert_eq!(resend(&mut rig, resends[1].0, a), Resent::Over, "it has been sent");
    assert_eq!(resend(&mut rig, resends[0].0, a), Resent::Out(a));
    assert_eq!(rig.sent_on(a).unwrap(), forge::publish_with_dup(1, 1, "one"));
    // [MQTT-4.3.3-4]: behind the PUBLISH, on any stream of its answer.
    rig.read_on(a, &forge::pubrec(2));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrel(2));
    rig.read_on(b, &[&forge::pubcomp(2)[..], &forge::puback(1), &forge::pubcomp(3)].concat());
    assert!(rig.client.session().unwrap().outbound.is_empty());
}

#[test]
fn unsent_retransmissions_stay_in_the_session() {
    let mut rig = resumed(cut_off(), 10);
    assert_eq!(rig.client.take_resends().len(), 2);
    let mut rig = resumed(rig.client.take_session(), 10);
    assert_eq!(rig.client.take_resends().len(), 2);
}

// [MQTT-4.9.0-1], [MQTT-4.9.0-2]
#[test]
fn the_receive_maximum_bounds_retransmissions() {
    let mut rig = resumed(cut_off(), 2);
    let a = rig.open(1);
    // The PUBREL counts.
    let resends = rig.client.take_resends();
    assert_eq!(resend(&mut rig, resends[0].0, a), Resent::Out(a));
    assert_eq!(resend(&mut rig, resends[1].0, a), Resent::Blocked);
    let new = rig.client.publish(delivery("t", "new", QoS::AtLeastOnce), rig.now);
    assert!(matches!(new, Ok(Sent::Blocked(_))));
    rig.read_on(a, &forge::puback(1));
    assert_eq!(resend(&mut rig, resends[1].0, a), Resent::Out(a));
    assert_eq!(rig.client.session().unwrap().outbound.unacknowledged(), 2);
}

// [BQ-42], [MQTT-4.4.0-2]
#[test]
fn exchanges_of_an_ended_stream_are_placed_unless_completed() {
    let mut rig = resumed(Some(Session::default()), 2);
    let (a, b) = (rig.open(1), rig.open(2));
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    publish(&mut rig, b, QoS::AtLeastOnce, "two");
    rig.client.handle_stream_reset(a, rig.now);
    rig.client.handle_stream_reset(b, rig.now);
    let ids: Vec<_> = rig.client.take_resends().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 2);
    assert!(rig.sent_on(CONTROL).unwrap().is_empty());
    rig.read_on(CONTROL, &forge::puback(1));
    assert_eq!(resend(&mut rig, ids[0], CONTROL), Resent::Over);
    // Counted in the Receive Maximum on any stream.
    publish(&mut rig, CONTROL, QoS::AtLeastOnce, "new");
    assert_eq!(resend(&mut rig, ids[1], a), Resent::Out(CONTROL), "a has ended");
    let expected = [forge::publish(1, 3, "new"), forge::publish_with_dup(1, 2, "two")].concat();
    assert_eq!(rig.sent_on(CONTROL).unwrap(), expected);
    assert_eq!(rig.client.session().unwrap().outbound.unacknowledged(), 2);
}

// [MQTT-3.1.2-25]
#[test]
fn retransmissions_above_the_new_maximum_packet_size_are_over() {
    let session = cut_off();
    let mut rig = resumed(Some(Session::default()), 10);
    rig.client.take_session();
    let mut connect = connect(ProtocolVersion::V5);
    connect.clean_start = false;
    rig.client = Client::new(Arc::new(ClientOptions::default()), connect, session, rig.now);
    rig.client.place_resends();
    rig.sent_on(CONTROL);
    // Maximum Packet Size 10: shorter than the PUBLISH of the first.
    rig.read_on(CONTROL, &[0x20, 8, 1, 0, 5, 0x27, 0, 0, 0, 10]);
    rig.events();
    let (id, _) = rig.client.take_resends().remove(0);
    assert_eq!(resend(&mut rig, id, CONTROL), Resent::TooLarge);
    let events = rig.events();
    assert!(matches!(events[..], [ClientEvent::Published(over, ReasonCode::PacketTooLarge)] if over == id));
}

// [BQ-34], [MQTT-4.3.3-6]
#[test]
fn messages_refused_with_their_stream_are_over_unless_received() {
    let mut rig = resumed(Some(Session::default()), 10);
    let a = rig.open(1);
    publish(&mut rig, a, QoS::AtLeastOnce, "poison");
    publish(&mut rig, a, QoS::ExactlyOnce, "taken");
    rig.sent_on(a);
    rig.read_on(a, &forge::pubrec(2));
    rig.client.handle_stream_refused(a, ReasonCode::PacketTooLarge, rig.now);
    let events = rig.events();
    assert!(
        matches!(
            events[..],
            [ClientEvent::Published(id, ReasonCode::PacketTooLarge), ClientEvent::StreamEnded(..)] if id.value() == 1
        ),
        "{events:?}"
    );
    rig.client.continue_resend(rig.now);
    assert_eq!(rig.sent_on(CONTROL).unwrap(), forge::pubrel(2));
    assert!(rig.client.take_resends().is_empty());
    assert_eq!(rig.client.session().unwrap().outbound.len(), 1);
    let mut rig = resumed(rig.client.take_session(), 10);
    assert!(rig.client.take_resends().is_empty());
}
