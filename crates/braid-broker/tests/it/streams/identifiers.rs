//! Packet Identifiers, topic aliases and quotas with many streams.

use std::num::NonZeroU16;
use std::sync::Arc;

use braid_broker::{BrokerConfig, MqttConfig};
use braid_proto::packet::{AckKind, Packet, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_store::MemoryStore;
use braid_transport::quic::QuicOptions;

use crate::support::{
    CONTROL, Ended, QuicBroker, anyone, connect_v5, id, lasting, message, pass, publish_packet, quiet, settle,
};

/// [BQ-14], [BQ-20]
#[tokio::test(start_paused = true)]
async fn equal_identifiers_on_two_streams_are_two_exchanges() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let client = broker.v5("client").await;
    let streams = [client.open().await, client.open().await, CONTROL];
    for stream in streams {
        client.send(stream, &publish_packet("t", stream.to_string(), QoS::ExactlyOnce, 1));
        assert_eq!(client.expect_ack(stream, AckKind::Pubrec, 1).await, ReasonCode::Success);
        assert_eq!(watcher.take().await, stream.to_string());
    }
    // A repetition on the same stream is the same exchange.
    let Packet::Publish(publish) = publish_packet("t", "again", QoS::ExactlyOnce, 1) else { unreachable!() };
    client.send(streams[1], &Packet::Publish(Publish { dup: true, ..publish }));
    assert_eq!(client.expect_ack(streams[1], AckKind::Pubrec, 1).await, ReasonCode::Success);
    for stream in streams {
        client.send_ack(stream, AckKind::Pubrel, id(1));
        assert_eq!(client.expect_ack(stream, AckKind::Pubcomp, 1).await, ReasonCode::Success);
    }
    watcher.expect_silence().await;
}

/// [BQ-21]
#[tokio::test(start_paused = true)]
async fn an_exchange_goes_on_elsewhere_after_the_end_of_its_stream_or_connection() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let client = broker.resume("client").await;
    let (data, other) = (client.open().await, client.open().await);
    for (number, stream) in [(1, data), (2, other)] {
        client.send(stream, &publish_packet("t", "once", QoS::ExactlyOnce, number));
        client.expect_ack(stream, AckKind::Pubrec, number).await;
        watcher.take().await;
    }
    client.reset(data, 0);
    pass(1).await;
    client.send(CONTROL, &again("twice", 1));
    assert_eq!(client.expect_ack(CONTROL, AckKind::Pubrec, 1).await, ReasonCode::Success);
    client.send_ack(CONTROL, AckKind::Pubrel, id(1));
    assert_eq!(client.expect_ack(CONTROL, AckKind::Pubcomp, 1).await, ReasonCode::Success);
    client.vanish().await;
    let client = broker.resume("client").await;
    let third = client.open().await;
    client.send(third, &again("twice", 2));
    assert_eq!(client.expect_ack(third, AckKind::Pubrec, 2).await, ReasonCode::Success);
    client.send_ack(third, AckKind::Pubrel, id(2));
    assert_eq!(client.expect_ack(third, AckKind::Pubcomp, 2).await, ReasonCode::Success);
    watcher.expect_silence().await;
}

/// [BQ-20], [BQ-21]: a broker that was restarted counts the exchanges, too.
#[tokio::test(start_paused = true)]
async fn equal_identifiers_on_two_streams_are_two_exchanges_after_a_crash_too() {
    for released in [0, 1, 2] {
        let store = MemoryStore::new();
        let start = |store: &MemoryStore| {
            QuicBroker::start_over(quiet(), QuicOptions::server(), anyone(), Arc::new(store.reopen()))
        };
        let broker = start(&store);
        let client = broker.resume("client").await;
        let streams = [client.open().await, client.open().await];
        for stream in streams {
            client.send(stream, &publish_packet("t", "once", QoS::ExactlyOnce, 1));
            client.expect_ack(stream, AckKind::Pubrec, 1).await;
        }
        for stream in &streams[..released] {
            client.send_ack(*stream, AckKind::Pubrel, id(1));
            client.expect_ack(*stream, AckKind::Pubcomp, 1).await;
        }
        drop(broker);
        let broker = start(&store);
        let mut watcher = broker.memory.v5("watcher").await;
        watcher.subscribe("#", QoS::AtMostOnce).await;
        let client = broker.resume("client").await;
        for _ in streams {
            let stream = client.open().await;
            client.send(stream, &again("twice", 1));
            assert!(!client.expect_ack(stream, AckKind::Pubrec, 1).await.is_error());
        }
        settle().await;
        assert_eq!(watcher.take_all().await.len(), released, "of two that were repeated");
    }
}

/// PUBLISH that continues an exchange.
fn again(payload: &'static str, number: u16) -> Packet {
    let Packet::Publish(publish) = publish_packet("t", payload, QoS::ExactlyOnce, number) else {
        unreachable!()
    };
    Packet::Publish(Publish { dup: true, ..publish })
}

/// [BQ-22]
#[tokio::test(start_paused = true)]
async fn identifiers_of_the_broker_are_unique_and_acknowledged_anywhere() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let streams = [client.open().await, client.open().await, CONTROL];
    for (stream, filter) in streams.into_iter().zip(["a", "b", "c"]) {
        client.subscribe(stream, filter, QoS::ExactlyOnce).await;
    }
    let mut taken = Vec::new();
    for (stream, topic) in streams.into_iter().zip(["a", "b", "c"]) {
        publisher.publish(topic, "x", QoS::ExactlyOnce).await;
        let packet_id = client.expect_publish(stream).await.packet_id.expect("QoS 2");
        assert!(!taken.contains(&packet_id));
        taken.push(packet_id);
    }
    // Each on the next stream.
    for (packet_id, stream) in taken.iter().zip([streams[1], streams[2], streams[0]]) {
        client.send_ack(stream, AckKind::Pubrec, *packet_id);
    }
    for (packet_id, stream) in taken.iter().zip([streams[1], streams[2], streams[0]]) {
        assert_eq!(client.expect_ack(stream, AckKind::Pubrel, packet_id.value()).await, ReasonCode::Success);
        client.send_ack(CONTROL, AckKind::Pubcomp, *packet_id);
    }
    client.expect_silence(CONTROL).await;
}

/// [BQ-23]
#[tokio::test(start_paused = true)]
async fn the_receive_maximum_is_each_streams_own() {
    let mqtt = MqttConfig { receive_maximum: 10, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..quiet() });
    let client = broker.v5("client").await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(client.open().await);
    }
    // Eighty incomplete exchanges, of which each stream may have ten.
    for stream in &streams {
        for number in 1..=10 {
            client.send(*stream, &publish_packet("t", "x", QoS::ExactlyOnce, number));
        }
    }
    for stream in &streams {
        for number in 1..=10 {
            client.expect_ack(*stream, AckKind::Pubrec, number).await;
        }
    }
    client.send(streams[3], &publish_packet("t", "x", QoS::ExactlyOnce, 11));
    client.expect_aborted(streams[3], 0x93).await;
    client.send_ack(streams[4], AckKind::Pubrel, id(1));
    client.expect_ack(streams[4], AckKind::Pubcomp, 1).await;
    client.ping(CONTROL).await;
}

/// [BQ-23]: many streams that each use their whole quota are read less, and answered.
#[tokio::test(start_paused = true)]
async fn the_sum_over_the_streams_is_bounded_by_reading_less() {
    let mqtt = MqttConfig { receive_maximum: 10, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..quiet() });
    let client = broker.v5("client").await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        streams.push(client.open().await);
    }
    for stream in &streams {
        for number in 1..=10 {
            client.send(*stream, &publish_packet("t", "x", QoS::AtLeastOnce, number));
        }
    }
    for stream in &streams {
        for number in 1..=10 {
            client.expect_ack(*stream, AckKind::Puback, number).await;
        }
    }
}

fn with_alias(topic: Option<&str>, alias: u16, payload: &str) -> Packet {
    let publish = message(topic.unwrap_or("x"), payload);
    let topic = topic.and(publish.topic.clone());
    Packet::Publish(Publish { topic, topic_alias: NonZeroU16::new(alias), ..publish })
}

/// [BQ-18]
#[tokio::test(start_paused = true)]
async fn an_alias_is_its_streams_or_else_the_control_streams() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let client = broker.v5("client").await;
    let (first, second) = (client.open().await, client.open().await);
    let sends = [
        (CONTROL, Some("control"), 1, "control"),
        (first, Some("first"), 1, "first"),
        (second, None, 1, "control"),
        (first, None, 1, "first"),
        (CONTROL, None, 1, "control"),
    ];
    for (stream, topic, alias, expected) in sends {
        client.send(stream, &with_alias(topic, alias, "x"));
        let publish = watcher.expect_publish().await;
        assert_eq!(publish.topic.expect("a topic").as_str(), expected);
    }
    // An alias of another data stream is unknown here.
    client.send(first, &with_alias(Some("second"), 2, "x"));
    watcher.take().await;
    client.send(second, &with_alias(None, 2, "x"));
    assert!(matches!(client.expect_ended(second).await, Ended::Reset(_)));
}

/// [BQ-18]: the broker sets aliases on the control stream only.
#[tokio::test(start_paused = true)]
async fn no_alias_comes_on_a_data_stream() {
    const LONG: &str = "a/topic/that/is/long/enough";
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut connect = connect_v5("client");
    connect.properties.topic_alias_maximum = Some(10);
    let mut client = broker.connect(connect).await;
    let data = client.open().await;
    client.subscribe(data, LONG, QoS::AtMostOnce).await;
    client.subscribe(CONTROL, LONG, QoS::AtMostOnce).await;
    let mut aliases = 0;
    for _ in 0..5 {
        publisher.publish(LONG, "x", QoS::AtMostOnce).await;
        assert_eq!(client.expect_publish(data).await.topic_alias, None);
        aliases += usize::from(client.expect_publish(CONTROL).await.topic_alias.is_some());
    }
    assert!(aliases > 0);
}

/// [BQ-24]: a stream whose messages are not acknowledged leaves some of the Receive Maximum to the others.
#[tokio::test(start_paused = true)]
async fn one_stream_does_not_hold_all_of_the_receive_maximum() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(50);
    let mut client = broker.connect(connect).await;
    let (stuck, lively) = (client.open().await, client.open().await);
    client.subscribe(stuck, "bulk", QoS::AtLeastOnce).await;
    client.subscribe(lively, "alarm", QoS::AtLeastOnce).await;
    publisher.publish("alarm", "first", QoS::AtLeastOnce).await;
    assert_eq!(client.take(lively).await, "first");
    for number in 0..200 {
        publisher.publish("bulk", format!("{number}"), QoS::AtLeastOnce).await;
    }
    pass(1).await;
    for number in 0..100 {
        publisher.publish("alarm", format!("{number}"), QoS::AtLeastOnce).await;
        assert_eq!(client.take(lively).await, format!("{number}"));
    }
    let unacknowledged = client.received(stuck).len();
    assert!((30..50).contains(&unacknowledged), "{unacknowledged}");
}
