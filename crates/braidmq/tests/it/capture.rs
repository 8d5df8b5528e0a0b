//! Effect of priorities on a real connection, as `braidmq explain` reports it from a qlog.
//!
//! A sender with a slow link always has bulk data queued, and alarms of several packets are published one by one, each
//! after the previous one has arrived. Both use data streams of one connection, in one test to the broker, in one from
//! it. Logs and pictures stay in `target/tmp/capture`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use braid_client::{Builder, Client, ClientTlsOptions, Messages, Priority, Publication, QoS, Subscribe};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::broker::braidmq;

const ALARMS: usize = 12;
/// Size of an alarm, bytes: about six packets.
const ALARM: usize = 8_000;
const BULK: usize = 2_000_000;
const BULKS: usize = 6;
/// Link rate in bytes per second: the bulk takes 3 s, and the alarms a small part of that.
const LINK_RATE: u64 = 4_000_000;
/// Priority of messages without a rule.
const ORDINARY: u16 = 100;
const URGENT: u16 = 200;
/// The data streams of the bulk and of the alarms: numbers of the client, and QUIC stream IDs.
const BULK_STREAM: (u32, u64) = (1, 4);
const ALARM_STREAM: (u32, u64) = (2, 8);
/// Timeout of each step, exceeded only after a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// `braidmq serve` with TCP and QUIC.
struct Broker {
    child: Child,
    /// Addresses for TCP and for QUIC.
    urls: [String; 2],
    data: TempDir,
}

impl Broker {
    fn start(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--quic", "127.0.0.1:0"])
            .args(arguments)
            .arg("--data-dir")
            .arg(data.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut banner = BufReader::new(child.stdout.take().unwrap()).lines();
        let urls = ["mqtt://", "quic://"].map(|scheme| {
            let line = banner.find(|line| line.as_ref().unwrap().contains(scheme)).unwrap().unwrap();
            line.split_whitespace().last().unwrap().to_owned()
        });
        // A thread reads the rest, so that the broker never writes to a closed pipe.
        std::thread::spawn(move || banner.for_each(drop));
        Self { child, urls, data }
    }

    fn over_tcp(&self) -> Builder {
        Client::builder(&self.urls[0])
    }

    fn over_quic(&self) -> Builder {
        let tls =
            ClientTlsOptions { ca_files: vec![self.data.path().join("cert.pem")], ..Default::default() };
        Client::builder(&self.urls[1]).tls(tls)
    }

    /// Stops the broker with a signal, so that its log is complete.
    fn stop(mut self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Publishes alarms, each after the previous one has arrived.
async fn alarm(publisher: &Client, alarm: &Publication, received: &mut Messages) {
    for _ in 0..ALARMS {
        publisher.publish(alarm.clone()).await.unwrap();
        loop {
            let message = timeout(PATIENCE, received.recv()).await.unwrap().unwrap();
            if message.topic.as_str() == "alarms/7" {
                break;
            }
        }
    }
}

/// Log of a client that publishes bulk data and alarms, these with `priority`.
fn log_of_publisher(name: &str, priority: u16) -> PathBuf {
    let (broker, logs) = (Broker::start(&[]), tempfile::tempdir().unwrap());
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (subscriber, mut received) = broker.over_tcp().connect().await.unwrap();
        subscriber.subscribe(Subscribe::to("alarms/#").unwrap()).await.unwrap();
        let quic = broker.over_quic().link_rate(LINK_RATE).qlog_dir(logs.path());
        let (publisher, _nothing) = quic.disconnect_timeout(Duration::ZERO).connect().await.unwrap();
        let bulk = Publication::to("firmware/7", vec![0; BULK]).unwrap().stream(BULK_STREAM.0);
        // The stream of the bulk is opened first: alarms would overtake its opening too.
        publisher.publish(bulk.clone().payload("begin")).await.unwrap();
        for _ in 0..BULKS {
            publisher.enqueue(bulk.clone()).await.unwrap();
        }
        let urgent = Publication::to("alarms/7", vec![1; ALARM]).unwrap().stream(ALARM_STREAM.0);
        alarm(&publisher, &urgent.priority(Priority::new(priority)), &mut received).await;
        // Not all bulk was sent, as intended.
        let _ = publisher.disconnect().await;
    });
    // Ends the connection and its log.
    drop(runtime);
    kept(&logs, name)
}

/// Log of a broker that delivers bulk data and alarms to one client, the alarms with `priority` by a rule.
fn log_of_broker(name: &str, priority: u16) -> PathBuf {
    let logs = tempfile::tempdir().unwrap();
    let rule = format!("priority=[{{filter=\"alarms/#\",priority={priority}}}]");
    let rate = format!("quic.link_rate={LINK_RATE}");
    let settings = ["--set", &rule, "--set", &rate, "--set", "drain_secs=0", "--qlog-dir"];
    let broker = Broker::start(&[&settings[..], &[logs.path().to_str().unwrap()]].concat());
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (subscriber, mut received) = broker.over_quic().connect().await.unwrap();
        for (filter, (stream, _)) in [("firmware/#", BULK_STREAM), ("alarms/#", ALARM_STREAM)] {
            subscriber.subscribe(Subscribe::to(filter).unwrap().stream(stream)).await.unwrap();
        }
        let (publisher, _nothing) = broker.over_tcp().connect().await.unwrap();
        let bulk = Publication::to("firmware/7", vec![0; BULK]).unwrap().qos(QoS::AtLeastOnce);
        for _ in 0..BULKS {
            publisher.publish(bulk.clone()).await.unwrap();
        }
        alarm(&publisher, &Publication::to("alarms/7", vec![1; ALARM]).unwrap(), &mut received).await;
        subscriber.disconnect().await.unwrap();
    });
    broker.stop();
    kept(&logs, name)
}

/// The only log in a directory; the directory stays after the test.
fn kept(logs: &TempDir, name: &str) -> PathBuf {
    let files: Vec<_> = fs::read_dir(logs).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{name} has one connection");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capture");
    fs::create_dir_all(&directory).unwrap();
    let kept = directory.join(name).with_extension("qlog");
    fs::copy(&files[0], &kept).unwrap();
    kept
}

/// Output of `braidmq explain` for a log.
fn explain(log: &Path, arguments: &[&str]) -> String {
    let urgent = format!("--urgent=0,{}", ALARM_STREAM.1);
    let all = [&["explain", log.to_str().unwrap(), &urgent], arguments].concat();
    let output = braidmq(&all).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Prints and returns the share of urgent bytes among all bytes sent while urgent ones waited, for a log in which bulk
/// never ended.
fn urgent_first(log: &Path) -> f64 {
    let text = explain(log, &[]);
    let told = text.lines().find(|line| line.starts_with("urgent first:")).unwrap();
    println!("{}: {told}", log.file_stem().unwrap().display());
    assert!(fs::read_to_string(log.with_extension("svg")).unwrap().starts_with("<svg"));

    let numbers: Value = serde_json::from_str(&explain(log, &["--json"])).unwrap();
    assert_eq!(numbers["log_is_cut_off"], false);
    let streams = numbers["streams"].as_array().unwrap();
    let of = |id: u64| streams.iter().find(|stream| stream["stream"] == id).unwrap();
    let [bulk, alarms] = [BULK_STREAM, ALARM_STREAM].map(|(_, id)| of(id)["bytes"].as_u64().unwrap());
    assert!(alarms >= (ALARMS * ALARM) as u64, "all alarms are in the log: {text}");
    // Without waiting bulk data there would be nothing to overtake.
    assert!(bulk < (BULKS * BULK) as u64, "bulk waits to the end: {text}");
    numbers["urgent_first"]["share"].as_f64().unwrap()
}

/// [BQ-50]
#[test]
fn a_client_sends_the_urgent_stream_ahead_of_bulk() {
    let urgent = urgent_first(&log_of_publisher("publisher-urgent", URGENT));
    let equal = urgent_first(&log_of_publisher("publisher-equal", ORDINARY));
    assert!(urgent >= 0.95, "{urgent}");
    assert!(equal < 0.75, "equals share: {equal}");
}

/// [BQ-50] [BQ-52]
#[test]
fn a_broker_sends_the_urgent_stream_ahead_of_bulk() {
    let urgent = urgent_first(&log_of_broker("broker-urgent", URGENT));
    let equal = urgent_first(&log_of_broker("broker-equal", ORDINARY));
    assert!(urgent >= 0.95, "{urgent}");
    assert!(equal < 0.75, "equals share: {equal}");
}
