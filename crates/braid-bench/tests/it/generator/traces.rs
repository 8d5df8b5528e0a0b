//! Messages one by one, and pings.

use std::time::Duration;

use braid_bench::emqtt::MessageTemplate;
use braid_bench::generator::{Clients, PublishPlan, PublishedTopic, SubscribePlan, Work};
use braid_bench::summary::Role;
use braid_broker::{BrokerConfig, MqttConfig};
use braid_proto::packet::QoS;

use super::broker::{Target, clients, one_filter, one_topic, plan, topics_file, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_trace_has_all_that_was_due_and_how_long_it_took() {
    let target = Target::start();
    let timestamp = Some("timestamp=us".parse().expect("a field"));
    let subscribe = SubscribePlan { timestamp, ..one_filter("a") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    receiving.statistics.keep_traces();
    until_subscribed(&receiving, 1).await;
    let file = r#"{"topics": [{"name": "a", "interval_ms": "100", "inject_timestamp": "us", "QoS": 1,
        "payload_encoding": "json", "payload": {"timestamp": "0"}}]}"#;
    // One at a time, and each takes half a second: of ten that are due, two are sent.
    target.device.change(|link| link.latency = Duration::from_millis(250));
    let publish = PublishPlan { inflight: 1, ..topics_file(file) };
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 4 * SECOND);
    let publishing = target.go(run, target.far());
    publishing.statistics.keep_traces();
    let (_, published) = publishing.ended().await;
    let (_, received) = receiving.ended().await;
    let (published, received) = (published.topics().remove(0), received.topics().remove(0));
    let due = published.trace.clone().expect("it was asked for").due_unix_us;
    assert!(published.failed > published.acked && published.acked > 2, "{published:?}");
    assert_eq!(due.len() as u64, published.acked + published.failed);
    assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 100_000), "{due:?}");
    let trace = received.trace.clone().expect("it was asked for");
    assert_eq!(trace.due_unix_us, due[..trace.due_unix_us.len()], "what came is what was due first");
    assert_eq!(
        (trace.took_us.len() as u64, trace.due_unix_us.len() as u64),
        (received.received, received.received)
    );
    let waits: Vec<u64> = trace.took_us.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        waits.iter().all(|wait| (395_000..=410_000).contains(wait)),
        "each waits for those before: {waits:?}"
    );
}

/// Messages that are too large for the server are due as others are.
#[tokio::test(start_paused = true)]
async fn a_trace_has_messages_that_could_not_be_handed_over() {
    let mqtt = MqttConfig { maximum_packet_size: 4096, ..MqttConfig::default() };
    let target = Target::with(BrokerConfig { mqtt, ..BrokerConfig::default() });
    let message = MessageTemplate::of_size(5000);
    let topic = PublishedTopic::new("a", false, SECOND, message, 5000).expect("a topic");
    let publish = PublishPlan::of(vec![topic]).expect("one topic");
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 9 * SECOND / 2);
    let publishing = target.go(run, target.near());
    publishing.statistics.keep_traces();
    let (_, published) = publishing.ended().await;
    let topic = published.topics().remove(0);
    assert_eq!((topic.acked, topic.failed), (0, 5), "{topic:?}");
    assert_eq!(topic.trace.map(|trace| trace.due_unix_us.len()), Some(5));
}

#[tokio::test(start_paused = true)]
async fn pings_without_an_answer_are_in_the_summary() {
    let target = Target::start();
    let device = target.device.clone();
    tokio::spawn(async move {
        tokio::time::sleep(21 * SECOND / 4).await;
        device.change(|link| link.cut = true);
    });
    let clients = Clients { ping: Some(SECOND / 2), ..clients(Role::Pub, 1) };
    let publishing = Work::Publish(one_topic("a", SECOND, QoS::AtMostOnce));
    let run = plan(clients, publishing, 10 * SECOND);
    let (_, statistics) = target.go(run, target.far()).ended().await;
    let summary = statistics.summary(Role::Pub);
    assert!((8..=10).contains(&summary.pings_unanswered), "{}", summary.pings_unanswered);
    let pingresp = summary.pingresp_us.expect("there were some");
    assert!((4_400_000.0..=4_600_000.0).contains(&pingresp.max), "{pingresp:?}");
    assert!((18..=20).contains(&pingresp.count), "{pingresp:?}");
}

#[tokio::test(start_paused = true)]
async fn pings_are_answered_after_a_round_trip_however_much_is_published() {
    let target = Target::start();
    let publishing = Work::Publish(one_topic("a", SECOND / 100, QoS::AtLeastOnce));
    let clients = Clients { ping: Some(SECOND / 2), ..clients(Role::Pub, 1) };
    let run = plan(clients, publishing, 10 * SECOND);
    let (_, statistics) = target.go(run, target.far()).ended().await;
    let pingresp = statistics.summary(Role::Pub).pingresp_us.expect("there were some");
    assert!((17..=20).contains(&pingresp.count), "{pingresp:?}");
    assert!((2_000.0..=5_000.0).contains(&pingresp.max), "{pingresp:?}");
}
