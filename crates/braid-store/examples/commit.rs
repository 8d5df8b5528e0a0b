//! Throughput and latency of durable QoS 1 messages in the embedded store, beside a plain append-only log that gets the
//! same bytes and one fdatasync for each group.
//!
//! `cargo run --release -p braid-store --example commit -- [directory] [messages]`
//!
//! One of the three alone, as JSON, for a benchmark that takes turns with them:
//! `commit -- --one directory raw|log|store [window] [payload]`

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io, mem, thread};

use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::SessionExpiry;
use braid_proto::topic::TopicName;
use braid_store::{
    Batch, Change, Commit, Completer, Completion, EmbeddedStore, Lsn, Options, RecoveredState, SessionId,
    Store, StoreError, StoredDelivery, StoredMessage,
};
use bytes::Bytes;
use redb::StorageBackend;
use redb::backends::FileBackend;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SESSIONS: u64 = 1000;
const PAYLOAD: usize = 200;
/// Message key and value, queue key and value: what a log would have to hold as well.
const RECORD: usize = 8 + 2 + 11 + PAYLOAD + 16 + 1;
/// Enough messages to measure few commits.
const GROUPS: u64 = 1000;

/// Measurements of each, in turns, since the speed of the disk varies.
const TURNS: usize = 5;

fn main() -> Outcome<()> {
    let mut args = env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "--one").is_some() {
        return one(&args.collect::<Vec<_>>());
    }
    let directory = args.next().unwrap_or_else(|| "target/commit".into());
    let messages: u64 = args.next().map_or(Ok(200_000), |text| text.parse())?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    for window in [1, 16, 64, 256, 1024] {
        let messages = messages.min(window * GROUPS);
        let (mut raws, mut logs, mut stores) = (Figures::default(), Figures::default(), Figures::default());
        for _ in 0..TURNS {
            raws.add(raw(&directory.join("raw"))?);
            logs.add(log(&directory.join("log"), messages, window, PAYLOAD)?);
            stores.add(store(&directory.join("store"), messages, window, PAYLOAD)?);
        }
        println!("at most {window} messages not acknowledged, {messages} in each of {TURNS} turns");
        println!("  fdatasync of 4 KiB  {raws}");
        println!("  log                 {logs}");
        println!("  store               {stores}");
        let all = messages * TURNS as u64;
        println!(
            "  store: {:.0} % of the log, {:.1} messages for each fdatasync, {:.0} bytes written for each ({:.2} x the log's)",
            100.0 * stores.rate() / logs.rate(),
            all as f64 / stores.syncs as f64,
            stores.bytes as f64 / all as f64,
            stores.bytes as f64 / (all * RECORD as u64) as f64,
        );
    }
    fs::remove_dir_all(directory)?;
    Ok(())
}

/// Measures one of the three once and prints it as JSON.
fn one(args: &[String]) -> Outcome<()> {
    let (directory, what) = (args.first().ok_or("no directory")?, args.get(1).ok_or("raw, log or store?")?);
    let window: u64 = args.get(2).map_or(Ok(1), |text| text.parse())?;
    let payload: usize = args.get(3).map_or(Ok(PAYLOAD), |text| text.parse())?;
    let path = Path::new(directory).join(format!("commit-{what}"));
    let messages = window * GROUPS;
    let figures = match what.as_str() {
        "raw" => raw(&path)?,
        "log" => log(&path, messages, window, payload)?,
        "store" => store(&path, messages, window, payload)?,
        _ => return Err(format!("{what} is none of raw, log, store").into()),
    };
    let (each, syncs) = (&figures.latencies, &figures.syncing);
    println!(
        r#"{{"rate":{},"p50_milliseconds":{},"p99_milliseconds":{},"sync_p50_milliseconds":{},"sync_p99_milliseconds":{}}}"#,
        figures.rate(),
        milliseconds(each, 50),
        milliseconds(each, 99),
        milliseconds(syncs, 50),
        milliseconds(syncs, 99),
    );
    Ok(())
}

/// Percentile in milliseconds.
fn milliseconds(all: &[Duration], percent: usize) -> f64 {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) * percent / 100).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    latencies: Vec<Duration>,
    /// Duration of each fdatasync.
    syncing: Vec<Duration>,
    syncs: u64,
    bytes: u64,
}

impl Figures {
    fn add(&mut self, other: Self) {
        self.rates.extend(other.rates);
        self.latencies.extend(other.latencies);
        self.syncing.extend(other.syncing);
        self.syncs += other.syncs;
        self.bytes += other.bytes;
    }

    /// The median of the turns.
    fn rate(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:7.0}/s  p50 {:5.2} ms  p99 {:5.2} ms  (fdatasync p50 {:5.2} ms  p99 {:5.2} ms)",
            self.rate(),
            milliseconds(&self.latencies, 50),
            milliseconds(&self.latencies, 99),
            milliseconds(&self.syncing, 50),
            milliseconds(&self.syncing, 99),
        )
    }
}

fn raw(path: &Path) -> Outcome<Figures> {
    let mut file = File::create(path)?;
    let began = Instant::now();
    let mut latencies = Vec::new();
    for _ in 0..200 {
        file.write_all(&[7; 4096])?;
        let before = Instant::now();
        file.sync_data()?;
        latencies.push(before.elapsed());
    }
    fs::remove_file(path)?;
    let rates = vec![200.0 / began.elapsed().as_secs_f64()];
    Ok(Figures { rates, syncing: latencies.clone(), latencies, ..Figures::default() })
}

/// Commits with at most `window` commits outstanding.
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
    let rates = vec![messages as f64 / began.elapsed().as_secs_f64()];
    Ok(Figures { rates, latencies, ..Figures::default() })
}

/// A message for one of the sessions in each batch, as a broker hands it over.
struct Source {
    topic: TopicName,
    payload: Bytes,
}

impl Source {
    fn new(payload: usize) -> Outcome<Self> {
        Ok(Self { topic: TopicName::parse("bench/topic")?, payload: Bytes::from(vec![7; payload]) })
    }

    fn batch(&self, number: u64) -> Batch {
        let lsn = Lsn::new(number + 1);
        let (topic, payload) = (self.topic.clone(), self.payload.clone());
        let message = StoredMessage::from_parts(topic, payload, QoS::AtLeastOnce, false, None, None);
        let delivery = StoredDelivery::new(lsn, QoS::AtLeastOnce);
        let session = SessionId::new(number % SESSIONS + 1);
        [Change::Stored { lsn, message }, Change::Queued { session, lsn, delivery }].into_iter().collect()
    }
}

// === the log ===

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    waiting: Vec<Completer<()>>,
    closing: bool,
}

fn log(path: &Path, messages: u64, window: u64, payload: usize) -> Outcome<Figures> {
    let shared = Arc::new((Mutex::new(Pending::default()), Condvar::new()));
    let mut file = File::create(path)?;
    let writer = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || -> io::Result<Vec<Duration>> {
            let mut syncing = Vec::new();
            loop {
                let mut pending = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                while pending.waiting.is_empty() && !pending.closing {
                    pending = shared.1.wait(pending).unwrap_or_else(PoisonError::into_inner);
                }
                let (bytes, waiting) = (mem::take(&mut pending.bytes), mem::take(&mut pending.waiting));
                drop(pending);
                if waiting.is_empty() {
                    return Ok(syncing);
                }
                file.write_all(&bytes)?;
                let before = Instant::now();
                file.sync_data()?;
                syncing.push(before.elapsed());
                for completer in waiting {
                    completer.complete(Ok(()));
                }
            }
        })
    };
    let source = Source::new(payload)?;
    let mut figures = drive(messages, window, |number| {
        // A log would have to take the same batches.
        let batch = source.batch(number);
        let (completer, commit) = Completion::pending();
        let mut pending = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        log_batch(&mut pending.bytes, &batch);
        pending.waiting.push(completer);
        shared.1.notify_one();
        commit
    })?;
    shared.0.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
    shared.1.notify_one();
    figures.syncing = writer.join().map_err(|_| "the writer of the log failed")??;
    fs::remove_file(path)?;
    Ok(figures)
}

fn log_batch(bytes: &mut Vec<u8>, batch: &Batch) {
    for change in batch.changes() {
        match change {
            Change::Stored { lsn, message } => {
                bytes.extend_from_slice(&lsn.value().to_be_bytes());
                bytes.extend_from_slice(&[1, 11]);
                bytes.extend_from_slice(message.topic().as_str().as_bytes());
                bytes.extend_from_slice(message.payload());
            }
            Change::Queued { session, lsn, .. } => {
                bytes.extend_from_slice(&lsn.value().to_be_bytes());
                bytes.extend_from_slice(&session.value().to_be_bytes());
                bytes.push(1);
            }
            _ => {}
        }
    }
}

// === the store ===

#[derive(Debug, Default)]
struct Counts {
    syncing: Mutex<Vec<Duration>>,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Counting {
    inner: FileBackend,
    counts: Arc<Counts>,
    /// True to count its syncs.
    syncing: bool,
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
        let before = Instant::now();
        let synced = self.inner.sync_data();
        if self.syncing {
            self.counts.syncing.lock().unwrap_or_else(PoisonError::into_inner).push(before.elapsed());
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.counts.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.inner.write(offset, data)
    }
}

fn store(path: &Path, messages: u64, window: u64, payload: usize) -> Outcome<Figures> {
    let counts = Arc::new(Counts::default());
    let device = |path: &Path, syncing: bool| -> Outcome<Counting> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Counting { inner: FileBackend::new(file)?, counts: Arc::clone(&counts), syncing })
    };
    let journal_path = path.with_extension("journal");
    // An acknowledgement waits for the journal.
    let (tables, journal) = (device(path, false)?, device(&journal_path, true)?);
    let store = EmbeddedStore::open_on(tables, journal, Options::default())?;
    store.recover(&mut RecoveredState::default())?;
    for session in 1..=SESSIONS {
        open(&store, session)?;
    }
    counts.syncing.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let bytes = counts.bytes.load(Ordering::Relaxed);
    let source = Source::new(payload)?;
    let mut figures = drive(messages, window, |number| store.commit(source.batch(number)))?;
    figures.syncing = mem::take(&mut *counts.syncing.lock().unwrap_or_else(PoisonError::into_inner));
    figures.syncs = figures.syncing.len() as u64;
    // Includes the changes that are in the journal alone, of which the checkpoint is still to come.
    store.close()?;
    figures.bytes = counts.bytes.load(Ordering::Relaxed) - bytes;
    fs::remove_file(journal_path)?;
    fs::remove_file(path)?;
    Ok(figures)
}

fn open(store: &EmbeddedStore, number: u64) -> Result<(), StoreError> {
    let client_id = ClientId::from(number.to_string().as_str());
    let claim = store.claim(&client_id).wait()?;
    let (session, expiry) = (SessionId::new(number), SessionExpiry::NEVER);
    let mut batch = Batch::lazy();
    batch.push(Change::Opened { session, client_id, identity: None, expiry, claim });
    let commit = store.commit(batch);
    if number == SESSIONS { commit.wait() } else { Ok(()) }
}
