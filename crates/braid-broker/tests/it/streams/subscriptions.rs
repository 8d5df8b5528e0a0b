//! Subscriptions bound to streams.

use braid_broker::{BrokerConfig, StreamsConfig};
use braid_proto::packet::{AckKind, Packet, QoS};
use braid_proto::reason::ReasonCode;

use crate::support::{CONTROL, Ended, QuicBroker, lasting, message, quiet, unsubscribe_packet};

fn strict() -> BrokerConfig {
    BrokerConfig { streams: StreamsConfig { strict_streams: true, ..StreamsConfig::default() }, ..quiet() }
}

/// [BQ-14], [BQ-15]
#[tokio::test(start_paused = true)]
async fn messages_come_on_the_stream_that_subscribed() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut kept = message("r/1", "retained");
    kept.retain = true;
    publisher.publish_as(kept).await;
    let mut client = broker.v5("client").await;
    let (first, second) = (client.open().await, client.open().await);
    client.subscribe(first, "a", QoS::AtLeastOnce).await;
    client.subscribe(second, "r/#", QoS::AtLeastOnce).await;
    client.subscribe(CONTROL, "c", QoS::AtLeastOnce).await;
    assert_eq!(client.take(second).await, "retained");
    for (topic, stream) in [("a", first), ("r/2", second), ("c", CONTROL)] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
        assert_eq!(client.take(stream).await, topic);
    }
    for stream in [first, second, CONTROL] {
        client.expect_silence(stream).await;
    }
}

/// [BQ-16]
#[tokio::test(start_paused = true)]
async fn one_filter_on_two_streams_is_two_copies() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let (first, second) = (client.open().await, client.open().await);
    client.subscribe(first, "t", QoS::AtLeastOnce).await;
    client.subscribe(second, "t", QoS::AtMostOnce).await;
    // Several matching subscriptions of one stream cause one copy, with the highest QoS.
    client.subscribe(first, "t/#", QoS::ExactlyOnce).await;
    publisher.publish("t", "x", QoS::ExactlyOnce).await;
    let publish = client.expect_publish(first).await;
    assert_eq!(publish.qos, QoS::ExactlyOnce);
    client.acknowledge(first, &publish).await;
    assert_eq!(client.expect_publish(second).await.qos, QoS::AtMostOnce);
    for stream in [first, second, CONTROL] {
        client.expect_silence(stream).await;
    }
}

/// [BQ-17]
#[tokio::test(start_paused = true)]
async fn unsubscribe_finds_the_subscription_on_whatever_stream() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let (first, second) = (client.open().await, client.open().await);
    client.subscribe(first, "t", QoS::AtMostOnce).await;
    client.subscribe(second, "t", QoS::AtMostOnce).await;
    client.subscribe(second, "u", QoS::AtMostOnce).await;
    client.send(CONTROL, &unsubscribe_packet(9, &["t", "none"]));
    let codes = client.expect_unsuback(CONTROL).await;
    assert_eq!(codes, [ReasonCode::Success, ReasonCode::NoSubscriptionExisted]);
    publisher.publish("t", "x", QoS::AtMostOnce).await;
    client.expect_silence(first).await;
    client.expect_silence(second).await;
    publisher.publish("u", "u", QoS::AtMostOnce).await;
    assert_eq!(client.take(second).await, "u");
}

/// [BQ-17]
#[tokio::test(start_paused = true)]
async fn strict_streams_end_their_own_subscriptions_only() {
    let broker = QuicBroker::start_with(strict());
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let (first, second) = (client.open().await, client.open().await);
    client.subscribe(first, "t", QoS::AtMostOnce).await;
    client.subscribe(second, "t", QoS::AtMostOnce).await;
    client.send(CONTROL, &unsubscribe_packet(9, &["t"]));
    assert_eq!(client.expect_unsuback(CONTROL).await, [ReasonCode::NoSubscriptionExisted]); // 0x11
    client.send(first, &unsubscribe_packet(10, &["t"]));
    assert_eq!(client.expect_unsuback(first).await, [ReasonCode::Success]);
    publisher.publish("t", "x", QoS::AtMostOnce).await;
    assert_eq!(client.take(second).await, "x");
    client.expect_silence(first).await;
}

/// [BQ-42]: no QoS 1 or 2 message is lost with a stream.
#[tokio::test(start_paused = true)]
async fn undelivered_messages_of_an_ended_stream_come_on_the_control_stream() {
    for how in ["fin", "reset", "malformed"] {
        let broker = QuicBroker::start();
        let mut publisher = broker.memory.v5("publisher").await;
        let mut connect = lasting("client");
        connect.properties.receive_maximum = Some(20);
        let mut client = broker.connect(connect).await;
        let data = client.open().await;
        client.subscribe(data, "t/#", QoS::ExactlyOnce).await;
        // More than the client takes: some are sent, some queued.
        for number in 0..50 {
            let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            publisher.publish("t/1", format!("{number}"), qos).await;
        }
        crate::support::pass(1).await;
        let sent = client.received(data).len();
        assert!((1..=20).contains(&sent), "{sent} on their way");
        match how {
            "fin" => {
                client.finish(data);
                assert_eq!(client.expect_ended(data).await, Ended::Finished);
            }
            "reset" => client.reset(data, 5),
            _ => {
                client.send_bytes(data, &[0xff, 0xff]);
                client.expect_stopped(data).await;
            }
        }
        let mut numbers = Vec::new();
        let mut duplicates = 0;
        while numbers.len() < 50 {
            let publish = client.expect_publish(CONTROL).await;
            duplicates += usize::from(publish.dup);
            client.acknowledge(CONTROL, &publish).await;
            let text = String::from_utf8_lossy(&publish.payload).into_owned();
            numbers.push(text.parse::<usize>().expect("a number"));
        }
        assert_eq!(duplicates, sent, "{how}: what was sent comes again, marked");
        assert_eq!(numbers, (0..50).collect::<Vec<_>>(), "{how}");
        publisher.publish("t/2", "later", QoS::AtLeastOnce).await;
        assert_eq!(client.take(CONTROL).await, "later");
        client.expect_silence(CONTROL).await;
    }
}

/// [BQ-42], [BQ-43]
#[tokio::test(start_paused = true)]
async fn a_stream_takes_over_what_a_dead_one_left_on_the_control_stream() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let first = client.open().await;
    client.subscribe(first, "t", QoS::AtLeastOnce).await;
    client.finish(first);
    assert_eq!(client.expect_ended(first).await, Ended::Finished);
    publisher.publish("t", "one", QoS::AtLeastOnce).await;
    assert_eq!(client.take(CONTROL).await, "one");
    let second = client.open().await;
    client.subscribe(second, "t", QoS::AtLeastOnce).await;
    publisher.publish("t", "two", QoS::AtLeastOnce).await;
    assert_eq!(client.take(second).await, "two");
    client.expect_silence(CONTROL).await;
}

/// [BQ-42], [BQ-43]: a resumed session starts on the control stream, and each filter moves to the stream that
/// subscribes it again.
#[tokio::test(start_paused = true)]
async fn a_resumed_session_is_bound_again_stream_by_stream() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.resume("client").await;
    let data = client.open().await;
    client.subscribe(data, "a", QoS::AtLeastOnce).await;
    client.subscribe(data, "b", QoS::AtLeastOnce).await;
    client.vanish().await;
    publisher.publish("a", "while away", QoS::AtLeastOnce).await;
    let mut client = broker.resume("client").await;
    assert!(client.connack().session_present);
    assert_eq!(client.take(CONTROL).await, "while away");
    for _ in 0..3 {
        client.open().await;
    }
    let data = client.open().await;
    client.subscribe(data, "a", QoS::AtLeastOnce).await;
    for topic in ["a", "b"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
    assert_eq!(client.take(data).await, "a");
    assert_eq!(client.take(CONTROL).await, "b");
    client.expect_silence(data).await;
    client.expect_silence(CONTROL).await; // No second copy.
}

/// [BQ-42]: a stream that ends before its SUBACK.
#[tokio::test(start_paused = true)]
async fn a_subscription_whose_stream_ends_at_once_is_on_the_control_stream() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let client = broker.v5("client").await;
    let data = client.open().await;
    let entries =
        vec![braid_proto::packet::SubscribeEntry::new(crate::support::filter("t"), QoS::AtLeastOnce)];
    client.send(data, &crate::support::subscribe_packet(3, None, entries));
    client.finish(data);
    assert_eq!(client.expect_suback(data).await.codes, [QoS::AtLeastOnce.into()]); // [BQ-30]
    assert_eq!(client.expect_ended(data).await, Ended::Finished);
    publisher.publish("t", "x", QoS::AtLeastOnce).await;
    match client.expect(CONTROL).await {
        Packet::Publish(publish) => {
            // Acknowledged on an unrelated stream. [BQ-22]
            let other = client.open().await;
            client.send_ack(other, AckKind::Puback, publish.packet_id.expect("QoS 1"));
        }
        other => panic!("PUBLISH expected, not {other:?}"),
    }
    client.expect_silence(CONTROL).await;
}
