//! Early data (0-RTT): packets before the handshake is confirmed.

use braid_proto::connection::{Acceptance, Cause, EarlyPublish, Event, ServerOptions};
use braid_proto::packet::{Packet, PacketId, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};
use bytes::Buf;

use super::{forge, payloads};
use crate::rig::{Rig, connect, encoded, options};

const DISCONNECT: [u8; 2] = [0xE0, 0];

fn early(early_publish: EarlyPublish, version: ProtocolVersion) -> Rig {
    let mut rig = Rig::before_connect(ServerOptions { early_publish, receive_maximum: 9, ..options() });
    rig.server.set_early();
    rig.read(&encoded(&Packet::Connect(Box::new(connect(version))), version));
    assert!(matches!(rig.events()[..], [Event::Connect(_)]), "CONNECT may be early");
    let session = Session::new("c".into(), SessionExpiry::NEVER);
    rig.server.accept(session, &Acceptance::default(), rig.now, |_| true);
    let connack = rig.server.outbox(forge::CONTROL).unwrap();
    connack.advance(connack.remaining());
    rig
}

// [BQ-61]
#[test]
fn a_subscribe_is_answered_at_once_and_a_publish_takes_effect_when_it_is_confirmed() {
    let mut rig = early(EarlyPublish::Hold, ProtocolVersion::V5);
    let data = rig.open(1);
    rig.read_on(data, &forge::subscribe(1, "f"));
    assert!(matches!(rig.events()[..], [Event::Subscribe(..)]));
    let token = rig.server.suback(data, PacketId::FIRST, vec![ReasonCode::Success]).unwrap();
    rig.server.handle_persisted(token);
    assert_eq!(rig.sent_on(data).unwrap(), [0x90, 4, 0, 1, 0, 0]);

    rig.read_on(data, &[forge::publish(1, 2, "early"), forge::publish(2, 3, "too")].concat());
    rig.read_on(data, &forge::publish(0, 0, "zero"));
    assert!(rig.events().is_empty() && !rig.server.is_reading(data));
    assert!(!rig.server.is_reading(forge::CONTROL), "what follows waits with it");
    rig.server.handle_confirmed(rig.now);
    let events = rig.events();
    assert_eq!(payloads(&events), ["early", "too", "zero"]);
    rig.persist(&events);
    assert_eq!(rig.sent_on(data).unwrap(), [forge::puback(2), forge::pubrec(3)].concat());
    assert!(rig.server.is_reading(data));
    rig.read_on(data, &forge::publish(0, 0, "later"));
    assert_eq!(payloads(&rig.events()), ["later"]);
}

// [BQ-61]
#[test]
fn nothing_overtakes_held_events() {
    let mut rig = early(EarlyPublish::Hold, ProtocolVersion::V5);
    let data = rig.open(1);
    rig.read_on(data, &[forge::publish(1, 2, "first"), forge::subscribe(3, "f")].concat());
    rig.finish(data);
    assert!(rig.events().is_empty());
    rig.server.handle_confirmed(rig.now);
    let events = rig.events();
    assert!(
        matches!(events[..], [Event::Publish(..), Event::Subscribe(..), Event::StreamEnded(_)]),
        "{events:?}"
    );
}

// [BQ-61]
#[test]
fn a_disconnect_waits_for_the_publish_before_it() {
    let mut rig = early(EarlyPublish::Hold, ProtocolVersion::V5);
    rig.read(&[&forge::publish(0, 0, "early")[..], &DISCONNECT].concat());
    assert!(rig.events().is_empty() && !rig.server.is_closed());
    rig.server.handle_confirmed(rig.now);
    assert_eq!(payloads(&rig.events()), ["early"]);
    assert_eq!(rig.cause(), Some(Cause::Disconnected(ReasonCode::Success)));
}

// [BQ-61]
#[test]
fn packets_behind_a_held_publish_are_answered_when_it_is_confirmed() {
    let mut rig = early(EarlyPublish::Hold, ProtocolVersion::V5);
    let subscribe = forge::subscribe(2, "f");
    let (first, last) = subscribe.split_at(3);
    rig.read(&[&forge::publish(1, 1, "early"), &forge::PINGREQ[..], first].concat());
    assert!(rig.sent().is_empty());
    rig.server.handle_confirmed(rig.now);
    assert_eq!(rig.sent(), forge::PINGRESP);
    rig.read(last);
    let events = rig.events();
    assert!(matches!(events[..], [Event::Publish(..), Event::Subscribe(..)]), "{events:?}");
}

// [BQ-61]
#[test]
fn a_disconnect_without_a_publish_waits_unless_early_messages_are_accepted() {
    for early_publish in [EarlyPublish::Hold, EarlyPublish::Reject, EarlyPublish::Accept] {
        let mut rig = early(early_publish, ProtocolVersion::V5);
        rig.read(&[&DISCONNECT[..], &forge::PINGREQ].concat());
        assert_eq!(rig.server.is_closed(), early_publish == EarlyPublish::Accept);
        assert!(!rig.server.is_reading(forge::CONTROL));
        rig.server.handle_confirmed(rig.now);
        assert!(rig.sent().is_empty(), "nothing behind it is answered");
        assert_eq!(rig.cause(), Some(Cause::Disconnected(ReasonCode::Success)));
    }
}

// [BQ-61]
#[test]
fn unconfirmed_early_data_has_no_effect() {
    let mut rig = early(EarlyPublish::Hold, ProtocolVersion::V5);
    rig.read(&forge::publish(1, 2, "a copy"));
    rig.server.handle_link_closed();
    assert!(rig.events().is_empty());
    assert!(rig.end().unwrap().session.is_some());
}

// [BQ-61]
#[test]
fn an_early_publish_may_be_refused() {
    let mut rig = early(EarlyPublish::Reject, ProtocolVersion::V5);
    let data = rig.open(1);
    rig.read_on(
        data,
        &[forge::publish(0, 0, "zero"), forge::publish(1, 2, "one"), forge::publish(2, 3, "two")].concat(),
    );
    assert!(rig.events().is_empty() && rig.server.is_reading(data));
    assert_eq!(rig.sent_on(data).unwrap(), [0x40, 3, 0, 2, 0x83, 0x50, 3, 0, 3, 0x83]);
    assert!(rig.server.session().unwrap().inbound.is_empty(), "the identifier is free");
    rig.server.handle_confirmed(rig.now);
    rig.read_on(data, &forge::publish(2, 3, "again"));
    assert_eq!(payloads(&rig.events()), ["again"]);
}

// [BQ-61]
#[test]
fn mqtt_3_holds_instead_of_refusing() {
    let mut rig = early(EarlyPublish::Reject, ProtocolVersion::V311);
    rig.read(&[0x32, 5, 0, 1, b't', 0, 2]);
    assert!(rig.events().is_empty() && rig.sent().is_empty() && !rig.server.is_reading(forge::CONTROL));
    rig.server.handle_confirmed(rig.now);
    assert_eq!(payloads(&rig.events()), [""]);
}

// [BQ-61]
#[test]
fn an_early_publish_may_be_accepted() {
    let mut rig = early(EarlyPublish::Accept, ProtocolVersion::V5);
    rig.read(&forge::publish(1, 2, "at once"));
    let events = rig.events();
    assert_eq!(payloads(&events), ["at once"]);
    rig.persist(&events);
    assert_eq!(rig.sent(), forge::puback(2));
    assert!(rig.server.is_reading(forge::CONTROL));
}
