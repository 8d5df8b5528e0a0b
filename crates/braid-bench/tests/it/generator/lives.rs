//! Clients whose connection ends, and those that come again.

use std::time::Duration;

use braid_bench::emqtt::Counter;
use braid_bench::generator::{Ended, Retries, Work};
use braid_bench::summary::Role;
use braid_proto::packet::QoS;

use super::broker::{Target, clients, one_filter, one_topic, plan, until_subscribed};

const SECOND: Duration = Duration::from_secs(1);

/// The connection breaks for half a minute. With its session kept nothing that was due is lost, and all of it keeps the
/// time it was due.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_again_goes_on_with_its_session_and_its_schedule() {
    for keeps_session in [true, false] {
        let target = Target::start();
        let mut who = clients(Role::Pub, 1);
        (who.keep_alive, who.clean_start) = (5, !keeps_session);
        who.session_expiry = keeps_session.then_some(600);
        who.retries = Retries { connect: 100, reconnect: 1, pause: SECOND, ..Retries::default() };
        let publish = one_topic("a", Duration::from_millis(100), QoS::AtLeastOnce);
        let going = target.go(plan(who, Work::Publish(publish), 90_050 * SECOND / 1000), target.far());
        tokio::time::sleep(3 * SECOND).await;
        target.device.change(|link| link.cut = true);
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(going.statistics.connected(), 0, "it has noticed");
        target.device.change(|link| link.cut = false);
        let (ended, statistics) = going.ended().await;
        let summary = statistics.summary(Role::Pub);
        assert_eq!(ended, Ended::Time);
        assert_eq!(summary.counters[Counter::ReconnectSucc.name()], 1, "{summary:?}");
        assert_eq!(summary.counters[Counter::ConnectSucc.name()], 1);
        assert_eq!(summary.connections.established, 2);
        let told: Vec<_> = summary.events.iter().map(|event| event.what.as_str()).collect();
        assert_eq!(told, ["client(1): EXIT for {shutdown,keepalive_timeout}"]);
        let topic = &summary.topics[0];
        assert!((900..=901).contains(&(topic.acked + topic.failed)), "{topic:?}");
        // Up to 100 may be on their way (-F), and were when it broke.
        if keeps_session {
            assert_eq!(topic.failed, 0, "{topic:?}");
            assert!(topic.latency_us.is_some_and(|latency| latency.max > 29e6), "{topic:?}");
        } else {
            assert!((90..=100).contains(&topic.failed), "{topic:?}");
            // The first of those that waited was due when the others had filled what may be on its way.
            assert!(topic.latency_us.is_some_and(|latency| latency.max > 19e6), "{topic:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_reported_to_the_client_that_lost_its_identifier() {
    let target = Target::start();
    let conn = || plan(clients(Role::Conn, 2), Work::Connect, 20 * SECOND);
    let first = target.go(conn(), target.near());
    tokio::time::sleep(SECOND).await;
    let second = target.go(conn(), target.near());
    let (ended, statistics) = first.ended().await;
    assert_eq!(ended, Ended::NoClients);
    let mut told: Vec<_> = statistics.events(0).into_iter().map(|event| event.what).collect();
    told.sort();
    let line = |number| format!("client({number}): disconnected with reason 142: session_taken_over");
    assert_eq!(told, [line(1), line(2)]);
    assert_eq!(second.ended().await.1.counters()[Counter::ConnectSucc], 2);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_comes_again_subscribes_again() {
    let target = Target::start();
    let mut who = clients(Role::Sub, 1);
    who.retries.reconnect = 1;
    let receiving = target.go(plan(who, Work::Subscribe(one_filter("a")), 30 * SECOND), target.near());
    until_subscribed(&receiving, 1).await;
    // Takes the first one's Client Identifier, and leaves.
    let taker = plan(clients(Role::Sub, 1), Work::Subscribe(one_filter("b")), 2 * SECOND);
    target.go(taker, target.near()).ended().await;
    let publish = one_topic("a", SECOND, QoS::AtLeastOnce);
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 8_500 * SECOND / 1000);
    let (_, published) = target.go(run, target.near()).ended().await;
    let (_, received) = receiving.ended().await;
    let counters = received.counters();
    assert_eq!((counters[Counter::ReconnectSucc], counters[Counter::Sub]), (1, 1));
    assert_eq!(counters[Counter::Recv], published.counters()[Counter::Pub]);
    assert!(counters[Counter::Recv] >= 5, "{counters:?}");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_idle_connections_stay() {
    let target = Target::start();
    let mut who = clients(Role::Conn, 1000);
    who.keep_alive = 60;
    let going = target.go(plan(who, Work::Connect, 600 * SECOND), target.near());
    tokio::time::sleep(599 * SECOND).await;
    assert_eq!((going.statistics.connected(), target.broker.statistics().clients()), (1000, 1000));
    let (_, statistics) = going.ended().await;
    assert!(statistics.events(0).is_empty());
    target.broker_is_left().await;
}

/// The path is gone for longer than two attempts to connect take; each of them is one of `--reconnect`.
#[tokio::test(start_paused = true)]
async fn a_reconnect_that_fails_is_followed_by_the_next_one() {
    for (reconnect, comes_again) in [(10, 1), (2, 0)] {
        let target = Target::start();
        let mut who = clients(Role::Pub, 1);
        who.keep_alive = 5;
        who.retries = Retries { reconnect, pause: SECOND, ..Retries::default() };
        let publish = one_topic("a", Duration::from_millis(100), QoS::AtLeastOnce);
        let going = target.go(plan(who, Work::Publish(publish), 150 * SECOND), target.far());
        tokio::time::sleep(3 * SECOND).await;
        target.device.change(|link| link.cut = true);
        tokio::time::sleep(60 * SECOND).await;
        target.device.change(|link| link.cut = false);
        let (_, statistics) = going.ended().await;
        let counters = statistics.counters();
        assert_eq!(counters[Counter::ReconnectSucc], comes_again, "{reconnect}: {counters:?}");
        assert_eq!(counters[Counter::ConnectFail], 1 - comes_again);
    }
}
