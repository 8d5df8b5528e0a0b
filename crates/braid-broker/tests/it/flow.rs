//! Flow control, topic aliases and packet sizes, in both directions (MQTT 5, 4.9, 3.3.2.3.4, 3.1.2.11.4).

use std::num::NonZeroU16;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, MqttConfig};
use braid_proto::packet::{AckKind, Connect, Packet, Publish, QoS};
use braid_proto::reason::ReasonCode;

use crate::support::{
    Client, TestBroker, connect_v5, id, message, publish_packet, quiet, texts, unsubscribe_packet,
};

fn with_mqtt(mqtt: MqttConfig) -> BrokerConfig {
    BrokerConfig { mqtt, ..quiet() }
}

fn with(change: impl FnOnce(&mut Connect)) -> Connect {
    let mut connect = connect_v5("client");
    change(&mut connect);
    connect
}

// -- Receive Maximum -------------------------------------------------------------------------------

// [MQTT-3.3.4-9], [MQTT-3.3.4-10], [MQTT-4.9.0-1], [MQTT-4.9.0-2], [MQTT-4.9.0-3]
#[tokio::test(start_paused = true)]
async fn receive_maximum_of_a_client_is_kept() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.connect(with(|connect| connect.properties.receive_maximum = Some(2))).await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    for (text, qos) in
        [("1", QoS::ExactlyOnce), ("2", QoS::AtLeastOnce), ("3", QoS::AtLeastOnce), ("4", QoS::AtMostOnce)]
    {
        publisher.publish("t", text, qos).await;
    }
    let first = client.expect_publish().await;
    let second = client.expect_publish().await;
    client.expect_silence().await;
    // Everything else is answered meanwhile.
    client
        .send_all([
            Packet::Pingreq,
            unsubscribe_packet(7, &["x"]),
            publish_packet("x", "x", QoS::AtLeastOnce, 8),
        ])
        .await;
    assert_eq!(client.next().await, Some(Packet::Pingresp));
    assert!(matches!(client.next().await, Some(Packet::Unsuback(_))));
    client.expect_ack(AckKind::Puback).await;
    // PUBREC frees nothing, PUBCOMP does.
    client.send_ack(AckKind::Pubrec, first.packet_id.expect("QoS 2")).await;
    client.expect_ack(AckKind::Pubrel).await;
    client.expect_silence().await;
    client.send_ack(AckKind::Pubcomp, first.packet_id.expect("QoS 2")).await;
    assert_eq!(client.expect_publish().await.payload, "3");
    assert_eq!(client.expect_publish().await.payload, "4");
    client.acknowledge(&second).await;
    client.expect_silence().await;
}

/// One message may exceed the limit of inflight bytes: with a limit of 0, large ones are sent one at a time.
#[tokio::test(start_paused = true)]
async fn limit_of_zero_inflight_bytes_sends_one_large_message_at_a_time() {
    let limits = LimitsConfig { inflight_bytes: 0, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.v5("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    let large = "x".repeat(5000);
    for text in ["small", "as small", &large, &large, &large] {
        publisher.publish("t", text, QoS::AtLeastOnce).await;
    }
    let small = [client.expect_publish().await, client.expect_publish().await];
    assert_eq!(texts(&small), ["small", "as small"]);
    client.expect_silence().await;
    for publish in &small {
        client.acknowledge(publish).await;
    }
    for _ in 0..3 {
        let publish = client.expect_publish().await;
        assert_eq!(publish.payload, large);
        client.expect_silence().await;
        client.acknowledge(&publish).await;
    }
}

#[tokio::test(start_paused = true)]
async fn maximum_inflight_is_kept_for_mqtt_3() {
    let mqtt = MqttConfig { maximum_inflight: 3, ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    let mut client = broker.v3("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    for number in 1..=10 {
        client.send(publish_packet("t", number.to_string(), QoS::AtLeastOnce, number)).await;
        client.find_ack(AckKind::Puback, id(number)).await;
    }
    let sent = [client.expect_publish().await, client.expect_publish().await, client.expect_publish().await];
    client.expect_silence().await;
    for publish in &sent {
        client.acknowledge(publish).await;
    }
    assert_eq!(texts(&client.take_all().await), ["4", "5", "6", "7", "8", "9", "10"]);
}

// [MQTT-3.3.4-7]
#[tokio::test(start_paused = true)]
async fn a_client_that_overruns_the_servers_receive_maximum_is_closed_with_0x93() {
    let mqtt = MqttConfig { receive_maximum: 3, ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::ExactlyOnce).await;
    let mut client = broker.v5("client").await;
    for number in 1..=3 {
        client.send(publish_packet("t", number.to_string(), QoS::ExactlyOnce, number)).await;
        client.expect_ack(AckKind::Pubrec).await;
    }
    // A repetition is no new message, and QoS 0 does not count.
    client.send(publish_packet("t", "3", QoS::ExactlyOnce, 3)).await;
    client.expect_ack(AckKind::Pubrec).await;
    client.send(publish_packet("t", "0", QoS::AtMostOnce, 0)).await;
    client.expect_silence().await;
    client.send(publish_packet("t", "4", QoS::ExactlyOnce, 4)).await;
    client.expect_disconnect(ReasonCode::ReceiveMaximumExceeded).await;
    assert_eq!(texts(&subscriber.take_all().await), ["1", "2", "3", "0"]);
    // A client that acknowledges in time goes on.
    let mut client = broker.v5("client").await;
    for _ in 0..100 {
        client.publish("t", "x", QoS::ExactlyOnce).await;
        client.publish("t", "x", QoS::AtLeastOnce).await;
    }
    subscriber.take_many(200).await;
}

// -- Topic aliases ---------------------------------------------------------------------------------

async fn publish_alias(client: &mut Client, name: Option<&str>, alias: u16) {
    let publish = message(name.unwrap_or("x"), "x");
    let topic = publish.topic.clone().filter(|_| name.is_some());
    client.send(Packet::Publish(Publish { topic, topic_alias: NonZeroU16::new(alias), ..publish })).await;
}

// [MQTT-3.3.2-12]
#[tokio::test(start_paused = true)]
async fn a_client_may_use_aliases_up_to_the_servers_maximum() {
    let mqtt = MqttConfig { topic_alias_maximum: 3, ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("#", QoS::AtMostOnce).await;
    let mut client = broker.v5("client").await;
    for (name, alias) in
        [(Some("one"), 1), (Some("three"), 3), (None, 1), (None, 3), (Some("uno"), 1), (None, 1), (None, 3)]
    {
        publish_alias(&mut client, name, alias).await;
    }
    let mut topics = Vec::new();
    for _ in 0..7 {
        topics.push(subscriber.expect_publish().await.topic.expect("a name").as_str().to_owned());
    }
    assert_eq!(topics, ["one", "three", "one", "three", "uno", "uno", "three"]);
    client.disconnect().await;
    for (name, alias, reason) in [
        (Some("t"), 4, ReasonCode::TopicAliasInvalid), // [MQTT-3.3.2-9]
        (None, 2, ReasonCode::ProtocolError),
        (None, 1, ReasonCode::ProtocolError), // [MQTT-3.3.2-7]
    ] {
        let mut client = broker.v5("client").await;
        publish_alias(&mut client, name, alias).await;
        client.expect_disconnect(reason).await;
    }
    subscriber.expect_silence().await;
}

// [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-7], [MQTT-3.3.2-11]
#[tokio::test(start_paused = true)]
async fn the_server_uses_no_more_aliases_than_the_client_allows() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    for maximum in [None, Some(0), Some(1), Some(2), Some(2)] {
        let mut client =
            broker.connect(with(|connect| connect.properties.topic_alias_maximum = maximum)).await;
        client.subscribe("topic/+", QoS::AtLeastOnce).await;
        let allowed = maximum.unwrap_or(0);
        for round in 0..2 {
            for number in 1..=3_u16 {
                let name = format!("topic/{number}");
                publisher.publish(&name, "x", QoS::AtLeastOnce).await;
                let publish = client.expect_publish().await;
                client.acknowledge(&publish).await;
                let has_alias = number <= allowed;
                assert_eq!(publish.topic_alias.map(u16::from), has_alias.then_some(number));
                let told = publish.topic.map(|topic| topic.as_str().to_owned());
                assert_eq!(told, (round == 0 || !has_alias).then_some(name));
            }
        }
        client.disconnect().await;
    }
}

// -- Maximum Packet Size ---------------------------------------------------------------------------

// [MQTT-3.1.2-24], [MQTT-3.1.2-25]
#[tokio::test(start_paused = true)]
async fn message_too_large_for_a_client_is_dropped_and_the_next_arrives() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut other = broker.v5("other").await;
    other.subscribe("t", QoS::ExactlyOnce).await;
    let connect = with(|connect| {
        connect.properties.maximum_packet_size = Some(50);
        connect.properties.receive_maximum = Some(1);
        connect.properties.topic_alias_maximum = Some(10);
    });
    let mut client = broker.connect(connect).await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    let mut sent = 0;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        // Two bytes of fixed header, topic 3, identifier 2 or none, property length 1: 50 is the limit.
        let room = 50 - if qos == QoS::AtMostOnce { 6 } else { 8 };
        for (len, arrives) in [(room + 1, false), (5000, false), (room, true), (1, true)] {
            publisher.publish("t", "x".repeat(len), qos).await;
            sent += 1;
            if arrives {
                let publish = client.expect_publish().await;
                assert_eq!(publish.payload.len(), len);
                client.acknowledge(&publish).await;
            }
            client.expect_silence().await;
        }
    }
    assert_eq!(other.take_all().await.len(), sent);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 6);
}

// [MQTT-3.2.2-15], [MQTT-4.13.1-1]
#[tokio::test(start_paused = true)]
async fn packet_too_large_for_the_server_closes_the_connection_at_its_header() {
    let mqtt = MqttConfig { maximum_packet_size: 200, ..MqttConfig::default() };
    let broker = TestBroker::start_with(with_mqtt(mqtt));
    let mut client = broker.v5("client").await;
    client.subscribe("t", QoS::AtMostOnce).await;
    client.send(publish_packet("t", "x".repeat(200 - 7), QoS::AtMostOnce, 0)).await;
    assert_eq!(client.take().await.len(), 193);
    // PUBLISH, Remaining Length 268,435,455: nothing of it needs to arrive.
    client.send_bytes(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F]).await;
    client.expect_disconnect(ReasonCode::PacketTooLarge).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_message_passes_in_one_piece() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut fast = broker.v5("fast").await;
    let mut old = broker.v3("old").await;
    fast.subscribe("t", QoS::ExactlyOnce).await;
    old.subscribe("t", QoS::AtLeastOnce).await;
    let payload: Vec<u8> = (0..5_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    publisher.publish("t", &payload, QoS::ExactlyOnce).await;
    publisher.publish("t", "small", QoS::AtLeastOnce).await;
    for client in [&mut fast, &mut old] {
        let publish = client.expect_publish().await;
        assert!(publish.payload == payload);
        client.acknowledge(&publish).await;
        assert_eq!(client.take().await, "small");
    }
}
