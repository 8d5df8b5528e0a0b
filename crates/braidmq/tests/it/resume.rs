//! Large messages of `braidmq pub` and `bench pub` over a relay that cuts connections.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::broker::braidmq;

const SIZE: usize = 6_000_000;

/// `braidmq serve`; killed at the end of the test.
struct Broker {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Broker {
    fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = banner.find(|line| line.contains("mqtt://")).unwrap();
        let address = line.split_once("mqtt://").unwrap().1.trim().parse().unwrap();
        thread::spawn(move || banner.for_each(drop));
        Self { child, address, directory }
    }

    /// A file with a payload in which no two kilobytes are equal.
    fn file(&self) -> (String, Vec<u8>) {
        let payload: Vec<u8> =
            (0..SIZE).map(|at| (at ^ (at / 253) ^ (at / 65_537)).to_le_bytes()[0]).collect();
        let path = self.directory.path().join("payload");
        std::fs::write(&path, &payload).unwrap();
        (path.to_str().unwrap().to_owned(), payload)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Relay that cuts each connection after so many bytes of its client; those behind the last number are whole.
struct Relay {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    fn start(to: SocketAddr, cuts: &'static [u64]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming() {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let limit = cuts.get(number).copied().unwrap_or(u64::MAX);
                thread::spawn(move || relay(&client?, &TcpStream::connect(to)?, limit));
            }
        });
        Self { address, connections }
    }

    fn publish(&self, arguments: &[&str]) -> (Output, String) {
        let url = format!("mqtt://{}", self.address);
        let all = ["pub", "-L", &url, "-t", "large", "-q", "1", "-v"];
        let output = braidmq(&[&all, arguments].concat()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, log)
    }
}

fn relay(client: &TcpStream, server: &TcpStream, limit: u64) -> io::Result<()> {
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut from, &mut to));
    let (mut from, mut to) = (client.take(limit), server);
    let copied = io::copy(&mut from, &mut to);
    // Without a reset the broker reads all that has arrived.
    let _ = server.shutdown(Shutdown::Write);
    let _ = client.shutdown(Shutdown::Both);
    copied.map(drop)
}

/// Subscriber that ends with the first message.
fn subscriber(broker: &Broker) -> Child {
    let url = format!("mqtt://{}", broker.address);
    let mut child = braidmq(&["sub", "-L", &url, "-t", "large", "-q", "1", "-C", "1", "-N", "-d"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("received SUBACK")));
    thread::spawn(move || log.for_each(drop));
    child
}

fn received(mut subscriber: Child) -> Vec<u8> {
    let mut payload = Vec::new();
    subscriber.stdout.take().unwrap().read_to_end(&mut payload).unwrap();
    assert_eq!(subscriber.wait().unwrap().code(), Some(0));
    payload
}

#[test]
fn a_large_message_goes_on_over_another_connection_unless_an_option_says_otherwise() {
    let broker = Broker::start(&[]);
    let (file, payload) = broker.file();
    let relay = Relay::start(broker.address, &[3_000_000, 2_000_000]);
    let subscriber = subscriber(&broker);
    let (output, log) = relay.publish(&["-f", &file]);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let told = log.matches("the message to large goes on at byte ").count();
    assert_eq!((told, relay.connections.load(Ordering::Relaxed)), (2, 3), "{log}");
    assert!(received(subscriber) == payload);

    for options in [&["--resume", "0"][..], &["-V", "311"], &["-x", "0"]] {
        let relay = Relay::start(broker.address, &[3_000_000]);
        let (output, log) = relay.publish(&[&["-f", &file], options].concat());
        assert_eq!(output.status.code(), Some(7), "{log}");
        assert_eq!(relay.connections.load(Ordering::Relaxed), 1, "{log}");
    }
    for (options, error) in [
        (&["-m", "x", "-V", "311", "--resume", "9"][..], "--resume needs MQTT 5 and a session"),
        (&["-m", "x", "-q", "0", "--resume", "9"], "cannot be used multiple times"),
        (&["-s", "--password-stdin", "-u", "u"], "read the same input"),
    ] {
        let (output, log) = relay.publish(options);
        assert!(matches!(output.status.code(), Some(1 | 2)) && log.contains(error), "{log}");
    }
}

/// A server that keeps nothing gets the message from its beginning, and not for ever.
#[test]
fn a_message_that_begins_again_each_time_is_given_up() {
    let broker = Broker::start(&["--set", "spool.threshold=268435455"]);
    let (file, _) = broker.file();
    let relay = Relay::start(broker.address, &[1_000_000; 20]);
    let (output, log) = relay.publish(&["-f", &file]);
    assert_eq!(output.status.code(), Some(7), "{log}");
    assert!(log.contains("the server kept nothing of the message, 4 times in a row"), "{log}");
    assert_eq!(relay.connections.load(Ordering::Relaxed), 4, "{log}");
}

#[test]
fn bench_pub_goes_on_too() {
    let broker = Broker::start(&[]);
    let relay = Relay::start(broker.address, &[3_000_000, 2_000_000]);
    let subscriber = subscriber(&broker);
    let url = format!("mqtt://{}", relay.address);
    let load =
        ["bench", "pub", "--url", &url, "-c", "1", "-t", "large", "-q", "1", "-L", "1", "-s", "6000000"];
    let session = ["-C", "false", "-x", "600", "--reconnect", "9", "--resume"];
    let output = braidmq(&[&load[..], &session].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Without parts, three connections do not carry it.
    assert_eq!(relay.connections.load(Ordering::Relaxed), 3);
    assert_eq!(received(subscriber).len(), SIZE);
}
