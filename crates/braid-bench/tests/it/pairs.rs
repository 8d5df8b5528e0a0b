use std::time::Duration;

use braid_bench::pairs::{Drive, Measured, Pair, PairLoad, Window};
use braid_proto::packet::QoS;
use tokio::time::{Instant, sleep_until};

use crate::rig::Rig;

/// Runs a pair on a network that is cut and mended at these times after the start.
async fn run_cut(load: PairLoad, cuts: &'static [(Duration, bool)]) -> Measured {
    let rig = Rig::start();
    let (publisher, subscriber) = (rig.connect_far("publisher").await, rig.connect_far("subscriber").await);
    let pair = Pair::set_up(publisher, subscriber, 7, load).await.expect("the broker takes it");
    let window = Window::from_now(Duration::from_secs(1), Duration::from_secs(2));
    let device = rig.device.clone();
    tokio::spawn(async move {
        for (after, is_cut) in cuts {
            sleep_until(window.start + *after).await;
            device.change(|link| link.cut = *is_cut);
        }
    });
    let measured = pair.run(window).await.expect("both stay connected");
    assert!(Instant::now() >= window.to);
    measured
}

async fn run(load: PairLoad) -> Measured {
    run_cut(load, &[]).await
}

#[tokio::test(start_paused = true)]
async fn a_stall_at_the_end_of_the_period_counts_with_all_its_messages() {
    let load = PairLoad { streams: 1, qos: QoS::AtMostOnce, size: 64, drive: Drive::Paced(100.0) };
    // The period ends after three seconds.
    const CUT: (Duration, bool) = (Duration::from_millis(2700), true);
    const MENDED: (Duration, bool) = (Duration::from_millis(3200), false);
    let mended = run_cut(load, &[CUT, MENDED]).await;
    assert_eq!((mended.latencies.due(), mended.latencies.arrived()), (200, 200));
    assert!(mended.delivered <= 171, "{mended:?}");
    assert!(mended.latencies.quantile(0.9).is_some_and(|p90| p90 > 300.0), "{mended:?}");
    let lost = run_cut(load, &[CUT]).await;
    assert_eq!(lost.latencies.due(), 200);
    assert!((165..=171).contains(&lost.latencies.arrived()), "{lost:?}");
    assert_eq!(lost.latencies.quantile(0.9), None);
}

#[tokio::test(start_paused = true)]
async fn a_paced_pair_delivers_its_rate_and_knows_its_latency() {
    for streams in [1, 8, 64] {
        let load = PairLoad { streams, qos: QoS::AtMostOnce, size: 64, drive: Drive::Paced(100.0) };
        let measured = run(load).await;
        assert_eq!(measured.latencies.arrived(), 200, "{streams} streams");
        // Two hops of a millisecond each.
        let latencies = measured.latencies.percentiles();
        assert!(latencies.p50.is_some_and(|p50| (1.9..=3.1).contains(&p50)), "{latencies:?}");
        assert_eq!(measured.lateness.quantile(1.0), Some(0.0), "virtual time is never late");
    }
}

#[tokio::test(start_paused = true)]
async fn a_saturated_pair_never_has_more_on_its_way_than_it_may() {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        let load = PairLoad { streams: 8, qos, size: 64, drive: Drive::Saturated(20) };
        let measured = run(load).await;
        // With 20 on their way and at least 2 ms each, 10,000 a second are the most.
        assert!((1_000..=20_000).contains(&measured.latencies.arrived()), "{measured:?}");
        assert!(
            measured.latencies.quantile(0.0).is_some_and(|least| least >= 1.9),
            "{:?}",
            measured.latencies
        );
    }
}
