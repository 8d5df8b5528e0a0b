//! Ends of runs, and the messages that count as never done.

use std::time::Duration;

use braid_bench::emqtt::Counter;
use braid_bench::generator::{Ended, Plan, PublishPlan, RunStatistics, Start, TimerService, Work, run};
use braid_bench::summary::Role;
use braid_broker::{BrokerConfig, MqttConfig};
use braid_proto::packet::QoS;
use braid_transport::sim::{Direction, Policer};
use tokio::sync::oneshot;

use super::broker::{Target, clients, one_filter, one_topic, plan, summed, topics_file};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_limit_is_for_all_clients_together_and_exact() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        for limit in [1, 100, 1001] {
            let target = Target::start();
            let publish = PublishPlan { limit, ..one_topic("a/%i", Duration::from_millis(7), qos) };
            let run = plan(clients(Role::Pub, 7), Work::Publish(publish), 600 * SECOND);
            let (ended, statistics) = target.go(run, target.far()).ended().await;
            let summary = statistics.summary(Role::Pub);
            assert_eq!(ended, Ended::Complete);
            assert!(statistics.is_complete());
            assert_eq!(
                target.broker.statistics().get(braid_broker::Counter::MessagesReceived),
                limit,
                "{qos:?}"
            );
            let topic = &summary.topics[0];
            assert_eq!((topic.sent, topic.acked, topic.failed), (limit, limit, 0), "{qos:?}");
            assert!(summary.seconds < 10.0, "it ends with the last acknowledgement: {}", summary.seconds);
        }
    }
}

/// Three messages and an hour between two of a client: the other clients do not come any more, and none waits for its
/// next one.
#[tokio::test(start_paused = true)]
async fn a_limit_ends_a_run_with_its_last_message_and_not_with_the_next_one_that_would_be_due() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let target = Target::start();
        let mut who = clients(Role::Pub, 100);
        who.start = Start::Every(SECOND);
        let publish = PublishPlan { limit: 3, ..one_topic("a", 3600 * SECOND, qos) };
        let load = Plan { ending: Default::default(), ..plan(who, Work::Publish(publish), SECOND) };
        let (ended, statistics) = target.go(load, target.far()).ended().await;
        assert_eq!((ended, statistics.is_complete()), (Ended::Complete, true));
        assert!(statistics.elapsed() < 3 * SECOND, "{qos:?}: {:?}", statistics.elapsed());
        assert_eq!(target.broker.statistics().get(braid_broker::Counter::MessagesReceived), 3);
        let counters = statistics.counters();
        assert_eq!((counters[Counter::Pub], counters[Counter::ConnectSucc]), (3, 3));
        assert_eq!((counters[Counter::PubFail], counters[Counter::ConnectFail]), (0, 0));
        assert!(statistics.events(0).is_empty(), "{:?}", statistics.events(0));
    }
}

/// The first of fifty takes the only message; the others wait up to an hour before they would begin.
#[tokio::test(start_paused = true)]
async fn a_used_up_limit_ends_the_run_without_unstarted_clients() {
    let target = Target::start();
    let publish = PublishPlan {
        limit: 1,
        random_wait: (Duration::ZERO, 3600 * SECOND),
        ..one_topic("a", SECOND, QoS::AtLeastOnce)
    };
    let who = clients(Role::Pub, 50);
    let load = Plan { ending: Default::default(), ..plan(who, Work::Publish(publish), SECOND) };
    let (ended, statistics) = target.go(load, target.near()).ended().await;
    assert_eq!(ended, Ended::Complete);
    let summary = statistics.summary(Role::Pub);
    let published = summary.topics[0].per_second.len();
    assert!(statistics.elapsed().as_secs() < published as u64 + 2, "{:?}", statistics.elapsed());
    assert_eq!((summary.topics[0].acked, statistics.connected()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn clients_that_keep_connected_stay_after_the_last_message() {
    let target = Target::start();
    let publish = PublishPlan { limit: 5, ..one_topic("a", Duration::from_millis(100), QoS::AtLeastOnce) };
    let mut run = plan(clients(Role::Pub, 2), Work::Publish(publish), 30 * SECOND);
    run.ending.keep_connected = true;
    let going = target.go(run, target.near());
    tokio::time::sleep(10 * SECOND).await;
    assert!(going.statistics.is_complete());
    assert_eq!((going.statistics.connected(), target.broker.statistics().clients()), (2, 2));
    let (ended, statistics) = going.ended().await;
    assert_eq!((ended, statistics.elapsed()), (Ended::Time, 30 * SECOND));
    assert_eq!(statistics.counters()[Counter::Pub], 5);
}

#[tokio::test(start_paused = true)]
async fn a_stop_signal_ends_a_run_and_clients_disconnect() {
    let target = Target::start();
    let (stop, stopped) = oneshot::channel::<()>();
    let statistics = RunStatistics::new(target.clock);
    let work = Work::Subscribe(one_filter("a/#"));
    let forever = Plan { ending: Default::default(), ..plan(clients(Role::Sub, 3), work, SECOND) };
    let stop_signal = async { drop(stopped.await) };
    let running =
        tokio::spawn(run(forever, target.near(), TimerService::coarse(), statistics.clone(), stop_signal));
    tokio::time::sleep(100 * SECOND).await;
    assert_eq!(target.broker.statistics().clients(), 3);
    stop.send(()).expect("the run goes on");
    assert_eq!(running.await.expect("no panic"), Ended::Stopped);
    assert_eq!(statistics.elapsed(), 100 * SECOND);
    assert!(statistics.events(0).is_empty(), "who ends it himself is not told of it");
    target.broker_is_left().await;
}

/// The seeds' single stream: a large message keeps the small ones and the PINGREQ behind it, until the broker has seen
/// no whole packet for one and a half times the Keep Alive.
#[tokio::test(start_paused = true)]
async fn a_disconnect_is_printed_as_by_emqtt_bench_and_fails_queued_messages() {
    let mqtt = MqttConfig { strict_keepalive: true, ..MqttConfig::default() };
    let target = Target::with(BrokerConfig { mqtt, ..BrokerConfig::default() });
    target.device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
    let file = r#"{"topics": [
        {"name": "Topic1", "interval_ms": "100", "QoS": 1, "payload": {"Data": "10"}},
        {"name": "Topic2", "interval_ms": "5000", "QoS": 1, "payload": {"Data": "%p5000"}, "render": "Data"}]}"#;
    let mut who = clients(Role::Pub, 1);
    who.keep_alive = 10;
    let (ended, statistics) =
        target.go(plan(who, Work::Publish(topics_file(file)), 150 * SECOND), target.far()).ended().await;
    assert_eq!(ended, Ended::NoClients);
    let summary = statistics.summary(Role::Pub);
    let told: Vec<_> = summary.events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(told, ["client(1): disconnected with reason 141: keepalive_timeout"]);
    let [small, large] = &summary.topics[..] else { panic!("two topics: {summary:?}") };
    assert!((45..=50).contains(&small.acked), "{small:?}");
    assert_eq!(large.acked, 0);
    // The run lasted as long as it was asked to, and every message that was due was acknowledged or has failed.
    assert_eq!(statistics.elapsed(), 150 * SECOND);
    assert_eq!((small.acked + small.failed, large.failed), (1499, 29));
    assert_eq!(summary.counters[Counter::PubFail.name()], summed(&summary, |topic| topic.failed));
    assert_eq!(target.broker.statistics().get(braid_broker::Counter::MessagesReceived), small.acked);
}

#[tokio::test(start_paused = true)]
async fn without_a_broker_every_client_is_a_failure_that_is_told() {
    let target = Target::start();
    target.broker.stop();
    target.broker_is_left().await;
    let mut who = clients(Role::Conn, 3);
    who.retries.connect = 2;
    who.retries.pause = SECOND;
    let (ended, statistics) = target.go(plan(who, Work::Connect, 60 * SECOND), target.near()).ended().await;
    assert_eq!(ended, Ended::NoClients);
    // Two pauses, each of half a second to one and a half.
    assert!((SECOND..3 * SECOND).contains(&statistics.elapsed()), "{:?}", statistics.elapsed());
    let counters = statistics.counters();
    assert_eq!((counters[Counter::ConnectFail], counters[Counter::ConnectRetried]), (3, 6));
    let mut told: Vec<_> = statistics.events(0).into_iter().map(|event| event.what).collect();
    // Pauses differ, so that clients fail in any order.
    told.sort_unstable();
    let expected =
        [1, 2, 3].map(|id| format!("client({id}): connect error - the in-memory listener is gone"));
    assert_eq!(told, expected);
    assert_eq!(statistics.summary(Role::Conn).connections.established, 0);
}

/// As in emqtt_bench, which has no other way to tell it of a subscriber.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_cannot_connect_has_failed_to_subscribe() {
    let target = Target::start();
    target.broker.stop();
    target.broker_is_left().await;
    let work = Work::Subscribe(one_filter("a"));
    let load = plan(clients(Role::Sub, 2), work, 60 * SECOND);
    let (_, statistics) = target.go(load, target.near()).ended().await;
    let counters = statistics.counters();
    assert_eq!((counters[Counter::ConnectFail], counters[Counter::SubFail]), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_none_is_told_and_the_others_are_published() {
    let target = Target::start();
    let interval = Duration::from_millis(100);
    let [bad, good] = ["a/+/b", "c"].map(|name| one_topic(name, interval, QoS::AtMostOnce).topics);
    let publish = PublishPlan::of([bad, good].concat()).expect("two topics");
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 1_050 * SECOND / 1000);
    let (_, statistics) = target.go(run, target.near()).ended().await;
    let told = statistics.events(0);
    assert!(
        told.len() == 1 && told[0].what.starts_with("client(1): publish error - topic \"a/+/b\""),
        "{told:?}"
    );
    assert_eq!(statistics.counters()[Counter::Pub], 11);
    assert_eq!(target.broker.statistics().get(braid_broker::Counter::MessagesReceived), 11);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_the_broker_does_not_take_has_failed_and_the_next_one_is_tried() {
    let mqtt = MqttConfig { maximum_packet_size: 1000, ..MqttConfig::default() };
    let target = Target::with(BrokerConfig { mqtt, ..BrokerConfig::default() });
    let file = r#"{"topics": [
        {"name": "large", "interval_ms": "100", "QoS": 1, "payload": {"Data": "%p1"}, "render": "Data"},
        {"name": "small", "interval_ms": "100", "QoS": 1, "payload": {}}]}"#;
    let run = plan(clients(Role::Pub, 1), Work::Publish(topics_file(file)), 1_050 * SECOND / 1000);
    let (_, statistics) = target.go(run, target.near()).ended().await;
    let [large, small] = &statistics.topics()[..] else { panic!("two topics") };
    assert_eq!((large.failed, large.sent), (10, 0));
    assert_eq!((small.acked, small.failed), (10, 0));
    let told = statistics.events(0);
    assert!(told.len() == 1 && told[0].what.contains("maximum_packet_size"), "{told:?}");
}

/// Both topics share a stream, and the bad one comes first.
#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_made_keeps_no_other_from_leaving() {
    let target = Target::start();
    let interval = Duration::from_millis(100);
    let [bad, good] = ["a/+/%s", "c"].map(|name| one_topic(name, interval, QoS::AtMostOnce).topics);
    let publish = PublishPlan::of([bad, good].concat()).expect("two topics");
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 1_050 * SECOND / 1000);
    let (_, statistics) = target.go(run, target.near()).ended().await;
    let [bad, good] = &statistics.topics()[..] else { panic!("two topics") };
    assert_eq!((bad.sent, bad.failed), (0, 11));
    assert_eq!((good.acked, good.failed), (11, 0));
    assert_eq!(target.broker.statistics().get(braid_broker::Counter::MessagesReceived), 11);
}
