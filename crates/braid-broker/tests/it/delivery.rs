//! QoS 0, 1 and 2 end to end (MQTT 4.3), and the properties that are forwarded with a message.

use braid_broker::Counter;
use braid_proto::packet::{AckKind, MessageProperties, Packet, Publish, QoS};
use braid_proto::reason::ReasonCode;
use bytes::Bytes;

use crate::support::{Client, TestBroker, id, message, pass, publish_packet, settle, texts, topic};

const ALL: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

async fn every_qos(mut publisher: Client, mut subscriber: Client) {
    for granted in ALL {
        subscriber.subscribe("a/b", granted).await;
        for published in ALL {
            let text = format!("{published:?} for {granted:?}");
            publisher.publish("a/b", &text, published).await;
            let publish = subscriber.expect_publish().await;
            assert_eq!(publish.qos, published.min(granted)); // [MQTT-3.8.4-8]
            assert_eq!(publish.packet_id.is_some(), publish.qos > QoS::AtMostOnce); // [MQTT-2.2.1-2]
            assert!(!publish.dup && !publish.retain);
            assert_eq!(publish.payload, text);
            subscriber.acknowledge(&publish).await;
        }
    }
    subscriber.expect_silence().await;
    publisher.expect_silence().await;
}

// [MQTT-4.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.2-2], [MQTT-4.3.2-4], [MQTT-4.3.3-2], [MQTT-4.3.3-4]
// [MQTT-4.3.3-8], [MQTT-4.3.3-11], [MQTT-3.3.4-1]
#[tokio::test(start_paused = true)]
async fn every_qos_reaches_every_subscription_in_mqtt_5() {
    let broker = TestBroker::start();
    every_qos(broker.v5("publisher").await, broker.v5("subscriber").await).await;
}

#[tokio::test(start_paused = true)]
async fn every_qos_reaches_every_subscription_in_mqtt_3() {
    let broker = TestBroker::start();
    every_qos(broker.v3("publisher").await, broker.v3("subscriber").await).await;
    every_qos(broker.v3("publisher").await, broker.v5("subscriber").await).await;
    every_qos(broker.v5("publisher").await, broker.v3("subscriber").await).await;
}

// [MQTT-2.2.1-4]
#[tokio::test(start_paused = true)]
async fn packet_ids_start_at_1_in_each_session() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    for client_id in ["one", "two"] {
        let mut subscriber = broker.v5(client_id).await;
        subscriber.subscribe("t", QoS::AtLeastOnce).await;
        for expected in 1..=3 {
            publisher.publish("t", "x", QoS::AtLeastOnce).await;
            assert_eq!(subscriber.expect_publish().await.packet_id, Some(id(expected)));
        }
        subscriber.disconnect().await;
    }
}

// [MQTT-4.3.3-10]
#[tokio::test(start_paused = true)]
async fn a_repeated_qos_2_publish_is_not_delivered_twice() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::ExactlyOnce).await;
    for _ in 0..3 {
        publisher.send(publish_packet("t", "once", QoS::ExactlyOnce, 9)).await;
        assert_eq!(publisher.expect_ack(AckKind::Pubrec).await.packet_id, id(9));
    }
    publisher.send_ack(AckKind::Pubrel, id(9)).await;
    assert_eq!(publisher.expect_ack(AckKind::Pubcomp).await.reason, ReasonCode::Success);
    assert_eq!(subscriber.take().await, "once");
    subscriber.expect_silence().await;
    // Behind PUBCOMP the identifier stands for a new message. [MQTT-4.3.3-12]
    publisher.send(publish_packet("t", "again", QoS::ExactlyOnce, 9)).await;
    assert_eq!(subscriber.take().await, "again");
}

#[tokio::test(start_paused = true)]
async fn pubrel_for_an_unknown_identifier_is_answered_with_0x92() {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    client.send_ack(AckKind::Pubrel, id(77)).await;
    let pubcomp = client.expect_ack(AckKind::Pubcomp).await;
    assert_eq!((pubcomp.packet_id, pubcomp.reason), (id(77), ReasonCode::PacketIdentifierNotFound));
    client.expect_silence().await;
}

// [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4], [MQTT-2.2.1-5]
#[tokio::test(start_paused = true)]
async fn acknowledgements_come_in_the_order_of_what_they_acknowledge() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    // One write holds all, with a duplicate, a forbidden topic, topics without subscribers and QoS mixed.
    let packets = (1..=200).map(|number| {
        let qos = if number % 3 == 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let topic = if number % 7 == 0 { "$SYS/no" } else { "t" };
        publish_packet(topic, "x", qos, number)
    });
    publisher.send_all(packets).await;
    for number in 1..=200_u16 {
        let kind = if number % 3 == 0 { AckKind::Pubrec } else { AckKind::Puback };
        let ack = publisher.expect_ack(kind).await;
        assert_eq!(ack.packet_id, id(number));
        let refused = ack.reason == ReasonCode::NotAuthorized;
        assert_eq!(refused, number % 7 == 0, "{ack:?}");
    }
    let released = || (1..=200).filter(|number| number % 3 == 0 && number % 7 != 0);
    publisher
        .send_all(released().map(|number| {
            Packet::Ack(braid_proto::packet::Ack::new(AckKind::Pubrel, id(number), ReasonCode::Success))
        }))
        .await;
    for number in released() {
        assert_eq!(publisher.expect_ack(AckKind::Pubcomp).await.packet_id, id(number));
    }
}

// [MQTT-4.6.0-1], [MQTT-4.6.0-5], [MQTT-4.6.0-6]
#[tokio::test(start_paused = true)]
async fn a_topic_keeps_its_order_to_every_subscriber() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscribers = Vec::new();
    for qos in ALL {
        let mut subscriber = broker.v5(&format!("subscriber of {qos:?}")).await;
        subscriber.subscribe("t/+", qos).await;
        subscribers.push(subscriber);
    }
    let all: Vec<_> = (0..300).map(|number| format!("{number}")).collect();
    let packets = all.iter().zip(1..).map(|(text, packet_id)| {
        publish_packet(&format!("t/{}", packet_id % 4), text, QoS::AtLeastOnce, packet_id)
    });
    publisher.send_all(packets).await;
    for subscriber in &mut subscribers {
        assert_eq!(texts(&subscriber.take_many(300).await), all);
        subscriber.expect_silence().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_without_subscribers_is_acknowledged_with_0x10() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(publisher.publish("unmatched", "x", qos).await, ReasonCode::NoMatchingSubscribers);
    }
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("unmatched", QoS::AtMostOnce).await;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        assert_eq!(publisher.publish("unmatched", "x", qos).await, ReasonCode::Success);
    }
}

fn with_properties(properties: MessageProperties) -> Publish {
    Publish { properties: Some(Box::new(properties)), ..message("t", "x") }
}

// [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18], [MQTT-3.3.2-20]
#[tokio::test(start_paused = true)]
async fn the_properties_of_a_message_reach_the_subscriber_unaltered() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscriber = broker.v5("subscriber").await;
    let mut old = broker.v3("old").await;
    subscriber.subscribe("t", QoS::AtMostOnce).await;
    old.subscribe("t", QoS::AtMostOnce).await;
    let properties = MessageProperties {
        payload_format: Some(true),
        message_expiry: None,
        content_type: Some("text/plain".into()),
        response_topic: Some(topic("answer/to")),
        correlation_data: Some(Bytes::from_static(&[0, 255, 7])),
        user: [("b", "1"), ("a", "2"), ("b", "3")].into(),
    };
    publisher.publish_as(with_properties(properties.clone())).await;
    assert_eq!(subscriber.expect_publish().await.properties.as_deref(), Some(&properties));
    assert_eq!(old.expect_publish().await.payload, "x");
}

// [MQTT-3.3.2-5], [MQTT-3.3.2-6]
#[tokio::test(start_paused = true)]
async fn a_message_expires_while_it_waits_and_its_interval_shrinks() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscriber = broker.resume("subscriber").await;
    subscriber.subscribe("t", QoS::AtLeastOnce).await;
    subscriber.disconnect().await;
    for seconds in [10, 100] {
        let properties = MessageProperties { message_expiry: Some(seconds), ..MessageProperties::default() };
        let publish = Publish { qos: QoS::AtLeastOnce, ..with_properties(properties) };
        publisher.publish_as(publish).await;
    }
    pass(30).await;
    let mut subscriber = broker.resume("subscriber").await;
    let publish = subscriber.expect_publish().await;
    let left = publish.properties.and_then(|properties| properties.message_expiry);
    assert!(matches!(left, Some(69..=70)), "{left:?}");
    subscriber.expect_silence().await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
}

// [MQTT-4.3.3-7], [MQTT-4.3.2-3]
#[tokio::test(start_paused = true)]
async fn an_inflight_message_is_sent_again_after_its_expiry() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscriber = broker.resume("subscriber").await;
    subscriber.subscribe("t", QoS::AtLeastOnce).await;
    let properties = MessageProperties { message_expiry: Some(5), ..MessageProperties::default() };
    publisher.publish_as(Publish { qos: QoS::AtLeastOnce, ..with_properties(properties) }).await;
    assert!(!subscriber.expect_publish().await.dup);
    subscriber.vanish().await;
    pass(60).await;
    let mut subscriber = broker.resume("subscriber").await;
    assert!(subscriber.expect_publish().await.dup); // [MQTT-3.3.1-1]
}

// [MQTT-4.7.2-1], [MQTT3-3.3.5-2]
#[tokio::test(start_paused = true)]
async fn sys_topics_are_read_by_name_and_never_written() {
    let broker = TestBroker::start_with(braid_broker::BrokerConfig::default());
    settle().await;
    let mut client = broker.v5("client").await;
    client.subscribe("#", QoS::AtMostOnce).await;
    client.subscribe("+/broker/version", QoS::AtMostOnce).await;
    client.expect_silence().await;
    client.subscribe("$SYS/broker/version", QoS::AtMostOnce).await;
    let version = client.expect_publish().await;
    assert!(version.retain && version.payload.starts_with(b"braidmq version"));
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let forged = Publish { qos, retain: true, ..message("$SYS/broker/version", "forged") };
        assert_eq!(client.publish_as(forged).await, ReasonCode::NotAuthorized);
    }
    client.subscribe("$SYS/broker/version", QoS::AtMostOnce).await;
    assert_eq!(client.expect_publish().await.payload, version.payload);
    // Every interval starts anew.
    client.subscribe("$SYS/broker/uptime", QoS::AtMostOnce).await;
    assert_eq!(client.take().await, "0 seconds");
    pass(10).await;
    assert_eq!(client.take().await, "10 seconds");
}
