//! Every released format stays readable: `golden/format-N.redb` and `golden/format-N.journal` are a store that the
//! version with that format wrote and did not close, `golden/format-N.jsonl` is its content.

use std::fs;
use std::path::PathBuf;

use braid_store::{EmbeddedStore, OpenError};

use crate::disk::Disk;
use crate::embedded::{HOUR, open, options};
use crate::example::{contents, fill};
use crate::offline::exported;

fn golden(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name].iter().collect()
}

fn golden_disk() -> Disk {
    let read = |name| fs::read(golden(name)).expect("it is committed");
    Disk::holding(read("format-1.redb"), read("format-1.journal"))
}

#[test]
fn format_1_stays_readable() {
    assert_eq!(exported(&golden_disk()), fs::read_to_string(golden("format-1.jsonl")).unwrap());
    let now = Disk::default();
    fill(&open(&now)).unwrap();
    assert_eq!(contents(&open(&golden_disk())), contents(&open(&now)));
}

/// All of its content is in the journal and none in the tables.
#[test]
fn the_golden_store_has_a_journal() {
    let read = |name| fs::read(golden(name)).expect("it is committed");
    let without = Disk::holding(read("format-1.redb"), Vec::new());
    let error = EmbeddedStore::open_on(without.device(), without.journal(), options()).unwrap_err();
    assert!(matches!(error, OpenError::JournalMissing { .. }), "{error}");
}

/// For a new format only: `cargo test -p braid-store --test it -- --ignored write_the_golden_store`.
#[test]
#[ignore = "writes files"]
fn write_the_golden_store() {
    let disk = Disk::default();
    let mut options = options();
    options.checkpoint = HOUR;
    let store = EmbeddedStore::open_on(disk.device(), disk.journal(), options).unwrap();
    fill(&store).unwrap();
    fs::create_dir_all(golden("")).unwrap();
    fs::write(golden("format-1.redb"), disk.bytes()).unwrap();
    fs::write(golden("format-1.journal"), disk.journal_bytes()).unwrap();
    drop(store);
    fs::write(golden("format-1.jsonl"), exported(&golden_disk())).unwrap();
}
