//! Passwords are in no log and in no error text.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use crate::broker::braidmq;
use crate::serve::{Running, start_command};

const PASSWORD: &str = "s3cretWord";

/// CVE-2026-33216: at the level that logs most, on every transport and of both programs.
#[test]
fn no_log_shows_a_password() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let any = "127.0.0.1:0";
    let child = braidmq(&[
        "serve",
        "--set",
        "log.level=trace",
        "--tcp",
        any,
        "--tls",
        any,
        "--ws",
        any,
        "--quic",
        any,
    ])
    .arg("--data-dir")
    .arg(data.path().join("data"))
    .stdout(Stdio::piped())
    .stderr(File::create(&log).unwrap())
    .spawn()
    .unwrap();
    let mut running = Running(child);
    let mut urls = Vec::new();
    for line in BufReader::new(running.0.stdout.take().unwrap()).lines().map(Result::unwrap) {
        if line.starts_with("Stop with") {
            break;
        }
        let url = line.split_whitespace().last().filter(|word| word.contains("://")).map(str::to_owned);
        urls.extend(url.filter(|_| !line.contains("braidmq")));
    }
    assert_eq!(urls.len(), 4, "{urls:?}");
    for url in &urls {
        let url = url.replace("://", &format!("://anna:{PASSWORD}@"));
        let topic = if url.starts_with("ws") { url.clone() } else { format!("{url}/t") };
        let more: &[&str] = if url.starts_with("ws") { &["-t", "t"] } else { &[] };
        let mut command = braidmq(&["pub", "-d", "--insecure", "-q", "1", "-m", "x", "-L", &topic]);
        if !url.starts_with("mqtts") && !url.starts_with("quic") {
            command = braidmq(&["pub", "-d", "-q", "1", "-m", "x", "-L", &topic]);
        }
        let output = command.args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{url}: {said}");
        assert!(said.contains("CONNACK"), "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.matches("connected").count() >= 4, "{log}");
    assert!(!log.contains(PASSWORD), "{log}");
}

/// A client can fill neither the disk nor the screen of the operator: a line about what it is refused is short, and
/// connections without CONNECT have none.
#[test]
fn a_client_writes_little_into_the_log() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0"]);
    let (mut broker, banner) = start_command(command.arg("--data-dir").arg(data.path()));
    let line = banner.iter().find(|line| line.contains("mqtt://")).unwrap();
    let url = line.split_whitespace().last().unwrap();
    let address = url.strip_prefix("mqtt://").unwrap();
    let mut log = BufReader::new(broker.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    for garbage in [&b"\x00\x00"[..], b"GET / HTTP/1.1\r\n\r\n", b"\x30\x03\x00\x01a"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(garbage).unwrap();
        // Until the broker has closed it; with bytes that it has not read that is an error.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let id = "i".repeat(60_000);
    let mut publish =
        braidmq(&["pub", "-i", &id, "-t", &format!("$SYS/{id}"), "-m", "x", "-q", "1", "-L", url]);
    assert!(publish.output().unwrap().status.code().is_some());
    let refused = log.find(|line| line.contains("refused") || line.contains("connection closed")).unwrap();
    assert!(refused.contains("refused") && refused.contains("$SYS/ii"), "{refused:.300}");
    assert!(refused.contains(&id[..256]) && refused.len() < 1500, "{} bytes", refused.len());
}

#[test]
fn no_error_shows_a_password() {
    for url in [
        format!("anna:{PASSWORD}@host"),
        format!("ftp://anna:{PASSWORD}@host"),
        format!("mqtt://anna:{PASSWORD}@host:99999"),
        format!("mqtt://anna:{PASSWORD}@127.0.0.1:1"),
    ] {
        let output = braidmq(&["pub", "-t", "t", "-m", "x", "-L", &url]).output().unwrap();
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.is_empty() && !said.contains(PASSWORD), "{said}");
    }
}
