//! The time that a request takes at the server.

use std::time::Duration;

use braid_bench::exchange::{RequestLoad, Service};
use braid_measure::Quantiles;

use super::rig::{in_memory, measure, object};

/// Seconds that 100 requests took, and their latencies.
async fn hundred(service: Service, connections: usize, streams: usize) -> (f64, Quantiles) {
    let (_, connector) = in_memory(service);
    let load = RequestLoad {
        connections,
        streams,
        requests: Some(100),
        sizes: vec![1000],
        ..RequestLoad::default()
    };
    let summary = measure(&load, connector).await;
    (summary.seconds, object(&summary).latency_us.expect("there were responses"))
}

/// Latencies are told apart to one part in a thousand.
fn is_about(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() <= wanted / 1000.0
}

#[tokio::test(start_paused = true)]
async fn a_serial_server_takes_one_request_at_a_time_from_all_connections() {
    let serial = Service { time: Duration::from_millis(7), serial: true };
    for (connections, streams, at_a_time) in [(1, 1, 1), (10, 1, 10), (1, 10, 10), (2, 5, 10)] {
        let (seconds, latency) = hundred(serial, connections, streams).await;
        assert_eq!(seconds, 0.7, "{connections} connections with {streams} each");
        assert!(is_about(latency.max, 7000.0 * f64::from(at_a_time)), "{latency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_server_takes_as_many_as_there_are() {
    let parallel = Service { time: Duration::from_millis(7), serial: false };
    for (connections, streams) in [(10, 1), (1, 10)] {
        let (seconds, latency) = hundred(parallel, connections, streams).await;
        assert_eq!(seconds, 0.07, "{connections} connections with {streams} each");
        assert!(is_about(latency.max, 7000.0), "{latency:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_serial_server_is_exact_where_its_timer_is_not() {
    // The timer ticks in milliseconds; no tick is lost between one request and the next.
    let (seconds, _) = hundred(Service { time: Duration::from_micros(6200), serial: true }, 1, 10).await;
    assert!((0.62..=0.622).contains(&seconds), "{seconds}");
}
