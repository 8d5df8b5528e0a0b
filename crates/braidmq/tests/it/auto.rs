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
    data: TempDir,
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
        Self { child, tls, quic, data }
    }

    fn url(&self, quic: u16) -> String {
        url(quic, self.tls)
    }

    /// The certificate that the broker has made for itself.
    fn certificate(&self) -> String {
        self.data.path().join("cert.pem").to_str().unwrap().to_owned()
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn url(quic: u16, tls: u16) -> String {
    format!("auto://127.0.0.1?quic={quic}&tls={tls}")
}

fn publish(url: &str, more: &[&str]) -> (Output, String) {
    let mut arguments = vec!["pub", "-L", url, "-t", "t", "-m", "x", "-q", "1", "-v"];
    if !more.contains(&"--cafile") {
        arguments.push("--insecure");
    }
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

#[test]
fn a_certificate_that_fails_on_one_transport_leaves_the_other() {
    let (one, other) = (Both::start(&[]), Both::start(&[]));
    for (url, transport) in [(url(other.quic, one.tls), "tls"), (url(one.quic, other.tls), "quic")] {
        let (output, log) = publish(&url, &["--cafile", &one.certificate()]);
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert!(log.contains(&format!("connected over {transport}")), "{log}");
        if transport == "tls" {
            let fails = "QUIC fails, trying TLS now: the certificate of 127.0.0.1 is not trusted";
            assert!(log.contains(fails), "{log}");
        }
    }
    let (output, log) = publish(&other.url(other.quic), &["--cafile", &one.certificate()]);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("QUIC: the certificate of") && log.contains("TLS: the certificate of"), "{log}");
}

/// A portal that answers every connection with a page, and drops UDP.
#[test]
fn a_captive_portal_is_an_error_that_says_what_each_transport_met() {
    let portal = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = url(silent.local_addr().unwrap().port(), portal.local_addr().unwrap().port());
    std::thread::spawn(move || {
        for connection in portal.incoming() {
            let mut connection = connection.unwrap();
            let page = "HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n";
            // The client may have gone.
            let _ = std::io::Write::write_all(&mut connection, page.as_bytes());
        }
    });
    let (output, log) = publish(&url, &[]);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("neither QUIC nor TLS connects; QUIC: cannot connect to 127.0.0.1"), "{log}");
    assert!(log.contains("; TLS: TLS with 127.0.0.1 failed: the answer is not TLS"), "{log}");
}

/// A broker in a network of its own, and a subscriber whose machine changes its address. Prints what the subscriber
/// got, and its events. Needs user namespaces, `ip` and `nsenter`.
const ADDRESS_CHANGE: &str = r#"
unshare -n "$B" serve --tcp 127.0.0.1:1883 --tls 0.0.0.0:8883 --quic 0.0.0.0:14567 --allow-anonymous --data-dir data > banner.txt 2> serve.txt &
BROKER=$!
trap 'kill $BROKER' EXIT
until grep -q 'quic://' banner.txt; do sleep 0.05; done
ip link set lo up
ip link add va type veth peer name vb
ip link set vb netns $BROKER
nsenter -t $BROKER -n sh -ec 'ip addr add 10.9.0.1/24 dev vb; ip link set vb up; ip link set lo up'
ip addr add 10.9.0.2/24 dev va
ip link set va up
"$B" sub -L "auto://10.9.0.1?quic=$QUIC" --insecure -t t -q 1 -C 1 -d > messages.txt 2> events.txt &
SUBSCRIBER=$!
until grep -q 'received SUBACK' events.txt; do sleep 0.05; done
ip addr del 10.9.0.2/24 dev va
ip addr add 10.9.0.3/24 dev va
until grep -q 'this machine sends from 10.9.0.3 now' events.txt; do sleep 0.05; done
nsenter -t $BROKER -n "$B" pub -h 127.0.0.1 -t t -m moved -q 1
wait $SUBSCRIBER
cat messages.txt events.txt
"#;

#[test]
fn quic_moves_along_with_the_address_of_the_machine_and_tls_is_replaced() {
    for (quic, moves) in [("14567", 0), ("9", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let output = std::process::Command::new("timeout")
            .args(["120", "unshare", "-Urn", "sh", "-ec", ADDRESS_CHANGE])
            .env("B", env!("CARGO_BIN_EXE_braidmq"))
            .env("QUIC", quic)
            .current_dir(dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}{text}");
        assert!(text.starts_with("moved\n"), "{text}");
        assert_eq!(text.matches("moving to tls: the network has changed").count(), moves, "{text}");
        assert_eq!(text.matches("connected over").count(), 1 + moves, "{text}");
    }
}
