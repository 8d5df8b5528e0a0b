//! Tests of `braidmq pub` and `braidmq sub`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Output, Stdio};

use tempfile::TempDir;

use super::broker::{Broker, braidmq};

/// Runs a command to its end with `input` on standard input.
fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = braidmq(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// A subscriber process, after its SUBACK.
fn subscriber(broker: &Broker, arguments: &[&str]) -> Child {
    let mut all = vec!["sub", "-L", &broker.url, "-d"];
    all.extend(arguments);
    let mut child = braidmq(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("received SUBACK")));
    std::thread::spawn(move || log.for_each(drop));
    child
}

fn output(mut child: Child) -> (Option<i32>, Vec<u8>) {
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    (child.wait().unwrap().code(), out)
}

fn code(arguments: &[&str]) -> Option<i32> {
    run(arguments, b"").status.code()
}

#[test]
fn bytes_arrive_as_bytes() {
    let broker = Broker::start();
    let payload: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for qos in ["0", "1", "2"] {
        let subscriber = subscriber(&broker, &["-t", "bytes", "-q", qos, "-C", "1", "-N"]);
        let published = run(&["pub", "-L", &broker.url, "-t", "bytes", "-q", qos, "-s"], &payload);
        assert_eq!(published.status.code(), Some(0), "{published:?}");
        let (code, received) = output(subscriber);
        assert_eq!(code, Some(0));
        assert!(received == payload, "QoS {qos} changed the payload");
    }
}

#[test]
fn each_line_is_a_message_and_the_last_needs_no_line_feed() {
    let broker = Broker::start();
    let subscriber = subscriber(&broker, &["-t", "lines/#", "-v", "-q", "1", "-C", "4"]);
    let lines = run(&["pub", "-L", &format!("{}/lines/1", broker.url), "-l", "-q", "1"], b"a\n\nb\r\n\xFF");
    assert_eq!(lines.status.code(), Some(0), "{lines:?}");
    let (code, received) = output(subscriber);
    assert_eq!(code, Some(0));
    assert_eq!(received, b"lines/1 a\nlines/1 (null)\nlines/1 b\r\nlines/1 \xFF\n");
}

#[test]
fn properties_and_formats() {
    let broker = Broker::start();
    let format = ["-F", "%t %p %q %C %P %S", "-V", "5", "-q", "2", "-C", "1"];
    let id = ["-D", "subscribe", "subscription-identifier", "7", "-t", "p"];
    let subscriber = subscriber(&broker, &[&format[..], &id].concat());
    let properties = ["-D", "publish", "content-type", "text", "-D", "publish", "user-property", "a", "b"];
    let published =
        run(&[&["pub", "-L", &broker.url, "-t", "p", "-m", "-1", "-q", "2"], &properties[..]].concat(), b"");
    assert_eq!(published.status.code(), Some(0), "{published:?}");
    assert_eq!(output(subscriber), (Some(0), b"p -1 2 text a:b 7\n".to_vec()));
}

#[test]
fn a_kept_session_gets_what_was_published_meanwhile() {
    let broker = Broker::start();
    let keep = ["sub", "-L", &broker.url, "-t", "kept", "-i", "logger", "-c", "-q", "1"];
    assert_eq!(code(&[&keep[..], &["-E"]].concat()), Some(0));
    assert_eq!(code(&["pub", "-L", &broker.url, "-t", "kept", "-m", "meanwhile", "-q", "1"]), Some(0));
    let received = run(&[&keep[..], &["-C", "1"]].concat(), b"");
    assert_eq!(received.stdout, b"meanwhile\n");
}

#[test]
fn retained_messages_are_told_apart() {
    let broker = Broker::start();
    let url = &broker.url;
    assert_eq!(code(&["pub", "-L", url, "-t", "r/1", "-m", "kept", "-r", "-q", "1"]), Some(0));
    assert_eq!(run(&["sub", "-L", url, "-t", "r/1", "-C", "1", "-F", "%p %r"], b"").stdout, b"kept 1\n");
    let without = run(&["sub", "-L", url, "-t", "r/1", "-R", "-W", "1"], b"");
    assert_eq!((without.status.code(), without.stdout.len()), (Some(27), 0));
    let filtered = run(&["sub", "-L", url, "-t", "r/#", "-T", "r/+", "-W", "1"], b"");
    assert_eq!((filtered.status.code(), filtered.stdout.len()), (Some(27), 0));
}

#[test]
fn exit_codes_are_those_of_mosquitto() {
    let broker = Broker::start();
    let url = &broker.url;
    assert_eq!(code(&["sub", "-L", url, "-t", "t", "-E"]), Some(0));
    assert_eq!(code(&["sub", "-L", url, "-t", "t", "-W", "1"]), Some(27));
    assert_eq!(code(&["pub", "-p", "1", "-t", "t", "-m", "m"]), Some(1), "nothing listens there");
    assert_eq!(code(&["pub", "-L", url, "-t", "t/#", "-m", "m"]), Some(1), "no topic name");
    assert_eq!(code(&["sub", "-L", url]), Some(1), "no filter");
    assert_eq!(code(&["pub", "-L", url, "-t", "t", "-f", "/does/not/exist"]), Some(1));
    assert_eq!(code(&["pub", "-L", url, "-t", "t", "-m", "m", "-D", "publish", "colour", "red"]), Some(1));
}

#[test]
fn errors_are_one_line_and_quiet_is_none() {
    let arguments = ["pub", "-p", "1", "-t", "t", "-m", "m"];
    let error = String::from_utf8(run(&arguments, b"").stderr).unwrap();
    assert!(error.starts_with("Error: cannot connect to localhost:1: nothing listens on"), "{error}");
    assert_eq!(error.lines().count(), 1);
    assert!(run(&[&arguments[..], &["--quiet"]].concat(), b"").stderr.is_empty());
}

// -- QUIC ------------------------------------------------------------------------------------------

/// `braidmq serve` with QUIC and a self-signed certificate; killed at the end of the test.
struct QuicBroker {
    child: Child,
    url: String,
    ca: String,
    data: TempDir,
}

impl QuicBroker {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = braidmq(&["serve", "--quic", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = banner.find(|line| line.as_ref().unwrap().contains("quic://")).unwrap().unwrap();
        let url = line.split_whitespace().last().unwrap().to_owned();
        std::thread::spawn(move || banner.for_each(drop));
        let ca = data.path().join("cert.pem").to_str().unwrap().to_owned();
        Self { child, url, ca, data }
    }

    /// Options to connect to it.
    fn options(&self) -> [&str; 4] {
        ["-L", &self.url, "--cafile", &self.ca]
    }

    fn subscriber(&self, arguments: &[&str]) -> Child {
        let all = [&["sub"], &self.options()[..], &["-d"], arguments].concat();
        let mut child = braidmq(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(log.any(|line| line.unwrap().contains("received SUBACK")));
        std::thread::spawn(move || log.for_each(drop));
        child
    }
}

impl Drop for QuicBroker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// [BQ-83]
#[test]
fn unreliable_messages_travel_in_datagrams_where_the_broker_permits_them() {
    for (settings, is_permitted) in [(&["--set", "quic.datagrams=true"][..], true), (&[], false)] {
        let broker = QuicBroker::start_with(settings);
        let subscriber = broker.subscriber(&["-t", "d/#", "--datagrams", "-C", "3"]);
        let publish = ["-t", "d/1", "-m", "x", "--repeat", "3", "--unreliable", "-d"];
        let published = run(&[&["pub"], &broker.options()[..], &publish].concat(), b"");
        let log = String::from_utf8_lossy(&published.stderr);
        assert_eq!(published.status.code(), Some(0), "{log}");
        assert_eq!(log.contains("sending PUBLISH in a datagram"), is_permitted, "{log}");
        assert_eq!(output(subscriber), (Some(0), b"x\nx\nx\n".to_vec()));
    }
}

#[test]
fn messages_travel_on_the_streams_that_are_asked_for() {
    let broker = QuicBroker::start();
    let large: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    for qos in ["0", "1", "2"] {
        let place = ["--stream", "2", "--priority", "60000"];
        let receive = ["-t", "s/#", "-q", qos, "-C", "1", "-N"];
        let subscriber = broker.subscriber(&[&receive[..], &place].concat());
        let publish = ["-t", "s/1", "-q", qos, "-s", "-d"];
        let published = run(&[&["pub"], &broker.options()[..], &publish, &place].concat(), &large);
        let log = String::from_utf8_lossy(&published.stderr);
        assert_eq!(published.status.code(), Some(0), "{log}");
        assert!(log.contains("on=data stream 1"), "{log}");
        let (code, received) = output(subscriber);
        assert_eq!(code, Some(0));
        assert!(received == large, "QoS {qos}");
    }
}

#[test]
fn without_a_wish_there_is_one_stream() {
    let broker = QuicBroker::start();
    let subscriber = broker.subscriber(&["-t", "s", "-C", "1"]);
    let published = run(&[&["pub"], &broker.options()[..], &["-t", "s", "-m", "m", "-d"]].concat(), b"");
    let log = String::from_utf8_lossy(&published.stderr);
    assert!(log.contains("on=control stream") && !log.contains("opened"), "{log}");
    assert_eq!(output(subscriber), (Some(0), b"m\n".to_vec()));
}

#[test]
fn a_qlog_is_written_for_a_quic_connection() {
    let broker = QuicBroker::start();
    let (qlog, keys) = (broker.data.path().join("qlog"), broker.data.path().join("keys"));
    let quic = ["--qlog-dir", qlog.to_str().unwrap(), "--quic-cc", "cubic", "--link-rate", "1000000"];
    let message = ["-t", "t", "-m", "m", "-q", "1", "--zero-rtt"];
    let published = braidmq(&[&["pub"], &broker.options()[..], &quic, &message].concat())
        .env("SSLKEYLOGFILE", &keys)
        .output()
        .unwrap();
    assert_eq!(published.status.code(), Some(0), "{published:?}");
    let keys = std::fs::read_to_string(keys).unwrap();
    assert!(keys.contains("CLIENT_TRAFFIC_SECRET_0"), "{keys}");
    let files: Vec<_> = std::fs::read_dir(qlog).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    assert!(std::fs::read_to_string(&files[0]).unwrap().contains("packet_sent"));
}

#[test]
fn options_of_quic_are_errors_on_other_transports() {
    for (command, option) in [("pub", "--stream 1"), ("sub", "--stream 1"), ("pub", "--zero-rtt")] {
        let message: &[&str] = if command == "pub" { &["-m", "m"] } else { &[] };
        let options: Vec<&str> = option.split(' ').collect();
        let failed = run(&[&[command, "-t", "t"], message, &options].concat(), b"");
        let error = String::from_utf8(failed.stderr).unwrap();
        let name = options[0];
        assert_eq!(
            error,
            format!("Error: {name} needs QUIC: connect with --url quic://HOST, or leave it out.\n")
        );
        assert_eq!(failed.status.code(), Some(1));
    }
    let old = run(&["sub", "-t", "t", "-V", "mqttv311", "--priority", "1"], b"");
    assert!(String::from_utf8_lossy(&old.stderr).contains("--priority needs MQTT 5"), "{old:?}");
    assert_eq!(code(&["pub", "-t", "t", "-m", "m", "--priority", "65536"]), Some(1));
}
