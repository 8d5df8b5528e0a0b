//! Copies of a stopped store that are put back later, when the journal has newer records.

use std::io::ErrorKind;

use braid_store::{OfflineStore, OpenError, Store};

use crate::disk::{Disk, Fault};
use crate::embedded::{BLOCK, options};
use crate::example::{open_session, queue, queued};
use crate::journal::{in_segments, open_with, queue_of};

/// Tables and journal.
#[derive(Clone)]
struct Files(Vec<u8>, Vec<u8>);

impl Files {
    fn of(disk: &Disk) -> Self {
        Self(disk.bytes(), disk.journal_bytes())
    }

    fn disk(&self) -> Disk {
        Disk::holding(self.0.clone(), self.1.clone())
    }

    fn queue(&self) -> Result<Vec<u64>, OpenError> {
        queue_of(&self.0, &self.1)
    }

    /// Copy of these tables beside the current journal.
    fn put_back(&self, now: &Self) -> Self {
        Self(self.0.clone(), now.1.clone())
    }

    /// State after these messages, each in a group of its own, and a kill of the broker.
    fn killed(&self, blocks: usize, messages: &[u64]) -> Self {
        let disk = self.disk();
        let store = open_with(&disk, in_segments(blocks)).expect("the disk is well");
        for number in messages {
            store.commit(queued(*number)).wait().expect("the disk is well");
        }
        // Before the drop, which writes more.
        Self::of(&disk)
    }

    /// State after these messages and a stop of the broker.
    fn stopped(&self, blocks: usize, messages: &[u64]) -> Self {
        let disk = self.killed(blocks, messages).disk();
        drop(open_with(&disk, in_segments(blocks)).expect("the disk is well"));
        Self::of(&disk)
    }
}

/// A stopped store with message 1.
fn copy() -> Files {
    let disk = Disk::default();
    let store = open_with(&disk, in_segments(64)).expect("the disk is well");
    open_session(&store).expect("the disk is well");
    store.commit(queued(1)).wait().expect("the disk is well");
    drop(store);
    Files::of(&disk)
}

#[test]
fn a_copy_of_the_tables_restores_their_content() {
    let copy = copy();
    for later in [vec![2], (2..=9).collect::<Vec<_>>()] {
        // With two blocks only the later records of the second segment are left.
        for blocks in [64, 2] {
            for now in [copy.stopped(blocks, &later), copy.killed(blocks, &later)] {
                assert_eq!(copy.put_back(&now).queue(), Ok(vec![1]), "{later:?} in {blocks}");
                let disk = copy.put_back(&now).disk();
                let looked = OfflineStore::open_on(disk.device(), disk.journal(), options());
                assert_eq!(looked.unwrap().stats().unwrap().queued, 1);
            }
        }
    }
}

#[test]
fn records_from_after_the_copy_are_not_replayed() {
    let copy = copy();
    for blocks in [64, 2] {
        for count in [0, 1, 3, 7] {
            let now = copy.stopped(blocks, &[2, 3, 4, 5, 6, 7, 8]);
            let others: Vec<u64> = (20..20 + count).collect();
            let killed = copy.put_back(&now).killed(blocks, &others);
            let expected = [vec![1], others].concat();
            assert_eq!(killed.queue().as_ref(), Ok(&expected));
            // Once more with this copy.
            let killed = copy.put_back(&killed).killed(blocks, &[30]);
            assert_eq!(killed.queue(), Ok(vec![1, 30]));
        }
    }
}

/// At each point of the first start with the copy.
#[test]
fn power_may_fail_while_a_copy_is_opened() {
    let files = copy().put_back(&copy().stopped(64, &[2, 3]));
    assert!(matches!(files.queue(), Err(OpenError::JournalOfAnother { .. })), "two stores");
    let copy = copy();
    let files = copy.put_back(&copy.stopped(64, &[2, 3]));
    for seed in 0..20 {
        for after in 0.. {
            let disk = files.disk();
            disk.fail(Fault { after, kind: ErrorKind::Other, forever: true });
            let opened = open_with(&disk, in_segments(64));
            let is_open = opened.is_ok();
            disk.crash(&mut fastrand::Rng::with_seed(seed));
            drop(opened);
            let store = open_with(&disk, in_segments(64)).expect("the disk is well");
            assert_eq!(queue(&store), [1], "call {after}, seed {seed}");
            store.commit(queued(4)).wait().unwrap();
            assert_eq!(Files::of(&disk).queue(), Ok(vec![1, 4]), "call {after}, seed {seed}");
            if is_open {
                assert!(after > 3);
                break;
            }
        }
    }
}

/// A copy of a running store's tables is incomplete without its journal of that time.
#[test]
fn tables_that_need_the_journal_of_another_time_are_refused() {
    let copy = copy();
    let now = copy.killed(64, &[2, 3]);
    let other = copy.put_back(&now).killed(64, &[4, 5]);
    let error = now.put_back(&other).queue().unwrap_err();
    assert!(matches!(error, OpenError::JournalOfAnother { .. }), "{error}");
    assert_eq!(now.queue(), Ok(vec![1, 2, 3]));
}

#[test]
fn a_journal_that_was_truncated_while_the_store_was_stopped_is_recreated() {
    let copy = copy();
    for length in [0, 100, BLOCK, 3 * BLOCK, copy.1.len() - 1] {
        let cut = Files(copy.0.clone(), copy.1[..length].to_vec());
        assert_eq!(cut.killed(64, &[2, 3]).queue(), Ok(vec![1, 2, 3]), "{length}");
    }
}
