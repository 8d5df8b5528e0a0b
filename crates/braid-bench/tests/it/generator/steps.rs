//! Steps of clients that connect, and ends of connections that were planned.

use std::time::Duration;

use braid_bench::emqtt::Counter;
use braid_bench::generator::{Dialer, PlannedEnd, PublishPlan, Retries, RunStatistics, SubscribePlan, Work};
use braid_bench::summary::{Role, Step, StepSummary};
use braid_proto::packet::QoS;

use super::broker::{Target, clients, one_filter, one_topic, plan, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);
/// Round trip of the far connector, microseconds.
const ROUND_TRIP: f64 = 2_000.0;

fn step(statistics: &RunStatistics, step: Step) -> Option<StepSummary> {
    let steps = statistics.summary(Role::Sub).connections.steps;
    steps.into_iter().find(|one| one.step == step)
}

/// Subscribers for ten seconds.
async fn subscribers(
    target: &Target,
    dialer: Dialer,
    retries: Retries,
    is_pipelined: bool,
    count: u64,
) -> RunStatistics {
    let mut who = clients(Role::Sub, count);
    who.retries = retries;
    let work = Work::Subscribe(SubscribePlan { is_pipelined, ..one_filter("a") });
    let (_, statistics) = target.go(plan(who, work, 10 * SECOND), dialer).ended().await;
    assert!(statistics.events(0).is_empty(), "{:?}", statistics.events(0));
    statistics
}

#[tokio::test(start_paused = true)]
async fn a_subscription_behind_connect_saves_a_round_trip() {
    let mut suback = Vec::new();
    for is_pipelined in [false, true] {
        let target = Target::start();
        let run = subscribers(&target, target.far(), Retries::default(), is_pipelined, 3).await;
        assert_eq!((run.counters()[Counter::Sub], run.counters()[Counter::SubFail]), (3, 0));
        let [connected, subscribed] = [Step::Connected, Step::Subscribed].map(|of| step(&run, of).unwrap());
        assert_eq!((connected.latency_us.count, subscribed.latency_us.count), (3, 3));
        assert_eq!(subscribed.per_second.iter().sum::<u64>(), 3);
        assert_eq!((step(&run, Step::Reconnected), step(&run, Step::Resubscribed)), (None, None));
        suback.push(subscribed.latency_us.p50);
    }
    // Timers of the paused clock are up to a millisecond late.
    assert!(suback[0] - suback[1] >= ROUND_TRIP / 2.0, "{suback:?}");
}

#[tokio::test(start_paused = true)]
async fn a_planned_end_is_followed_by_the_next_connection() {
    let mut suback = Vec::new();
    for is_early in [false, true] {
        let target = Target::start();
        let dialer = if is_early { target.far_early() } else { target.far() };
        let planned = PlannedEnd::After(2 * SECOND);
        let retries = Retries { reconnect: 3, planned, ..Retries::default() };
        let run = subscribers(&target, dialer, retries, true, 2).await;
        let counters = run.counters();
        assert_eq!((counters[Counter::ConnectSucc], counters[Counter::ReconnectSucc]), (2, 6));
        let [first, again] = [Step::Subscribed, Step::Resubscribed].map(|of| step(&run, of).unwrap());
        assert_eq!((first.latency_us.count, again.latency_us.count), (2, 6));
        suback.push(again.latency_us.p50);
        target.broker_is_left().await;
    }
    assert!(suback[1] < suback[0], "early data saves a round trip: {suback:?}");
}

#[tokio::test(start_paused = true)]
async fn all_connections_are_dropped_at_once_and_come_again() {
    let target = Target::start();
    let planned = PlannedEnd::At(5 * SECOND);
    let retries = Retries { reconnect: 9, planned, ..Retries::default() };
    let run = subscribers(&target, target.far(), retries, false, 20).await;
    let again = step(&run, Step::Reconnected).unwrap();
    assert_eq!((again.latency_us.count, again.per_second), (20, vec![0, 0, 0, 0, 0, 20]));
    assert_eq!(run.counters()[Counter::ReconnectSucc], 20, "there is one such time");
}

/// A publisher whose connections end between its messages loses none, and repeats none.
#[tokio::test(start_paused = true)]
async fn a_publisher_goes_on_after_a_planned_end() {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: "cnt64".parse().unwrap(), ..one_filter("a") };
    let receiving =
        target.go(plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND), target.near());
    until_subscribed(&receiving, 1).await;
    let mut who = clients(Role::Pub, 1);
    (who.clean_start, who.session_expiry) = (false, Some(600));
    let planned = PlannedEnd::After(1_950 * SECOND / 1000);
    who.retries = Retries { reconnect: 4, planned, ..Retries::default() };
    let publish = one_topic("a", SECOND / 10, QoS::ExactlyOnce);
    let publish = PublishPlan { headers: "cnt64".parse().unwrap(), ..publish };
    let run = target.go(plan(who, Work::Publish(publish), 10_050 * SECOND / 1000), target.far());
    let published = run.ended().await.1.summary(Role::Pub);
    let received = receiving.ended().await.1.summary(Role::Sub);
    assert_eq!(published.counters[Counter::ReconnectSucc.name()], 4);
    assert!((100..=101).contains(&published.topics[0].acked), "{published:?}");
    assert_eq!(published.topics[0].failed, 0);
    assert_eq!(received.topics[0].received, published.topics[0].acked);
    assert_eq!((received.headers.skipped, received.headers.not_above), (0, 0));
    let gap = received.topics[0].longest_gap_us.unwrap();
    assert!((99_000..150_000).contains(&gap), "{gap}");
}
