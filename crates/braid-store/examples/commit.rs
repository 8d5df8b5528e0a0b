//! How fast the embedded store commits durable QoS 1 messages, beside a plain append-only log that gets the same
//! bytes and one fdatasync for each group.
//!
//! `cargo run --release -p braid-store --example commit -- [directory] [messages]`

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::SessionExpiry;
use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;
use braid_store::{
    Batch, Change, Commit, Completer, Completion, EmbeddedStore, Image, Lsn, Options, SessionId, Store,
    StoreError, StoredDelivery, StoredMessage,
};
use bytes::Bytes;
use redb::StorageBackend;
use redb::backends::FileBackend;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SESSIONS: u64 = 1000;
const PAYLOAD: usize = 200;
/// Message key and value, queue key and value: what a log would have to hold as well.
const RECORD: usize = 8 + 2 + 11 + PAYLOAD + 16 + 1;

fn main() -> Outcome<()> {
    let mut args = env::args().skip(1);
    let directory = args.next().unwrap_or_else(|| "target/commit".into());
    let messages: u64 = args.next().map_or(Ok(200_000), |text| text.parse())?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    println!("raw fdatasync after 4 KiB: {}", raw(&directory.join("raw"))?);
    for window in [1, 16, 256, 1024, 4096] {
        // Few commits need no more to be measured.
        let messages = messages.min(window * 2000);
        let log = log(&directory.join("log"), messages, window)?;
        println!("window {window:5}  log    {log}");
        let (store, syncs, bytes) = store(&directory.join("store"), messages, window)?;
        println!(
            "window {window:5}  store  {store}  {:.0} % of the log, {:.1} messages for each fsync, {:.2} x the bytes",
            100.0 * store.rate / log.rate,
            messages as f64 / syncs as f64,
            bytes as f64 / (messages * RECORD as u64) as f64,
        );
    }
    fs::remove_dir_all(directory)?;
    Ok(())
}

struct Figures {
    rate: f64,
    latencies: Vec<Duration>,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at =
            |percent: usize| self.latencies[(self.latencies.len() - 1) * percent / 100].as_secs_f64() * 1e3;
        write!(f, "{:9.0}/s  p50 {:6.2} ms  p99 {:6.2} ms", self.rate, at(50), at(99))
    }
}

fn raw(path: &Path) -> Outcome<Figures> {
    let mut file = File::create(path)?;
    let began = Instant::now();
    let mut latencies = Vec::new();
    for _ in 0..1000 {
        file.write_all(&[7; 4096])?;
        let before = Instant::now();
        file.sync_data()?;
        latencies.push(before.elapsed());
    }
    latencies.sort_unstable();
    fs::remove_file(path)?;
    Ok(Figures { rate: 1000.0 / began.elapsed().as_secs_f64(), latencies })
}

/// Hands over with at most `window` commits not done.
fn drive(messages: u64, window: u64, mut commit: impl FnMut(u64) -> Commit) -> Outcome<Figures> {
    let mut row: VecDeque<(Instant, Commit)> = VecDeque::new();
    let mut latencies = Vec::new();
    let began = Instant::now();
    for number in 0..messages {
        if row.len() as u64 == window
            && let Some((before, commit)) = row.pop_front()
        {
            commit.wait()?;
            latencies.push(before.elapsed());
        }
        row.push_back((Instant::now(), commit(number)));
    }
    for (before, commit) in row {
        commit.wait()?;
        latencies.push(before.elapsed());
    }
    let rate = messages as f64 / began.elapsed().as_secs_f64();
    latencies.sort_unstable();
    Ok(Figures { rate, latencies })
}

// === the log ===

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    waiting: Vec<Completer<()>>,
    closing: bool,
}

fn log(path: &Path, messages: u64, window: u64) -> Outcome<Figures> {
    let shared = Arc::new((Mutex::new(Pending::default()), Condvar::new()));
    let mut file = File::create(path)?;
    let writer = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || -> io::Result<()> {
            loop {
                let mut pending = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                while pending.waiting.is_empty() && !pending.closing {
                    pending = shared.1.wait(pending).unwrap_or_else(PoisonError::into_inner);
                }
                let (bytes, waiting) =
                    (std::mem::take(&mut pending.bytes), std::mem::take(&mut pending.waiting));
                drop(pending);
                if waiting.is_empty() {
                    return Ok(());
                }
                file.write_all(&bytes)?;
                file.sync_data()?;
                for completer in waiting {
                    completer.complete(Ok(()));
                }
            }
        })
    };
    let figures = drive(messages, window, |_| {
        let (completer, commit) = Completion::pending();
        let mut pending = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.bytes.extend_from_slice(&[7; RECORD]);
        pending.waiting.push(completer);
        shared.1.notify_one();
        commit
    })?;
    shared.0.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
    shared.1.notify_one();
    writer.join().map_err(|_| "the writer of the log failed")??;
    fs::remove_file(path)?;
    Ok(figures)
}

// === the store ===

#[derive(Debug, Default)]
struct Counts {
    syncs: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Counting {
    inner: FileBackend,
    counts: Arc<Counts>,
}

impl StorageBackend for Counting {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.counts.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.inner.write(offset, data)
    }
}

fn store(path: &Path, messages: u64, window: u64) -> Outcome<(Figures, u64, u64)> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let counts = Arc::new(Counts::default());
    let device = Counting { inner: FileBackend::new(file)?, counts: Arc::clone(&counts) };
    let store = EmbeddedStore::open_on(device, Options::default())?;
    store.recover(&mut Image::default())?;
    for session in 1..=SESSIONS {
        open(&store, session)?;
    }
    let (syncs, bytes) = (counts.syncs.load(Ordering::Relaxed), counts.bytes.load(Ordering::Relaxed));
    let topic = TopicName::parse("bench/topic")?;
    let payload = Bytes::from(vec![7; PAYLOAD]);
    let figures = drive(messages, window, |number| {
        let lsn = Lsn::new(number + 1);
        let message =
            StoredMessage::from_parts(topic.clone(), payload.clone(), QoS::AtLeastOnce, false, None, None);
        let session = SessionId::new(number % SESSIONS + 1);
        let delivery = StoredDelivery {
            message: lsn,
            qos: QoS::AtLeastOnce,
            retain: false,
            subscription_ids: SubscriptionIds::None,
            priority: Priority::DEFAULT,
            shared: None,
        };
        let changes = [Change::Stored { lsn, message }, Change::Queued { session, lsn, delivery }];
        store.commit(changes.into_iter().collect())
    })?;
    let (syncs, bytes) =
        (counts.syncs.load(Ordering::Relaxed) - syncs, counts.bytes.load(Ordering::Relaxed) - bytes);
    store.close()?;
    fs::remove_file(path)?;
    Ok((figures, syncs, bytes))
}

fn open(store: &EmbeddedStore, number: u64) -> Result<(), StoreError> {
    let client_id = ClientId::from(number.to_string().as_str());
    let claim = store.claim(&client_id).wait()?;
    let (session, expiry) = (SessionId::new(number), SessionExpiry::NEVER);
    let mut batch = Batch::lazy();
    batch.push(Change::Opened { session, client_id, expiry, claim });
    let commit = store.commit(batch);
    if number == SESSIONS { commit.wait() } else { Ok(()) }
}
