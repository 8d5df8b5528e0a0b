//! Data streams with priorities, and the bytes of each.

use std::time::Duration;

use braid_bench::generator::{SubscribePlan, SubscribedFilter, Work};
use braid_bench::summary::{Role, RunSummary, TopicSummary};
use braid_proto::packet::QoS;
use braid_transport::sim::{Direction, Policer};

use super::broker::{Target, clients, one_filter, plan, topics_file, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);

/// A small message every 100 ms and a large one of `pages` of 4 KiB every five seconds, on streams of these numbers.
fn small_and_large(small: u32, (large, pages): (u32, u32)) -> String {
    format!(
        r#"{{"topics": [
            {{"name": "small", "interval_ms": "100", "inject_timestamp": "us", "QoS": 1, "payload_encoding": "eterm",
              "payload": {{"a": "b"}}, "stream": {small}, "stream_priority": 200}},
            {{"name": "large", "interval_ms": "5000", "inject_timestamp": "us", "QoS": 1, "payload_encoding": "eterm",
              "payload": {{"Data": "%p{pages}"}}, "render": "Data", "stream": {large}, "stream_priority": 8}}]}}"#
    )
}

/// Summaries of a publisher behind the policer of the seeds and a subscriber in front of it after 30 s.
async fn behind_policer(file: &str) -> (RunSummary, RunSummary) {
    let target = Target::start();
    target.device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
    let mut subscribe = one_filter("#");
    subscribe.timestamp = Some("timestamp=us".parse().expect("a field and a unit"));
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 40 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    let run = plan(clients(Role::Pub, 1), Work::Publish(topics_file(file)), 30 * SECOND);
    let (_, published) = target.go(run, target.far()).ended().await;
    (published.summary(Role::Pub), receiving.ended().await.1.summary(Role::Sub))
}

fn topic<'a>(summary: &'a RunSummary, name: &str) -> &'a TopicSummary {
    summary.topics.iter().find(|topic| topic.topic == name).expect("it was published")
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_a_higher_priority_does_not_wait_for_a_large_message() {
    let (published, received) = behind_policer(&small_and_large(1, (2, 250))).await;
    let small = topic(&published, "small");
    assert!(small.acked >= 290, "{small:?}");
    // The first ones wait for a handshake that the policer makes long.
    let latency = small.latency_us.expect("some were acknowledged");
    assert!(latency.p90 < 100_000.0 && latency.max < 1_500_000.0, "{latency:?}");
    // Both ends measure from the time a message was due: the acknowledgement comes a millisecond later.
    let arrived = topic(&received, "small").latency_us.expect("some arrived");
    assert!(arrived.count >= 290 && arrived.p50 >= 1_000.0 && arrived.p50 < latency.p50, "{arrived:?}");
    // The bytes of each stream are its own; the large one has most, and the control stream next to nothing.
    let bytes = |number| {
        let stream = published.streams.iter().find(|stream| stream.stream == number);
        stream.map_or(0, |stream| stream.bytes_per_second.iter().sum())
    };
    let (control, first, second): (u64, u64, u64) = (bytes(0), bytes(1), bytes(2));
    assert!(
        control < 200 && (10_000..50_000).contains(&first) && second > 400_000,
        "{control} {first} {second}"
    );
    let large = published.streams.iter().find(|stream| stream.stream == 2).expect("it was opened");
    assert!(large.bytes_per_second[..5].iter().sum::<u64>() == 0, "it is due after five seconds: {large:?}");
}

#[tokio::test(start_paused = true)]
async fn on_one_stream_it_waits() {
    let (published, received) = behind_policer(&small_and_large(0, (0, 300))).await;
    let small = topic(&published, "small");
    assert!((45..=60).contains(&small.acked), "{small:?}");
    // The large one outlasts the run, and what stands behind it comes without an acknowledgement that is still counted.
    assert!(topic(&received, "small").received >= small.acked, "{received:?}");
    assert_eq!(published.streams.len(), 1, "{:?}", published.streams);
}

#[tokio::test(start_paused = true)]
async fn topics_share_a_stream_by_its_number() {
    let target = Target::start();
    let file = r#"{"topics": [
        {"name": "a", "interval_ms": "100", "QoS": 1, "payload": {}, "stream": 3},
        {"name": "b", "interval_ms": "100", "QoS": 0, "payload": {}, "stream": 3},
        {"name": "c", "interval_ms": "100", "QoS": 2, "payload": {}, "stream": 7},
        {"name": "d", "interval_ms": "100", "QoS": 2, "payload": {}}]}"#;
    let run = plan(clients(Role::Pub, 2), Work::Publish(topics_file(file)), 1_080 * SECOND / 1000);
    let (_, statistics) = target.go(run, target.far()).ended().await;
    let numbers: Vec<_> = statistics.streams().iter().map(|stream| stream.stream).collect();
    assert_eq!(numbers, [0, 3, 7]);
    assert!(
        statistics.topics().iter().all(|topic| (topic.acked, topic.failed) == (20, 0)),
        "{:?}",
        statistics.topics()
    );
}

/// Two filters on streams of their own: what comes is told apart by stream, and the broker knows the priorities.
#[tokio::test(start_paused = true)]
async fn subscriptions_on_data_streams_bring_their_messages_there() {
    let target = Target::start();
    let filter = |text, stream, priority| {
        let filter = SubscribedFilter::new(text, false, QoS::AtLeastOnce).expect("a filter");
        SubscribedFilter { stream, priority: Some(priority), ..filter }
    };
    let filters = vec![filter("small", 1, 200), filter("large", 2, 8)];
    let subscribe = SubscribePlan { filters, ..SubscribePlan::default() };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 40 * SECOND);
    let receiving = target.go(receiving, target.far());
    until_subscribed(&receiving, 1).await;
    // Behind the policer is what the broker sends.
    target.device.change_one(Direction::Down, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
    let publish = Work::Publish(topics_file(&small_and_large(0, (0, 250))));
    let run = plan(clients(Role::Pub, 1), publish, 30 * SECOND);
    let (_, published) = target.go(run, target.near()).ended().await;
    let received = receiving.ended().await.1.summary(Role::Sub);
    let small = topic(&received, "small");
    assert_eq!((small.stream, small.priority), (1, Some(200)));
    assert_eq!(small.received, published.topics()[0].acked, "nothing small waited for what is large");
    let large = topic(&received, "large");
    assert_eq!((large.stream, large.priority), (2, Some(8)));
    let numbers: Vec<_> = received.streams.iter().map(|stream| stream.stream).collect();
    assert_eq!(numbers, [0, 1, 2]);
}
