//! Clients that do not read, or send no CONNECT: their memory is bounded, and no other client is disturbed.

use braid_broker::{BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::{MessageProperties, Packet, ProtocolVersion, Publish, QoS};

use crate::support::{Client, TestBroker, connect_v5, lasting, message, pass, quiet, settle};

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

/// A subscriber of everything that does not read, with a link of 1,024 bytes.
async fn unread_subscriber(broker: &TestBroker, client_id: &str, qos: QoS) -> Client {
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(lasting(client_id)).await;
    client.accepted().await;
    client.subscribe("#", qos).await;
    client
}

/// Number of messages in queues, of `deliveries` that were routed.
fn held(broker: &TestBroker, deliveries: u64) -> u64 {
    let statistics = broker.statistics();
    deliveries - statistics.get(Counter::MessagesSent) - statistics.get(Counter::MessagesDropped)
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_never_reads_holds_its_limit_at_most() {
    let limits = LimitsConfig { queued_messages: 1000, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut publisher = broker.v5("publisher").await;
    let mut healthy = broker.v5("healthy").await;
    healthy.subscribe("t/#", QoS::AtMostOnce).await;
    let zero = unread_subscriber(&broker, "zero", QoS::AtMostOnce).await;
    let _one = unread_subscriber(&broker, "one", QoS::AtLeastOnce).await;
    let start = tokio::time::Instant::now();
    for number in 0..5000_u64 {
        let text = format!("{number:0500}");
        publisher.publish(&format!("t/{}", number % 10), &text, QoS::AtLeastOnce).await;
        assert_eq!(healthy.take().await, text);
        assert!(held(&broker, 3 * (number + 1)) <= 2 * 1000);
    }
    // Everything that did not fit is counted; the queues are full, not empty.
    assert!(held(&broker, 3 * 5000) > 1900);
    assert!(broker.statistics().get(Counter::MessagesDropped) > 2000);
    // A stuck subscriber slows no publisher, after the time for a first acknowledgement.
    assert!(start.elapsed().as_millis() <= 2200, "{:?}", start.elapsed());
    // QoS 0 is not queued for offline clients, and is counted as dropped.
    zero.vanish().await;
    assert!(held(&broker, 3 * 5000) <= 1000);
}

#[tokio::test(start_paused = true)]
async fn limit_counts_topics_and_properties() {
    const CAP: usize = 1024 * 1024;
    let limits = LimitsConfig { queued_bytes: CAP, ..LimitsConfig::default() };
    let large = "x".repeat(50_000);
    let user = [("name", large.as_str())].into();
    let properties = MessageProperties { user, ..MessageProperties::default() };
    for publish in [
        message("t", &large),
        message(&large, "x"),
        Publish { properties: Some(Box::new(properties)), ..message("t", "x") },
    ] {
        let broker = TestBroker::start_with(with_limits(limits.clone()));
        let mut publisher = broker.v5("publisher").await;
        let _unread = unread_subscriber(&broker, "unread_subscriber", QoS::AtMostOnce).await;
        for _ in 0..200 {
            publisher.publish_as(publish.clone()).await;
        }
        settle().await;
        let held = usize::try_from(held(&broker, 200)).expect("a few") * large.len();
        assert!((CAP / 2..=CAP).contains(&held), "{held} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn message_above_the_limit_is_admitted_alone() {
    let limits = LimitsConfig { queued_bytes: 1000, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    for _ in 0..3 {
        publisher.publish("t", "x".repeat(5000), QoS::AtLeastOnce).await;
    }
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 2);
    assert_eq!(broker.resume("client").await.take_all().await.len(), 1);
}

// QoS 0 of this size was dropped once, and the part in the connection blocked all later messages.
#[tokio::test(start_paused = true)]
async fn message_above_the_limit_is_delivered_and_so_are_later_ones() {
    let limits = LimitsConfig { queued_bytes: 1000, ..LimitsConfig::default() };
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let broker = TestBroker::start_with(with_limits(limits.clone()));
        let mut publisher = broker.v5("publisher").await;
        let mut subscriber = broker.v5("subscriber").await;
        subscriber.subscribe("t", qos).await;
        for text in ["x".repeat(5000), "after".into(), "y".repeat(5000)] {
            publisher.publish("t", &text, QoS::AtLeastOnce).await;
            assert_eq!(subscriber.take().await, text, "{qos:?}");
        }
        assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
    }
}

// A queued recording does not keep an alarm out, as long as there is room for small messages.
#[tokio::test(start_paused = true)]
async fn large_message_leaves_room_for_small_ones() {
    const CAP: usize = 1 << 20;
    let limits = LimitsConfig { queued_bytes: CAP, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    let (recording, alarm) = ("r".repeat(5 * CAP), "a".repeat(1000));
    for _ in 0..2 {
        publisher.publish("t", &recording, QoS::AtLeastOnce).await;
        for _ in 0..50 {
            publisher.publish("t", &alarm, QoS::AtLeastOnce).await;
        }
    }
    let lengths: Vec<usize> =
        broker.resume("client").await.take_all().await.iter().map(|publish| publish.payload.len()).collect();
    assert_eq!(lengths.iter().filter(|length| **length == recording.len()).count(), 1, "one is let in");
    assert_eq!(lengths.iter().filter(|length| **length == alarm.len()).count(), 100);
}

// Unsent messages go back to the queue; otherwise each reconnect would add a queue.
#[tokio::test(start_paused = true)]
async fn reconnect_without_reading_adds_no_queue() {
    const CAP: u64 = 500;
    let limits = LimitsConfig { queued_messages: 500, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut publisher = broker.v5("publisher").await;
    unread_subscriber(&broker, "unread_subscriber", QoS::AtLeastOnce).await.vanish().await;
    for _ in 0..6 {
        let mut connect = lasting("unread_subscriber");
        connect.properties.receive_maximum = Some(1);
        let client = broker.connect(connect).await;
        for _ in 0..CAP {
            publisher.publish("t", "x", QoS::AtLeastOnce).await;
        }
        client.vanish().await;
    }
    // Beside the queue there is one inflight message.
    let mut client = broker.resume("unread_subscriber").await;
    assert_eq!(client.take_all().await.len() as u64, CAP + 1);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 6 * CAP - CAP - 1);
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_acknowledgements_is_not_read() {
    let broker = TestBroker::start();
    let mut greedy = broker.narrow_link(ProtocolVersion::V5, 64 * 1024).await;
    greedy.send_connect(connect_v5("greedy")).await;
    greedy.accepted().await;
    // Two bytes each: answers to the first megabyte would fill the outbox of 256 KiB and the link of 64 KiB.
    let pings = [0xC0, 0x00].repeat(512 * 1024);
    let flood = tokio::time::timeout(std::time::Duration::from_secs(1), greedy.send_bytes(&pings)).await;
    assert!(flood.is_err(), "the broker took everything");
    assert!(broker.statistics().get(Counter::BytesReceived) < 512 * 1024);
    // Reading resumes with the client.
    let mut pongs = 0;
    while let Some(packet) = greedy.next_at_once().await {
        assert_eq!(packet, Packet::Pingresp);
        pongs += 1;
    }
    assert!(pongs > 128 * 1024);
    greedy.send(Packet::Pingreq).await;
    assert_eq!(greedy.next().await, Some(Packet::Pingresp));
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_idle_connections_disturb_no_other() {
    const IDLE: u64 = 10_000;
    let limits = LimitsConfig { queued_messages: 100, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    let mut idle = Vec::new();
    let before = crate::support::allocated();
    for number in 0..IDLE {
        let mut client = broker.narrow_link(ProtocolVersion::V5, 64).await;
        let connect = connect_v5(&format!("idle-{number}"));
        client.send_connect(connect).await;
        client.accepted().await;
        idle.push(client);
    }
    settle().await;
    // Both ends together, links included.
    let each = (crate::support::allocated() - before) / i64::try_from(IDLE).expect("small");
    println!("{each} bytes for an idle connection, both ends");
    assert!(each < 8 * 1024, "{each} bytes");
    assert_eq!(broker.statistics().connections(), IDLE);
    let _unread = unread_subscriber(&broker, "unread_subscriber", QoS::AtMostOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let mut healthy = broker.v5("healthy").await;
    healthy.subscribe("t", QoS::AtLeastOnce).await;
    let payload = "x".repeat(10_000);
    let before = crate::support::allocated();
    for _ in 0..2000 {
        publisher.publish("t", &payload, QoS::AtLeastOnce).await;
        assert_eq!(healthy.take().await.len(), payload.len());
    }
    let held = crate::support::allocated() - before;
    println!("{held} bytes after 20 MB for a subscriber that never reads");
    assert!(held < 3_000_000, "{held} bytes");
    let (first, last) = (idle.swap_remove(0), idle.pop());
    for mut client in [Some(first), last].into_iter().flatten() {
        client.send(Packet::Pingreq).await;
        assert_eq!(client.next().await, Some(Packet::Pingresp));
    }
}

#[tokio::test(start_paused = true)]
async fn burst_to_many_keeps_no_memory() {
    let broker = TestBroker::start();
    let mut clients = Vec::new();
    for number in 0..200 {
        // The buffer of a link keeps its capacity, which does not count here.
        let mut client = broker.narrow_link(ProtocolVersion::V5, 512).await;
        client.send_connect(connect_v5(&format!("client-{number}"))).await;
        client.accepted().await;
        client.subscribe("t", QoS::AtLeastOnce).await;
        clients.push(client);
    }
    let mut publisher = broker.v5("publisher").await;
    let before = crate::support::allocated();
    for _ in 0..500 {
        publisher.publish("t", "x".repeat(100), QoS::AtLeastOnce).await;
    }
    for client in &mut clients {
        assert_eq!(client.take_all().await.len(), 500);
    }
    settle().await;
    let each = (crate::support::allocated() - before) / 200;
    println!("{each} bytes stay with each receiver of a burst of 500");
    assert!(each < 16 * 1024, "{each} bytes");
}

#[tokio::test(start_paused = true)]
async fn half_open_connections_are_closed_in_time() {
    let broker = TestBroker::start();
    let mut half_open = Vec::new();
    for number in 0..1000_u16 {
        let mut client_without_connect = broker.narrow_link(ProtocolVersion::V5, 256).await;
        // Nothing, or the start of a CONNECT.
        let part = &[0x10, 0x7F, 0, 4, b'M', b'Q', b'T', b'T', 5][..usize::from(number % 10)];
        client_without_connect.send_bytes(part).await;
        half_open.push(client_without_connect);
    }
    let mut client = broker.v5("client").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    client.publish("t", "x", QoS::ExactlyOnce).await;
    assert_eq!(client.take().await, "x");
    assert_eq!(broker.statistics().connections(), 1001);
    pass(4).await;
    for client_without_connect in &mut half_open {
        client_without_connect.expect_silence().await;
    }
    let start = tokio::time::Instant::now();
    for client_without_connect in &mut half_open {
        client_without_connect.expect_end().await;
    }
    assert!(start.elapsed().as_secs() < 2);
    settle().await;
    assert_eq!(broker.statistics().connections(), 1);
    client.publish("t", "y", QoS::ExactlyOnce).await;
    assert_eq!(client.take().await, "y");
}
