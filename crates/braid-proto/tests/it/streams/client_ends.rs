//! End of a client's streams.

use std::time::Duration;

use braid_proto::connection::{ClientEvent, Sent, StreamAction};
use braid_proto::error::Violation;
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{MessageProperties, PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use bytes::Buf;

use super::client::{ClientRig, publish, subscribe};
use super::forge::{self, CONTROL};

// [BQ-30]
#[test]
fn a_finished_stream_still_gets_answers_and_ends_with_the_servers_fin() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    publish(&mut rig, a, QoS::ExactlyOnce, "two");
    rig.client.finish_stream(a);
    assert!(rig.actions().is_empty(), "something is to be written");
    publish(&mut rig, a, QoS::AtMostOnce, "elsewhere");
    assert_eq!(rig.sent_on(a).unwrap(), [forge::publish(1, 1, "one"), forge::publish(2, 2, "two")].concat());
    assert_eq!(rig.sent_on(CONTROL).unwrap(), forge::publish(0, 0, "elsewhere"));
    assert_eq!(rig.actions(), [StreamAction::Finish(a)]);
    assert!(rig.sent_on(a).is_none());
    rig.read_on(a, &[forge::puback(1), forge::pubrec(2)].concat());
    // Sent where the stream is still open.
    assert_eq!(rig.sent_on(CONTROL).unwrap(), forge::pubrel(2));
    rig.client.handle_stream_finished(a, rig.now);
    rig.client.handle_stream_reset(a, rig.now);
    let events = rig.events();
    assert!(
        matches!(&events[..], [ClientEvent::Published(..), ClientEvent::StreamEnded(on, left)] if *on == a && left.is_empty())
    );
    assert!(rig.sent_on(CONTROL).unwrap().is_empty() && rig.actions().is_empty());
}

// [BQ-42]
#[test]
fn unanswered_exchanges_continue_on_the_control_stream_after_fin() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    publish(&mut rig, a, QoS::ExactlyOnce, "two");
    let request = subscribe(&mut rig, a);
    rig.sent_on(a);
    rig.client.finish_stream(a);
    assert_eq!(rig.actions(), [StreamAction::Finish(a)]);
    assert!(
        rig.sent_on(CONTROL).unwrap().is_empty(),
        "the server may not know yet that the stream has ended"
    );
    rig.client.handle_stream_finished(a, rig.now);
    assert_eq!(rig.sent_on(CONTROL).unwrap(), forge::publish_with_dup(2, 1, "two"));
    let events = rig.events();
    assert!(matches!(&events[..], [ClientEvent::StreamEnded(_, requests)] if *requests == [request]));
}

// [BQ-42], [MQTT-4.3.3-10]
#[test]
fn packets_on_an_ending_stream_are_left_to_the_control_stream() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    rig.client.finish_stream(a);
    rig.read_on(a, &[forge::publish(2, 1, "twice"), forge::publish(0, 0, "zero")].concat());
    assert_eq!(rig.actions(), [StreamAction::Finish(a)], "nothing is pending");
    let events = rig.events();
    assert!(matches!(&events[..], [ClientEvent::Message(incoming)] if incoming.message.payload == "zero"));
    // The exchange ends on the control stream; its identifier is used again.
    rig.read_on(CONTROL, &forge::publish_with_dup(2, 1, "twice"));
    let [ClientEvent::Message(first)] = &rig.events()[..] else { panic!("one message") };
    rig.client.acknowledge(first.token.unwrap(), rig.now);
    rig.read_on(CONTROL, &[&forge::pubrel(1)[..], &forge::publish(2, 1, "new")].concat());
    assert_eq!(rig.events().len(), 1);
    // Late packet from before the FIN.
    rig.read_on(a, &forge::pubrel(1));
    rig.read_on(CONTROL, &forge::publish_with_dup(2, 1, "new"));
    assert!(rig.events().is_empty(), "an old PUBREL ended the new exchange");
}

// [BQ-32], [BQ-33], [BQ-42], [BQ-35]
#[test]
fn exchanges_of_a_reset_stream_continue() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    publish(&mut rig, a, QoS::ExactlyOnce, "two");
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    let request = subscribe(&mut rig, a);
    rig.sent_on(a);
    publish(&mut rig, a, QoS::AtLeastOnce, "unwritten");
    rig.read_on(a, &forge::publish(1, 5, "unacknowledged"));
    rig.client.handle_stream_reset(a, rig.now);
    let expected = [
        forge::publish_with_dup(2, 1, "two"),
        forge::publish_with_dup(1, 2, "one"),
        forge::publish_with_dup(1, 4, "unwritten"),
    ];
    assert_eq!(rig.sent_on(CONTROL).unwrap(), expected.concat());
    let events = rig.events();
    let [ClientEvent::Message(unacknowledged), ClientEvent::StreamEnded(_, requests)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*requests, [request]);
    rig.client.acknowledge(unacknowledged.token.unwrap(), rig.now);
    assert!(rig.sent_on(CONTROL).unwrap().is_empty(), "its PUBACK belongs to the stream that ended");
    let free = subscribe(&mut rig, CONTROL);
    assert!(free > request && rig.client.is_established());
}

// [BQ-34]
#[test]
fn a_violation_of_the_server_ends_its_data_stream_alone() {
    let mut rig = ClientRig::new();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read_on(a, &[0x00, 0x00]);
    assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::MalformedPacket)]);
    let events = rig.events();
    assert!(
        matches!(
            events[..],
            [ClientEvent::StreamViolated(_, Violation::ReservedPacketType(0)), ClientEvent::StreamEnded(..)]
        ),
        "{events:?}"
    );
    rig.read_on(b, &forge::publish(0, 0, "goes on"));
    assert!(matches!(rig.events()[..], [ClientEvent::Message(_)]));
    assert!(rig.client.is_established());
}

// [BQ-34]
#[test]
fn a_fin_of_the_server_within_a_packet_is_a_violation() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    rig.read_on(a, &[0x30]);
    rig.client.handle_stream_finished(a, rig.now);
    assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::MalformedPacket)]);
    assert_eq!(rig.events().len(), 2);
}

fn publish_expiring(rig: &mut ClientRig, stream: StreamKey, qos: QoS) -> Option<PacketId> {
    let properties = MessageProperties { message_expiry: Some(1), ..MessageProperties::default() };
    let message = Message::new(TopicName::parse("t").unwrap(), vec![b'.'; 5000], qos, false)
        .with_properties(Some(Box::new(properties)), rig.now);
    let delivery = Delivery { stream, ..Delivery::of(SharedMessage::new(message)) };
    match rig.client.publish(delivery, rig.now) {
        Ok(Sent::Out(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// The server cannot have received all of it.
#[test]
fn a_partly_sent_expired_message_is_over_with_its_stream() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut rig = ClientRig::new();
        let a = rig.open(1);
        let id = publish_expiring(&mut rig, a, qos);
        let outbox = rig.client.outbox(a).unwrap();
        outbox.advance(outbox.len() - 1);
        rig.now += Duration::from_secs(1);
        rig.client.abort_stream(a, ReasonCode::UnspecifiedError, rig.now);
        assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::UnspecifiedError)]);
        assert!(rig.sent_on(CONTROL).unwrap().is_empty(), "it is over");
        let over = rig.events().iter().find_map(|event| match event {
            ClientEvent::Published(over, ReasonCode::UnspecifiedError) => Some(*over),
            _ => None,
        });
        assert_eq!(over, id);
        assert!(rig.client.session().unwrap().outbound.is_empty());
    }
}

// [BQ-20], [BQ-21], [MQTT-4.3.3-10]
#[test]
fn a_written_qos_2_message_waits_for_the_next_connection() {
    let mut rig = ClientRig::new();
    let a = rig.open(1);
    publish_expiring(&mut rig, a, QoS::ExactlyOnce);
    publish(&mut rig, a, QoS::AtLeastOnce, "one");
    rig.sent_on(a);
    publish(&mut rig, a, QoS::ExactlyOnce, "unwritten");
    rig.now += Duration::from_secs(1);
    rig.client.abort_stream(a, ReasonCode::UnspecifiedError, rig.now);
    let expected = [forge::publish_with_dup(1, 2, "one"), forge::publish_with_dup(2, 3, "unwritten")];
    assert_eq!(rig.sent_on(CONTROL).unwrap(), expected.concat(), "before the server knows of the end");
    assert!(matches!(rig.events()[..], [ClientEvent::StreamEnded(..)]));
    let outbound = &rig.client.session().unwrap().outbound;
    assert_eq!((outbound.len(), outbound.unacknowledged()), (3, 3));
    let mut session = rig.client.take_session().unwrap();
    assert_eq!(session.outbound.resume().len(), 3);
}

// [BQ-12]
#[test]
fn a_unidirectional_stream_is_finished_once_it_is_written() {
    let mut rig = ClientRig::new();
    let uni = StreamKey::uni(0);
    rig.client.handle_stream_opened(uni);
    publish(&mut rig, uni, QoS::AtMostOnce, "m");
    rig.client.finish_stream(uni);
    assert!(rig.actions().is_empty());
    rig.sent_on(uni);
    assert_eq!(rig.actions(), [StreamAction::Finish(uni)]);
    assert!(matches!(rig.events()[..], [ClientEvent::StreamEnded(..)]) && rig.sent_on(uni).is_none());
}
