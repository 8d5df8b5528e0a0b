//! Requests and their responses, under each kind of load.

use std::time::Duration;

use braid_bench::exchange::{LoadError, RequestLoad, Reuse, Service, TimerService, run};
use braid_bench::summary::Role;

use super::rig::{counters, in_memory, measure, object};

#[tokio::test(start_paused = true)]
async fn each_request_has_one_response_of_its_size() {
    for (connections, streams) in [(1, 1), (1, 10), (10, 1), (3, 4)] {
        let (responder, connector) = in_memory(Service::default());
        let load = RequestLoad {
            connections,
            streams,
            sizes: vec![0, 1000, 200_000],
            requests: Some(99),
            ..RequestLoad::default()
        };
        let summary = measure(&load, connector).await;
        assert_eq!(counters(&summary), [99, 99, 0, 0, connections as u64]);
        assert_eq!((summary.role, summary.connections.wanted), (Role::Request, connections as u64));
        let topics: Vec<_> = summary
            .topics
            .iter()
            .map(|topic| (&*topic.topic, topic.sent, topic.acked, topic.bytes))
            .collect();
        let expected = [("0", 33, 33, 0), ("1000", 33, 33, 33_000), ("200000", 33, 33, 6_600_000)];
        assert_eq!(topics, expected);
        let answered = responder.summary();
        assert_eq!((answered.counters["requests"], answered.counters["responses"]), (99, 99));
        assert_eq!(answered.topics[0].bytes, 6_633_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_per_request_is_as_many_connections_as_requests() {
    let (responder, connector) = in_memory(Service::default());
    let load = RequestLoad {
        connections: 3,
        reuse: Reuse::OneRequest,
        requests: Some(50),
        sizes: vec![5000],
        ..RequestLoad::default()
    };
    let summary = measure(&load, connector).await;
    assert_eq!(counters(&summary), [50, 50, 0, 0, 50]);
    assert_eq!(summary.connections.connect_us.map(|connects| connects.count), Some(50));
    assert_eq!(responder.summary().connections.established, 50);
    assert_eq!(responder.summary().counters["failed"], 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_ends_a_run_and_what_is_under_way_is_unfinished() {
    let (_, connector) = in_memory(Service { time: Duration::from_millis(300), serial: false });
    let duration = Some(Duration::from_secs(2));
    let load = RequestLoad { streams: 2, sizes: vec![100], duration, ..RequestLoad::default() };
    let summary = measure(&load, connector).await;
    // Six times 300 ms in two seconds, two at a time, and the next two have begun.
    assert_eq!(counters(&summary), [14, 12, 0, 2, 1]);
    assert_eq!(summary.seconds, 2.0);
    assert_eq!(object(&summary).per_second, [6, 6]);
    let bytes: u64 = summary.streams[0].bytes_per_second.iter().sum();
    assert_eq!((summary.streams[0].stream, bytes), (0, 12 * 120));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_has_its_summary() {
    let (_, connector) = in_memory(Service { time: Duration::from_millis(300), serial: false });
    let load = RequestLoad { requests: Some(1000), ..RequestLoad::default() };
    let stop = tokio::time::sleep(Duration::from_secs(1));
    let summary = run(&load, connector.into(), &TimerService::coarse(), stop, |_| {})
        .await
        .expect("the load makes sense");
    assert_eq!(counters(&summary), [4, 3, 0, 1, 1]);
    assert_eq!((summary.events[0].at, &*summary.events[0].what), (1.0, "stopped before the end"));
}

#[tokio::test(start_paused = true)]
async fn an_open_loop_counts_from_when_requests_were_due() {
    // 10 a second are due, 5 a second are served: the n-th waits for n others.
    let (_, connector) = in_memory(Service { time: Duration::from_millis(200), serial: true });
    let load =
        RequestLoad { rate: Some(10.0), requests: Some(20), sizes: vec![100], ..RequestLoad::default() };
    let summary = measure(&load, connector).await;
    let latency = object(&summary).latency_us.expect("there were responses");
    assert_eq!(summary.seconds, 4.0);
    assert!((2_090_000.0..=2_110_000.0).contains(&latency.max), "the last: {latency:?}");
    assert!((1_100_000.0..=1_200_000.0).contains(&latency.mean), "{latency:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_that_never_began_are_unfinished() {
    // 10 a second are due, 5 a second are served: half of them wait at the end.
    let (_, connector) = in_memory(Service { time: Duration::from_millis(200), serial: true });
    let duration = Some(Duration::from_millis(4050));
    let load = RequestLoad { rate: Some(10.0), duration, sizes: vec![100], ..RequestLoad::default() };
    let summary = measure(&load, connector).await;
    assert_eq!(counters(&summary), [41, 20, 0, 21, 1]);
    assert_eq!((object(&summary).sent, object(&summary).acked), (41, 20));
}

#[tokio::test(start_paused = true)]
async fn an_open_loop_keeps_its_rate_over_all_connections() {
    let (_, connector) = in_memory(Service::default());
    let duration = Some(Duration::from_millis(3055));
    let load = RequestLoad {
        connections: 4,
        rate: Some(100.0),
        duration,
        sizes: vec![100],
        ..RequestLoad::default()
    };
    let summary = measure(&load, connector).await;
    assert_eq!(counters(&summary), [306, 306, 0, 0, 4]);
    assert_eq!(object(&summary).per_second, [100, 100, 100, 6]);
    assert_eq!(
        object(&summary).latency_us.map(|latency| latency.max),
        Some(0.0),
        "virtual time is never late"
    );
}

#[tokio::test]
async fn a_load_without_sense_is_not_begun() {
    let (_, connector) = in_memory(Service::default());
    let load =
        RequestLoad { reuse: Reuse::OneRequest, streams: 2, requests: Some(1), ..RequestLoad::default() };
    let error = run(&load, connector.into(), &TimerService::coarse(), std::future::pending(), |_| {})
        .await
        .expect_err("two at a time");
    assert_eq!(error, LoadError::Streams);
    assert!(error.to_string().contains("keep connections, or leave the streams at 1"));
}
