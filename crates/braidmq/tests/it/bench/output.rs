//! Printed lines of a run, and its answer to Prometheus.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::rig::{Load, Server, bench, json, run};

/// True for a counter line of emqtt_bench: `1m2s pub total=8 rate=2.84/sec`. In the first second there is no
/// time before the name.
fn is_counter(line: &str) -> bool {
    let Some((time, rest)) = line.split_once(' ') else { return false };
    let Some((name, rest)) = rest.split_once(" total=") else { return false };
    let Some((total, rate)) = rest.split_once(" rate=") else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = time.is_empty()
        || time.split_inclusive(['d', 'h', 'm', 's']).all(|part| is_number(&part[..part.len() - 1]));
    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let decimal = rate.strip_suffix("/sec").and_then(|rate| rate.split_once('.'));
    let is_rate = decimal.is_some_and(|(whole, part)| is_number(whole) && is_number(part) && part.len() == 2);
    is_time && is_name && is_number(total) && is_rate
}

#[test]
fn lines_are_those_of_emqtt_bench() {
    let server = Server::start();
    let load = ["pub", "-c", "2", "-i", "0", "-I", "1", "-t", "t", "-L", "100"];
    let end = run(&[&load[..], &server.find("mqtt")].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    let lines: Vec<&str> = end.lines.lines().collect();
    let [start, empty, counters @ .., complete] = &lines[..] else { panic!("{lines:?}") };
    let (workers, rest) = start.strip_prefix("Start with ").unwrap().split_once(' ').unwrap();
    assert!(workers.parse::<u8>().is_ok_and(|workers| workers <= 2), "{start}");
    assert_eq!(rest, "workers, addrs pool size: 1 and req interval: 0 ms ");
    assert_eq!((*empty, *complete), ("", "publish complete"));
    assert!(counters.iter().all(|line| is_counter(line)), "{counters:?}");
    for total in ["connect_succ total=2 ", "pub total=100 "] {
        assert!(counters.iter().any(|line| line.contains(total)), "{counters:?}");
    }
}

/// Name in a line of `-Q true`, if it has the form `connect, avg: 1.5ms, P95: 2ms, Max: 2ms `.
fn qoe(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once(", avg: ")?;
    let (average, rest) = rest.split_once("ms, P95: ")?;
    let (p95, max) = rest.split_once("ms, Max: ")?;
    let is_whole = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_average = average.split_once('.').is_some_and(|(whole, part)| is_whole(whole) && is_whole(part));
    (is_average && is_whole(p95) && max.strip_suffix("ms ").is_some_and(is_whole)).then_some(name)
}

#[test]
fn quality_of_experience_is_a_line_for_each_part_that_the_transport_has() {
    let server = Server::start();
    for (scheme, asked, names) in [
        ("mqtt", "true", &["handshake", "connect"][..]),
        ("mqtts", "true", &["tcp", "handshake", "connect"]),
        ("mqtt", "false", &[]),
    ] {
        let load = Load::start(&[&["conn", "-c", "1", "-Q", asked][..], &server.find(scheme)].concat());
        // The lines come behind those of the counters.
        load.wait_for_total("connect_succ", 1);
        let end = load.stop("-INT");
        assert_eq!(end.lines.lines().filter_map(qoe).collect::<Vec<_>>(), names, "{scheme}: {end:?}");
        assert!(!names.is_empty() || !end.lines.contains("avg"), "{end:?}");
    }
    let load = ["sub", "-c", "1", "-t", "t", "-Q", "true"];
    let load = Load::start(&[&load[..], &server.find("mqtt")].concat());
    load.wait_for(|line| qoe(line) == Some("subscribe"));
    assert_eq!(load.stop("-INT").code, Some(0));
}

#[test]
fn the_end_of_the_wait_for_all_is_told() {
    let server = Server::start();
    let load = ["pub", "-c", "1", "-t", "t", "-I", "1", "-L", "1"];
    for waits in ["true", "false"] {
        let end = run(&[&load[..], &["-w", waits], &server.find("mqtt")].concat());
        let is_told = end.lines.lines().any(|line| line == "Collected 1 'go' signals, start publishing");
        assert_eq!((end.code, is_told), (Some(0), waits == "true"), "{end:?}");
    }
}

#[test]
fn the_json_says_what_was_run() {
    let server = Server::start();
    let path = server.path("run.json");
    let out = ["--json", path.to_str().unwrap()];
    let load = [
        "pub", "-c", "2", "-c", "9", "-R", "100", "-t", "a/%i", "-I", "1", "-q", "1", "-L", "4", "-s", "100",
    ];
    let more = ["--payload-hdrs", "cnt64,ts", "-u", "me", "-P", "secret", "--stream", "3", "--priority", "7"];
    let end = run(&[&load[..], &more, &out, &server.find("quic")].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    let settings = &json(&path)["settings"];
    let expected = serde_json::json!({
        "servers": [format!("quic://127.0.0.1:{}", server.port("quic"))], "transport": "quic",
        "congestion_control": "bbr3", "gate": true, "datagrams": false, "link_rate": null, "paths": null, "local_addresses": [], "mqtt_version": 5,
        "clean_start": true, "keep_alive_s": 300, "session_expiry_s": 0, "clients": 2, "connect_interval_ms": null,
        "connect_per_second": 100, "num_retry_connect": 0, "poisson": false, "reconnect": 0, "lifetime_s": null, "drop_at_s": null,
        "duration_s": null, "limit": 4,
        "inflight": 1, "wait_before_publishing": false, "random_wait_ms": [0, 0], "resume": false, "keep_connected": false,
        "payload_hdrs": "cnt64,ts",
        "topics": [{"topic": "a/%i", "qos": 1, "stream": 3, "priority": 7, "interval_ms": 1, "retain": false,
            "payload_bytes": 116}],
    });
    assert_eq!(settings, &expected, "{settings:#}");

    let load = ["sub", "-c", "1", "-t", "b/+", "-q", "2", "--duration", "1s", "--tcp-cc", "reno"];
    let end = run(&[&load[..], &out, &server.find("mqtt")].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    let settings = &json(&path)["settings"];
    let topic = serde_json::json!({"topic": "b/+", "qos": 2, "stream": 0, "priority": null});
    assert_eq!(settings["topics"], serde_json::json!([topic]));
    assert_eq!((&settings["congestion_control"], &settings["duration_s"]), (&"reno".into(), &1.0.into()));
    assert!(settings.get("limit").is_none(), "{settings:#}");
}

#[test]
fn quiet_and_null_leave_nothing_to_read() {
    let server = Server::start();
    let load = ["pub", "-c", "1", "-I", "1", "-t", "t", "-L", "10", "--quiet", "--log_to", "null", "-d"];
    let end = run(&[&load[..], &server.find("mqtt")].concat());
    assert_eq!((end.code, end.lines, end.errors), (Some(0), String::new(), String::new()));
}

#[test]
fn a_run_whose_output_is_closed_ends_in_order() {
    let server = Server::start();
    let load = ["pub", "-c", "1", "-I", "1", "-t", "t"];
    let publisher = Load::start_unheard(&[&load[..], &server.find("mqtt")].concat());
    assert_eq!(publisher.end().code, Some(0));
}

/// The answer to one request, head and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn prometheus_is_answered_while_the_run_lasts() {
    let server = Server::start();
    let load = ["sub", "-c", "2", "-i", "0", "-t", "t", "--prometheus", "--restapi", "127.0.0.1:0"];
    let subscribers = Load::start(&[&load[..], &server.find("mqtt")].concat());
    let note = subscribers.wait_for_note(|line| line.contains("metrics are at"));
    let address = note.rsplit_once("http://").unwrap().1.strip_suffix("/metrics").unwrap();
    subscribers.wait_for_total("sub", 2);

    let (head, body) = ask(address, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain"), "{head}");
    for line in ["# TYPE sub counter", "sub 2", "connect_succ 2", "mqtt_client_connect_duration_count 2"] {
        assert!(body.lines().any(|found| found == line), "no {line} in {body}");
    }
    assert!(ask(address, "GET /").0.starts_with("HTTP/1.1 404 "));
    assert!(ask(address, "POST /metrics").0.starts_with("HTTP/1.1 405 "));
    assert_eq!(subscribers.stop("-INT").code, Some(0));
}

#[test]
fn secrets_qlog_and_the_log_of_the_gate_are_written_where_they_are_asked_for() {
    let server = Server::start();
    let (keys, qlog, ca) = (server.path("keys"), server.path("qlog"), server.ca());
    let load =
        ["pub", "-c", "1", "-t", "t", "-q", "1", "-I", "1", "-L", "1", "--quic", "-h", "127.0.0.1", "-p"];
    let quic = ["--cacertfile", &ca, "--qlog-dir", qlog.to_str().unwrap(), "--quic-cc", "newreno"];
    let gate = server.path("gate");
    let gate_log = ["--gate-log", gate.to_str().unwrap()];
    let end = bench(&[&load[..], &[server.port("quic")], &quic, &gate_log].concat())
        .env("SSLKEYLOGFILE", &keys)
        .output()
        .unwrap();
    assert_eq!(end.status.code(), Some(0), "{end:?}");
    let lines = String::from_utf8(end.stdout).unwrap();
    let told = format!("Dump TLS secrets to {}", keys.display());
    assert_eq!(lines.lines().next(), Some(told.as_str()));
    assert!(std::fs::read_to_string(keys).unwrap().contains("CLIENT_TRAFFIC_SECRET_0"));
    assert_eq!(std::fs::read_dir(qlog).unwrap().count(), 1);
    let log = std::fs::read_to_string(gate).unwrap();
    assert!(log.contains("\"peer\":\"127.0.0.1:") && log.contains("\"class\":\""), "{log}");
}
