use std::time::Duration;

use braid_bench::pairs::{Drive, Measured, Pair, PairLoad, Window};
use braid_proto::packet::QoS;
use tokio::time::Instant;

use crate::rig::Rig;

async fn run(load: PairLoad) -> Measured {
    let rig = Rig::start();
    let (publisher, subscriber) = (rig.connect_far("publisher").await, rig.connect_far("subscriber").await);
    let pair = Pair::set_up(publisher, subscriber, 7, load).await;
    let window = Window::from_now(Duration::from_secs(1), Duration::from_secs(2));
    let measured = pair.expect("the broker takes it").run(window).await.expect("both stay connected");
    assert_eq!(Instant::now(), window.to);
    measured
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
