//! Packet Identifiers: a client has a set for each stream, a server one for the session.

use braid_proto::connection::Event;
use braid_proto::packet::ProtocolVersion;

use super::{established, forge, payloads};
use crate::rig::{Rig, connect, options};

/// Completes the reception of a QoS 2 message; its PUBREC is sent.
fn take_over(rig: &mut Rig, on: braid_proto::stream::StreamKey, id: u8, payload: &str) {
    rig.read_on(on, &forge::publish(2, id, payload));
    let events = rig.events();
    assert_eq!(payloads(&events), [payload]);
    rig.persist(&events);
    assert_eq!(rig.sent_on(on).unwrap(), forge::pubrec(id));
}

// [BQ-20]
#[test]
fn equal_identifiers_on_two_streams_are_two_exchanges() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    take_over(&mut rig, a, 7, "of a");
    take_over(&mut rig, b, 7, "of b");
    rig.read_on(a, &forge::publish_with_dup(2, 7, "of a"));
    assert!(rig.events().is_empty(), "a repetition");
    assert_eq!(rig.sent_on(a).unwrap(), forge::pubrec(7));
    rig.read_on(a, &forge::pubrel(7));
    let events = rig.events();
    rig.persist(&events);
    assert_eq!(rig.sent_on(a).unwrap(), forge::pubcomp(7));
    assert_eq!(rig.server.session().unwrap().inbound.len(), 1, "that of b goes on");
    rig.read_on(b, &forge::publish_with_dup(2, 7, "of b"));
    assert!(rig.events().is_empty());
}

// [BQ-21]
#[test]
fn exchanges_of_an_ended_stream_continue_on_another() {
    for ended_by_fin in [true, false] {
        let mut rig = established();
        let (a, b) = (rig.open(1), rig.open(2));
        take_over(&mut rig, a, 7, "once");
        if ended_by_fin {
            rig.finish(a);
        } else {
            rig.reset(a);
        }
        rig.events();
        rig.read_on(b, &forge::publish_with_dup(2, 7, "once"));
        assert!(rig.events().is_empty(), "taken over twice");
        assert_eq!(rig.sent_on(b).unwrap(), forge::pubrec(7));
        rig.read_on(b, &forge::pubrel(7));
        assert!(matches!(rig.events()[..], [Event::Release(_)]));
        assert!(rig.server.session().unwrap().inbound.is_empty());
    }
}

// [BQ-21]
#[test]
fn a_pubrel_alone_continues_too() {
    let mut rig = established();
    let a = rig.open(1);
    take_over(&mut rig, a, 7, "once");
    rig.reset(a);
    rig.events();
    rig.read(&forge::pubrel(7));
    let events = rig.events();
    rig.persist(&events);
    assert_eq!(rig.sent(), forge::pubcomp(7));
    assert!(rig.server.session().unwrap().inbound.is_empty());
}

// [BQ-21]
#[test]
fn exchanges_of_an_earlier_connection_continue_on_any_stream() {
    let mut rig = established();
    let a = rig.open(1);
    take_over(&mut rig, a, 7, "once");
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();
    let mut rig = Rig::resumed(options(), connect(ProtocolVersion::V5), session);
    let b = rig.open(5);
    rig.read_on(b, &forge::publish_with_dup(2, 7, "once"));
    assert!(rig.events().is_empty());
    assert_eq!(rig.sent_on(b).unwrap(), forge::pubrec(7));
}

// [BQ-21], [MQTT-4.3.3-9]
#[test]
fn a_refused_message_may_come_again_under_its_identifier() {
    use braid_proto::reason::ReasonCode;
    let mut rig = established();
    let a = rig.open(1);
    rig.read_on(a, &forge::publish(2, 7, "refused"));
    let [Event::Publish(_, Some(token))] = rig.events()[..] else { panic!("one PUBLISH") };
    rig.server.set_reason(token, ReasonCode::QuotaExceeded);
    rig.reset(a);
    rig.server.handle_persisted(token);
    rig.events();
    rig.read(&forge::publish(2, 7, "taken"));
    assert_eq!(payloads(&rig.events()), ["taken"]);
}
