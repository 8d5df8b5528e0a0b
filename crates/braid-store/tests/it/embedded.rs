use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use braid_proto::decoder::Spool;
use braid_store::spool::{FileSpool, SpoolOptions};
use braid_store::suite::{self, Fixture};
use braid_store::{
    Durability, EmbeddedStore, LazyMessage, Lsn, Options, Progress, RecoveredState, Stage, Store, StoreError,
    StoredMessage,
};
use bytes::Bytes;

use crate::disk::{Disk, Fault};
use crate::example::{completed, open_session, queue, queued, queued_with, read};

/// Short delays, since the suite waits for each lazy batch, and the shortest journal, so that its segments alternate
/// all the time.
pub(crate) fn options() -> Options {
    let mut options = Options::default();
    (options.lazy, options.checkpoint) = (Duration::from_micros(200), Duration::from_micros(500));
    options.journal = 4 * BLOCK;
    options
}

/// Block of a journal, in bytes.
pub(crate) const BLOCK: usize = 4096;

pub(crate) fn open(disk: &Disk) -> EmbeddedStore {
    EmbeddedStore::open_on(disk.device(), disk.journal(), options()).expect("the disk is well")
}

/// Options under which no timer causes a write.
pub(crate) fn patient(durability: Durability) -> Options {
    let mut options = Options::default();
    (options.lazy, options.checkpoint, options.durability) = (HOUR, HOUR, durability);
    options
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

struct OnDisk {
    disk: Disk,
    options: Options,
}

impl Default for OnDisk {
    fn default() -> Self {
        let mut options = options();
        // Chunks all but the smallest payloads.
        options.chunk = 2;
        Self { disk: Disk::default(), options }
    }
}

impl OnDisk {
    /// Varies with the seed: the journal's length, and checkpoints when a segment is full, soon, or with each group.
    fn of(seed: u64) -> Self {
        let mut on_disk = Self::default();
        let blocks = usize::try_from(1 + seed % 5).expect("it is small");
        on_disk.options.journal = 2 * blocks * BLOCK;
        on_disk.options.chunk = [1, 2, 255 << 10][usize::try_from(seed / 15 % 3).expect("it is small")];
        on_disk.options.checkpoint = [Duration::ZERO, Duration::from_micros(300), HOUR]
            [usize::try_from(seed / 5 % 3).expect("it is small")];
        on_disk
    }

    fn asynchronous(self) -> Self {
        let mut options = self.options;
        options.durability = Durability::Async { loss_window: Duration::from_micros(200) };
        Self { options, ..self }
    }

    fn store(&self) -> Box<dyn Store> {
        let store = EmbeddedStore::open_on(self.disk.device(), self.disk.journal(), self.options.clone());
        Box::new(store.expect("the disk is well"))
    }
}

impl Fixture for OnDisk {
    fn open(&mut self) -> Box<dyn Store> {
        self.disk = Disk::default();
        self.store()
    }

    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store> {
        drop(store);
        self.store()
    }

    fn crash(&mut self, store: Box<dyn Store>, seed: u64) -> Box<dyn Store> {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Before the drop of the store, whose writes then come too late.
        self.disk.crash(&mut rng);
        drop(store);
        // A second failure may follow during the recovery.
        while rng.bool() {
            self.disk.fail(Fault { after: rng.u64(..30), kind: ErrorKind::Other, forever: true });
            let (tables, journal) = (self.disk.device(), self.disk.journal());
            drop(EmbeddedStore::open_on(tables, journal, self.options.clone()));
            self.disk.crash(&mut rng);
        }
        self.store()
    }

    fn is_asynchronous(&self) -> bool {
        matches!(self.options.durability, Durability::Async { .. })
    }

    fn fail_after(&mut self, calls: u64) {
        self.disk.fail(Fault { after: calls, kind: ErrorKind::Other, forever: true });
    }
}

#[test]
fn an_embedded_store_passes_the_suite() {
    suite::run(&mut OnDisk::default(), 0);
}

#[test]
fn an_embedded_store_agrees_with_the_model() {
    for seed in 0..40 {
        suite::run_random(&mut OnDisk::of(seed), seed);
    }
}

#[test]
fn an_embedded_store_survives_power_failures() {
    for seed in 0..150 {
        suite::run_crashes(&mut OnDisk::of(seed), seed);
    }
}

/// More seeds than the check of a change needs: `cargo test -p braid-store --test it -- --ignored thousands`.
#[test]
#[ignore = "takes minutes"]
fn an_embedded_store_survives_thousands_of_power_failures() {
    for seed in 1000..4000 {
        suite::run_crashes(&mut OnDisk::of(seed), seed);
        suite::run_crashes(&mut OnDisk::of(seed).asynchronous(), seed);
    }
}

#[test]
fn a_lazy_batch_joins_a_group_and_costs_no_sync() {
    const ROUNDS: u64 = 20;
    let disk = Disk::default();
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), patient(Durability::Sync)).unwrap();
    open_session(&store).unwrap();
    store.commit(queued(1)).wait().unwrap();
    let before = disk.syncs();
    for number in 1..=ROUNDS {
        let mut lazy = store.commit(completed(number));
        // Time enough for a writer that would not wait.
        for _ in 0..1000 {
            thread::yield_now();
        }
        assert_eq!(lazy.try_take(), None);
        store.commit(queued(number + 1)).wait().unwrap();
        assert_eq!(lazy.try_take(), Some(Ok(())));
    }
    assert_eq!(disk.syncs(), before + ROUNDS);
    assert_eq!(queue(&store), [ROUNDS + 1]);
}

#[test]
fn a_lazy_batch_is_done_some_time_later_even_if_nothing_else_is_committed() {
    let store = open(&Disk::default());
    open_session(&store).unwrap();
    store.commit(queued(1)).wait().unwrap();
    assert_eq!(store.commit(completed(1)).wait(), Ok(()));
}

#[test]
fn batches_that_arrive_while_a_group_is_written_are_the_next_group() {
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).unwrap();
    let before = disk.syncs();
    disk.hold();
    let first = store.commit(queued(1));
    disk.wait_for_sync();
    let mut others: Vec<_> = (2..=50).map(|number| store.commit(queued(number))).collect();
    assert!(others.iter_mut().all(|commit| commit.try_take().is_none()), "nothing is durable");
    assert_eq!(read(&store, 1).unwrap().unwrap().payload().as_ref(), b"1");
    disk.release();
    assert_eq!(first.wait(), Ok(()));
    assert!(others.into_iter().all(|commit| commit.wait() == Ok(())));
    assert_eq!(disk.syncs(), before + 2);
}

#[test]
fn an_asynchronous_commit_is_done_at_once() {
    let disk = Disk::default();
    let durability = Durability::Async { loss_window: HOUR };
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), patient(durability)).unwrap();
    open_session(&store).unwrap();
    let before = disk.syncs();
    assert_eq!(store.commit(queued(1)).try_take(), Some(Ok(())));
    assert_eq!(read(&store, 1).unwrap().unwrap().payload().as_ref(), b"1");
    assert_eq!(disk.syncs(), before, "at risk");
    assert_eq!(store.close(), Ok(()));
    assert_eq!(queue(&open(&disk)), [1], "closing writes what is pending");
}

#[test]
fn an_asynchronous_store_passes_the_suite() {
    suite::run(&mut OnDisk::default().asynchronous(), 5);
}

/// A prefix of whole batches survives.
#[test]
fn an_asynchronous_store_survives_power_failures() {
    for seed in 0..150 {
        suite::run_crashes(&mut OnDisk::of(seed).asynchronous(), seed);
    }
}

/// Only batches acknowledged within `loss_window` may be lost.
#[test]
fn an_asynchronous_commit_waits_for_a_slow_device() {
    let disk = Disk::default();
    let durability = Durability::Async { loss_window: Duration::ZERO };
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), patient(durability)).unwrap();
    open_session(&store).unwrap();
    store.recover(&mut RecoveredState::default()).unwrap();
    disk.hold();
    let first = store.commit(queued(1));
    disk.wait_for_sync();
    let mut others: Vec<_> = (2..=50).map(|number| store.commit(queued(number))).collect();
    let is_held = others.iter_mut().all(|commit| commit.try_take().is_none());
    disk.release();
    assert!(is_held, "one is at risk");
    assert!(others.into_iter().all(|commit| commit.wait() == Ok(())));
    assert_eq!((first.wait(), queue(&store).len()), (Ok(()), 50));
    // Waiting callers get the error of the device.
    disk.hold();
    drop(store.commit(queued(51)));
    disk.wait_for_sync();
    let waiting = store.commit(queued(52));
    disk.fail(Fault { after: 0, kind: ErrorKind::Other, forever: true });
    disk.release();
    assert!(matches!(waiting.wait(), Err(StoreError::Failed { .. })));
}

#[test]
fn closing_writes_lazy_batches_and_completes_watchers() {
    let disk = Disk::default();
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), patient(Durability::Sync)).unwrap();
    open_session(&store).unwrap();
    store.commit(queued(1)).wait().unwrap();
    let (lazy, watch) = (store.commit(completed(1)), store.failed());
    drop(store);
    assert_eq!(lazy.wait(), Ok(()));
    assert_eq!(watch.wait(), Err(StoreError::Closed));
    assert_eq!(queue(&open(&disk)), Vec::<u64>::new());
}

#[test]
fn a_group_with_many_changes_is_written_at_once() {
    let disk = Disk::default();
    let mut options = patient(Durability::Sync);
    options.changes = 4;
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), options).unwrap();
    open_session(&store).unwrap();
    for number in 1..=4 {
        store.commit(queued(number)).wait().unwrap();
    }
    let lazy: Vec<_> = (1..=4).map(|number| store.commit(completed(number))).collect();
    assert!(lazy.into_iter().all(|commit| commit.wait() == Ok(())), "without another caller");
}

#[test]
fn opening_and_recovering_report_progress() {
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).unwrap();
    let commits: Vec<_> = (1..=100).map(|number| store.commit(queued(number))).collect();
    assert!(commits.into_iter().all(|commit| commit.wait() == Ok(())));
    drop(store);
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut options = options();
    options.progress = {
        let told = Arc::clone(&told);
        Arc::new(move |progress: Progress| told.lock().unwrap().push(progress))
    };
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), options).unwrap();
    let ends = |stage| told.lock().unwrap().iter().rfind(|progress| progress.stage == stage).copied();
    assert!(ends(Stage::Checking).is_some());
    let loaded = Progress { stage: Stage::Loading, done: 101, of: 101 };
    assert_eq!((ends(Stage::Loading), ends(Stage::Recovering)), (Some(loaded), None));
    assert_eq!(queue(&store).len(), 100);
    assert_eq!(ends(Stage::Recovering), Some(Progress { stage: Stage::Recovering, ..loaded }));
}

#[test]
fn a_large_payload_is_read_on_demand_and_not_into_the_heap() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let of_spool = SpoolOptions { threshold: 1000, bytes: 1 << 20, keep_free: 0 };
    let spool = Arc::new(FileSpool::open(directory.path(), of_spool).expect("the system allows it"));
    let mut store = open(&Disk::default());
    store.set_spool(spool.clone());
    open_session(&store).expect("it is opened");
    for (number, length) in [(1, 1000), (2, 5000)] {
        store.commit(queued_with(number, Bytes::from(vec![7; length]))).wait().expect("it is stored");
    }
    let shown = |wanted| {
        let mut read: Vec<StoredMessage> = Vec::new();
        let show = &mut |lsn, unread: LazyMessage<'_>| {
            if lsn == Lsn::new(wanted) {
                read.push(unread.read().expect("the disk is well"));
            }
        };
        store.messages(show).expect("the disk is well");
        (read.pop().map(|message| message.payload().to_bytes()).expect("it is there"), spool.used())
    };
    assert_eq!(shown(1), (Bytes::from(vec![7; 1000]), 0));
    assert_eq!(shown(2), (Bytes::from(vec![7; 5000]), 5000));
    let message = read(&store, 2).expect("the disk is well");
    let payload = message.as_ref().map(StoredMessage::payload);
    assert_eq!((payload.map(|payload| payload.len()), spool.used()), (Some(5000), 5000));
}

#[test]
fn messages_are_shown_after_all_earlier_commits() {
    let disk = Disk::default();
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), patient(Durability::Sync));
    let store = store.expect("the disk is well");
    open_session(&store).expect("it is opened");
    for number in 1..=2 {
        store.commit(queued(number)).wait().expect("it is stored");
    }
    // Lazy: its delay is an hour.
    drop(store.commit(completed(1)));
    let mut shown = Vec::new();
    store.messages(&mut |lsn, _| shown.push(lsn)).expect("the disk is well");
    assert_eq!(shown, [Lsn::new(2)]);
}
