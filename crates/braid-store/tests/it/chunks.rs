//! Payloads that are stored in chunks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_proto::decoder::Spool;
use braid_store::spool::{FileSpool, SpoolOptions};
use braid_store::{
    Damage, Durability, EmbeddedStore, LazyMessage, Lsn, Now, OfflineStore, Options, RecoveredState, Store,
    StoreError,
};
use bytes::Bytes;
use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError};

use crate::disk::Disk;
use crate::embedded::{options, patient};
use crate::example::{self, completed, open_session, queue, queued_with};
use crate::offline::{exported, offline};

const MESSAGES: TableDefinition<'_, &[u8; 8], &[u8]> = TableDefinition::new("message");
const CHUNKS: TableDefinition<'_, &[u8; 12], &[u8]> = TableDefinition::new("part");

/// Two full chunks and a short one.
const LENGTH: usize = 2500;

fn chunked() -> Options {
    let mut options = options();
    options.chunk = 1000;
    options
}

fn open(disk: &Disk) -> EmbeddedStore {
    EmbeddedStore::open_on(disk.device(), disk.journal(), chunked()).expect("the disk is well")
}

fn payload() -> Bytes {
    (0..LENGTH).map(|byte| u8::try_from(byte % 251).expect("it is small")).collect()
}

/// A store with one large message, closed.
fn filled() -> Disk {
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).expect("it is opened");
    store.commit(queued_with(1, payload())).wait().expect("it is stored");
    disk
}

/// The database of a closed store.
fn database(disk: &Disk) -> Database {
    Database::builder().create_with_backend(disk.device()).expect("the disk is well")
}

/// Key and length of each chunk.
fn chunks(disk: &Disk) -> Vec<([u8; 12], usize)> {
    let database = database(disk);
    let transaction = database.begin_read().expect("the disk is well");
    let table = match transaction.open_table(CHUNKS) {
        Err(TableError::TableDoesNotExist(_)) => return Vec::new(),
        table => table.expect("the disk is well"),
    };
    let rows = table.iter().expect("the disk is well").map(|row| row.expect("the disk is well"));
    rows.map(|(key, value)| (*key.value(), value.value().len())).collect()
}

fn read(store: &impl Store) -> Result<Option<Bytes>, StoreError> {
    example::read(store, 1).map(|message| message.map(|message| message.payload().to_bytes()))
}

#[test]
fn a_large_payload_is_stored_in_chunks_and_read_as_a_whole() {
    let disk = filled();
    let key = |number| [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, number];
    assert_eq!(chunks(&disk), [(key(0), 1000), (key(1), 1000), (key(2), 500)]);
    let database = database(&disk);
    let transaction = database.begin_read().expect("the disk is well");
    let messages = transaction.open_table(MESSAGES).expect("it is there");
    let row = messages.get(&[0, 0, 0, 0, 0, 0, 0, 1]).expect("the disk is well");
    // QoS 1 and chunked, topic, length.
    let expected = [0x21, 1, b't', 0, 0, 0, 0, 0, 0, 0x09, 0xC4];
    assert_eq!(row.map(|row| row.value().to_vec()), Some(expected.to_vec()));
    drop(database);
    let store = open(&disk);
    assert_eq!(read(&store), Ok(Some(payload())));
    let mut shown = Vec::new();
    let show = &mut |lsn, unread: LazyMessage<'_>| {
        let length = unread.payload_len();
        shown.push((lsn, length, unread.read().map(|message| message.payload().to_bytes())));
    };
    store.messages(show).expect("the disk is well");
    assert_eq!(shown, [(Lsn::new(1), LENGTH, Ok(payload()))]);
}

#[test]
fn chunks_are_removed_with_their_message() {
    let disk = filled();
    let store = open(&disk);
    store.commit(completed(1)).wait().expect("the disk is well");
    drop(store);
    assert_eq!(chunks(&disk), []);
}

#[test]
fn reusing_a_number_removes_the_former_chunks() {
    let disk = filled();
    // Without a checkpoint in between, so that one transaction replaces the row.
    let mut options = patient(Durability::Sync);
    options.chunk = 1000;
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), options).expect("the disk is well");
    drop(store.commit(completed(1)));
    store.commit(queued_with(1, Bytes::from_static(b"small"))).wait().expect("the disk is well");
    drop(store);
    assert_eq!(chunks(&disk), []);
    assert_eq!(read(&open(&disk)), Ok(Some(Bytes::from_static(b"small"))));
}

#[test]
fn an_export_joins_chunks_and_an_import_makes_them() {
    let disk = filled();
    let text = exported(&disk);
    let copy = Disk::default();
    let into = OfflineStore::open_on(copy.device(), copy.journal(), chunked()).expect("the disk is well");
    into.import(&mut text.as_bytes()).expect("it is what was exported");
    drop(into);
    assert_eq!(chunks(&copy), chunks(&disk));
    assert_eq!(exported(&copy), text);
    // As many bytes as an inline payload has.
    assert_eq!(offline(&disk).stats().expect("the disk is well").bytes, 3 + LENGTH as u64);
}

#[test]
fn a_missing_chunk_is_detected() {
    for number in [0, 1, 2] {
        let disk = filled();
        let database = database(&disk);
        let change = database.begin_write().expect("the only writer");
        let key = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, number];
        change.open_table(CHUNKS).expect("it is there").remove(&key).expect("the disk is well");
        change.commit().expect("the disk is well");
        drop(database);
        let problems = offline(&disk).check().expect("the disk is well").problems;
        let found: Vec<_> =
            problems.iter().map(|problem| (problem.damage, problem.description.as_str())).collect();
        assert_eq!(found, [(Damage::NoMessage, &*format!("part {number} of message 1 is not there"))]);
        let store = open(&disk);
        assert_eq!(queue(&store), [1], "it is known that it was there");
        assert!(matches!(read(&store), Err(StoreError::Damaged { .. })));
    }
}

#[test]
fn orphaned_and_excess_chunks_are_detected() {
    let disk = filled();
    let database = database(&disk);
    let change = database.begin_write().expect("the only writer");
    {
        let mut table = change.open_table(CHUNKS).expect("it is there");
        table.insert(&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0], &b"x"[..]).expect("the disk is well");
        table.insert(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3], &b"x"[..]).expect("the disk is well");
    }
    change.commit().expect("the disk is well");
    drop(database);
    let problems = offline(&disk).check().expect("the disk is well").problems;
    let found: Vec<_> = problems.iter().map(|problem| problem.damage).collect();
    assert_eq!(found, [Damage::NoMessage, Damage::Unused]);
    assert!(matches!(read(&open(&disk)), Err(StoreError::Damaged { .. })));
}

#[test]
fn chunks_are_read_into_the_spool() {
    let directory = tempfile::tempdir().expect("the system allows it");
    for (keep_free, is_spooled) in [(0, true), (u64::MAX, false)] {
        let options = SpoolOptions { threshold: 1000, bytes: 1 << 20, keep_free };
        let spool = Arc::new(FileSpool::open(directory.path(), options).expect("the system allows it"));
        let mut store = open(&filled());
        store.set_spool(spool.clone());
        let message = example::read(&store, 1).expect("the disk is well").expect("it is there");
        let now = Now { instant: std::time::Instant::now(), system: std::time::SystemTime::now() };
        assert_eq!((message.payload().to_bytes(), message.live(now).is_spooled()), (payload(), is_spooled));
        assert_eq!(spool.used(), if is_spooled { LENGTH as u64 } else { 0 });
    }
}

/// Device that records its longest write and read.
#[derive(Debug, Default)]
struct Longest {
    inner: InMemoryBackend,
    longest: Arc<AtomicUsize>,
}

impl StorageBackend for Longest {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.longest.fetch_max(out.len(), Ordering::Relaxed);
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.longest.fetch_max(data.len(), Ordering::Relaxed);
        self.inner.write(offset, data)
    }
}

#[test]
fn a_payload_of_many_megabytes_is_never_written_in_one_piece() {
    let tables = Longest::default();
    let longest = tables.longest.clone();
    let store = EmbeddedStore::open_on(tables, InMemoryBackend::new(), Options::default());
    let store = store.expect("memory takes everything");
    open_session(&store).expect("it is opened");
    // Larger than a segment of the journal: it goes to the tables directly.
    store.commit(queued_with(1, Bytes::from(vec![7; 20 << 20]))).wait().expect("it is stored");
    let read = read(&store).expect("it can be read").map(|payload| payload.len());
    assert_eq!(read, Some(20 << 20));
    let longest = longest.load(Ordering::Relaxed);
    assert!((255 << 10..=256 << 10).contains(&longest), "{longest}");
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("memory is well");
    assert_eq!(image.sessions.len(), 1);
}
