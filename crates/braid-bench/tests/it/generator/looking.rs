//! Snapshots of the statistics while a run goes on.

use std::time::Duration;

use braid_bench::emqtt::Counter;
use braid_bench::generator::Work;
use braid_bench::summary::Role;
use braid_proto::packet::QoS;

use super::broker::{Target, clients, one_filter, one_topic, plan, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_what_the_summary_says() {
    let target = Target::start();
    let work = Work::Subscribe(one_filter("a/#"));
    let receiving = target.go(plan(clients(Role::Sub, 2), work, 20 * SECOND), target.near());
    until_subscribed(&receiving, 2).await;
    let work = Work::Publish(one_topic("a/%i", Duration::from_millis(100), QoS::AtLeastOnce));
    let load = plan(clients(Role::Pub, 3), work, 5 * SECOND);
    let (_, published) = target.go(load, target.far()).ended().await;
    let (_, received) = receiving.ended().await;
    for statistics in [published, received] {
        let snapshot = statistics.snapshot();
        assert_eq!(snapshot.counters, statistics.counters());
        let topics = statistics.topics();
        assert!(!topics.is_empty() && snapshot.topics.len() == topics.len());
        for (shown, topic) in snapshot.topics.iter().zip(&topics) {
            assert_eq!((&shown.topic, shown.stream), (&topic.topic, topic.stream));
            assert_eq!((shown.acked, shown.received), (topic.acked, topic.received));
            assert_eq!((shown.latency_us, shown.priority), (topic.latency_us, topic.priority));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn durations_of_clients_are_printed_once_on_request() {
    for asks in [true, false] {
        let target = Target::start();
        let work = Work::Subscribe(one_filter("a"));
        let going = target.go(plan(clients(Role::Sub, 3), work, 5 * SECOND), target.far());
        if asks {
            going.statistics.keep_qoe();
        }
        until_subscribed(&going, 3).await;
        let lines = going.statistics.take_qoe().lines();
        // QUIC has no handshake of TCP.
        let names: Vec<_> = lines.iter().filter_map(|line| line.split(',').next()).collect();
        let expected = if asks { &["handshake", "connect", "subscribe"][..] } else { &[] };
        assert_eq!(names, expected, "{lines:?}");
        assert!(going.statistics.take_qoe().lines().is_empty());
        let (_, statistics) = going.ended().await;
        assert_eq!(statistics.counters()[Counter::Sub], 3);
    }
}
