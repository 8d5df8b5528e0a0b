//! Clients that choose their transport, and recordings of a device.

use std::net::UdpSocket;

use super::rig::{Server, counter, json, run};

#[test]
fn each_client_of_an_auto_url_takes_the_transport_that_answers() {
    let server = Server::start();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let blocked = silent.local_addr().unwrap().port().to_string();
    let path = server.path("run.json");
    let file = path.to_str().unwrap();
    for (quic, over, other) in [
        (server.port("quic"), "QUIC: 3, over TLS: 0", "over_quic"),
        (&blocked, "QUIC: 0, over TLS: 3", "over_tls"),
    ] {
        let url = format!("auto://127.0.0.1?quic={quic}&tls={}", server.port("mqtts"));
        let ca = server.ca();
        let common = ["-c", "3", "--url", &url, "--cafile", &ca, "--json", file];
        for load in [
            &["pub", "-t", "a", "-q", "1", "-I", "0", "-L", "3", "-w"][..],
            &["sub", "-t", "a", "--duration", "2s"],
            &["conn", "--duration", "2s"],
        ] {
            let end = run(&[load, &common].concat());
            assert_eq!(end.code, Some(0), "{end:?}");
            assert!(end.errors.contains(&format!("connections over {over}\n")), "{end:?}");
            assert_eq!(counter(&json(&path), other), 3, "{load:?}");
        }
    }
}

#[test]
fn a_device_ends_after_its_recordings() {
    let server = Server::start();
    let path = server.path("run.json");
    let url = format!("mqtt://127.0.0.1:{}", server.port("mqtt"));
    let load = ["device", "-L", &url, "--rate", "20", "--recording", "300000", "--recordings", "2"];
    let end = run(&[&load[..], &["--duration", "50s", "--json", path.to_str().unwrap()]].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.lines.contains("2 of 2 recordings acknowledged"), "{end:?}");
    let summary = json(&path);
    let recordings = &summary["topics"][1];
    assert_eq!((&recordings["topic"], &recordings["bytes"]), (&"alarms/recording".into(), &600_000.into()));
    assert!(
        recordings["latency_us"]["max"].is_f64() && summary["seconds"].as_f64() < Some(40.0),
        "{summary:#}"
    );
}
