//! Copies of a store that was stopped, which are put back later: what came after them is of another time.

use std::io::ErrorKind;

use braid_store::{OfflineStore, OpenError, Store};

use crate::disk::{Disk, Fault};
use crate::embedded::{BLOCK, options};
use crate::example::{open_session, queue, queued};
use crate::journal::{in_halves, open_with, queue_of};

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

    /// These tables beside the journal that is there now.
    fn put_back(&self, now: &Self) -> Self {
        Self(self.0.clone(), now.1.clone())
    }

    /// After these messages, each in a group of its own; the broker is killed.
    fn killed(&self, blocks: usize, messages: &[u64]) -> Self {
        let disk = self.disk();
        let store = open_with(&disk, in_halves(blocks)).expect("the disk is well");
        for number in messages {
            store.commit(queued(*number)).wait().expect("the disk is well");
        }
        // When it is dropped it writes more.
        Self::of(&disk)
    }

    /// The same, and it is stopped.
    fn stopped(&self, blocks: usize, messages: &[u64]) -> Self {
        let disk = self.killed(blocks, messages).disk();
        drop(open_with(&disk, in_halves(blocks)).expect("the disk is well"));
        Self::of(&disk)
    }
}

/// A store that was stopped with message 1.
fn copy() -> Files {
    let disk = Disk::default();
    let store = open_with(&disk, in_halves(64)).expect("the disk is well");
    open_session(&store).expect("the disk is well");
    store.commit(queued(1)).wait().expect("the disk is well");
    drop(store);
    Files::of(&disk)
}

#[test]
fn a_copy_of_the_tables_is_what_they_were() {
    let copy = copy();
    for later in [vec![2], (2..=9).collect::<Vec<_>>()] {
        // With two blocks the later ones of the second half are all that is left of them.
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
fn what_came_after_the_copy_does_not_come_back() {
    let copy = copy();
    for blocks in [64, 2] {
        for count in [0, 1, 3, 7] {
            let now = copy.stopped(blocks, &[2, 3, 4, 5, 6, 7, 8]);
            let others: Vec<u64> = (20..20 + count).collect();
            let killed = copy.put_back(&now).killed(blocks, &others);
            let expected = [vec![1], others].concat();
            assert_eq!(killed.queue().as_ref(), Ok(&expected));
            // And again, the same copy.
            let killed = copy.put_back(&killed).killed(blocks, &[30]);
            assert_eq!(killed.queue(), Ok(vec![1, 30]));
        }
    }
}

/// Whatever the first start with the copy has done by then.
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
            let opened = open_with(&disk, in_halves(64));
            let is_open = opened.is_ok();
            disk.crash(&mut fastrand::Rng::with_seed(seed));
            drop(opened);
            let store = open_with(&disk, in_halves(64)).expect("the disk is well");
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

/// They are a copy of a store that ran, which is none without the journal of that time.
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
fn a_journal_that_was_cut_off_while_the_store_was_stopped_is_made_anew() {
    let copy = copy();
    for length in [0, 100, BLOCK, 3 * BLOCK, copy.1.len() - 1] {
        let cut = Files(copy.0.clone(), copy.1[..length].to_vec());
        assert_eq!(cut.killed(64, &[2, 3]).queue(), Ok(vec![1, 2, 3]), "{length}");
    }
}
