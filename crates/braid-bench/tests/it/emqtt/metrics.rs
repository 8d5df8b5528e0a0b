use std::time::Duration;

use braid_bench::emqtt::{Counter, Counters, DurationHistogram, Histograms, exposition};

#[test]
fn counters_have_their_names_from_the_start() {
    let mut counters = Counters::default();
    counters[Counter::PubSucc] = 42;
    let text = exposition(&counters, &Histograms::default());
    assert!(text.starts_with(
        "# TYPE publish_latency counter\n# HELP publish_latency publish_latency\npublish_latency 0\n# TYPE recv counter\n"
    ));
    for counter in Counter::ALL {
        let value = if counter == Counter::PubSucc { 42 } else { 0 };
        assert!(text.contains(&format!("\n{} {value}\n", counter.name())), "{counter:?}");
    }
}

#[test]
fn a_histogram_counts_up_to_and_with_its_bounds() {
    let mut histograms = Histograms::default();
    for millis in [0, 1, 2, 10, 11, 1000, 1001] {
        histograms.observe(DurationHistogram::Connect, Duration::from_millis(millis));
    }
    histograms.observe(DurationHistogram::Connect, Duration::from_micros(1999));
    let text = exposition(&Counters::default(), &histograms);
    let at = text.find("# TYPE mqtt_client_connect_duration").unwrap();
    let end = text.find("# TYPE mqtt_client_subscribe_duration").unwrap();
    assert_eq!(
        text[at..end],
        *"\
# TYPE mqtt_client_connect_duration histogram
# HELP mqtt_client_connect_duration Start of a client to CONNACK, in ms
mqtt_client_connect_duration_bucket{le=\"1\"} 3
mqtt_client_connect_duration_bucket{le=\"10\"} 5
mqtt_client_connect_duration_bucket{le=\"25\"} 6
mqtt_client_connect_duration_bucket{le=\"50\"} 6
mqtt_client_connect_duration_bucket{le=\"100\"} 6
mqtt_client_connect_duration_bucket{le=\"200\"} 6
mqtt_client_connect_duration_bucket{le=\"300\"} 6
mqtt_client_connect_duration_bucket{le=\"500\"} 6
mqtt_client_connect_duration_bucket{le=\"750\"} 6
mqtt_client_connect_duration_bucket{le=\"1000\"} 7
mqtt_client_connect_duration_bucket{le=\"+Inf\"} 8
mqtt_client_connect_duration_count 8
mqtt_client_connect_duration_sum 2026
"
    );
}

#[test]
fn the_histograms_are_those_of_emqtt_bench() {
    let handshake: &[u64] = &[1, 3, 5, 10, 20, 50, 100, 200, 500, 1000];
    let connect: &[u64] = &[1, 10, 25, 50, 100, 200, 300, 500, 750, 1000];
    let latency: &[u64] =
        &[1, 5, 10, 25, 50, 100, 500, 1000, 2000, 3000, 4000, 5000, 7500, 10000, 15000, 20000, 25000, 30000];
    let expected = [
        ("mqtt_client_tcp_handshake_duration", handshake),
        ("mqtt_client_handshake_duration", handshake),
        ("mqtt_client_connect_duration", connect),
        ("mqtt_client_subscribe_duration", connect),
        ("e2e_latency", latency),
    ];
    assert_eq!(DurationHistogram::ALL.map(|which| (which.name(), which.bounds())), expected);
    for (at, which) in DurationHistogram::ALL.into_iter().enumerate() {
        assert_eq!(which as usize, at);
    }
}
