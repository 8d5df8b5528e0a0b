//! Ends of runs: exit codes, last lines and files.

use super::rig::{End, Load, Server, counter, json, run, topic};

#[test]
fn a_signal_ends_a_run_in_order() {
    let server = Server::start();
    for signal in ["-INT", "-TERM"] {
        let path = server.path("pub.json");
        let load = ["pub", "-c", "1", "-t", "t", "-I", "1", "-q", "1", "--json", path.to_str().unwrap()];
        let publisher = Load::start(&[&load[..], &server.find("mqtt")].concat());
        let first = publisher.wait_for(|line| line.contains(" pub total="));
        let End { code, lines, errors } = publisher.stop(signal);
        // An unchanged counter is not printed again.
        let lines = format!("{first}\n{lines}");
        assert_eq!(code, Some(0), "{errors}");
        let summary = json(&path);
        let acknowledged = topic(&summary, "t")["acked"].as_u64().unwrap();
        assert_eq!(counter(&summary, "pub"), acknowledged);
        assert!(lines.contains(&format!(" pub total={acknowledged} ")), "{acknowledged} in {lines}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let server = Server::start();
    let path = server.path("conn.json");
    let load = ["conn", "-c", "3", "-i", "0", "--duration", "1s", "--json", path.to_str().unwrap()];
    let end = run(&[&load[..], &server.find("quic")].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    let summary = json(&path);
    assert!(summary["seconds"].as_f64().unwrap() >= 1.0);
    let connections = &summary["connections"];
    assert_eq!((&connections["established"], &connections["connect_us"]["count"]), (&3.into(), &3.into()));
    assert!(end.errors.contains("(connecting)"), "{end:?}");
}

#[test]
fn a_server_that_goes_away_is_no_good_end() {
    let mut server = Server::start();
    let path = server.path("conn.json");
    let load = ["conn", "-c", "2", "-i", "0", "--json", path.to_str().unwrap()];
    let clients = Load::start(&[&load[..], &server.find("mqtt")].concat());
    clients.wait_for_total("connect_succ", 2);
    server.kill();
    let End { code, lines, errors } = clients.end();
    assert_eq!(code, Some(7), "{errors}");
    assert!(errors.contains("Error: every connection was lost before the end: client("), "{errors}");
    assert_eq!(lines.lines().filter(|line| line.starts_with("client(")).count(), 2, "{lines}");
    assert_eq!(json(&path)["events"].as_array().unwrap().len(), 2);
}

#[test]
fn a_closed_connection_is_told_in_the_word_of_what_carried_it() {
    for (scheme, cause) in
        [("mqtt", "{shutdown,tcp_closed}"), ("mqtts", "{shutdown,ssl_closed}"), ("ws", "closed")]
    {
        let mut server = Server::start();
        let clients = Load::start(&[&["conn", "-c", "1"][..], &server.find(scheme)].concat());
        clients.wait_for_total("connect_succ", 1);
        server.kill();
        let end = clients.end();
        let expected = format!("client(1): EXIT for {cause}");
        assert!(end.lines.lines().any(|line| line == expected), "{scheme}: {end:?}");
    }
}

/// An hour to the next message, and ten more clients to come.
#[test]
fn a_limit_ends_a_run_at_once() {
    let server = Server::start();
    let load = ["pub", "-c", "10", "-i", "3600000", "-I", "3600000", "-t", "t", "-q", "1", "-L", "1"];
    let end = run(&[&load[..], &server.find("mqtt")].concat());
    assert_eq!((end.code, end.lines.lines().last()), (Some(0), Some("publish complete")), "{end:?}");
    let row = end.errors.lines().find(|line| line.starts_with("(connecting)")).unwrap();
    let columns: Vec<_> = row.split_whitespace().collect();
    assert_eq!(columns[1..4], ["-", "1", "0"], "who did not come has not failed: {row}");
}

#[test]
fn a_closed_port_is_one_line_and_the_measurement_of_nothing() {
    let server = Server::start();
    let path = server.path("pub.json");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let load = ["pub", "-c", "2", "-i", "0", "-t", "t", "-h", "127.0.0.1", "-p", &closed];
    let end = run(&[&load[..], &["--quiet", "--json", path.to_str().unwrap()]].concat());
    let said = &end.errors;
    assert_eq!(end.code, Some(1), "{said}");
    let start = format!("Error: no client could connect to mqtt://127.0.0.1:{closed}: cannot connect to ");
    assert!(said.starts_with(&start) && said.lines().count() == 1, "{said}");
    assert_eq!(counter(&json(&path), "connect_fail"), 2);
    assert!(end.lines.contains(" connect_fail total=2 "), "{end:?}");
}

#[test]
fn clients_stay_after_the_limit_if_they_are_to() {
    let server = Server::start();
    let load = ["pub", "-c", "1", "-t", "t", "-I", "1", "-L", "5", "--keep-connected", "-w"];
    let publisher = Load::start(&[&load[..], &server.find("mqtt")].concat());
    publisher.wait_for_total("pub", 5);
    let end = publisher.stop("-INT");
    assert_eq!((end.code, end.lines.contains("client(")), (Some(0), false), "{end:?}");
}

#[test]
fn a_generator_that_is_too_slow_ends_with_1() {
    for (at_least, code) in [("1", 0), ("1000000000000", 1)] {
        let end = run(&["self", "-c", "1", "--duration", "100ms", "--at-least", at_least]);
        assert_eq!(end.code, Some(code), "{end:?}");
        let line = end.lines.strip_prefix("QoS 0, 64 B, 1 clients, as fast as it goes: ").unwrap();
        assert!(line.contains(" messages/s, ") && line.ends_with(" messages per CPU-second\n"), "{line}");
        let complaint = " messages per CPU-second are fewer than 1000000000000\n";
        assert_eq!(end.errors.ends_with(complaint), code == 1, "{end:?}");
    }
}
