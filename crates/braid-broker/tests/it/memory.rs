//! Memory overload: publishers are slowed, connections refused, and stuck clients disconnected until it is over.

use braid_broker::{BrokerConfig, Counter, LimitsConfig, PriorityRule, SysConfig};
use braid_proto::packet::{Packet, ProtocolVersion, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, QuicBroker, TestBroker, allocated, connect_v3, connect_v5, filter, lasting, message,
    pass, publish_packet, quiet, settle,
};

const LOW: usize = 1 << 20;
const HIGH: usize = 2 << 20;

/// Bytes of a payload.
const SIZE: usize = 2000;

/// Size of one read of a connection, which is counted afterwards.
const READ: usize = 64 * 1024;

/// Watermarks, and queues without a limit.
fn with_watermarks(low: usize, high: usize) -> BrokerConfig {
    let limits = LimitsConfig {
        memory_low: low,
        memory_high: high,
        queued_bytes: 1 << 30,
        inflight_bytes: 1 << 30,
        ..LimitsConfig::default()
    };
    let priority = vec![PriorityRule { filter: filter("alarms/#"), priority: Priority::new(200) }];
    BrokerConfig { limits, priority, ..quiet() }
}

/// A subscriber of `bulk` whose link holds 1,024 bytes.
async fn subscriber(broker: &TestBroker, client_id: &str, qos: QoS) -> Client {
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(lasting(client_id)).await;
    client.accepted().await;
    client.subscribe("bulk", qos).await;
    client
}

/// Publishes `count` messages of QoS 0, as fast as the broker reads.
fn flood(mut publisher: Client, count: usize) -> JoinHandle<Client> {
    tokio::spawn(async move {
        for _ in 0..count {
            publisher.send(publish_packet("bulk", [0; SIZE], QoS::AtMostOnce, 1)).await;
        }
        publisher
    })
}

/// A broker above its low watermark, with a subscriber that does not read and a publisher that goes on.
async fn pressed(low: usize, high: usize) -> (TestBroker, Client, JoinHandle<Client>) {
    let broker = TestBroker::start_with(with_watermarks(low, high));
    let stuck = subscriber(&broker, "stuck", QoS::AtMostOnce).await;
    let publisher = broker.narrow_link(ProtocolVersion::V5, READ).await;
    let flood = flood(connected(publisher, "publisher").await, 10 * LOW / SIZE);
    settle().await;
    assert!(broker.handle.memory_used() > low as u64 && !flood.is_finished());
    (broker, stuck, flood)
}

async fn connected(mut client: Client, client_id: &str) -> Client {
    client.send_connect(connect_v5(client_id)).await;
    client.accepted().await;
    client
}

#[tokio::test(start_paused = true)]
async fn memory_stays_between_the_watermarks_with_a_slow_subscriber() {
    const PUBLISHERS: usize = 30;
    const MESSAGES: usize = 200;
    let broker = TestBroker::start_with(with_watermarks(LOW, HIGH));
    let mut slow = subscriber(&broker, "slow", QoS::AtMostOnce).await;
    let mut publishers = Vec::new();
    for number in 0..PUBLISHERS {
        let link = broker.narrow_link(ProtocolVersion::V5, 1024).await;
        publishers.push(connected(link, &format!("publisher-{number}")).await);
    }
    let before = allocated();
    let floods: Vec<_> = publishers.into_iter().map(|publisher| flood(publisher, MESSAGES)).collect();
    let (mut received, mut most) = (0, 0);
    while received < PUBLISHERS * MESSAGES {
        received += slow.take_many(50).await.len();
        pass(1).await;
        let used = usize::try_from(broker.handle.memory_used()).expect("small");
        most = most.max(used);
        assert!(used <= HIGH, "{used} after {received}");
        // The count is the allocated memory, except for queue entries and idle buffers.
        let held = usize::try_from(allocated() - before).unwrap_or(0);
        assert!(held <= HIGH + HIGH / 2, "{held} allocated, {used} counted");
    }
    assert!(most > LOW, "no publisher was slowed");
    for flood in floods {
        drop(flood.await.expect("no client is disconnected"));
    }
    assert_eq!((broker.statistics().get(Counter::MessagesDropped), broker.handle.memory_used()), (0, 0));
    assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 0);
}

#[tokio::test(start_paused = true)]
async fn stuck_subscriber_is_disconnected_and_keeps_its_messages() {
    const MESSAGES: usize = 2000;
    let broker = TestBroker::start_with(with_watermarks(LOW, HIGH));
    let stuck = subscriber(&broker, "stuck", QoS::AtLeastOnce).await;
    let mut healthy = broker.v5("healthy").await;
    healthy.subscribe("other", QoS::AtMostOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let start = Instant::now();
    let flood = tokio::spawn(async move {
        for _ in 0..MESSAGES {
            publisher.publish("bulk", [0; SIZE], QoS::AtLeastOnce).await;
        }
    });
    flood.await.expect("the publisher goes on");
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
    assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 1);
    settle().await;
    assert_eq!(broker.handle.memory_used(), 0);
    assert!(broker.handle.memory_resting() > (MESSAGES * SIZE) as u64);
    drop(stuck);
    // The messages that it comes back to slow no publisher either.
    let mut back = broker.resume("stuck").await;
    assert_eq!(broker.handle.memory_used(), 0);
    assert_eq!(back.take_many(MESSAGES).await.len(), MESSAGES);
    settle().await;
    assert_eq!((broker.handle.memory_resting(), broker.statistics().get(Counter::MessagesDropped)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn connections_are_refused_above_the_high_watermark() {
    let (broker, mut slow, flood) = pressed(LOW, LOW).await;
    for (connect, version, reason) in [
        (connect_v5("new"), ProtocolVersion::V5, ReasonCode::QuotaExceeded),
        // MQTT 3 has no better return code.
        (connect_v3("new"), ProtocolVersion::V311, ReasonCode::ServerUnavailable),
    ] {
        let mut client = broker.link(version).await;
        client.send_connect(connect).await;
        assert_eq!(client.expect_connack().await.reason, reason);
        client.expect_end().await;
    }
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2);
    slow.take_many(10 * LOW / SIZE).await;
    drop(flood.await.expect("the publisher goes on"));
    settle().await;
    assert_eq!(broker.handle.memory_used(), 0);
    broker.v5("new").await.publish("t", "x", QoS::AtLeastOnce).await;
    broker.v3("new").await.publish("t", "x", QoS::AtLeastOnce).await;
}

#[tokio::test(start_paused = true)]
async fn overload_is_published_below_sys() {
    let sys = SysConfig { interval_secs: 1_000_000 };
    let broker = TestBroker::start_with(BrokerConfig { sys, ..with_watermarks(LOW, LOW) });
    let mut watch = broker.v5("watch").await;
    watch.subscribe("$SYS/broker/memory/state", QoS::AtMostOnce).await;
    assert_eq!(watch.take().await, "ok");
    let mut slow = subscriber(&broker, "slow", QoS::AtMostOnce).await;
    for round in 0..3 {
        let flood = flood(broker.v5("publisher").await, 2 * LOW / SIZE);
        assert_eq!(watch.take().await, "full: new connections are refused", "round {round}");
        slow.take_many(2 * LOW / SIZE).await;
        drop(flood.await.expect("the publisher goes on"));
        assert_eq!(watch.take().await, "ok");
        // The next overload is published after a while only.
        pass(10).await;
    }
    let short = flood(broker.v5("publisher").await, LOW / SIZE + 40);
    assert_eq!(watch.take().await, "full: new connections are refused");
    slow.take_many(LOW / SIZE + 40).await;
    assert_eq!(watch.take().await, "ok");
    drop(short);
    let again = flood(broker.v5("publisher").await, LOW / SIZE + 40);
    slow.take_many(LOW / SIZE + 40).await;
    settle().await;
    watch.expect_silence().await;
    drop(again);
}

/// Its acknowledgements come behind its messages: unread, they would free nothing.
#[tokio::test(start_paused = true)]
async fn client_that_publishes_and_subscribes_goes_on_slowly_under_pressure() {
    let (broker, stuck, flood) = pressed(LOW, HIGH).await;
    let mut client = broker.v5("both").await;
    client.subscribe("own", QoS::AtLeastOnce).await;
    let start = Instant::now();
    for number in 0..10 {
        client.send(publish_packet("own", [0; SIZE], QoS::AtLeastOnce, number + 1)).await;
        assert_eq!(client.take_many(1).await.len(), 1);
        client.send(Packet::Pingreq).await;
        while client.next().await != Some(Packet::Pingresp) {}
    }
    assert!(start.elapsed().as_secs() > 2, "{:?}", start.elapsed());
    assert!(broker.handle.memory_used() > LOW as u64, "it was not under pressure");
    drop((stuck, flood));
}

#[tokio::test(start_paused = true)]
async fn urgent_messages_and_acknowledgements_pass_under_pressure() {
    let (broker, stuck, flood) = pressed(LOW, HIGH).await;
    let mut watch = broker.v5("watch").await;
    watch.subscribe("alarms/#", QoS::AtLeastOnce).await;
    let mut sensor = broker.v5("sensor").await;
    let start = Instant::now();
    for number in 0..200 {
        sensor.publish("alarms/fire", number.to_string(), QoS::AtLeastOnce).await;
        assert_eq!(watch.take().await, number.to_string());
    }
    assert_eq!(start.elapsed().as_millis(), 0);
    // A client that marks bulk urgent is slowed above its rate.
    let mut greedy = broker.v5("greedy").await;
    for _ in 0..2 * LOW / 1000 {
        greedy.publish("alarms/all", [0; 500], QoS::AtLeastOnce).await;
        watch.take().await;
    }
    assert!(start.elapsed().as_millis() >= 250, "{:?}", start.elapsed());
    drop((stuck, flood));
}

/// Bulk data, urgent messages and PINGREQ have streams of their own.
#[tokio::test(start_paused = true)]
async fn streams_with_bulk_are_slowed_and_others_are_not() {
    let broker = QuicBroker::start_with(with_watermarks(LOW, HIGH));
    let mut slow = subscriber(&broker.memory, "slow", QoS::AtMostOnce).await;
    let mut watch = broker.memory.v5("watch").await;
    watch.subscribe("alarms/#", QoS::AtMostOnce).await;
    let client = broker.v5("client").await;
    let alarms = client.open().await;
    const STREAMS: usize = 4;
    for _ in 0..STREAMS {
        let stream = client.open().await;
        for _ in 0..2 * LOW / SIZE {
            client.send(stream, &publish_packet("bulk", [0; SIZE], QoS::AtMostOnce, 1));
        }
    }
    pass(2).await;
    let used = broker.memory.handle.memory_used();
    assert!(used > LOW as u64 && used < (LOW + LOW / 2) as u64, "{used}");
    for number in 0..10 {
        client.send(alarms, &publish_packet("alarms/fire", number.to_string(), QoS::AtMostOnce, 1));
        client.send(CONTROL, &Packet::Pingreq);
        let asked = Instant::now();
        assert_eq!(client.expect(CONTROL).await, Packet::Pingresp);
        assert_eq!(watch.take().await, number.to_string());
        assert!(asked.elapsed().as_millis() < 500, "{:?}", asked.elapsed());
    }
    // Bulk data resumes.
    let all: Vec<Publish> = slow.take_many(STREAMS * (2 * LOW / SIZE)).await;
    assert_eq!(all.len(), STREAMS * (2 * LOW / SIZE));
    assert_eq!(broker.memory.handle.memory_used(), 0);
}

/// Bytes on QUIC streams that the broker does not read refuse new connections, and slow no publisher.
#[tokio::test(start_paused = true)]
async fn unread_bytes_of_streams_count_for_the_high_watermark() {
    let mut config = with_watermarks(LOW / 8, LOW / 4);
    config.limits.publish_bytes_per_second = 1000;
    let broker = QuicBroker::start_with(config);
    let client = broker.v5("client").await;
    let stream = client.open().await;
    for _ in 0..LOW / SIZE {
        client.send(stream, &publish_packet("t", [0; SIZE], QoS::AtMostOnce, 1));
    }
    pass(6).await;
    let health = broker.memory.handle.health_monitor().health();
    assert_eq!(health.memory, "full: new connections are refused");
    assert!(health.memory_used < (LOW / 8) as u64, "{}", health.memory_used);
}

/// Packets that never end slow all publishers, until the sender of the longest is disconnected.
#[tokio::test(start_paused = true)]
async fn incomplete_packets_count_and_the_longest_is_disconnected() {
    let broker = TestBroker::start_with(with_watermarks(LOW, HIGH));
    let mut half = Vec::new();
    for number in 0..3 {
        let mut client = broker.v5(&format!("half-{number}")).await;
        let mut bytes = bytes::BytesMut::new();
        publish_packet("t", vec![0; LOW], QoS::AtMostOnce, 1).encode(ProtocolVersion::V5, &mut bytes);
        bytes.truncate(LOW / 10 * 4);
        half.push(tokio::spawn(async move {
            client.send_bytes(&bytes).await;
            client
        }));
    }
    settle().await;
    assert!(broker.handle.memory_used() > LOW as u64);
    let mut publisher = broker.v5("publisher").await;
    let start = Instant::now();
    for _ in 0..200 {
        publisher.publish("t", [0; SIZE], QoS::AtLeastOnce).await;
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 1);
    drop(half);
    settle().await;
}

/// No subscriber can free it by taking it.
#[tokio::test(start_paused = true)]
async fn retained_messages_count_apart_until_they_are_replaced() {
    let broker = TestBroker::start_with(with_watermarks(LOW, LOW));
    let mut publisher = broker.v5("publisher").await;
    let retain = |size: usize| Publish { retain: true, ..message("t", vec![0; size]) };
    for size in [2 * LOW, 3 * LOW, 1] {
        publisher.publish_as(retain(size)).await;
        settle().await;
        let (used, resting) = (broker.handle.memory_used(), broker.handle.memory_resting());
        assert!(used == 0 && resting >= size as u64 && resting < (size + 1000) as u64, "{used}, {resting}");
    }
    publisher.publish_as(retain(0)).await;
    settle().await;
    assert_eq!((broker.handle.memory_used(), broker.handle.memory_resting()), (0, 0));
}

/// Inflight messages of a client that leaves count as offline.
#[tokio::test(start_paused = true)]
async fn inflight_messages_count_as_offline_when_their_client_leaves() {
    let broker = TestBroker::start_with(with_watermarks(LOW, HIGH));
    let mut client = broker.resume("client").await;
    client.subscribe("bulk", QoS::AtLeastOnce).await;
    broker.v5("publisher").await.publish("bulk", [0; SIZE], QoS::AtLeastOnce).await;
    assert_eq!(client.expect_publish().await.payload.len(), SIZE);
    assert!(broker.handle.memory_used() > SIZE as u64);
    client.vanish().await;
    settle().await;
    assert_eq!(broker.handle.memory_used(), 0);
    assert!(broker.handle.memory_resting() > SIZE as u64);
    let mut client = broker.resume("client").await;
    assert_eq!(client.take_many(1).await.len(), 1);
    settle().await;
    assert_eq!(broker.handle.memory_resting(), 0);
}

#[tokio::test(start_paused = true)]
async fn packet_longer_than_the_watermark_arrives() {
    let broker = TestBroker::start_with(with_watermarks(LOW, HIGH));
    let mut client = broker.v5("client").await;
    client.subscribe("bulk", QoS::AtMostOnce).await;
    let start = Instant::now();
    client.publish("bulk", vec![0; 2 * HIGH], QoS::AtLeastOnce).await;
    assert_eq!(client.take_many(1).await[0].payload.len(), 2 * HIGH);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
