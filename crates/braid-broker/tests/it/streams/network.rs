//! Lossy networks, and clients whose address changes.

use braid_broker::Counter;
use std::time::Duration;

use braid_proto::packet::{AckKind, QoS};
use braid_proto::reason::ReasonCode;
use braid_transport::sim::{Direction, Shaper};

use crate::support::{CONTROL, QuicBroker, pass, publish_packet};

fn lossy(broker: &QuicBroker, name: &str) {
    broker.host(name).change(|link| {
        link.loss = 0.05;
        link.latency = Duration::from_millis(20);
        link.jitter = Duration::from_millis(30);
    });
}

/// [BQ-54]: lost and reordered packets arrive once, and in the order of their stream.
#[tokio::test(start_paused = true)]
async fn loss_and_reordering_change_nothing_but_time() {
    const MESSAGES: u16 = 100;
    let broker = QuicBroker::start();
    let mut subscriber = broker.v5("subscriber").await;
    let publisher = broker.v5("publisher").await;
    let mut pairs = Vec::new();
    for number in 0..5 {
        let (from, to) = (publisher.open().await, subscriber.open().await);
        subscriber.subscribe(to, &format!("t/{number}"), QoS::ExactlyOnce).await;
        pairs.push((from, to, format!("t/{number}")));
    }
    lossy(&broker, "subscriber");
    lossy(&broker, "publisher");
    for number in 1..=MESSAGES {
        for (from, _, topic) in &pairs {
            let payload = format!("{topic} {number} {}", "x".repeat(500));
            publisher.send(*from, &publish_packet(topic, payload, QoS::ExactlyOnce, number));
        }
    }
    for number in 1..=MESSAGES {
        for (from, to, topic) in &pairs {
            assert_eq!(publisher.find_ack(*from, AckKind::Pubrec, number).await, ReasonCode::Success);
            publisher.send_ack(*from, AckKind::Pubrel, crate::support::id(number));
            let publish = subscriber.find_publish(*to).await;
            subscriber.acknowledge(*to, &publish).await;
            let expected = format!("{topic} {number} ");
            assert!(publish.payload.starts_with(expected.as_bytes()), "{expected} on {to}: {publish:?}");
        }
    }
    pass(30).await;
    for (from, to, _) in &pairs {
        assert_eq!(publisher.received(*from).len(), usize::from(MESSAGES), "a PUBCOMP each");
        assert!(subscriber.received(*to).is_empty());
    }
    assert!(broker.host("publisher").counters(Direction::Up).dropped > 10);
}

/// [BQ-70]: the connection migrates while a message of 1 MB is in transit, in either direction.
#[tokio::test(start_paused = true)]
async fn a_client_that_moves_in_mid_message_loses_nothing() {
    for name in ["NAT", "port"] {
        let broker = QuicBroker::start();
        let mut watcher = broker.memory.v5("watcher").await;
        watcher.subscribe("up", QoS::AtMostOnce).await;
        let mut publisher = broker.memory.v5("publisher").await;
        let mut client = broker.v5("client").await;
        let (up, down) = (client.open().await, client.open().await);
        client.subscribe(down, "down", QoS::AtLeastOnce).await;
        broker.host("client").change(|link| {
            link.latency = Duration::from_millis(20);
            link.shaper = Some(Shaper { rate: 200.0, queue: 200 });
        });
        let large = "0123456789".repeat(100_000);
        for _ in 0..2 {
            client.send(up, &publish_packet("up", &large, QoS::ExactlyOnce, 5));
            publisher.publish("down", &large, QoS::AtLeastOnce).await;
            pass(1).await;
            match name {
                "NAT" => broker.host("client").rebind_nat(),
                _ => client.rebind(),
            }
            assert!(client.received_bytes(down) % 1_000_000 > 1000, "{name}: in mid-message");
            assert_eq!(client.expect_ack(up, AckKind::Pubrec, 5).await, ReasonCode::Success);
            client.send_ack(up, AckKind::Pubrel, crate::support::id(5));
            assert_eq!(client.expect_ack(up, AckKind::Pubcomp, 5).await, ReasonCode::Success);
            assert!(watcher.take().await == large, "{name}");
            assert!(client.take(down).await == large, "{name}");
        }
        watcher.expect_silence().await;
        client.expect_silence(down).await;
        client.ping(CONTROL).await;
        assert_eq!(broker.memory.statistics().get(Counter::ConnectionsTotal), 3, "{name}: no new connection");
    }
}

/// A link that is cut for a while does not lose the connection.
#[tokio::test(start_paused = true)]
async fn a_gap_of_ten_seconds_is_bridged() {
    let broker = QuicBroker::start();
    let mut publisher = broker.memory.v5("publisher").await;
    let mut client = broker.v5("client").await;
    let data = client.open().await;
    client.subscribe(data, "t", QoS::AtLeastOnce).await;
    broker.host("client").change(|link| link.cut = true);
    for number in 0..100 {
        publisher.publish("t", format!("{number}"), QoS::AtLeastOnce).await;
    }
    pass(10).await;
    broker.host("client").change(|link| link.cut = false);
    for number in 0..100 {
        assert_eq!(client.take(data).await, format!("{number}"));
    }
    client.expect_silence(data).await;
}
