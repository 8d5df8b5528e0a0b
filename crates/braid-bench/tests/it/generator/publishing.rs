//! Due times, counters and delays of publishers.

use std::time::Duration;

use braid_bench::emqtt::{Counter, MessageTemplate};
use braid_bench::generator::{Dialer, Ended, PublishPlan, PublishedTopic, Start, Work};
use braid_bench::summary::{Role, RunSummary};
use braid_measure::Quantiles;
use braid_proto::packet::QoS;

use super::broker::{Target, clients, one_filter, one_topic, plan, summed, topics_file, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn counts_agree_with_those_of_the_broker() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for far in [false, true] {
            let target = Target::start();
            let dialer = || if far { target.far() } else { target.near() };
            let subscribers = Work::Subscribe(one_filter("load/#"));
            let receiving = plan(clients(Role::Sub, 2), subscribers, 20 * SECOND);
            let receiving = target.go(receiving, dialer());
            until_subscribed(&receiving, 2).await;
            let publishers = Work::Publish(one_topic("load/%i", Duration::from_millis(50), qos));
            // In the middle between two messages, so that nothing is on its way.
            let run = plan(clients(Role::Pub, 3), publishers, Duration::from_millis(10_035));
            let (ended, published) = target.go(run, dialer()).ended().await;
            assert_eq!(ended, Ended::Time);
            let (_, received) = receiving.ended().await;
            let (published, received) = (published.summary(Role::Pub), received.summary(Role::Sub));
            let sent = summed(&published, |topic| topic.sent);
            assert!((590..=603).contains(&sent), "{sent}");
            let statistics = target.broker.statistics();
            assert_eq!(statistics.get(braid_broker::Counter::MessagesReceived), sent, "{qos:?}, far: {far}");
            assert_eq!(statistics.get(braid_broker::Counter::MessagesSent), 2 * sent);
            assert_eq!(summed(&received, |topic| topic.received), 2 * sent);
            assert_eq!(received.counters[Counter::Recv.name()], 2 * sent);
            assert_eq!(received.topics.len(), 3, "a topic for each client");
            assert_eq!(summed(&published, |topic| topic.acked), sent);
            assert_eq!(summed(&published, |topic| topic.failed), 0);
            assert_eq!(summed(&published, |topic| topic.bytes), 64 * sent);
            assert_eq!(summed(&published, |topic| topic.per_second.iter().sum()), sent);
            assert_eq!(published.counters[Counter::Pub.name()], sent);
            let succeeded = if qos == QoS::AtMostOnce { 0 } else { sent };
            assert_eq!(published.counters[Counter::PubSucc.name()], succeeded);
            assert_eq!((published.connections.wanted, published.connections.established), (3, 3));
            assert!(published.events.is_empty() && received.events.is_empty(), "{:?}", published.events);
        }
    }
}

/// The topics file of the seeds, but for the size of the large message.
const TWO_TOPICS: &str = r#"{"topics": [
    {"name": "Topic1", "interval_ms": "100", "inject_timestamp": "us", "QoS": 1, "payload_encoding": "eterm",
     "payload": {"foo1": "bar1", "timestamp": "0", "Data": "10"}, "stream": 1, "stream_priority": 200},
    {"name": "Topic2", "interval_ms": "5000", "inject_timestamp": "us", "QoS": 1, "payload_encoding": "eterm",
     "payload": {"foo2": "bar2", "VIN": "VIN", "Data": "%p1"}, "stream": 2, "stream_priority": 8, "render": "Data"},
]}"#;

#[tokio::test(start_paused = true)]
async fn each_topic_has_its_own_schedule_which_begins_one_interval_after_the_connection() {
    let target = Target::start();
    let run =
        plan(clients(Role::Pub, 1), Work::Publish(topics_file(TWO_TOPICS)), Duration::from_millis(10_050));
    let (_, statistics) = target.go(run, target.near()).ended().await;
    let summary = statistics.summary(Role::Pub);
    let [small, large] = &summary.topics[..] else { panic!("two topics: {summary:?}") };
    assert_eq!((small.topic.as_str(), small.stream, small.priority), ("Topic1", 1, Some(200)));
    assert_eq!(small.per_second, [9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 1]);
    assert_eq!((large.topic.as_str(), large.sent, large.acked), ("Topic2", 2, 2));
    assert_eq!(large.per_second, [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
    assert!(summary.seconds == 10.05, "{}", summary.seconds);
}

/// A message that is acknowledged after one round trip of 2 ms, with no more than one on its way: the 500 a second that
/// this allows are half of what is due.
#[tokio::test(start_paused = true)]
async fn latency_counts_from_when_a_message_was_due_and_not_from_when_it_left() {
    let target = Target::start();
    let publish = PublishPlan { inflight: 1, ..one_topic("a", Duration::from_millis(1), QoS::AtLeastOnce) };
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 10 * SECOND);
    let (_, statistics) = target.go(run, target.far()).ended().await;
    let summary = statistics.summary(Role::Pub);
    let topic = &summary.topics[0];
    assert!((3000..=5000).contains(&topic.acked), "{topic:?}");
    // All that was due is there: acknowledged, or failed because it waited for the others.
    assert!((9_980..=10_000).contains(&(topic.acked + topic.failed)), "{topic:?}");
    assert_eq!(topic.failed, summary.counters[Counter::PubFail.name()]);
    assert!(topic.sent - topic.acked <= 1, "{topic:?}");
    let latency = topic.latency_us.expect("some were acknowledged");
    let waited = 10_000_000.0 * (1.0 - topic.acked as f64 / 10_000.0);
    assert!((latency.max - waited).abs() < 0.05 * waited, "{latency:?}, the last one waited {waited} us");
    // All but the first few were due while the one before them waited.
    let overruns = summary.counters[Counter::PubOverrun.name()];
    assert!(topic.sent - overruns < 10, "{overruns} overruns of {}", topic.sent);
}

#[tokio::test(start_paused = true)]
async fn punctual_messages_are_no_overrun() {
    let target = Target::start();
    let publish = one_topic("a", Duration::from_micros(100), QoS::AtLeastOnce);
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), SECOND);
    let (_, statistics) = target.go(run, target.near()).ended().await;
    let summary = statistics.summary(Role::Pub);
    assert!((9_980..10_000).contains(&summary.topics[0].acked), "{summary:?}");
    assert_eq!(summary.counters[Counter::PubOverrun.name()], 0);
    // The timer has ticks of a millisecond, which the messages of the next one share.
    let latency = summary.topics[0].latency_us.expect("some were acknowledged");
    assert!(latency.max <= 1_100.0, "{latency:?}");
}

/// Messages sent in two seconds, and how late they were begun.
async fn lateness(way: fn(&Target) -> Dialer, publish: PublishPlan) -> (u64, Option<Quantiles>) {
    let target = Target::start();
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 2 * SECOND);
    let (_, statistics) = target.go(run, way(&target)).ended().await;
    let summary = statistics.summary(Role::Pub);
    (summary.topics[0].sent, summary.lateness_us)
}

#[tokio::test(start_paused = true)]
async fn lateness_counts_only_messages_that_waited_for_their_time_alone() {
    let paced = one_topic("a", Duration::from_micros(300), QoS::AtLeastOnce);
    let (sent, found) = lateness(Target::near, paced).await;
    let found = found.expect("they were paced");
    // The first one waited for nothing. The timer of tests ticks in milliseconds.
    assert_eq!(found.count, sent - 1);
    assert!(found.p50 > 0.0 && found.max <= 1_100.0, "{found:?}");
    // One round trip takes as long as two intervals, and nothing goes meanwhile.
    let paced = PublishPlan { inflight: 1, ..one_topic("a", Duration::from_millis(1), QoS::AtLeastOnce) };
    let (sent, found) = lateness(Target::far, paced).await;
    let waited = sent - found.map_or(0, |found| found.count);
    assert!(sent > 300 && sent - waited < 10, "{waited} of {sent} waited for others");
    let unpaced = PublishPlan { limit: 1000, ..one_topic("a", Duration::ZERO, QoS::AtMostOnce) };
    assert_eq!(lateness(Target::near, unpaced).await, (1000, None));
}

#[tokio::test(start_paused = true)]
async fn no_client_publishes_before_all_have_connected_if_wanted() {
    for (waits, first) in [(true, 4), (false, 0)] {
        let target = Target::start();
        let mut who = clients(Role::Pub, 5);
        who.start = Start::Every(1_200 * SECOND / 1000);
        let publish = one_topic("a", 500 * SECOND / 1000, QoS::AtMostOnce);
        let publish = PublishPlan { wait_for_all: waits, workers: 2, ..publish };
        let (_, statistics) =
            target.go(plan(who, Work::Publish(publish), 6 * SECOND), target.near()).ended().await;
        // The last one comes after 4.8 s.
        let per_second = &statistics.summary(Role::Pub).topics[0].per_second;
        let found = per_second.iter().position(|&messages| messages > 0);
        assert_eq!(found, Some(first), "{per_second:?}");
        let told: Vec<_> =
            statistics.events(0).into_iter().map(|event| (event.at.floor(), event.what)).collect();
        let go = (4.0, "Collected 2 'go' signals, start publishing".to_owned());
        assert_eq!(told, if waits { vec![go] } else { Vec::new() });
    }
}

#[tokio::test(start_paused = true)]
async fn clients_come_at_the_pace_asked_for() {
    for (start, after_a_second) in [
        (Start::Every(Duration::from_millis(100)), 10),
        (Start::PerSecond(4), 4),
        (Start::Every(Duration::ZERO), 30),
    ] {
        let target = Target::start();
        let mut who = clients(Role::Conn, 30);
        who.start = start;
        let going = target.go(plan(who, Work::Connect, 20 * SECOND), target.near());
        tokio::time::sleep(Duration::from_millis(999)).await;
        assert_eq!(going.statistics.connected(), after_a_second, "{start:?}");
        let (ended, statistics) = going.ended().await;
        assert_eq!((ended, statistics.connected()), (Ended::Time, 0));
        assert_eq!(statistics.counters()[Counter::ConnectSucc], 30);
        assert_eq!(target.broker.statistics().get(braid_broker::Counter::ConnectionsTotal), 30);
    }
}

#[tokio::test(start_paused = true)]
async fn saturated_load_waits_for_the_link_only() {
    let target = Target::start();
    let topic = PublishedTopic::new("a", false, Duration::ZERO, MessageTemplate::of_size(64), 64);
    let publish =
        PublishPlan { limit: 50_000, ..PublishPlan::of(vec![topic.expect("a topic")]).expect("one") };
    let run = plan(clients(Role::Pub, 2), Work::Publish(publish), 60 * SECOND);
    let (ended, statistics) = target.go(run, target.near()).ended().await;
    let summary: RunSummary = statistics.summary(Role::Pub);
    assert_eq!(ended, Ended::Complete);
    assert_eq!((summary.topics[0].sent, summary.topics[0].acked), (50_000, 50_000));
    assert_eq!(target.broker.statistics().get(braid_broker::Counter::MessagesReceived), 50_000);
}

#[tokio::test(start_paused = true)]
async fn messages_without_a_subscriber_are_counted_by_reason_code() {
    for (topic, unwanted) in [("a", 0), ("b", 11)] {
        let target = Target::start();
        let subscribers = plan(clients(Role::Sub, 1), Work::Subscribe(one_filter("a")), SECOND * 20);
        let receiving = target.go(subscribers, target.near());
        until_subscribed(&receiving, 1).await;
        let publish = Work::Publish(one_topic(topic, Duration::from_millis(100), QoS::AtLeastOnce));
        let run = plan(clients(Role::Pub, 1), publish, 1_050 * SECOND / 1000);
        let counters = target.go(run, target.near()).ended().await.1.counters();
        assert_eq!((counters[Counter::PubSucc], counters[Counter::PubNosub]), (11, unwanted));
    }
}
