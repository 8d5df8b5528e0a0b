//! Client Identifiers, credentials, addresses and certificates of the clients.

use std::fs;

use super::rig::{End, Load, Server, json, run, topic};

/// The topics that a subscriber to `#` received, each with its messages and bytes.
fn received(server: &Server, load: &[&str], messages: u64) -> Vec<(String, u64, u64)> {
    let path = server.path("sub.json");
    let find = server.find("mqtt");
    let subscribe = ["sub", "-c", "1", "-t", "#", "--json", path.to_str().unwrap()];
    let subscriber = Load::start(&[&subscribe[..], &find].concat());
    subscriber.wait_for_total("sub", 1);
    let published = run(&[&["pub", "-I", "1", "-i", "0"], load, &find].concat());
    assert_eq!(published.code, Some(0), "{published:?}");
    subscriber.wait_for_total("recv", messages);
    let End { code, errors, .. } = subscriber.stop("-INT");
    assert_eq!(code, Some(0), "{errors}");
    let summary = json(&path);
    let topics = summary["topics"].as_array().unwrap().iter().map(|topic| {
        let number = |name: &str| topic[name].as_u64().unwrap();
        (topic["topic"].as_str().unwrap().to_owned(), number("received"), number("bytes"))
    });
    topics.collect()
}

#[test]
fn placeholders_are_filled() {
    let server = Server::start();
    let load = ["-c", "1", "-n", "5", "--prefix", "P", "--shortids", "-u", "me", "-L", "2", "-s", "9", "-t"];
    let topics = received(&server, &[&load[..], &["%u/%c/%i/%s/%rand_1"]].concat(), 2);
    assert_eq!(topics, [("me/P6/6/1/1".to_owned(), 1, 9), ("me/P6/6/2/1".to_owned(), 1, 9)]);
}

#[test]
fn a_template_is_filled_for_each_message() {
    let server = Server::start();
    let file = server.path("template");
    fs::write(&file, "%RANDOM%%TIMESTAMPNS%.").unwrap();
    let template = format!("template://{}", file.display());
    // Seven random bytes, 19 digits and the point.
    let topics = received(&server, &["-c", "1", "-L", "3", "-s", "7", "-t", "t", "-m", &template], 3);
    assert_eq!(topics, [("t".to_owned(), 3, 3 * 27)]);
}

#[test]
fn every_version_of_mqtt_publishes() {
    let server = Server::start();
    for version in ["3", "4", "5"] {
        let load = ["-c", "1", "-L", "1", "-q", "2", "-m", "four", "-V", version, "-t", version];
        assert_eq!(received(&server, &load, 1), [(version.to_owned(), 1, 4)]);
    }
}

#[test]
fn local_addresses_and_the_congestion_control_of_tcp_are_used() {
    let server = Server::start();
    for (scheme, more) in [("mqtt", &["--tcp-cc", "reno"][..]), ("quic", &[])] {
        let path = server.path("conn.json");
        let load = ["conn", "-c", "4", "-i", "0", "--ifaddr", "127.0.0.2,127.0.0.3", "--duration", "500ms"];
        let end = run(&[&load[..], more, &server.find(scheme), &["--json", path.to_str().unwrap()]].concat());
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.lines.starts_with("Start with ") && end.lines.contains("addrs pool size: 2 "), "{end:?}");
        assert_eq!(json(&path)["connections"]["established"], 4);
    }
    // Documentation addresses belong to no host.
    let foreign = ["conn", "-c", "1", "--ifaddr", "192.0.2.1"];
    let end = run(&[&foreign[..], &server.find("mqtt")].concat());
    assert_eq!(end.code, Some(1), "{end:?}");
}

#[test]
fn a_server_is_checked_with_its_certificate() {
    let server = Server::start();
    let ca = server.ca();
    let load = ["pub", "-h", "localhost", "-c", "1", "-t", "t", "-L", "1", "-I", "1", "-q", "1"];
    for (scheme, options) in [("mqtts", &["-S"][..]), ("wss", &["-S", "--ws"]), ("quic", &["--quic"])] {
        let to = ["-p", server.port(scheme)];
        let path = server.path("pub.json");
        let json_to = ["--json", path.to_str().unwrap()];
        let end = run(&[&load[..], options, &to, &["--cacertfile", &ca], &json_to].concat());
        assert_eq!(end.code, Some(0), "{scheme}: {end:?}");
        assert_eq!(topic(&json(&path), "t")["acked"], 1);
        assert!(!end.errors.contains("Note:"), "{end:?}");
        let unknown = run(&[&load[..], options, &to, &["--tls-use-os-certs"]].concat());
        assert_eq!(unknown.code, Some(1), "{scheme}: {unknown:?}");
        let unchecked = run(&[&load[..], options, &to].concat());
        assert!(unchecked.code == Some(0) && unchecked.errors.contains("is not checked"), "{unchecked:?}");
    }
}
