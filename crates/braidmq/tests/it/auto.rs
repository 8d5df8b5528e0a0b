//! `braidmq pub` and `sub` with `auto://` URLs, against a broker with TLS and QUIC.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Output, Stdio};

use tempfile::TempDir;

use super::broker::braidmq;

/// Broker with TLS and QUIC; killed at the end of the test.
struct Both {
    child: Child,
    tls: u16,
    quic: u16,
    _data: TempDir,
}

impl Both {
    fn start(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = braidmq(&["serve", "--tls", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut port = |scheme: &str| -> u16 {
            let line = banner.find(|line| line.as_ref().unwrap().contains(scheme)).unwrap().unwrap();
            line.rsplit_once(':').unwrap().1.trim().parse().unwrap()
        };
        let (tls, quic) = (port("mqtts://"), port("quic://"));
        std::thread::spawn(move || banner.for_each(drop));
        Self { child, tls, quic, _data: data }
    }

    fn url(&self, quic: u16) -> String {
        format!("auto://127.0.0.1?quic={quic}&tls={}", self.tls)
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn publish(url: &str, more: &[&str]) -> (Output, String) {
    let mut arguments = vec!["pub", "-L", url, "--insecure", "-t", "t", "-m", "x", "-q", "1", "-v"];
    arguments.extend(more);
    let output = braidmq(&arguments).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, log)
}

#[test]
fn quic_is_taken_where_it_works_and_the_log_says_so() {
    let broker = Both::start(&[]);
    let (output, log) = publish(&broker.url(broker.quic), &[]);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("connected over quic: a new session"), "{log}");
}

/// A socket that never answers stands for a network that drops UDP.
#[test]
fn tls_is_taken_where_udp_is_blocked_and_at_once_by_the_next_run() {
    let broker = Both::start(&[]);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = broker.url(silent.local_addr().unwrap().port());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    let state = ["--state-file", file.to_str().unwrap()];
    let (output, log) = publish(&url, &state);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("no answer over QUIC within 250 ms, trying TLS as well"), "{log}");
    assert!(log.contains("connected over tls: a new session"), "{log}");
    let (output, log) = publish(&url, &state);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(!log.contains("no answer") && log.contains("connected over tls"), "{log}");
    // Cut off, the file is of no use, and of no harm.
    std::fs::write(&file, &std::fs::read(&file).unwrap()[..20]).unwrap();
    let (output, log) = publish(&url, &state);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert!(log.contains("is not used, and will be written anew: it is cut off"), "{log}");
}

/// [BQ-90]
#[test]
fn a_hint_of_the_broker_that_there_is_no_quic_is_followed() {
    let broker = Both::start(&["--set", "mqtt.alt_svc=clear"]);
    let mut subscriber =
        braidmq(&["sub", "-L", &broker.url(broker.quic), "--insecure", "-t", "t", "--events"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut log = BufReader::new(subscriber.stderr.take().unwrap()).lines();
    let hint = log.find(|line| line.as_ref().unwrap().contains("the server says: no QUIC for 86400 s"));
    assert!(hint.is_some());
    subscriber.kill().unwrap();
    subscriber.wait().unwrap();
}

#[test]
fn a_hint_that_is_none_is_an_error_of_the_configuration() {
    let output =
        braidmq(&["serve", "--tcp", "127.0.0.1:0", "--set", "mqtt.alt_svc=h3=\":443\""]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let mut error = String::new();
    output.stderr.as_slice().read_to_string(&mut error).unwrap();
    assert!(error.contains("mqtt.alt_svc") && error.contains("mqtt-quic=\":14567\"; ma=3600"), "{error}");
}

#[test]
fn without_any_server_the_error_names_both_transports() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    drop(silent);
    let (output, log) = publish(&format!("auto://127.0.0.1:{port}"), &[]);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("neither QUIC nor TLS connects"), "{log}");
    assert!(log.contains(&format!("nothing listens on 127.0.0.1:{port}")), "{log}");
}
