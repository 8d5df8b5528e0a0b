//! Time and memory of opening and recovering an embedded store with many sessions and queued messages: once after it
//! was closed, once after its process was killed.
//!
//! `cargo run --release -p braid-store --example recover -- [directory] [messages] [sessions]`

use std::error::Error;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::{Command, exit};
use std::sync::Arc;
use std::time::Instant;
use std::{env, fs, mem};

use braid_proto::packet::{ClientId, PacketId, QoS, Will};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{
    Batch, Change, Claim, EmbeddedStore, Lsn, Options, QueueEntry, Recover, SessionId, SessionRecord, Store,
    StoredDelivery, StoredMessage, StoredSubscription,
};
use bytes::Bytes;

type Outcome<T> = Result<T, Box<dyn Error>>;

const PAYLOAD: usize = 200;
/// Changes in one batch.
const BATCH: u64 = 1000;

fn main() -> Outcome<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |text| text.parse());
    let directory = args.first().map_or("target/recover", String::as_str);
    let (messages, sessions) = (number(1, 1_000_000)?, number(2, 100_000)?);
    match args.get(3).map(String::as_str) {
        Some("build") => build(Path::new(directory), messages, sessions, false),
        Some("build-and-die") => build(Path::new(directory), messages, sessions, true),
        Some("open") => open(Path::new(directory), messages),
        _ => {
            for (how, step) in [("closed", "build"), ("killed", "build-and-die")] {
                println!("{messages} messages of {PAYLOAD} bytes, {sessions} sessions, {how}:");
                for step in [step, "open"] {
                    // A process of its own, so that its memory is its own.
                    let status = Command::new(env::current_exe()?)
                        .args([directory, &messages.to_string(), &sessions.to_string(), step])
                        .status()?;
                    if !status.success() {
                        exit(1);
                    }
                }
                fs::remove_dir_all(directory)?;
            }
            Ok(())
        }
    }
}

fn build(directory: &Path, messages: u64, sessions: u64, die: bool) -> Outcome<()> {
    let began = Instant::now();
    let store = EmbeddedStore::open(directory, Options::default())?;
    let filter = TopicFilter::parse("some/topic/+")?;
    let subscription = StoredSubscription {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: Default::default(),
        id: None,
        priority: None,
    };
    let mut batch = Batch::new();
    for number in 1..=sessions {
        let (session, client_id) =
            (SessionId::new(number), ClientId::from(format!("client-{number}").as_str()));
        let claim = store.claim(&client_id).wait()?;
        batch.push(Change::Opened {
            session,
            client_id,
            identity: None,
            expiry: SessionExpiry::NEVER,
            claim,
        });
        batch.push(Change::Subscribed { session, filter: filter.clone(), subscription, since: None });
        if number % BATCH == 0 || number == sessions {
            store.commit(mem::take(&mut batch)).wait()?;
        }
    }
    let topic = TopicName::parse("some/topic/name")?;
    let payload = Bytes::from(vec![7; PAYLOAD]);
    for number in 1..=messages {
        let lsn = Lsn::new(number);
        let message =
            StoredMessage::from_parts(topic.clone(), payload.clone(), QoS::AtLeastOnce, false, None, None);
        let delivery = StoredDelivery::new(lsn, QoS::AtLeastOnce);
        batch.push(Change::Stored { lsn, message });
        batch.push(Change::Queued { session: SessionId::new(number % sessions + 1), lsn, delivery });
        if number % BATCH == 0 || number == messages {
            store.commit(mem::take(&mut batch)).wait()?;
        }
    }
    println!("  built in {:.1} s, {}", began.elapsed().as_secs_f64(), memory()?);
    if die {
        exit(0);
    }
    Ok(store.close()?)
}

fn open(directory: &Path, messages: u64) -> Outcome<()> {
    let length = fs::metadata(directory.join("store.redb"))?.len();
    let began = Instant::now();
    let mut options = Options::default();
    let stages = Instant::now();
    options.progress = Arc::new(move |progress| {
        if progress.done == progress.of || progress.of == 100 {
            println!(
                "  {:?} {}/{} {:.2} s",
                progress.stage,
                progress.done,
                progress.of,
                stages.elapsed().as_secs_f64()
            );
        }
    });
    let store = EmbeddedStore::open(directory, options)?;
    let opened = began.elapsed();
    let before = memory()?;
    let mut counts = Counts::default();
    store.recover(&mut counts)?;
    let recovered = began.elapsed();
    println!("  file {} MiB, opened after {:.2} s ({before})", length >> 20, opened.as_secs_f64());
    println!("  recovered {counts:?} after {:.2} s ({})", recovered.as_secs_f64(), memory()?);
    for lsn in 1..=messages {
        store.messages_of(&[Lsn::new(lsn)]).wait()?.remove(0).ok_or("a message is missing")?;
    }
    println!("  every message read after {:.2} s", began.elapsed().as_secs_f64());
    Ok(store.close()?)
}

fn memory() -> Outcome<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line =
        |name| status.lines().find_map(|line: &str| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    Ok(format!("resident {}, at most {}", line("VmRSS:"), line("VmHWM:")))
}

#[derive(Debug, Default)]
struct Counts {
    sessions: u64,
    subscriptions: u64,
    queued: u64,
}

impl Recover for Counts {
    fn session(&mut self, _: SessionRecord, _: Claim) {
        self.sessions += 1;
    }

    fn subscription(&mut self, _: SessionId, _: TopicFilter, _: StoredSubscription) {
        self.subscriptions += 1;
    }

    fn will(&mut self, _: SessionId, _: Arc<Will>) {}

    fn received(&mut self, _: SessionId, _: PacketId, _: NonZeroU16) {}

    fn queued(&mut self, _: SessionId, _: Lsn, _: QueueEntry) {
        self.queued += 1;
    }

    fn retained(&mut self, _: TopicName, _: Lsn) {}
}
