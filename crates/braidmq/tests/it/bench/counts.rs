//! Every message is counted once, on both sides.

use serde_json::Value;

use super::rig::{End, Load, Server, counter, json, run, topic};

/// Publishers and subscribers of one broker count the same.
fn both_sides_count(scheme: &str, qos: &str) {
    let server = Server::start();
    let find = server.find(scheme);
    let (published, received) = (server.path("pub.json"), server.path("sub.json"));
    let subscribe = ["-c", "2", "-i", "0", "-t", "count/+", "-q", qos, "--json", received.to_str().unwrap()];
    let subscribers = Load::start(&[&["sub"], &find[..], &subscribe].concat());
    subscribers.wait_for_total("sub", 2);

    let load = ["-c", "3", "-i", "0", "-I", "1", "-F", "10", "-L", "300", "-t", "count/%i", "-q", qos];
    let end = run(&[&["pub"], &find[..], &load, &["--json", published.to_str().unwrap()]].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.lines.lines().last(), Some("publish complete"));
    subscribers.wait_for_total("recv", 600);
    let End { code, errors, .. } = subscribers.stop("-TERM");
    assert_eq!(code, Some(0), "{errors}");

    let (published, received) = (json(&published), json(&received));
    let acknowledged = if qos == "0" { 0 } else { 300 };
    assert_eq!((counter(&published, "pub"), counter(&published, "pub_succ")), (300, acknowledged));
    assert_eq!((counter(&published, "connect_succ"), counter(&published, "pub_fail")), (3, 0));
    let sent = topic(&published, "count/%i");
    assert_eq!((sent["sent"].as_u64(), sent["acked"].as_u64()), (Some(300), Some(300)), "{sent}");
    assert_eq!((sent["failed"].as_u64(), sent["bytes"].as_u64()), (Some(0), Some(300 * 256)), "{sent}");
    assert_eq!((counter(&received, "recv"), counter(&received, "sub")), (600, 2));
    // Both subscribers have every message of a publisher.
    let got = ["count/1", "count/2", "count/3"].map(|name| topic(&received, name));
    let total = |of: &dyn Fn(&Value) -> u64| got.into_iter().map(of).sum::<u64>();
    assert_eq!(total(&|topic| topic["received"].as_u64().unwrap()), 600);
    assert_eq!(total(&|topic| topic["bytes"].as_u64().unwrap()), 600 * 256);
    assert_eq!(total(&|topic| sum(&topic["per_second"])), 600);
    assert!(got.iter().all(|topic| topic["received"].as_u64().unwrap() % 2 == 0), "{received:#}");
    assert_eq!((&received["connections"]["wanted"], &received["role"]), (&2.into(), &"sub".into()));
}

fn sum(list: &Value) -> u64 {
    list.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).sum()
}

#[test]
fn over_tcp_with_qos_0() {
    both_sides_count("mqtt", "0");
}

#[test]
fn over_tls_with_qos_1() {
    both_sides_count("mqtts", "1");
}

#[test]
fn over_websocket_with_qos_2() {
    both_sides_count("wss", "2");
}

#[test]
fn over_quic_with_qos_1() {
    both_sides_count("quic", "1");
}

#[test]
fn headers_give_latency() {
    let server = Server::start();
    let find = server.find("mqtt");
    let path = server.path("sub.json");
    let headers = ["--payload-hdrs", "cnt64,ts"];
    let subscribe = ["sub", "-c", "1", "-t", "h", "--json", path.to_str().unwrap()];
    let subscriber = Load::start(&[&subscribe[..], &find, &headers].concat());
    subscriber.wait_for_total("sub", 1);
    let published =
        run(&[&["pub", "-c", "1", "-t", "h", "-I", "1", "-L", "50"], &find[..], &headers].concat());
    assert_eq!(published.code, Some(0), "{published:?}");
    subscriber.wait_for_total("recv", 50);
    let End { code, errors: table, .. } = subscriber.stop("-INT");
    assert_eq!(code, Some(0), "{table}");
    let summary = json(&path);
    assert_eq!(topic(&summary, "h")["latency_us"]["count"], 50);
    let row = table.lines().find(|line| line.starts_with("h ")).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("50"), "{table}");
    assert!(!row.contains(" - "), "{table}");
}
