//! Large packets in files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use braid_proto::decoder::{Spool, SpoolError};
use braid_store::spool::{FileSpool, SpoolOptions};
use braid_store::{EmbeddedStore, Now, Store};
use bytes::Bytes;

use crate::disk::Disk;
use crate::embedded::options;
use crate::example::{completed, open_session, queued_with, read};

const OPTIONS: SpoolOptions = SpoolOptions { threshold: 1000, bytes: 1 << 20, keep_free: 0 };

fn open(directory: &Path) -> FileSpool {
    FileSpool::open(directory, OPTIONS).expect("the system allows it")
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the system allows it");
    let mut names: Vec<_> = entries
        .map(|entry| {
            entry.expect("the system allows it").file_name().into_string().expect("the system allows it")
        })
        .collect();
    names.sort();
    names
}

fn spooled(spool: &FileSpool, parts: &[&[u8]]) -> Bytes {
    let mut packet = spool.begin().expect("the system allows it");
    for part in parts {
        packet.append(part).expect("the system allows it");
    }
    packet.finish().expect("the system allows it")
}

#[test]
fn a_packet_keeps_its_bytes_and_its_quota_until_its_last_slice() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let spool = open(directory.path());
    let (a, b) = (vec![b'a'; 70_000], vec![b'b'; 3]);
    let whole = spooled(&spool, &[&a, &b]);
    assert!(whole[..70_000] == a && whole[70_000..] == b);
    let slice = whole.slice(69_999..70_002);
    drop(whole);
    assert_eq!((&slice[..], spool.used()), (&b"abb"[..], 70_003));
    drop(slice);
    assert_eq!(spool.used(), 0);
}

#[test]
fn a_packets_file_has_no_name() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let spool = open(directory.path());
    let mut packet = spool.begin().expect("the system allows it");
    packet.append(&[0; 5000]).expect("the system allows it");
    assert_eq!((names(directory.path()), spool.used()), (vec![], 5000));
    drop(packet);
    assert_eq!(spool.used(), 0);
}

#[test]
fn a_packet_outlives_its_directory_and_its_spool() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let spool = open(directory.path());
    let whole = spooled(&spool, &[b"whole"]);
    drop(spool);
    directory.close().expect("the system allows it");
    assert_eq!(whole, "whole");
}

#[test]
fn opening_removes_only_the_files_of_a_crashed_spool() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let path = directory.path();
    for name in ["braidmq-1-0.spool", "braidmq-7-12.spool", "a.spool", "braidmq-", "store.redb"] {
        fs::write(path.join(name), "").expect("the system allows it");
    }
    fs::create_dir(path.join("braidmq-2-0.spool")).expect("the system allows it");
    let _spool = open(path);
    assert_eq!(names(path), ["a.spool", "braidmq-", "braidmq-2-0.spool", "store.redb"]);
}

#[test]
fn all_packets_together_have_a_limit() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let spool = open(directory.path());
    let mut large = spool.begin().expect("the system allows it");
    large.append(&vec![0; (1 << 20) - 10]).expect("the system allows it");
    let mut small = spool.begin().expect("the system allows it");
    assert_eq!(small.append(&[0; 11]), Err(SpoolError::Full));
    drop(small);
    assert_eq!(spool.used(), (1 << 20) - 10);
    let whole = large.finish().expect("the system allows it");
    let mut small = spool.begin().expect("the system allows it");
    assert_eq!(small.append(&[0; 11]), Err(SpoolError::Full), "a whole packet takes room too");
    drop((whole, small));
    assert_eq!(spool.refused(), 2);
    assert_eq!(spooled(&spool, &[&[1; 11]]), vec![1; 11]);
    assert_eq!(spool.refused(), 2);
}

#[test]
fn packets_do_not_use_the_space_to_keep_free() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let options = SpoolOptions { keep_free: u64::MAX, ..OPTIONS };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let mut packet = spool.begin().expect("the system allows it");
    assert_eq!(packet.append(b"a"), Err(SpoolError::Full));
    assert_eq!(packet.append(b"a"), Err(SpoolError::Full), "as long as it is so");
    drop(packet);
    assert_eq!(spool.used(), 0);
}

/// An acknowledged payload may use most of the space that packets must leave free.
#[test]
fn kept_payloads_may_use_space_that_packets_leave_free() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let state = rustix::fs::statvfs(directory.path()).expect("the system allows it");
    let free = state.f_bavail * state.f_frsize;
    let options = SpoolOptions { bytes: 10, keep_free: free * 2, ..OPTIONS };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let mut kept = spool.begin_reserved(3000).expect("half of what is to stay free is there");
    for part in [&[7; 1000][..], &[7; 2000]] {
        kept.append(part).expect("it has its room");
    }
    let whole = kept.finish().expect("the system allows it");
    assert_eq!((&whole[..], spool.used()), (&[7; 3000][..], 3000));
    let mut packet = spool.begin().expect("the system allows it");
    assert_eq!(packet.append(b"a"), Err(SpoolError::Full), "not for those who can be refused");
    drop((whole, packet));
    assert_eq!((names(directory.path()), spool.used()), (vec![], 0));
}

/// Concurrent reservations count before anything of them is written.
#[test]
fn reservations_reduce_the_space_of_others() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let state = rustix::fs::statvfs(directory.path()).expect("the system allows it");
    let free = state.f_bavail * state.f_frsize;
    // A third of the free space may be used; each reserves a fifth of all.
    let options = SpoolOptions { keep_free: free / 3 * 2 * 4, ..OPTIONS };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let first = spool.begin_reserved(free / 5).expect("there is room for one");
    assert_eq!(spool.begin_reserved(free / 5).map(drop), Err(SpoolError::Full));
    drop(first);
    let mut whole = spool.begin_reserved(5000).expect("there is room again");
    whole.append(&[7; 5000]).expect("it has its room");
    let whole = whole.finish().expect("the system allows it");
    let second = spool.begin_reserved(free / 5).expect("no reservation is left");
    drop((whole, second));
    assert_eq!(spool.used(), 0);
}

/// The store may be on the same disk, and a full disk fails the store.
#[test]
fn kept_payloads_do_not_fill_the_disk() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let options = SpoolOptions { keep_free: u64::MAX, ..OPTIONS };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    assert_eq!(spool.begin_reserved(1).map(drop), Err(SpoolError::Full));
    assert_eq!((spool.used(), spool.refused()), (0, 0), "no packet is refused");
}

#[test]
fn without_any_bytes_nothing_large_is_received() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let options = SpoolOptions { bytes: 0, ..OPTIONS };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    assert_eq!(spool.begin().expect("the system allows it").append(b"a"), Err(SpoolError::Full));
}

#[test]
fn an_invalid_or_removed_directory_is_reported() {
    let directory = tempfile::tempdir().expect("the system allows it");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("the system allows it");
    let error = FileSpool::open(&file, OPTIONS).expect_err("it is refused").to_string();
    assert!(error.starts_with(&format!("large messages cannot be received in {} (", file.display())));
    assert!(!error.contains('\n') && error.ends_with("or name another"), "{error}");
    let spool = open(&directory.path().join("made"));
    fs::remove_dir(directory.path().join("made")).expect("the system allows it");
    assert_eq!(spool.begin().map(drop), Err(SpoolError::Failed(ErrorKind::NotFound)));
    assert_eq!(spool.begin_reserved(1).map(drop), Err(SpoolError::Failed(ErrorKind::NotFound)));
}

/// A large payload that is read from the tables is in the spool, or in the heap if the spool is full.
#[test]
fn a_stored_message_is_read_into_the_spool() {
    let directory = tempfile::tempdir().expect("the system allows it");
    for (keep_free, spooled) in [(0, true), (u64::MAX, false)] {
        let spool = FileSpool::open(directory.path(), SpoolOptions { keep_free, ..OPTIONS });
        let spool = Arc::new(spool.expect("the system allows it"));
        let disk = Disk::default();
        for payload in [vec![7; 5000], vec![7; 1000]] {
            let store =
                EmbeddedStore::open_on(disk.device(), disk.journal(), options()).expect("the disk is well");
            drop(open_session(&store));
            store.commit(queued_with(1, payload.clone().into())).wait().expect("the disk is well");
            drop(store);
            let mut store =
                EmbeddedStore::open_on(disk.device(), disk.journal(), options()).expect("the disk is well");
            store.set_spool(spool.clone());
            let stored = read(&store, 1).expect("the disk is well").expect("it is there");
            let now = Now { instant: Instant::now(), system: SystemTime::now() };
            let is_spooled = spooled && payload.len() > OPTIONS.threshold;
            assert_eq!(stored.live(now).is_spooled(), is_spooled);
            assert_eq!(spool.used(), if is_spooled { payload.len() as u64 } else { 0 });
            assert!(stored.payload() == &payload);
            store.commit(completed(1)).wait().expect("the disk is well");
        }
    }
}
