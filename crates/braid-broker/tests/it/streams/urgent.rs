//! Priorities from the broker to a subscriber, over one QUIC connection on a narrow link.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, PriorityRule};
use braid_proto::packet::{Packet, QoS, Subscribe, SubscribeEntry};
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::sim::{Direction, Shaper};
use tokio::time::Instant;

use crate::support::{CONTROL, Lanes, QuicBroker, filter, id, pass, publish_packet, quiet, wait};

/// Bytes of a bulk message.
const SIZE: usize = 20_000;

/// A hundred packets a second, and a queue of a hundred: about 120 kB/s, with a round trip of 40 ms.
fn narrow(broker: &QuicBroker) {
    let host = broker.host("client");
    host.change(|link| link.latency = Duration::from_millis(20));
    host.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 100 }));
}

async fn subscribe(client: &mut Lanes, stream: StreamKey, text: &str, priority: Option<u16>) {
    let packet_id = client.next_id();
    let user = priority.map(|priority| ("braid-priority", priority.to_string()));
    client.send(
        stream,
        &Packet::Subscribe(Box::new(Subscribe {
            packet_id: id(packet_id),
            id: None,
            user: user.into_iter().collect(),
            entries: vec![SubscribeEntry::new(filter(text), QoS::AtMostOnce)],
        })),
    );
    assert_eq!(client.expect_suback(stream).await.codes, [QoS::AtMostOnce.into()]);
}

/// Alarms every 100 ms beside a queue of bulk; returns the delay of each, sorted.
async fn alarm_delays(
    broker: &QuicBroker,
    client: &Lanes,
    bulk: StreamKey,
    alarms: StreamKey,
) -> Vec<Duration> {
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..200 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtMostOnce).await;
    }
    pass(2).await;
    let mut delays = Vec::new();
    let mut next = Instant::now();
    for number in 0..200 {
        let start = Instant::now();
        publisher.publish("alarm", format!("{number}"), QoS::AtMostOnce).await;
        loop {
            let publish = client.expect_publish(alarms).await;
            if publish.payload.len() < SIZE {
                break;
            }
        }
        delays.push(start.elapsed());
        next += Duration::from_millis(100);
        tokio::time::sleep_until(next).await;
    }
    let left = (200 * SIZE).saturating_sub(client.received_bytes(bulk));
    println!("{left} bytes of bulk left");
    assert!(alarms == bulk || left > 10 * SIZE, "there was bulk all the time");
    delays.sort_unstable();
    delays
}

/// [BQ-50], [BQ-52]
#[tokio::test(start_paused = true)]
async fn alarms_overtake_bulk_on_a_narrow_link() {
    let rule = |text, priority| PriorityRule { filter: filter(text), priority: Priority::new(priority) };
    let rules = vec![rule("alarm", 60_000), rule("bulk", 100)];
    for (rules, asked, on) in [
        (rules.clone(), None, "own stream"),
        (Vec::new(), Some(60_000), "own stream"),
        (Vec::new(), None, "control"),
        (rules, None, "same stream"),
    ] {
        let name = format!("{} rules, {asked:?} asked for, {on}", rules.len());
        let broker = QuicBroker::start_with(BrokerConfig { priority: rules, ..quiet() });
        let mut client = broker.v5("client").await;
        let bulk = client.open().await;
        let alarms = match on {
            "control" => CONTROL,
            "same stream" => bulk,
            _ => client.open().await,
        };
        subscribe(&mut client, bulk, "bulk", None).await;
        subscribe(&mut client, alarms, "alarm", asked).await;
        narrow(&broker);
        let delays = alarm_delays(&broker, &client, bulk, alarms).await;
        let [half, most] = [delays[100], delays[189]];
        println!("{name}: p50 {half:?}, p95 {most:?}, max {:?}", delays[199]);
        if on == "same stream" {
            // Between packets: bytes that QUIC and the outbox of the stream have taken are not overtaken. The whole
            // queue takes 33 s.
            assert!(delays[199] < Duration::from_secs(2), "{name}: {:?}", delays[199]);
        } else {
            assert!(half < Duration::from_millis(200), "{name}: {half:?}");
            assert!(most < Duration::from_millis(600), "{name}: {most:?}");
        }
    }
}

/// [BQ-50]: on a path with a large window QUIC takes hundreds of kilobytes of bulk behind an unsent alarm. The stream
/// of the alarm keeps its priority above another stream's bulk until the alarm is sent.
#[tokio::test(start_paused = true)]
async fn an_alarm_keeps_its_place_however_much_is_taken_behind_it() {
    // The alarm is in QUIC's send buffer, behind more than a megabyte, or not even encoded, when the other bulk begins.
    for head_start in [Duration::from_millis(150), Duration::ZERO] {
        let delay = alarm_before_other_bulk(head_start).await;
        println!("{head_start:?} before the other bulk: the alarm took {delay:?}");
        assert!(delay < Duration::from_secs(1), "{head_start:?}: {delay:?}");
    }
}

/// Bulk and an alarm on one stream, then more urgent bulk on another; returns the delay of the alarm.
async fn alarm_before_other_bulk(head_start: Duration) -> Duration {
    let limits = LimitsConfig { queued_bytes: 64 << 20, queued_messages: 10_000, ..LimitsConfig::default() };
    let rule = |text, priority| PriorityRule { filter: filter(text), priority: Priority::new(priority) };
    let priority = vec![rule("alarm", 60_000), rule("other", 40_000), rule("bulk", 100)];
    let broker = QuicBroker::start_with(BrokerConfig { limits, priority, ..quiet() });
    // 2.8 MB/s, and 560 kB in flight.
    let host = broker.host("client");
    host.change(|link| link.latency = Duration::from_millis(100));
    host.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 2000.0, queue: 2000 }));
    let mut client = broker.v5("client").await;
    let (mixed, other) = (client.open().await, client.open().await);
    subscribe(&mut client, mixed, "bulk", None).await;
    subscribe(&mut client, mixed, "alarm", None).await;
    subscribe(&mut client, other, "other", None).await;
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..600 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtMostOnce).await;
    }
    pass(2).await;
    let start = Instant::now();
    publisher.publish("alarm", "!", QoS::AtMostOnce).await;
    wait(head_start).await;
    for _ in 0..300 {
        publisher.publish("other", vec![b'x'; SIZE], QoS::AtMostOnce).await;
    }
    while client.expect_publish(mixed).await.payload.len() == SIZE {}
    let delay = start.elapsed();
    assert!(client.received_bytes(other) < 200 * SIZE, "there was other bulk all the time");
    delay
}

/// [BQ-50]: a higher priority first, equals in turns.
#[tokio::test(start_paused = true)]
async fn bulk_is_shared_by_priority() {
    for (priorities, share) in [([200, 100], 0.8..1.01), ([100, 200], -0.01..0.2), ([7, 7], 0.4..0.6)] {
        let broker = QuicBroker::start();
        let mut client = broker.v5("client").await;
        let streams = [client.open().await, client.open().await];
        subscribe(&mut client, streams[0], "a", Some(priorities[0])).await;
        subscribe(&mut client, streams[1], "b", Some(priorities[1])).await;
        narrow(&broker);
        let mut publisher = broker.memory.v5("publisher").await;
        for _ in 0..200 {
            publisher.publish("a", vec![b'x'; SIZE], QoS::AtMostOnce).await;
            publisher.publish("b", vec![b'x'; SIZE], QoS::AtMostOnce).await;
        }
        // Alarms from before the queue was full do not count.
        pass(5).await;
        let before = streams.map(|stream| client.received_bytes(stream));
        pass(15).await;
        let [a, b] = [0, 1].map(|at| client.received_bytes(streams[at]) - before[at]);
        let part =
            f64::from(u32::try_from(a).expect("small")) / f64::from(u32::try_from(a + b).expect("small"));
        println!("{priorities:?}: {a} and {b} bytes");
        assert!(a + b > 500_000, "{a} + {b} bytes in 15 s");
        assert!(share.contains(&part), "{priorities:?}: {part}");
    }
}

/// [BQ-51]: the other direction, from a publisher to the broker.
#[tokio::test(start_paused = true)]
async fn a_publisher_chooses_the_priority_of_each_stream() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("alarm", QoS::AtMostOnce).await;
    let client = broker.v5("client").await;
    let (bulk, alarms) = (client.open().await, client.open().await);
    client.set_priority(bulk, 8);
    client.set_priority(alarms, 200);
    let host = broker.host("client");
    host.change(|link| link.latency = Duration::from_millis(20));
    host.change_one(Direction::Up, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 100 }));
    let large = vec![b'x'; 100_000];
    for _ in 0..40 {
        client.send(bulk, &publish_packet("bulk", &large, QoS::AtMostOnce, 0));
    }
    pass(2).await;
    let mut delays = Vec::new();
    for number in 0..100 {
        let start = Instant::now();
        client.send(alarms, &publish_packet("alarm", format!("{number}"), QoS::AtMostOnce, 0));
        assert_eq!(watcher.take().await, format!("{number}"));
        delays.push(start.elapsed());
        tokio::time::sleep_until(start + Duration::from_millis(100)).await;
    }
    delays.sort_unstable();
    println!("p50 {:?}, p95 {:?}, max {:?}", delays[50], delays[94], delays[99]);
    assert!(delays[50] < Duration::from_millis(200), "{:?}", delays[50]);
    assert!(delays[94] < Duration::from_millis(600), "{:?}", delays[94]);
    let received = broker.memory.statistics().get(Counter::BytesReceived);
    assert!((500_000..3_500_000).contains(&received), "bulk was under way all the time: {received} bytes");
}
