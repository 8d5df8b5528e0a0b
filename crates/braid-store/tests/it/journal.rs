//! Journal: records that the tables do not have, and damaged, missing or foreign journals.

use std::fs;
use std::path::Path;

use braid_store::{
    Durability, EmbeddedStore, Existing, OfflineStore, OpenError, Options, RecoveredState, SessionId, Store,
};
use bytes::Bytes;
use tempfile::TempDir;

use crate::disk::Disk;
use crate::embedded::{BLOCK, open, options, patient};
use crate::example::{completed, open_session, queue, queued, queued_with, read};
use crate::offline::{exported, names, offline};

/// A journal of two segments of this many blocks; only a full segment causes a checkpoint.
pub(crate) fn in_segments(blocks: usize) -> Options {
    let mut options = patient(Durability::Sync);
    options.journal = 2 * blocks * BLOCK;
    options
}

pub(crate) fn open_with(disk: &Disk, options: Options) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open_on(disk.device(), disk.journal(), options)
}

/// Files that a crash leaves of a store with a session and `count` messages, none of them in its tables.
fn crashed(count: u64) -> (Vec<u8>, Vec<u8>) {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).expect("the disk is well");
    open_session(&store).expect("the disk is well");
    for number in 1..=count {
        store.commit(queued(number)).wait().expect("the disk is well");
    }
    (disk.bytes(), disk.journal_bytes())
}

pub(crate) fn queue_of(tables: &[u8], journal: &[u8]) -> Result<Vec<u64>, OpenError> {
    let disk = Disk::holding(tables.to_vec(), journal.to_vec());
    let store = open_with(&disk, options())?;
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("the disk is well");
    Ok(image.sessions.get(&SessionId::new(1)).map_or_else(Vec::new, |_| queue(&store)))
}

/// Reason of an error about a damaged journal.
fn reason(error: &OpenError) -> String {
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    match error {
        OpenError::JournalDamaged { reason, .. } => reason.to_string(),
        other => format!("no damage: {other}"),
    }
}

#[test]
fn a_group_costs_one_sync_of_the_journal_and_nothing_else() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).unwrap();
    open_session(&store).unwrap();
    let (tables, syncs, before) = (disk.bytes(), disk.syncs_of_tables(), disk.syncs());
    for number in 1..=20 {
        store.commit(queued(number)).wait().unwrap();
        assert_eq!(read(&store, number).unwrap().unwrap().payload().as_ref(), number.to_string().as_bytes());
    }
    assert_eq!((disk.syncs(), disk.syncs_of_tables()), (before + 20, syncs));
    assert!(disk.bytes() == tables);
}

/// The checkpoint writes only the number of the last record, which frees the segment.
#[test]
fn completed_messages_never_reach_the_tables() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).unwrap();
    open_session(&store).unwrap();
    queue(&store);
    let syncs = disk.syncs_of_tables();
    for number in 1..=20 {
        store.commit(queued(number)).wait().unwrap();
        // Not lazy, so that each is a group of its own.
        store.commit(completed(number).into_iter().collect()).wait().unwrap();
    }
    assert_eq!(queue(&store), Vec::<u64>::new());
    assert_eq!(disk.syncs_of_tables(), syncs, "there is nothing to write");
}

#[test]
fn both_segments_are_reused() {
    for blocks in 1..4 {
        let disk = Disk::default();
        let store = open_with(&disk, in_segments(blocks)).unwrap();
        open_session(&store).unwrap();
        for number in 1..=30 {
            store.commit(queued(number)).wait().unwrap();
            // Content after a power failure at this point.
            let now = queue_of(&disk.bytes(), &disk.journal_bytes()).unwrap();
            assert_eq!(now, (1..=number).collect::<Vec<_>>());
        }
        assert_eq!(disk.journal_bytes().len(), (1 + 2 * blocks) * BLOCK);
    }
}

#[test]
fn a_group_larger_than_a_segment_goes_to_the_tables_in_order() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(2)).unwrap();
    open_session(&store).unwrap();
    for number in 1..=9 {
        let syncs = disk.syncs_of_tables();
        let length = if number % 3 == 0 { 3 * BLOCK } else { 10 };
        store.commit(queued_with(number, Bytes::from(vec![7; length]))).wait().unwrap();
        assert!(number % 3 != 0 || disk.syncs_of_tables() > syncs, "it is in the tables");
        let now = queue_of(&disk.bytes(), &disk.journal_bytes()).unwrap();
        assert_eq!(now, (1..=number).collect::<Vec<_>>());
    }
}

#[test]
fn a_commit_waits_for_the_checkpoint_when_both_segments_are_full() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(1)).unwrap();
    open_session(&store).unwrap();
    disk.hold_tables();
    // Each fills a segment; the third needs the first one's.
    store.commit(queued(1)).wait().unwrap();
    disk.wait_for_sync();
    let mut third = store.commit(queued(2));
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert_eq!(third.try_take(), None);
    assert!(read(&store, 2).unwrap().is_some(), "it can be read");
    disk.release();
    assert_eq!(third.wait(), Ok(()));
    assert_eq!(queue(&store), [1, 2]);
}

#[test]
fn only_the_last_record_may_be_torn() {
    let (tables, journal) = crashed(6);
    assert_eq!(queue_of(&tables, &journal), Ok(vec![1, 2, 3, 4, 5, 6]));
    // A header, the session, and a block for each message.
    for record in 1..=7 {
        let mut damaged = journal.clone();
        damaged[record * BLOCK + 40] ^= 1;
        let found = queue_of(&tables, &damaged);
        if record == 7 {
            assert_eq!(found, Ok(vec![1, 2, 3, 4, 5]), "it may not have been acknowledged");
        } else {
            let reason = reason(&found.unwrap_err());
            assert!(reason.contains(&format!("record {record} ")), "{reason}");
        }
    }
}

#[test]
fn every_changed_byte_of_the_journal_is_detected() {
    let (tables, journal) = crashed(6);
    let all = vec![1, 2, 3, 4, 5, 6];
    let mut refusals = 0;
    for at in (0..journal.len()).step_by(61) {
        let mut damaged = journal.clone();
        damaged[at] ^= 0x55;
        match queue_of(&tables, &damaged) {
            Ok(queue) => {
                assert!(queue == all || (at >= 7 * BLOCK && queue == all[..5]), "byte {at}: {queue:?}");
            }
            Err(OpenError::JournalDamaged { .. } | OpenError::JournalOfAnother { .. }) => refusals += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refusals > 5, "{refusals}");
}

#[test]
fn a_truncated_or_missing_journal_is_refused() {
    let (tables, journal) = crashed(6);
    for length in [0, 100, BLOCK, 3 * BLOCK, journal.len() - 1] {
        let error = queue_of(&tables, &journal[..length]).unwrap_err();
        assert_eq!(matches!(error, OpenError::JournalMissing { .. }), length == 0, "{length}: {error}");
        assert!(length == 0 || matches!(error, OpenError::JournalDamaged { .. }), "{length}: {error}");
    }
    let zeros = vec![0; journal.len()];
    assert!(matches!(queue_of(&tables, &zeros), Err(OpenError::JournalMissing { .. })));
}

#[test]
fn a_store_that_was_closed_needs_no_journal() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).unwrap();
    open_session(&store).unwrap();
    store.commit(queued(1)).wait().unwrap();
    store.close().unwrap();
    let (tables, journal) = (disk.bytes(), disk.journal_bytes());
    assert_eq!(queue_of(&tables, &[]), Ok(vec![1]));
    assert_eq!(queue_of(&tables, &journal), Ok(vec![1]));
}

#[test]
fn a_journal_of_another_store_is_refused() {
    let ((tables, _), (_, other)) = (crashed(2), crashed(2));
    for tables in [tables, Vec::new()] {
        let error = queue_of(&tables, &other).unwrap_err();
        assert!(matches!(error, OpenError::JournalOfAnother { .. }), "{error}");
    }
    let error = queue_of(&crashed(2).0, &[b'x'; 2 * BLOCK]).unwrap_err();
    assert!(matches!(error, OpenError::JournalOfAnother { .. }), "{error}");
}

#[test]
fn a_journal_of_a_newer_format_is_refused() {
    let (tables, mut journal) = crashed(2);
    journal[15] = 3;
    let checksum = crc32fast::hash(&journal[..32]).to_be_bytes();
    journal[32..36].copy_from_slice(&checksum);
    let error = queue_of(&tables, &journal).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 3, .. }), "{error}");
}

/// An old copy of one of the two files was put back.
#[test]
fn tables_that_are_older_than_their_journal_are_refused() {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(2)).unwrap();
    open_session(&store).unwrap();
    queue(&store);
    let old = disk.bytes();
    for number in 1..=20 {
        store.commit(queued(number)).wait().unwrap();
    }
    let reason = reason(&queue_of(&old, &disk.journal_bytes()).unwrap_err());
    assert!(reason.contains("damaged or lost"), "{reason}");
}

/// A payload cannot imitate a record, since clients do not know the number of the store.
#[test]
fn a_payload_that_looks_like_a_record_is_not_replayed() {
    const MARK: &[u8] = b"where the payload begins";
    let (_, other) = crashed(6);
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).unwrap();
    open_session(&store).unwrap();
    store.commit(queued_with(1, Bytes::from_static(MARK))).wait().unwrap();
    let at = disk.journal_bytes().windows(MARK.len()).position(|bytes| bytes == MARK).unwrap() % BLOCK;
    // Two records of another store with later numbers, each at the beginning of a block.
    let payload = [&vec![7; BLOCK - at], &other[6 * BLOCK..8 * BLOCK]].concat();
    store.commit(queued_with(2, payload.into())).wait().unwrap();
    let (tables, mut journal) = (disk.bytes(), disk.journal_bytes());
    assert_eq!(journal[4 * BLOCK + 8..4 * BLOCK + 1000], other[6 * BLOCK + 8..6 * BLOCK + 1000]);
    assert_eq!(queue_of(&tables, &journal), Ok(vec![1, 2]));
    // Damage of the record with that payload: its payload looks like following records.
    journal[3 * BLOCK + 100] ^= 1;
    assert_eq!(queue_of(&tables, &journal), Ok(vec![1]));
}

#[test]
fn a_journal_may_become_longer_or_shorter() {
    let (mut tables, mut journal) = (Vec::new(), Vec::new());
    let mut expected = Vec::new();
    for (number, blocks) in (1..).zip([2, 8, 1, 8, 3]) {
        let disk = Disk::holding(tables, journal);
        let store = open_with(&disk, in_segments(blocks)).unwrap();
        if number == 1 {
            open_session(&store).unwrap();
        }
        store.commit(queued(number)).wait().unwrap();
        expected.push(number);
        // The files that a crash leaves.
        (tables, journal) = (disk.bytes(), disk.journal_bytes());
        assert_eq!(journal.len(), (1 + 2 * blocks) * BLOCK);
        assert_eq!(queue_of(&tables, &journal).as_ref(), Ok(&expected));
    }
}

#[test]
fn an_offline_store_includes_the_records_of_its_journal() {
    let (tables, journal) = crashed(6);
    let disk = Disk::holding(tables, journal);
    assert_eq!(offline(&disk).stats().unwrap().queued, 6);
    assert_eq!(offline(&disk).check().unwrap().problems, []);
    assert_eq!(exported(&disk).matches("\"queued\"").count(), 6);
}

#[test]
fn a_failed_recovery_keeps_the_journal() {
    let (tables, mut journal) = crashed(3);
    journal[2 * BLOCK + 40] ^= 1;
    let disk = Disk::holding(tables, journal.clone());
    for _ in 0..2 {
        assert!(open_with(&disk, options()).is_err());
        assert!(OfflineStore::open_on(disk.device(), disk.journal(), options()).is_err());
    }
    assert!(disk.journal_bytes() == journal);
    journal[2 * BLOCK + 40] ^= 1;
    assert_eq!(queue_of(&disk.bytes(), &journal), Ok(vec![1, 2, 3]));
}

// === in a directory ===

/// Copy of the current files of a store in `from`.
fn copy(from: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("a temporary directory");
    for name in ["store.journal", "store.redb"] {
        fs::copy(from.join(name), to.path().join(name)).expect("it is there");
    }
    to
}

fn killed() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = EmbeddedStore::open(directory.path(), in_segments(64)).expect("it can be opened");
    open_session(&store).expect("it can be written");
    store.commit(queued(1)).wait().expect("it can be written");
    copy(directory.path())
}

#[test]
fn an_import_makes_the_former_journal_void() {
    let mut text = exported(&{
        let disk = Disk::default();
        let store = open(&disk);
        open_session(&store).unwrap();
        store.commit(queued(5)).wait().unwrap();
        drop(store);
        disk
    });
    for was_killed in [true, false] {
        let directory = killed();
        if !was_killed {
            drop(EmbeddedStore::open(directory.path(), in_segments(64)).unwrap());
        }
        let restored = OfflineStore::restore(
            directory.path(),
            Existing::Replace,
            &mut text.as_bytes(),
            Options::default(),
        );
        assert!(restored.is_ok(), "{restored:?}");
        assert_eq!(names(directory.path()), ["store.journal", "store.redb"]);
        for _ in 0..2 {
            let store = EmbeddedStore::open(directory.path(), in_segments(64)).unwrap();
            assert_eq!(queue(&store), [5]);
        }
        text.push('\n');
    }
}

/// After the remedy that the error names, the store opens.
#[test]
fn the_error_of_a_damaged_journal_names_both_files() {
    let directory = killed();
    let journal = directory.path().join("store.journal");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[BLOCK + 40] ^= 1;
    fs::write(&journal, bytes).unwrap();
    let error = EmbeddedStore::open(directory.path(), in_segments(64)).unwrap_err();
    assert!(reason(&error).contains("record 1 "), "{error}");
    let line = error.to_string();
    assert!(
        line.contains("store.journal is damaged") && line.contains("both the journal and the store"),
        "{line}"
    );
    for name in names(directory.path()) {
        fs::remove_file(directory.path().join(name)).unwrap();
    }
    assert_eq!(queue(&EmbeddedStore::open(directory.path(), in_segments(64)).unwrap()), Vec::<u64>::new());
}

#[test]
fn the_journals_file_is_checked_like_the_tables_file() {
    let directory = killed();
    let journal = directory.path().join("store.journal");
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&journal).unwrap().permissions()) & 0o777,
        0o600
    );
    fs::rename(&journal, directory.path().join("elsewhere")).unwrap();
    for _ in 0..2 {
        let error = EmbeddedStore::open(directory.path(), in_segments(64)).unwrap_err();
        assert!(matches!(error, OpenError::JournalMissing { .. }), "{error}");
        let error = OfflineStore::open(directory.path(), options()).unwrap_err();
        assert!(matches!(error, OpenError::JournalMissing { .. }), "{error}");
    }
    fs::create_dir(&journal).unwrap();
    let error = EmbeddedStore::open(directory.path(), in_segments(64)).unwrap_err();
    assert!(matches!(error, OpenError::NotAFile { what: "a directory", .. }), "{error}");
    fs::remove_dir(&journal).unwrap();
    fs::rename(directory.path().join("elsewhere"), &journal).unwrap();
    assert_eq!(queue(&EmbeddedStore::open(directory.path(), in_segments(64)).unwrap()), [1]);
}

#[test]
fn the_space_of_the_journal_is_allocated_at_once() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), in_segments(64)).unwrap();
    let taken = || fs::metadata(directory.path().join("store.journal")).unwrap().blocks();
    let before = taken();
    assert!(before >= 128 * 8, "{before}");
    open_session(&store).unwrap();
    for number in 1..=100 {
        store.commit(queued(number)).wait().unwrap();
    }
    assert_eq!(taken(), before);
}
