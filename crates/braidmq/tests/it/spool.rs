//! Large messages: their files while they are received, and their fate afterwards.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use braid_client::{Client, Messages, Publication, QoS, Received, Subscribe};
use tempfile::TempDir;

use crate::broker::braidmq;
use crate::serve::{Running, refusal_of, start_command};
use crate::survival::{may_mount, mount};

const MIB: usize = 1 << 20;
const PUBLISHERS: usize = 20;
/// Size of the payload of each message.
const LARGE: usize = 20 * MIB;
/// Timeout of each step, exceeded only after a fault.
const PATIENCE: Duration = Duration::from_secs(120);

struct Broker {
    directory: TempDir,
    settings: Vec<String>,
    address: String,
    running: Running,
}

impl Broker {
    fn start(settings: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), settings)
    }

    fn start_in(directory: TempDir, settings: &[&str]) -> Self {
        let settings: Vec<_> = settings.iter().map(|text| (*text).to_owned()).collect();
        let (running, address) = start(directory.path(), &settings);
        Self { directory, settings, address, running }
    }

    /// Kills the broker and starts another in its place.
    fn kill(&mut self) {
        self.running.0.kill().unwrap();
        self.running.0.wait().unwrap();
        (self.running, self.address) = start(self.directory.path(), &self.settings);
    }

    /// Anonymous memory of the broker, KiB.
    fn heap(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    async fn client(&self, client_id: &str) -> (Client, Messages) {
        Client::builder(&format!("mqtt://{}", self.address))
            .client_id(client_id)
            .clean_start(false)
            .session_expiry(Duration::from_secs(3600))
            .connect()
            .await
            .unwrap()
    }

    /// Reads the broker's `$SYS` topics of the spool until `enough` accepts one.
    async fn spooled(&self, enough: impl Fn(usize) -> bool) {
        let (client, mut messages) = self.client("watcher").await;
        client.subscribe(Subscribe::to("$SYS/broker/spool/bytes").unwrap()).await.unwrap();
        while !enough(text(&mut messages).await.parse().unwrap()) {}
        client.disconnect().await.unwrap();
    }
}

fn start(directory: &Path, settings: &[String]) -> (Running, String) {
    let mut command =
        braidmq(&["serve", "--tcp", "127.0.0.1:0", "--set", "sys.interval_secs=1", "--data-dir"]);
    command.arg(directory);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let (running, banner) = start_command(&mut command);
    let url = banner.iter().find_map(|line| line.split_once("mqtt://")).unwrap().1;
    (running, url.trim().to_owned())
}

async fn next(messages: &mut Messages) -> Received {
    tokio::time::timeout(PATIENCE, messages.recv()).await.unwrap().unwrap()
}

async fn text(messages: &mut Messages) -> String {
    String::from_utf8(next(messages).await.payload.to_vec()).unwrap()
}

/// A connected client of protocol level `level` (4 or 5) for raw bytes.
fn raw(broker: &Broker, level: u8) -> TcpStream {
    let mut stream = TcpStream::connect(&broker.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let properties: &[u8] = if level == 5 { &[0] } else { &[] };
    let mut connect = vec![0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 0];
    connect.extend([properties, &[0, 0]].concat());
    stream.write_all(&[0x10, u8::try_from(connect.len()).unwrap()]).unwrap();
    stream.write_all(&connect).unwrap();
    let mut header = [0; 2];
    stream.read_exact(&mut header).unwrap();
    stream.read_exact(&mut vec![0; header[1].into()]).unwrap();
    assert_eq!(header[0], 0x20);
    stream
}

/// The head of a PUBLISH of QoS 1 on the topic `l/x` with a payload of [`LARGE`] bytes.
fn head(level: u8, name: u8) -> Vec<u8> {
    let mut body = vec![0, 3, b'l', b'/', name, 0, 1];
    body.extend((level == 5).then_some(0));
    let remaining = body.len() + LARGE;
    let seven = |shift: usize| u8::try_from(remaining >> shift & 0x7F).unwrap() | 0x80;
    [&[0x32, seven(0), seven(7), seven(14), seven(21) & 0x7F], &body[..]].concat()
}

/// Bytes that differ between names, and do not repeat at any offset at which a payload may be cut.
fn payload(name: u8) -> Vec<u8> {
    let block: Vec<u8> = (0..65_537_u32).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1] ^ name).collect();
    let mut payload = block.repeat(LARGE / block.len() + 1);
    payload.truncate(LARGE);
    payload
}

fn name(number: usize) -> u8 {
    b'A' + u8::try_from(number).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_what_comes_nor_what_waits_is_in_the_heap() {
    let broker = Broker::start(&["store.durability=memory", "limits.queued_bytes=1073741824"]);
    let (client, messages) = broker.client("subscriber").await;
    client.subscribe(Subscribe::to("l/#").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
    client.disconnect().await.unwrap();
    let before = broker.heap();
    let mut publishers: Vec<_> = (0..PUBLISHERS).map(|_| raw(&broker, 5)).collect();
    for (number, stream) in publishers.iter_mut().enumerate() {
        stream.write_all(&head(5, name(number))).unwrap();
        stream.write_all(&payload(name(number))[..LARGE / 2]).unwrap();
    }
    // All bytes except those in the buffers of sockets.
    broker.spooled(|bytes| bytes > PUBLISHERS * (LARGE / 2 - MIB)).await;
    let grown = broker.heap().saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB more for what comes");
    for (number, stream) in publishers.iter_mut().enumerate() {
        stream.write_all(&payload(name(number))[LARGE / 2..]).unwrap();
        let mut puback = [0; 4];
        stream.read_exact(&mut puback).unwrap();
        assert_eq!(puback, [0x40, 2, 0, 1]);
    }
    let grown = broker.heap().saturating_sub(before);
    assert!(grown < 16 * 1024, "{grown} KiB more for what waits");
    let (_client, mut received) = broker.client("subscriber").await;
    for _ in 0..PUBLISHERS {
        let message = next(&mut received).await;
        let name = message.topic.as_str().as_bytes()[2];
        assert!(message.payload == payload(name), "{} is not what was sent", message.topic);
    }
    let grown = broker.heap().saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} KiB more for what goes");
    drop(messages);
    broker.spooled(|bytes| bytes == 0).await;
}

/// The subscriber returns and takes nothing, but its messages are read from the store.
fn reading_nothing(broker: &Broker) -> TcpStream {
    let mut idle = TcpStream::connect(&broker.address).unwrap();
    idle.write_all(b"\x10\x16\x00\x04MQTT\x04\x00\x00\x3c\x00\x0asubscriber").unwrap();
    idle
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_in_a_durable_queue_survives_a_kill_and_comes_back_outside_the_heap() {
    let mut broker = Broker::start(&[]);
    let (client, messages) = broker.client("subscriber").await;
    client.subscribe(Subscribe::to("l/#").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
    client.disconnect().await.unwrap();
    let mut publisher = raw(&broker, 4);
    publisher.write_all(&[head(4, b'A'), payload(b'A')].concat()).unwrap();
    publisher.read_exact(&mut [0; 4]).unwrap();
    broker.kill();
    // No subscriber is connected: the message stays in the store.
    broker.spooled(|bytes| bytes == 0).await;
    let idle = reading_nothing(&broker);
    broker.spooled(|bytes| bytes == LARGE).await;
    drop(idle);
    let (_client, mut received) = broker.client("subscriber").await;
    let message = next(&mut received).await;
    assert!(message.topic.as_str() == "l/A" && message.payload == payload(b'A'));
    drop(messages);
    broker.spooled(|bytes| bytes == 0).await;
}

/// Acknowledged messages when the spool has too little space after a start.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_message_goes_past_the_bounds_of_the_spool_after_a_start_and_is_told_where_it_cannot() {
    let mut broker = Broker::start(&[]);
    let (client, messages) = broker.client("subscriber").await;
    client.subscribe(Subscribe::to("l/#").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
    client.disconnect().await.unwrap();
    drop(messages);
    let mut publisher = raw(&broker, 4);
    publisher.write_all(&[head(4, b'A'), payload(b'A')].concat()).unwrap();
    publisher.read_exact(&mut [0; 4]).unwrap();
    broker.settings = vec!["spool.bytes=1".to_owned()];
    broker.kill();
    let idle = reading_nothing(&broker);
    broker.spooled(|bytes| bytes == LARGE).await;
    // More than any disk has.
    broker.settings = vec![format!("spool.keep_free={}", 1_u64 << 62)];
    broker.kill();
    drop(idle);
    let idle = reading_nothing(&broker);
    let said = BufReader::new(broker.running.0.stderr.take().unwrap()).lines();
    let line = said.map(Result::unwrap).find(|line| line.contains("large messages are in memory"));
    let line = line.unwrap();
    assert!(line.contains("WARN") && line.contains("messages=1"), "{line}");
    assert!(line.contains(&format!("bytes={LARGE}")), "{line}");
    drop(idle);
    let (_client, mut received) = broker.client("subscriber").await;
    assert!(next(&mut received).await.payload == payload(b'A'));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_within_a_packet_leaves_no_file() {
    let broker = Broker::start(&["store.durability=memory"]);
    let mut publisher = raw(&broker, 4);
    publisher.write_all(&[&head(4, b'A'), &payload(b'A')[..LARGE / 2]].concat()).unwrap();
    broker.spooled(|bytes| bytes > LARGE / 2 - MIB).await;
    drop(publisher);
    broker.spooled(|bytes| bytes == 0).await;
    let names = fs::read_dir(broker.directory.path().join("spool")).unwrap();
    assert_eq!(names.count(), 0);
}

#[test]
fn a_directory_that_cannot_be_used_is_one_line_and_exit_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir"]);
    command.arg(directory.path()).arg("--set").arg(format!("spool.directory={}", file.display()));
    let (code, said) = refusal_of(&mut command);
    assert_eq!(code, 2, "{said}");
    assert!(said.starts_with("braidmq: spool.directory: large messages cannot be received in "), "{said}");
    command.args(["--set", "spool.threshold=268435455"]);
    let (_running, _) = start_command(&mut command);
}

#[test]
fn a_full_disk_is_the_publishers_loss_alone() {
    if may_mount("spool::a_full_disk_is_the_publishers_loss_alone") {
        tokio::runtime::Runtime::new().unwrap().block_on(fill_the_spool());
    }
}

async fn fill_the_spool() {
    let spool = tempfile::tempdir().unwrap();
    mount(spool.path(), "size=8m");
    let directory = format!("spool.directory={}", spool.path().display());
    let broker = Broker::start(&[&directory, "spool.keep_free=0"]);
    let (client, mut messages) = broker.client("subscriber").await;
    client.subscribe(Subscribe::to("s").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
    for level in [4, 5] {
        let mut publisher = raw(&broker, level);
        // The broker closes the connection within the packet.
        let _ = publisher.write_all(&[head(level, b'A'), payload(b'A')].concat());
        let mut said = Vec::new();
        let ended = publisher.read_to_end(&mut said);
        let is_told =
            level == 4 && said.is_empty() || level == 5 && said.starts_with(&[0xE0]) && said[2] == 0x97;
        assert!(is_told || (ended.is_err() && said.is_empty()), "{said:?} to level {level}");
        client.publish(Publication::to("s", "small").unwrap().qos(QoS::AtLeastOnce)).await.unwrap();
        assert_eq!(text(&mut messages).await, "small");
        broker.spooled(|bytes| bytes == 0).await;
    }
}
