//! Streams of acknowledgements and answers.

use braid_proto::packet::{PacketId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;

use super::{established, forge, payloads};
use crate::rig::delivery;

// [BQ-14]
#[test]
fn an_acknowledgement_goes_on_the_stream_of_its_request() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read_on(a, &forge::publish(1, 7, "a"));
    rig.read_on(b, &forge::publish(2, 7, "b"));
    rig.read(&forge::publish(1, 7, "c"));
    let events = rig.events();
    rig.persist(&events);
    assert_eq!(rig.sent_on(a).unwrap(), forge::puback(7));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrec(7));
    assert_eq!(rig.sent(), forge::puback(7));
    rig.read_on(b, &forge::pubrel(7));
    let events = rig.events();
    rig.persist(&events);
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubcomp(7));
    assert!(rig.sent().is_empty() && rig.sent_on(a).unwrap().is_empty());
}

// [BQ-14]
#[test]
fn a_subscribe_is_answered_on_its_stream_even_under_the_same_identifier() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read_on(a, &forge::subscribe(1, "x"));
    rig.read_on(b, &forge::subscribe(1, "y"));
    rig.read_on(b, &forge::unsubscribe(2, "z"));
    let id = PacketId::FIRST;
    let first = rig.server.suback(b, id, vec![ReasonCode::GrantedQos1]).unwrap();
    let second = rig.server.suback(a, id, vec![ReasonCode::NotAuthorized]).unwrap();
    let third = rig.server.unsuback(b, id.next(), vec![ReasonCode::Success]).unwrap();
    assert_eq!((second.stream(), first.stream(), third.stream()), (a, b, b));
    assert!(second < first && first < third, "tokens are in the order of the requests");
    rig.server.handle_persisted(third);
    assert_eq!(rig.sent_on(a).unwrap(), [0x90, 4, 0, 1, 0, 0x87]);
    assert_eq!(rig.sent_on(b).unwrap(), [0x90, 4, 0, 1, 0, 1, 0xB0, 4, 0, 2, 0, 0]);
}

// [BQ-11]
#[test]
fn a_pingreq_is_answered_on_the_control_stream() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::PINGREQ);
    assert_eq!(rig.sent(), forge::PINGRESP);
    assert!(rig.sent_on(data).unwrap().is_empty());
}

// [BQ-11], [BQ-41]
#[test]
fn disconnect_is_sent_on_the_control_stream() {
    let mut rig = established();
    let data = rig.open(1);
    rig.read_on(data, &forge::publish(1, 1, ""));
    let events = rig.events();
    rig.persist(&events);
    rig.server.disconnect(ReasonCode::SessionTakenOver);
    assert_eq!(rig.sent(), [0xE0, 1, 0x8E]);
    assert!(rig.sent_on(data).is_none() && rig.actions().is_empty());
}

// [BQ-15]
#[test]
fn a_message_goes_on_the_stream_that_subscribed() {
    let mut rig = established();
    let data = rig.open(1);
    let mut delivery = delivery("t", "m", QoS::AtMostOnce);
    delivery.stream = data;
    rig.server.deliver(delivery, rig.now);
    let mut streams = Vec::new();
    rig.server.streams_to_write(&mut streams);
    assert_eq!(streams, [data]);
    assert_eq!(rig.sent_on(data).unwrap(), forge::publish(0, 0, "m"));
}

// [BQ-22]
#[test]
fn deliveries_may_be_acknowledged_on_any_stream() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut delivery = delivery("t", "m", qos);
        delivery.stream = a;
        rig.server.deliver(delivery, rig.now);
    }
    assert_eq!(rig.sent_on(a).unwrap(), [forge::publish(1, 1, "m"), forge::publish(2, 2, "m")].concat());
    rig.read(&forge::puback(1));
    rig.read_on(b, &forge::pubrec(2));
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrel(2));
    rig.read_on(a, &forge::pubcomp(2));
    assert_eq!(
        format!("{:?}", rig.events()),
        "[Complete(PacketId(1), Success), Complete(PacketId(2), Success)]"
    );
    assert!(rig.server.session().unwrap().outbound.is_empty());
}

// [BQ-12]
#[test]
fn a_unidirectional_stream_carries_qos_0_and_needs_no_fin() {
    let mut rig = established();
    let uni = StreamKey::uni(0);
    rig.server.handle_stream_opened(uni);
    rig.read_on(uni, &forge::publish(0, 0, "one"));
    rig.read_on(uni, &forge::publish(0, 0, "two"));
    assert_eq!(payloads(&rig.events()), ["one", "two"]);
    rig.finish(uni);
    assert!(rig.actions().is_empty(), "there is nothing to finish");
    assert!(rig.sent_on(uni).is_none());
}
