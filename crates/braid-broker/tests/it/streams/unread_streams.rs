//! A stream that its client does not read blocks only itself: not the others, not the connection, and no publisher.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, MqttConfig, PriorityRule};
use braid_proto::packet::{Packet, Publish, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Shaper};
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, allocated, connect_v5, filter, message, pass, publish_packet, quiet,
};

const MIB: usize = 1024 * 1024;

/// Bytes queued for one session.
const QUEUE: usize = 4 * MIB;

/// Bytes of a bulk message.
const SIZE: usize = 10_000;

/// A round trip of 40 ms, and the allowance for the broker.
const AT_ONCE: Duration = Duration::from_millis(100);

fn config() -> BrokerConfig {
    let limits = LimitsConfig { queued_bytes: QUEUE, ..LimitsConfig::default() };
    BrokerConfig { limits, ..quiet() }
}

/// A client with bulk on one stream that it never reads, and alarms on another and on the control
/// stream.
async fn client_with_unread_stream(broker: &QuicBroker, bulk: QoS) -> (Lanes, [StreamKey; 2]) {
    broker.host("client").change(|link| link.latency = Duration::from_millis(20));
    let mut client = broker.v5("client").await;
    let (stuck, lively) = (client.open().await, client.open().await);
    client.subscribe(stuck, "bulk", bulk).await;
    client.subscribe(lively, "alarm/data", QoS::AtLeastOnce).await;
    client.subscribe(CONTROL, "alarm/control", QoS::AtLeastOnce).await;
    client.leave_unread(stuck);
    (client, [stuck, lively])
}

async fn alarm(publisher: &mut Client, client: &Lanes, stream: StreamKey, text: &str) {
    let topic = if stream.is_control() { "alarm/control" } else { "alarm/data" };
    let start = Instant::now();
    publisher.publish(topic, text, QoS::AtLeastOnce).await;
    assert_eq!(client.take(stream).await, text);
    assert!(start.elapsed() <= AT_ONCE, "{text} on {stream} took {:?}", start.elapsed());
}

/// [BQ-55], [BQ-24]: for minutes, with more bytes than all buffers hold.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_stalls_alone() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let broker = QuicBroker::start_with(config());
        let (client, [stuck, lively]) = client_with_unread_stream(&broker, qos).await;
        let mut publisher = broker.memory.v5("publisher").await;
        let before = allocated();
        let mut most = 0;
        for second in 0..180 {
            for _ in 0..6 {
                let start = Instant::now();
                publisher.publish("bulk", vec![b'x'; SIZE], qos).await;
                assert!(start.elapsed() <= AT_ONCE, "the publisher waited {:?}", start.elapsed());
            }
            alarm(&mut publisher, &client, lively, &format!("data {second}")).await;
            alarm(&mut publisher, &client, CONTROL, &format!("control {second}")).await;
            pass(1).await;
            most = most.max(allocated() - before);
        }
        // The queue, the first window of the stream (3.5 MiB), and as much of inflight payloads.
        let most = usize::try_from(most).expect("not less than before");
        assert!(most < QUEUE + 8 * MIB, "{qos:?}: {most} bytes");
        assert!(
            broker.memory.statistics().get(Counter::MessagesDropped) > 300,
            "{qos:?}: more than the queue holds"
        );
        // The stream continues as soon as it is read.
        client.read(stuck);
        for _ in 0..300 {
            client.take(stuck).await;
        }
    }
}

/// [BQ-55], [BQ-42]: messages for a stream that is not read take no room from messages of the same or a higher
/// priority.
#[tokio::test(start_paused = true)]
async fn nothing_is_lost_beside_a_stream_that_is_not_read() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let broker = QuicBroker::start_with(config());
        let (client, [_, lively]) = client_with_unread_stream(&broker, qos).await;
        let mut publisher = broker.memory.v5("publisher").await;
        for number in 0..1000 {
            publisher.publish("bulk", vec![b'x'; SIZE], qos).await;
            let text = format!("{number:0SIZE$}");
            publisher.publish("alarm/data", &text, qos).await;
            assert!(client.take(lively).await == text, "{qos:?}: number {number} is lost");
        }
    }
}

/// [BQ-55] holds for the control stream too.
#[tokio::test(start_paused = true)]
async fn a_control_stream_that_is_not_read_stalls_alone() {
    let broker = QuicBroker::start_with(config());
    let mut client = broker.v5("client").await;
    let data = client.open().await;
    client.subscribe(CONTROL, "bulk", QoS::AtLeastOnce).await;
    client.subscribe(data, "alarm/data", QoS::AtLeastOnce).await;
    client.leave_unread(CONTROL);
    let mut publisher = broker.memory.v5("publisher").await;
    for second in 0..120 {
        for _ in 0..8 {
            publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtLeastOnce).await;
        }
        alarm(&mut publisher, &client, data, &format!("{second}")).await;
        pass(1).await;
    }
}

/// [BQ-55], [BQ-56]: messages above the priority of the bulk have room in the queue even when bulk has filled it. A
/// rule of the broker has the same effect as a property of the client. [BQ-52]
#[tokio::test(start_paused = true)]
async fn alarms_find_room_in_a_queue_that_bulk_has_filled() {
    let rule = PriorityRule { filter: filter("alarm/#"), priority: Priority::new(60_000) };
    let broker = QuicBroker::start_with(BrokerConfig { priority: vec![rule], ..config() });
    let (client, [_, lively]) = client_with_unread_stream(&broker, QoS::AtLeastOnce).await;
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..1000 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtLeastOnce).await;
    }
    for number in 0..200 {
        alarm(&mut publisher, &client, lively, &format!("{number}")).await;
    }
}

/// [BQ-55]: alarms in quick succession show that the client lives, not that it takes its bulk.
#[tokio::test(start_paused = true)]
async fn no_publisher_waits_for_a_stream_that_is_not_read() {
    let broker = QuicBroker::start_with(config());
    let (client, [_, lively]) = client_with_unread_stream(&broker, QoS::AtLeastOnce).await;
    let mut bulk = broker.memory.v5("bulk").await;
    let mut alarms = broker.memory.v5("alarms").await;
    // Its round-trip time is unknown until its first answer.
    alarm(&mut alarms, &client, lively, "first").await;
    let start = Instant::now();
    for number in 0..500 {
        bulk.publish("bulk", vec![b'x'; SIZE], QoS::AtLeastOnce).await;
        alarms.publish("alarm/data", format!("{number}"), QoS::AtMostOnce).await;
    }
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    client.take(lively).await;
}

/// A slow stream is not stuck: its publisher of QoS 1 is slowed down, and nothing is dropped.
#[tokio::test(start_paused = true)]
async fn a_publisher_waits_for_a_stream_that_is_slow() {
    let broker = QuicBroker::start_with(config());
    let (client, [bulk, _]) = client_with_unread_stream(&broker, QoS::AtLeastOnce).await;
    client.read(bulk);
    let host = broker.host("client");
    host.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 5000.0, queue: 500 }));
    let mut publisher = broker.memory.v5("publisher").await;
    let start = Instant::now();
    for number in 0..1000 {
        publisher.publish("bulk", format!("{number:0SIZE$}"), QoS::AtLeastOnce).await;
        for packet in client.received(bulk) {
            let Packet::Publish(publish) = packet else { continue };
            client.acknowledge(bulk, &publish).await;
        }
    }
    assert!(start.elapsed() > Duration::from_millis(700), "{:?}", start.elapsed());
    assert_eq!(broker.memory.statistics().get(Counter::MessagesDropped), 0);
}

/// [BQ-55], from publisher to broker: a client that does not read its acknowledgements on a stream is not read there,
/// and can publish on others.
#[tokio::test(start_paused = true)]
async fn a_publisher_that_does_not_read_one_stream_can_use_the_others() {
    const MESSAGES: u32 = 65_000;
    // A client may send ahead of acknowledgements that it does not read.
    let mqtt = MqttConfig { receive_maximum: u16::MAX, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..config() });
    let options = QuicOptions { stream_receive_window: 16 * 1024, ..QuicOptions::client() };
    let mut client = broker.link_with("client", options).await;
    client.send_connect(connect_v5("client"));
    client.accepted().await;
    let (stuck, lively) = (client.open().await, client.open().await);
    client.leave_unread(stuck);
    let before = allocated();
    for number in 0..MESSAGES {
        let packet_id = u16::try_from(number).expect("small") + 1;
        client.send(stuck, &publish_packet("t", "twenty bytes of load", QoS::AtLeastOnce, packet_id));
    }
    for _ in 0..100 {
        for stream in [lively, CONTROL] {
            let start = Instant::now();
            client.publish(stream, "t", "x", QoS::AtLeastOnce).await;
            assert!(start.elapsed() <= AT_ONCE, "{:?}", start.elapsed());
        }
        pass(1).await;
    }
    let received = broker.memory.statistics().get(Counter::MessagesReceived);
    assert!(received < u64::from(MESSAGES) - 5_000, "{received} were read");
    let held = allocated() - before;
    assert!(held < 6_000_000, "{held} bytes, most of them unsent at the client");
    // Delayed requests are answered.
    client.read(stuck);
    pass(10).await;
    assert_eq!(client.received(stuck).len(), MESSAGES as usize);
}

/// [BQ-55]: a message of 2 MB that arrives slowly does not keep other streams from publishing.
#[tokio::test(start_paused = true)]
async fn a_large_message_that_comes_slowly_does_not_block_other_streams() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let mut client = broker.v5("client").await;
    let (slow, quick) = (client.open().await, client.open().await);
    let whole = crate::support::bytes(&Packet::Publish(Publish { ..message("large", vec![b'x'; 2 * MIB]) }));
    for (number, part) in whole.chunks(whole.len() / 100).enumerate() {
        client.send_bytes(slow, part);
        pass(1).await;
        client.publish(quick, "alarm", format!("{number}"), QoS::ExactlyOnce).await;
        if watcher.take().await.len() == 2 * MIB {
            return;
        }
    }
    assert_eq!(watcher.take().await.len(), 2 * MIB);
}
