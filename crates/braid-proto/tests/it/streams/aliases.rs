//! Topic Aliases.

use braid_proto::connection::{Event, StreamAction};
use braid_proto::packet::{Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;

use super::established;
use crate::rig::{Rig, connect, delivery, options, packets};

/// PUBLISH, QoS 0: defines the alias for a topic of one letter, or uses it.
fn publish(topic: &str, alias: u8) -> Vec<u8> {
    let len = u8::try_from(topic.len()).unwrap();
    [&[0x30, 6 + len, 0, len][..], topic.as_bytes(), &[3, 0x23, 0, alias]].concat()
}

fn topics(rig: &mut Rig) -> Vec<String> {
    let mut topics = Vec::new();
    for event in rig.events() {
        let Event::Publish(message, _) = event else { panic!("{event:?}") };
        topics.push(message.topic.to_string());
    }
    topics
}

// [BQ-18]
#[test]
fn an_alias_of_the_client_is_known_on_its_stream_and_that_of_the_control_stream_everywhere() {
    let mut rig = established();
    let (a, b) = (rig.open(1), rig.open(2));
    rig.read(&publish("c", 1));
    rig.read_on(a, &publish("a", 1));
    rig.read_on(a, &publish("x", 2));
    rig.read_on(a, &publish("", 1));
    rig.read_on(b, &publish("", 1));
    rig.read(&publish("", 1));
    assert_eq!(topics(&mut rig), ["c", "a", "x", "a", "c", "c"]);
    // Defined on another data stream only.
    rig.read_on(b, &publish("", 2));
    assert_eq!(rig.actions(), [StreamAction::Abort(b, ReasonCode::ProtocolError)]);
    assert!(!rig.server.is_closed());
}

// [BQ-18], [MQTT-3.3.2-9]
#[test]
fn an_alias_out_of_range_ends_its_stream() {
    for alias in [0, 5] {
        let mut rig = established();
        let a = rig.open(1);
        rig.read_on(a, &publish("", alias));
        assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::TopicAliasInvalid)]);
    }
}

// [BQ-18]
#[test]
fn the_server_sets_aliases_on_the_control_stream_only() {
    let mut connect = connect(ProtocolVersion::V5);
    connect.properties.topic_alias_maximum = Some(10);
    let mut rig = Rig::connected(options(), connect);
    let data = rig.open(1);
    let mut seen = |on| {
        let mut delivery = delivery("some/topic", "", QoS::AtMostOnce);
        delivery.stream = on;
        rig.server.deliver(delivery, rig.now);
        let Packet::Publish(publish) = packets(&rig.sent_on(on).unwrap(), ProtocolVersion::V5).remove(0)
        else {
            panic!("no PUBLISH")
        };
        (publish.topic.is_some(), publish.topic_alias.map(u16::from))
    };
    assert_eq!(seen(data), (true, None));
    assert_eq!(seen(super::forge::CONTROL), (true, Some(1)));
    assert_eq!(seen(data), (true, None), "it could overtake the definition");
    assert_eq!(seen(super::forge::CONTROL), (false, Some(1)));
}
