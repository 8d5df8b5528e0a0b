use std::time::Duration;

use braid_bench::urgent::{Lanes, Outcome, UrgentLoad};
use braid_measure::Latencies;
use braid_transport::sim::{Direction, Policer};

use crate::rig::Rig;

/// Five seconds of the load with 20 MB in messages of 62,500 bytes.
fn load(lanes: Lanes) -> UrgentLoad {
    UrgentLoad { urgent_messages: 50, ..UrgentLoad::new(320, 62_500, lanes) }
}

/// Latencies of all urgent messages, with those of the first three seconds.
fn all(outcome: &Outcome) -> Latencies {
    let mut latencies = outcome.early.clone();
    latencies.add(&outcome.latencies);
    latencies
}

async fn publish_from_device(rig: &Rig, load: UrgentLoad) -> Outcome {
    let (publisher, _) = rig.far_client(load.lanes).connect().await.expect("the broker accepts");
    let subscriber = rig.near_client().connect().await.expect("the broker accepts");
    let ready = load.set_up(publisher, subscriber).await.expect("the broker takes it");
    ready.run().await.expect("both stay connected")
}

#[tokio::test(start_paused = true)]
async fn a_perfect_network_delivers_everything_within_its_two_milliseconds() {
    let rig = Rig::start();
    let outcome = publish_from_device(&rig, load(Lanes::Priorities)).await;
    let latencies = all(&outcome);
    assert_eq!((latencies.due(), latencies.arrived()), (50, 50));
    assert_eq!((outcome.early.due(), outcome.early.arrived()), (30, 30));
    assert_eq!(outcome.elapsed, Duration::from_secs(7), "5 s and the patience at the end");
    assert!(latencies.quantile(1.0).is_some_and(|slowest| slowest <= 20.0), "{outcome:?}");
    assert_eq!(outcome.bulk_messages, 320);
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_cut_makes_messages_missing() {
    let rig = Rig::start();
    let device = rig.device.clone();
    tokio::spawn(async move {
        // Between two messages: the 25th is due at 2.5 s, after set-up that takes milliseconds.
        tokio::time::sleep(Duration::from_millis(2550)).await;
        device.change(|link| link.cut = true);
    });
    let outcome = publish_from_device(&rig, load(Lanes::Priorities)).await;
    let latencies = all(&outcome);
    assert_eq!((latencies.due(), latencies.arrived()), (50, 25));
    assert!((latencies.share_within(Duration::from_secs(1)) - 0.5).abs() < 1e-9);
}

/// [BQ-50]
#[tokio::test(start_paused = true)]
async fn priorities_decide_what_is_on_time_behind_a_policer() {
    let on_time = async |lanes| {
        let rig = Rig::start();
        rig.device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
        all(&publish_from_device(&rig, load(lanes)).await).share_within(Duration::from_millis(250))
    };
    let (with, without) = (on_time(Lanes::Priorities).await, on_time(Lanes::Single).await);
    assert!(with > 0.8 && without < 0.2, "{with} with priorities, {without} without");
}

/// The row `equal` of the benchmark differs from the defaults in the priority alone.
#[tokio::test(start_paused = true)]
async fn streams_without_priorities_lie_between() {
    let median = async |lanes| {
        let rig = Rig::start();
        rig.device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
        let outcome = publish_from_device(&rig, load(lanes)).await;
        outcome.latencies.quantile(0.5).unwrap_or(f64::INFINITY)
    };
    let with = median(Lanes::Priorities).await;
    let equal = median(Lanes::Equal).await;
    let single = median(Lanes::Single).await;
    assert!(with * 2.0 < equal && equal < 1000.0, "{equal} ms, {with} ms with priorities");
    assert!(equal * 2.0 < single, "{equal} ms, {single} ms on one stream");
}
