//! Size of the store's files.

use std::fs;
use std::time::Duration;

use braid_store::{EmbeddedStore, MemoryStore, Options, RecoveredState, Store};
use bytes::Bytes;

use crate::disk::Disk;
use crate::embedded::open;
use crate::example::{completed, open_session, queue, queued, queued_with};

#[test]
fn draining_a_queue_again_and_again_does_not_grow_the_file() {
    const MESSAGES: u64 = 500;
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).unwrap();
    let mut lengths = Vec::new();
    for round in 0..12 {
        let numbers = || (1..=MESSAGES).map(|number| round * MESSAGES + number);
        // One batch each, so that the groups are the same in every round and every run.
        for batch in [numbers().flat_map(queued).collect(), numbers().flat_map(completed).collect()] {
            store.commit(batch).wait().unwrap();
        }
        lengths.push(disk.bytes().len());
    }
    let most = lengths[..4].iter().max();
    assert!(lengths.iter().max() == most, "{lengths:?}");
    assert_eq!(queue(&store), Vec::<u64>::new());
}

#[test]
fn opening_returns_free_space_to_the_file_system() {
    const MESSAGES: u64 = 40;
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).unwrap();
    let payload = Bytes::from(vec![7; (1 << 20) - 4096]);
    for number in 1..=MESSAGES {
        store.commit(queued_with(number, payload.clone())).wait().unwrap();
    }
    for number in (1..=MESSAGES).filter(|number| number % 8 != 0) {
        store.commit(completed(number)).wait().unwrap();
    }
    drop(store);
    let before = disk.bytes().len();
    assert!(before > 20 << 20, "{before}");
    let store = open(&disk);
    assert_eq!(queue(&store), [8, 16, 24, 32, 40]);
    drop(store);
    let after = disk.bytes().len();
    assert!(after < 8 << 20, "{before} {after}");
}

#[test]
fn a_store_reports_its_size_and_unapplied_groups() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.checkpoint = Duration::from_secs(3600);
    let store = EmbeddedStore::open(directory.path(), options).unwrap();
    let files =
        || fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!((store.size(), store.wal_groups()), (files(), 0));
    open_session(&store).unwrap();
    store.commit(queued(1)).wait().unwrap();
    assert_eq!(store.wal_groups(), 2);
    store.recover(&mut RecoveredState::default()).unwrap();
    assert_eq!((store.size(), store.wal_groups()), (files(), 0), "the tables have it");
    assert_eq!(MemoryStore::new().size(), 0);
}
