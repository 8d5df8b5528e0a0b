use std::path::Path;
use std::time::Duration;

use braid_bench::emqtt::{
    Counter, CounterLines, Counters, DurationHistogram, PUBLISH_COMPLETE, Qoe, StartLine, closed_line,
    disconnected_line, elapsed, exit_line, failure_line, go_line, secrets_line,
};
use braid_transport::Transport;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn times_are_written_without_leading_units() {
    for (since, text) in [
        (0, ""),
        (1, "1s"),
        (59, "59s"),
        (60, "1m0s"),
        (121, "2m1s"),
        (3600, "1h0m0s"),
        (3723, "1h2m3s"),
        (86_399, "23h59m59s"),
        (86_400, "1d0h0m0s"),
        (100 * 86_400 + 61, "100d0h1m1s"),
    ] {
        assert_eq!(elapsed(seconds(since) + Duration::from_millis(999)), text);
    }
}

/// The first lines of the published run over TLS.
#[test]
fn counters_that_changed_have_a_line_each() {
    let (mut lines, mut counters) = (CounterLines::default(), Counters::default());
    counters[Counter::Pub] = 8;
    counters[Counter::ConnectSucc] = 1;
    let first = lines.lines(Duration::from_millis(1817), &counters);
    assert_eq!(first, ["1s pub total=8 rate=4.40/sec", "1s connect_succ total=1 rate=0.55/sec"]);
    counters[Counter::Pub] = 18;
    let second = lines.lines(Duration::from_millis(2811), &counters);
    assert_eq!(second, ["2s pub total=18 rate=10.06/sec"]);
    assert!(lines.lines(seconds(4), &counters).is_empty());
    counters[Counter::PubFail] = 2;
    assert_eq!(
        lines.lines(Duration::from_millis(121_000), &counters),
        ["2m1s pub_fail total=2 rate=0.02/sec"]
    );
}

#[test]
fn a_rate_is_over_the_time_since_the_counters_own_line() {
    let (mut lines, mut counters) = (CounterLines::default(), Counters::default());
    counters[Counter::Recv] = 4;
    assert_eq!(lines.lines(seconds(13), &counters), ["13s recv total=4 rate=0.31/sec"]);
    counters[Counter::Recv] = 14;
    assert_eq!(lines.lines(seconds(14), &counters), ["14s recv total=14 rate=10.00/sec"]);
}

#[test]
fn a_change_without_a_time_shows_later() {
    let (mut lines, mut counters) = (CounterLines::default(), Counters::default());
    counters[Counter::Sub] = 1;
    assert!(lines.lines(Duration::ZERO, &counters).is_empty());
    assert_eq!(lines.lines(seconds(1), &counters), ["1s sub total=1 rate=1.00/sec"]);
}

#[test]
fn latency_is_the_average_of_what_was_received_since() {
    let (mut lines, mut counters) = (CounterLines::default(), Counters::default());
    counters[Counter::Recv] = 4;
    counters[Counter::PublishLatency] = 50;
    assert_eq!(
        lines.lines(seconds(1), &counters),
        ["1s publish_latency avg=12ms", "1s recv total=4 rate=4.00/sec"]
    );
    counters[Counter::Recv] = 5;
    counters[Counter::PublishLatency] = 57;
    assert_eq!(
        lines.lines(seconds(2), &counters),
        ["2s publish_latency avg=7ms", "2s recv total=5 rate=1.00/sec"]
    );
}

#[test]
fn the_names_and_their_order_are_those_of_emqtt_bench() {
    let names = Counter::ALL.map(Counter::name);
    let expected = "publish_latency recv sub sub_fail pub pub_fail pub_overrun pub_succ pub_nosub connect_succ connect_fail \
                    connect_retried reconnect_succ unreachable connection_refused connection_timeout connection_idle";
    assert_eq!(names.join(" "), expected);
    for (at, counter) in Counter::ALL.into_iter().enumerate() {
        assert_eq!(counter as usize, at);
    }
}

#[test]
fn each_event_of_a_client_has_its_line() {
    assert_eq!(disconnected_line(1, 141), "client(1): disconnected with reason 141: keepalive_timeout");
    assert_eq!(disconnected_line(12, 0x8E), "client(12): disconnected with reason 142: session_taken_over");
    assert_eq!(disconnected_line(3, 0x7F), "client(3): disconnected with reason 127: unknown_error");
    assert_eq!(exit_line(1, "closed"), "client(1): EXIT for {shutdown,closed}");
    assert_eq!(failure_line(7, "connect", "econnrefused"), "client(7): connect error - econnrefused");
    assert_eq!(PUBLISH_COMPLETE, "publish complete");
}

/// `tcp_closed` and `ssl_closed` are what the Erlang client's sockets say, `closed` alone what its WebSocket says.
#[test]
fn a_connection_that_is_closed_is_told_in_the_word_of_what_carried_it() {
    for (carried, cause) in [
        (Transport::Tcp, "{shutdown,tcp_closed}"),
        (Transport::Tls, "{shutdown,ssl_closed}"),
        (Transport::Ws, "closed"),
        (Transport::Wss, "closed"),
        (Transport::Quic, "{shutdown,closed}"),
    ] {
        assert_eq!(closed_line(7, carried), format!("client(7): EXIT for {cause}"));
    }
}

#[test]
fn each_step_before_the_load_has_its_line() {
    assert_eq!(go_line(2), "Collected 2 'go' signals, start publishing");
    assert_eq!(secrets_line(Path::new("keys.log")), "Dump TLS secrets to keys.log");
}

#[test]
fn each_duration_is_a_line_with_a_trailing_space() {
    let mut qoe = Qoe::default();
    for millis in 1..=20 {
        qoe.observe(DurationHistogram::Handshake, Duration::from_micros(1000 * millis + 999));
    }
    let mut more = Qoe::default();
    more.observe(DurationHistogram::Handshake, Duration::from_millis(100));
    more.observe(DurationHistogram::Subscribe, Duration::from_millis(7));
    more.observe(DurationHistogram::EndToEnd, Duration::from_millis(1));
    qoe.append(more);
    assert_eq!(
        qoe.lines(),
        [
            format!("handshake, avg: {:?}ms, P95: 20ms, Max: 100ms ", 310.0 / 21.0),
            "subscribe, avg: 7.0ms, P95: 7ms, Max: 7ms ".to_owned(),
        ]
    );
    assert!(Qoe::default().lines().is_empty());
}

#[test]
fn the_first_line_tells_workers_and_pace() {
    let line = |cores, clients, rate, interval| StartLine::new(cores, clients, rate, interval, 1);
    assert_eq!(
        line(6, 200, 0, 10).to_string(),
        "Start with 6 workers, addrs pool size: 1 and req interval: 60 ms "
    );
    assert_eq!((line(6, 1, 0, 10).workers, line(6, 1, 0, 10).interval_ms), (1, 10));
    assert_eq!((line(2, 20_000, 5000, 10).workers, line(2, 20_000, 5000, 10).interval_ms), (5, 1));
    assert_eq!(line(0, 0, 0, 0).workers, 1);
}
