//! Over QUIC on a simulated network.

use std::time::Duration;

use braid_bench::exchange::{RequestLoad, Reuse, Service};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Direction;
use braid_transport::{ClientTls, ClientTlsOptions};

use super::rig::{Rig, counters, measure, object};

#[tokio::test(start_paused = true)]
async fn each_request_has_one_response_of_its_size_on_streams_of_their_own() {
    for (connections, streams, reuse) in
        [(1, 1, Reuse::Kept), (1, 10, Reuse::Kept), (10, 1, Reuse::Kept), (10, 1, Reuse::OneRequest)]
    {
        let rig = Rig::start(Service::default());
        let load = RequestLoad {
            connections,
            streams,
            reuse,
            sizes: vec![0, 50_000],
            requests: Some(60),
            ..RequestLoad::default()
        };
        let summary = measure(&load, rig.connector.clone()).await;
        let made = if reuse == Reuse::Kept { connections as u64 } else { 60 };
        assert_eq!(counters(&summary), [60, 60, 0, 0, made]);
        let numbers: Vec<u64> = summary.streams.iter().map(|stream| stream.stream).collect();
        assert_eq!(numbers, (1..=streams as u64).collect::<Vec<_>>());
        let bytes: u64 = summary.streams.iter().flat_map(|stream| &stream.bytes_per_second).sum();
        assert_eq!(bytes, 30 * 50_000 + 60 * 20);
        let answered = rig.responder.summary();
        assert_eq!((answered.counters["responses"], answered.connections.established), (60, made));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_connection_takes_a_round_trip_for_a_request_and_a_new_one_two() {
    for (reuse, millis) in [(Reuse::Kept, 20), (Reuse::OneRequest, 40)] {
        let rig = Rig::start(Service::default());
        rig.device.change(|link| link.latency = Duration::from_millis(10));
        let load = RequestLoad { reuse, requests: Some(20), sizes: vec![100], ..RequestLoad::default() };
        let latency = object(&measure(&load, rig.connector.clone()).await).latency_us.expect("responses");
        let expected = f64::from(millis) * 1000.0;
        assert!((expected..=expected + 2000.0).contains(&latency.p50), "{reuse:?}: {latency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_ticket_a_new_connection_takes_one_round_trip() {
    let rig = Rig::start(Service::default());
    rig.device.change(|link| link.latency = Duration::from_millis(10));
    let load = RequestLoad {
        reuse: Reuse::OneRequest,
        zero_rtt: true,
        requests: Some(20),
        sizes: vec![100],
        ..RequestLoad::default()
    };
    let summary = measure(&load, rig.connector.clone()).await;
    assert_eq!(counters(&summary), [20, 20, 0, 0, 20]);
    let latency = object(&summary).latency_us.expect("responses");
    assert!((20_000.0..=22_000.0).contains(&latency.p50), "{latency:?}");
    assert!(latency.max >= 40_000.0, "the first had no ticket: {latency:?}");
}

/// The share of requests that took more than 1.5 round trips, of 10 at a time on one connection that loses 1 %.
async fn delayed(connections: usize, streams: usize) -> f64 {
    let rig = Rig::start(Service::default());
    rig.device.change(|link| link.latency = Duration::from_millis(10));
    rig.device.change_one(Direction::Down, |link| link.loss = 0.01);
    let load = RequestLoad {
        connections,
        streams,
        requests: Some(3000),
        sizes: vec![1000],
        ..RequestLoad::default()
    };
    let summary = measure(&load, rig.connector.clone()).await;
    assert_eq!(counters(&summary)[1], 3000);
    assert!(rig.device.counters(Direction::Down).dropped > 0);
    let within = object(&summary).latency_cdf.iter().rfind(|point| point.0 <= 30_000).expect("most");
    1.0 - within.1
}

#[tokio::test(start_paused = true)]
async fn a_loss_on_one_stream_delays_no_other() {
    // A packet of 1,200 bytes may carry the end of one response and the beginning of another.
    let (streams, connections) = (delayed(1, 10).await, delayed(10, 1).await);
    assert!((0.005..=0.04).contains(&streams), "10 streams: {streams}");
    assert!((0.005..=0.04).contains(&connections), "10 connections: {connections}");
}

#[tokio::test(start_paused = true)]
async fn a_client_of_another_protocol_is_told_so() {
    let rig = Rig::start(Service::default());
    let tls = ClientTls::new(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() });
    let connector = rig.device.connector(rig.server, tls, QuicOptions::client());
    let summary = measure(&RequestLoad { requests: Some(1), ..RequestLoad::default() }, connector).await;
    assert_eq!(counters(&summary), [1, 0, 1, 0, 0]);
    assert!(summary.events[0].what.contains("not the application protocol mqtt"), "{:?}", summary.events);
    let told = rig.responder.summary();
    assert!(told.events[0].what.contains("this listener speaks braid-exchange/1"), "{:?}", told.events);
}
