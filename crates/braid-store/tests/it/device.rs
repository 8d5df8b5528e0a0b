//! Embedded store on a device that fails.

use std::io::ErrorKind;

use braid_store::{EmbeddedStore, OpenError, RecoveredState, Store, StoreError};

use crate::disk::{Disk, Fault};
use crate::embedded::{open, options};
use crate::example::{open_session, queue, queued, read};

const BATCHES: u64 = 12;

/// Commits one batch after the other until one fails, and returns the number of acknowledged ones.
fn work(store: &EmbeddedStore) -> u64 {
    (1..=BATCHES).take_while(|number| store.commit(queued(*number)).wait().is_ok()).count() as u64
}

fn assert_failed(store: &EmbeddedStore) {
    let failure = store.failure().expect("the store knows that it failed");
    assert!(matches!(failure, StoreError::Failed { .. }), "{failure}");
    assert_eq!(store.commit(queued(99)).wait(), Err(failure.clone()));
    assert_eq!(store.commit([].into_iter().collect()).wait(), Err(failure.clone()));
    assert_eq!(store.claim(&"b".into()).wait(), Err(failure.clone()));
    assert_eq!(read(store, 1), Err(failure.clone()));
    assert_eq!(store.recover(&mut RecoveredState::default()), Err(failure.clone()));
    assert_eq!(store.failed().wait(), Err(failure));
}

/// Lets every call of the work fail, each in a run of its own.
fn fail_every_call(kind: ErrorKind) {
    for after in 0.. {
        let disk = Disk::default();
        let store = open(&disk);
        open_session(&store).expect("nothing fails yet");
        let watch = store.failed();
        disk.fail(Fault { after, kind, forever: false });
        let acknowledged = work(&store);
        if acknowledged == BATCHES {
            drop(store);
            assert!(after > BATCHES * 3, "every batch takes several calls");
            return;
        }
        assert_failed(&store);
        assert_eq!(watch.wait().err(), store.failure());
        assert!(store.close().is_err());
        assert_eq!(disk.syncs_after_fault(), 0, "a failed write is never tried again");
        disk.mend();
        let left = queue(&open(&disk));
        let all: Vec<u64> = (1..=acknowledged).collect();
        let one_more: Vec<u64> = (1..=acknowledged + 1).collect();
        assert!(left == all || left == one_more, "call {after}: {left:?} of {acknowledged}");
    }
}

#[test]
fn a_store_stays_failed_after_one_error_of_the_device() {
    fail_every_call(ErrorKind::Other);
}

#[test]
fn a_full_device_loses_nothing_that_was_acknowledged() {
    fail_every_call(ErrorKind::StorageFull);
}

#[test]
fn the_error_of_opening_on_a_failing_device_names_the_remedy() {
    type Expected = fn(&OpenError) -> bool;
    let kinds: [(ErrorKind, Expected); 4] = [
        (ErrorKind::StorageFull, |error| matches!(error, OpenError::Full { .. })),
        (ErrorKind::PermissionDenied, |error| matches!(error, OpenError::NotWritable { .. })),
        (ErrorKind::ReadOnlyFilesystem, |error| matches!(error, OpenError::NotWritable { .. })),
        (ErrorKind::Other, |error| matches!(error, OpenError::Device { .. })),
    ];
    for (kind, expected) in kinds {
        for after in 0.. {
            let disk = Disk::default();
            disk.fail(Fault { after, kind, forever: true });
            match EmbeddedStore::open_on(disk.device(), disk.journal(), options()) {
                Ok(store) => {
                    drop(store);
                    assert!(after > 3);
                    break;
                }
                Err(error) => assert!(expected(&error), "call {after} with {kind}: {error}"),
            }
        }
    }
}
