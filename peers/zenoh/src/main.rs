//! Alarms and recordings over zenoh, which has a stream of QUIC for each priority: the peer of
//! `lab/scenarios/zenoh.toml`.
//!
//! Summaries are in the format of `braidmq bench`, so that the laboratory reads them.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use zenoh::qos::{CongestionControl, Priority};
use zenoh::{Config, Session, Wait};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Key of alarms, and name of their topic in summaries.
const ALARMS: &str = "Alarms";
const RECORDINGS: &str = "Recordings";
const PERIOD: Duration = Duration::from_millis(100);
const ALARM_BYTES: usize = 100;
const RECORDING_BYTES: usize = 1 << 20;

#[derive(Parser)]
#[command(about = "Alarms and recordings over zenoh, with a stream of QUIC for each priority")]
enum Role {
    /// Route between publishers and subscribers, with a certificate that is made in a directory.
    Router {
        /// Port of QUIC.
        #[arg(long, default_value_t = 7447)]
        port: u16,
        /// Directory for the certificates.
        #[arg(long, value_name = "DIR")]
        certificates: PathBuf,
    },
    /// Publish an alarm every 100 ms, and recordings of a mebibyte one after the other.
    Pub {
        #[command(flatten)]
        peer: Peer,
        /// Time of publishing.
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        duration: Duration,
        /// Time before the first recording, seconds.
        #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1s")]
        recordings_after: Duration,
    },
    /// Receive alarms until SIGINT or SIGTERM.
    Sub {
        #[command(flatten)]
        peer: Peer,
    },
}

#[derive(Args)]
struct Peer {
    /// Host of the router.
    #[arg(long)]
    host: String,
    /// Port of the router.
    #[arg(long, default_value_t = 7447)]
    port: u16,
    /// The router's directory.
    #[arg(long, value_name = "DIR")]
    certificates: PathBuf,
    /// Summary.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds * unit).ok());
    time.ok_or_else(|| format!("{text:?} is no time: write \"60s\" or \"500ms\""))
}

#[tokio::main]
async fn main() {
    let ended = match Role::parse() {
        Role::Router { port, certificates } => route(port, &certificates).await,
        Role::Pub { peer, duration, recordings_after } => publish(&peer, duration, recordings_after).await,
        Role::Sub { peer } => subscribe(&peer).await,
    };
    if let Err(error) = ended {
        eprintln!("zenoh-peer: {error}");
        std::process::exit(1);
    }
}

async fn route(port: u16, certificates: &Path) -> Result<()> {
    fs::create_dir_all(certificates)?;
    let file = |name: &str| certificates.join(name).display().to_string();
    let key = rcgen::KeyPair::generate()?;
    let mut authority = rcgen::CertificateParams::new(Vec::new())?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&key)?;
    let issuer = rcgen::Issuer::new(authority, key);
    let key = rcgen::KeyPair::generate()?;
    let certificate =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()])?.signed_by(&key, &issuer)?;
    fs::write(file("key.pem"), key.serialize_pem())?;
    fs::write(file("cert.pem"), certificate.pem())?;
    fs::write(file("ca.pem"), authority_certificate.pem())?;
    let config = config(&[
        ("mode", json!("router")),
        ("listen/endpoints", json!([format!("quic/0.0.0.0:{port}?multistream=1")])),
        ("transport/link/tls/listen_certificate", json!(file("cert.pem"))),
        ("transport/link/tls/listen_private_key", json!(file("key.pem"))),
    ])?;
    let _session = zenoh::open(config).await?;
    println!("listening {port}");
    ended().await
}

fn config(values: &[(&str, Value)]) -> Result<Config> {
    let mut config = Config::default();
    config.insert_json5("scouting/multicast/enabled", "false")?;
    for (key, value) in values {
        config.insert_json5(key, &value.to_string())?;
    }
    Ok(config)
}

async fn connect(peer: &Peer) -> Result<Session> {
    let config = config(&[
        ("mode", json!("client")),
        ("connect/endpoints", json!([format!("quic/{}:{}?multistream=1", peer.host, peer.port)])),
        (
            "transport/link/tls/root_ca_certificate",
            json!(peer.certificates.join("ca.pem").display().to_string()),
        ),
        ("transport/link/tls/verify_name_on_connect", json!(false)),
        // Behind a policer handshakes take minutes.
        ("connect/timeout_ms", json!(-1)),
        ("transport/unicast/open_timeout", json!(150_000)),
        // Else a large put ends the session.
        ("transport/link/tx/queue/congestion_control/block/wait_before_close", json!(600_000_000)),
    ])?;
    zenoh::open(config).await
}

async fn publish(peer: &Peer, duration: Duration, recordings_after: Duration) -> Result<()> {
    let session = connect(peer).await?;
    let publisher = |key: &'static str, priority| {
        session.declare_publisher(key).priority(priority).congestion_control(CongestionControl::Block)
    };
    let alarms = publisher(ALARMS, Priority::RealTime).await?;
    let recordings = publisher(RECORDINGS, Priority::Background).await?;
    let (start, started) = (Instant::now(), unix_us());
    println!("publishing");
    // A put that finds no room blocks its thread.
    std::thread::spawn(move || {
        std::thread::sleep(recordings_after);
        while recordings.put(vec![7_u8; RECORDING_BYTES]).wait().is_ok() {}
    });
    let mut due = Vec::new();
    let mut sending = tokio::task::JoinSet::new();
    let alarms = Arc::new(alarms);
    for number in 0.. {
        let at = PERIOD * number;
        if at >= duration {
            break;
        }
        sleep_until(start + at).await;
        let stamp = started + u64::try_from(at.as_micros())?;
        due.push(stamp);
        let mut payload = stamp.to_be_bytes().to_vec();
        payload.resize(ALARM_BYTES, 7);
        let alarms = Arc::clone(&alarms);
        sending.spawn_blocking(move || alarms.put(payload).wait());
    }
    sleep_until(start + duration).await;
    summary(&peer.json, "pub", started, start.elapsed(), &json!([topic(ALARMS, due.len(), 0, &due, &[])]))?;
    // To close the session would wait for what blocks.
    std::process::exit(0)
}

async fn subscribe(peer: &Peer) -> Result<()> {
    let session = connect(peer).await?;
    let (start, started) = (Instant::now(), unix_us());
    let received = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let samples = Arc::clone(&received);
    let _subscriber = session
        .declare_subscriber(ALARMS)
        .callback(move |sample| {
            let now = unix_us();
            if let Some(stamp) = sample.payload().to_bytes().first_chunk() {
                let due = u64::from_be_bytes(*stamp);
                let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
                samples.0.push(due);
                samples.1.push(now.saturating_sub(due));
            }
        })
        .await?;
    // Without a subscriber the publisher would send none.
    let _recordings = session.declare_subscriber(RECORDINGS).callback(|_| {}).await?;
    println!("subscribed");
    ended().await?;
    let (due, took) = std::mem::take(&mut *received.lock().unwrap_or_else(PoisonError::into_inner));
    let topics = json!([topic(ALARMS, 0, took.len(), &due, &took)]);
    summary(&peer.json, "sub", started, start.elapsed(), &topics)
}

fn topic(name: &str, sent: usize, received: usize, due: &[u64], took: &[u64]) -> Value {
    json!({
        "topic": name, "stream": 0, "priority": null, "sent": sent, "acked": 0, "received": received, "failed": 0,
        "bytes": 0, "per_second": [], "latency_us": null, "latency_cdf": [],
        "trace": {"due_unix_us": due, "took_us": took},
    })
}

fn summary(file: &Path, role: &str, started: u64, ran: Duration, topics: &Value) -> Result<()> {
    let summary = json!({
        "schema": "braidmq-bench/1", "role": role, "started_unix_us": started, "seconds": ran.as_secs_f64(),
        "counters": {}, "connections": {"wanted": 1, "established": 1, "connect_us": null},
        "topics": topics, "streams": [], "events": [],
    });
    Ok(fs::write(file, summary.to_string())?)
}

async fn ended() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn unix_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
