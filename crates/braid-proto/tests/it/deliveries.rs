//! Encoding of a message for many receivers: once, and equal to the plain encoder for each.

use std::num::NonZeroU32;
use std::time::Duration;

use braid_proto::connection::Sent;
use braid_proto::message::{Delivery, Message, SharedMessage, SubscriptionIds};
use braid_proto::packet::{MessageProperties, Packet, ProtocolVersion, Publish, QoS};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use bytes::{Buf, Bytes};
use proptest::prelude::*;

use crate::arbitrary;
use crate::rig::{Rig, connect, delivery, encoded, options, packets};

const V5: ProtocolVersion = ProtocolVersion::V5;
const V311: ProtocolVersion = ProtocolVersion::V311;

fn expected(delivery: &Delivery, id: Option<braid_proto::packet::PacketId>, v: ProtocolVersion) -> Vec<u8> {
    let message = &delivery.message;
    let publish = Publish {
        dup: false,
        qos: delivery.qos,
        retain: delivery.retain,
        topic: Some(message.topic.clone()),
        packet_id: id,
        topic_alias: None,
        subscription_ids: delivery.subscription_ids.as_slice().to_vec(),
        properties: message.properties.clone(),
        payload: message.payload.clone(),
        spooled: false,
    };
    encoded(&Packet::Publish(publish), v)
}

/// Bytes of a vectored write, all parts one after the other.
fn vectored(rig: &mut Rig) -> Vec<u8> {
    let outbox = rig.server.outbox(StreamKey::CONTROL).unwrap();
    let mut slices = [std::io::IoSlice::new(&[]); 16];
    let count = outbox.chunks_vectored(&mut slices);
    let all = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
    let len = outbox.len();
    outbox.advance(len);
    all
}

// [MQTT-3.3.1-3], [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18],
// [MQTT-3.3.2-20], [MQTT-3.3.4-3], [MQTT-3.3.4-4], [MQTT-4.3.1-1]
#[test]
fn every_copy_equals_the_plain_encoding() {
    let user = MessageProperties {
        payload_format: Some(true),
        message_expiry: Some(9),
        content_type: Some("c".into()),
        response_topic: Some(TopicName::parse("r").unwrap()),
        correlation_data: Some(Bytes::from_static(b"d")),
        user: [("b", "1"), ("a", "2")].into(),
    };
    let plain = MessageProperties { message_expiry: None, ..user.clone() };
    let ids = [SubscriptionIds::None, SubscriptionIds::One(NonZeroU32::MIN)];
    let mut many = SubscriptionIds::None;
    (1..4).for_each(|id| many.push(NonZeroU32::new(id * 1000).unwrap()));
    let now = std::time::Instant::now();
    for len in [0, 1, 100, 1023, 1024, 1025, 5000] {
        for properties in [None, Some(plain.clone()), Some(user.clone())] {
            let message = Message::new(
                TopicName::parse("some/topic").unwrap(),
                vec![b'x'; len],
                QoS::ExactlyOnce,
                true,
            )
            .with_properties(properties.map(Box::new), now);
            let message = SharedMessage::new(message);
            for (version, ids) in
                ids.iter().chain([&many]).flat_map(|ids| [(V311, ids.clone()), (V5, ids.clone())])
            {
                let mut options = options();
                options.maximum_packet_size = 10_000;
                let mut rig = Rig::connected(options, connect(version));
                rig.now = now;
                for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                    for retain in [false, true] {
                        let delivery = Delivery {
                            qos,
                            retain,
                            subscription_ids: ids.clone(),
                            ..Delivery::of(message.clone())
                        };
                        let sent = rig.server.deliver(delivery.clone(), now);
                        let Sent::Out(id) = sent else { panic!("{sent:?}") };
                        let bytes = vectored(&mut rig);
                        assert_eq!(bytes, expected(&delivery, id, version), "{len} {version} {qos} {retain}");
                    }
                }
            }
        }
    }
}

proptest! {
    /// The last reference is encoded on its own, others from a shared form.
    #[test]
    fn one_reference_or_many_make_no_difference(
        publish in arbitrary::publish(V5),
        delivered in arbitrary::qos(),
        version in arbitrary::version(),
    ) {
        let Some(topic) = publish.topic.clone() else { return Ok(()) };
        let mut rig = Rig::connected(options(), connect(version));
        let Publish { payload, qos, retain, properties, .. } = publish;
        let message = Message::new(topic, payload, qos, retain).with_properties(properties, rig.now);
        let message = SharedMessage::new(message);
        let delivery = Delivery { qos: delivered, ..Delivery::of(message.clone()) };
        let mut copies = Vec::new();
        for last in [false, true] {
            let one = delivery.clone();
            let _shared = (!last).then(|| message.clone());
            if matches!(rig.server.deliver(one, rig.now), Sent::Expired) {
                return Ok(());
            }
            copies.push(vectored(&mut rig));
        }
        // Only the identifier differs.
        let mut parsed = copies.iter().flat_map(|bytes| packets(bytes, version)).map(|packet| match packet {
            Packet::Publish(publish) => Publish { packet_id: None, ..publish },
            other => panic!("{other:?}"),
        });
        prop_assert_eq!(parsed.next(), parsed.next());
    }
}

// [MQTT-3.3.2-5], [MQTT-3.3.2-6]
#[test]
fn the_expiry_interval_runs_while_a_message_waits() {
    let mut rig = Rig::connected(options(), connect(V5));
    let properties = MessageProperties { message_expiry: Some(10), ..MessageProperties::default() };
    let message = Message::new(TopicName::parse("t").unwrap(), Bytes::new(), QoS::AtMostOnce, false)
        .with_properties(Some(Box::new(properties)), rig.now);
    let message = SharedMessage::new(message);
    let arrived = rig.now;
    let after = |millis| arrived + Duration::from_millis(millis);
    // The time of a sender may be before that of the arrival, which another thread took.
    let early = arrived - Duration::from_millis(1);
    for (now, left) in [(early, 10), (arrived, 10), (after(500), 10), (after(1000), 9), (after(9_999), 1)] {
        assert!(matches!(rig.server.deliver(Delivery::of(message.clone()), now), Sent::Out(None)));
        let Packet::Publish(publish) = packets(&rig.sent(), V5).remove(0) else { panic!() };
        assert_eq!(publish.properties.unwrap().message_expiry, Some(left));
    }
    let now = rig.now + Duration::from_secs(10);
    assert!(matches!(rig.server.deliver(Delivery::of(message), now), Sent::Expired));
    assert!(rig.sent().is_empty());
}

// [MQTT-4.3.3-7]
#[test]
fn a_sent_message_is_retransmitted_even_if_it_expired() {
    let mut rig = Rig::connected(options(), connect(V5));
    let properties = MessageProperties { message_expiry: Some(1), ..MessageProperties::default() };
    let message = Message::new(TopicName::parse("t").unwrap(), Bytes::new(), QoS::ExactlyOnce, false)
        .with_properties(Some(Box::new(properties)), rig.now);
    rig.server.deliver(Delivery::of(SharedMessage::new(message)), rig.now);
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();
    let mut rig = Rig::resumed(options(), connect(V5), session);
    let Packet::Publish(publish) = packets(&rig.sent(), V5).remove(0) else { panic!() };
    assert!(publish.dup);
}

fn with_maximum_packet_size(size: u32) -> braid_proto::packet::Connect {
    let mut connect = connect(V5);
    connect.properties.maximum_packet_size = Some(size);
    connect.properties.topic_alias_maximum = Some(10);
    connect
}

// [MQTT-3.1.2-24], [MQTT-3.1.2-25]
#[test]
fn a_message_too_large_for_the_client_is_dropped_and_costs_nothing() {
    let mut rig = Rig::connected(options(), with_maximum_packet_size(40));
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let shared = delivery("topic", vec![0; 33], qos);
        assert!(matches!(rig.server.deliver(shared.clone(), rig.now), Sent::TooLarge));
        let many: Vec<_> = (0..3).map(|_| shared.clone()).collect();
        assert!(matches!(rig.server.deliver(many[0].clone(), rig.now), Sent::TooLarge));
    }
    assert!(rig.sent().is_empty());
    assert!(rig.server.session().unwrap().outbound.is_empty());
    // 1 + 1 + 2 + 5 + 1 + 30 = 40: fits as it is, but not with the definition of an alias.
    let tight = delivery("topic", vec![0; 30], QoS::AtMostOnce);
    assert!(matches!(rig.server.deliver(tight, rig.now), Sent::Out(None)));
    assert_eq!(rig.sent().len(), 40);
    let small = delivery("topic", vec![0; 20], QoS::AtMostOnce);
    rig.server.deliver(small, rig.now);
    let Packet::Publish(publish) = packets(&rig.sent(), V5).remove(0) else { panic!() };
    assert_eq!(
        (publish.topic_alias.is_some(), publish.topic.is_some()),
        (true, true),
        "a lost definition was used"
    );
}

// [MQTT-3.1.2-25]
#[test]
fn a_resumed_message_too_large_for_the_new_connection_is_over() {
    let mut connect = with_maximum_packet_size(1000);
    connect.properties.receive_maximum = Some(1);
    let mut rig = Rig::connected(options(), connect);
    rig.server.deliver(delivery("t", vec![0; 100], QoS::ExactlyOnce), rig.now);
    rig.server.handle_link_closed();
    let session = rig.end().unwrap().session.unwrap();

    let mut connect = with_maximum_packet_size(50);
    connect.properties.receive_maximum = Some(1);
    let mut rig = Rig::resumed(options(), connect, session);
    assert!(rig.sent().is_empty());
    assert_eq!(format!("{:?}", rig.events()), "[Complete(PacketId(1), PacketTooLarge)]");
    assert!(rig.server.session().unwrap().outbound.is_empty(), "its identifier is never free again");
    assert!(rig.server.has_send_quota(), "the quota is spent on a message that will not be acknowledged");
}

// [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-7], [MQTT-3.3.2-8], [MQTT-3.3.2-11]
#[test]
fn aliases_are_defined_once_and_never_beyond_the_maximum() {
    for maximum in [None, Some(0), Some(2)] {
        let mut connect = connect(V5);
        connect.properties.topic_alias_maximum = maximum;
        let mut rig = Rig::connected(options(), connect);
        let topics = ["first", "second", "third", "first", "second", "third"];
        for topic in topics {
            rig.server.deliver(delivery(topic, "", QoS::AtMostOnce), rig.now);
        }
        let seen: Vec<_> = packets(&rig.sent(), V5)
            .into_iter()
            .map(|packet| match packet {
                Packet::Publish(publish) => {
                    (publish.topic.map(|topic| topic.to_string()), publish.topic_alias.map(u16::from))
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let named = |topic: &str, alias| (Some(topic.to_owned()), alias);
        let expected = match maximum {
            Some(2) => vec![
                named("first", Some(1)),
                named("second", Some(2)),
                named("third", None),
                (None, Some(1)),
                (None, Some(2)),
                named("third", None),
            ],
            _ => topics.iter().map(|topic| named(topic, None)).collect(),
        };
        assert_eq!(seen, expected, "{maximum:?}");
    }
}

// [MQTT-3.3.2-10], [MQTT-3.3.2-12]
#[test]
fn every_alias_up_to_our_maximum_is_taken_and_may_be_redefined() {
    let mut rig = Rig::connected(options(), connect(V5));
    for alias in 1..=4 {
        rig.read(&[0x30, 7, 0, 1, b'a' + alias, 3, 0x23, 0, alias]);
    }
    rig.read(&[0x30, 7, 0, 1, b'z', 3, 0x23, 0, 2]);
    for alias in 1..=4 {
        rig.read(&[0x30, 6, 0, 0, 3, 0x23, 0, alias]);
    }
    let topics: Vec<_> = rig
        .events()
        .into_iter()
        .map(|event| match event {
            braid_proto::connection::Event::Publish(message, _) => message.topic.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(topics, ["b", "c", "d", "e", "z", "b", "z", "d", "e"]);
}

#[test]
fn a_payload_in_parts_is_sent_as_one_and_none_of_its_bytes_is_copied() {
    let middle = Bytes::from(vec![7; 3000]);
    for version in [V311, V5] {
        for head_len in [0, 10, 2000] {
            let head = Bytes::from(vec![1; head_len]);
            let tail = Bytes::from_static(b"tail");
            let whole = [&head[..], &middle, &tail].concat();
            let topic = TopicName::parse("parts").unwrap();
            let in_parts =
                Message::new(topic, head, QoS::AtLeastOnce, false).with_rest([middle.clone(), tail.clone()]);
            assert_eq!(in_parts.payload_len(), whole.len());
            let in_parts = SharedMessage::new(in_parts);
            let mut rig = Rig::connected(options(), connect(version));
            // With the last reference and with one of several: two ways of encoding.
            let also = Delivery::of(in_parts.clone());
            for (delivery, id) in [(also, 1), (Delivery::of(in_parts), 2)] {
                rig.server.deliver(delivery, rig.now);
                let outbox = rig.server.outbox(StreamKey::CONTROL).unwrap();
                let mut slices = [std::io::IoSlice::new(&[]); 8];
                let count = outbox.chunks_vectored(&mut slices);
                for part in [&middle, &tail] {
                    assert!(slices[..count].iter().any(|slice| slice.as_ptr() == part.as_ptr()));
                }
                let sent = packets(&rig.sent(), version);
                let [Packet::Publish(publish)] = &sent[..] else { panic!("{sent:?}") };
                assert_eq!(publish.payload, whole);
                assert_eq!(publish.packet_id.map(|id| id.value()), Some(id));
            }
        }
    }
}
