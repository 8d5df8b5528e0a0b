//! Every released format stays readable: `golden/format-N.redb` and `golden/format-N.journal` are a store that the
//! version with that format wrote and did not close, `golden/format-N.jsonl` is its content.

use std::fs;
use std::path::PathBuf;

use braid_store::{EmbeddedStore, OpenError};

use crate::disk::Disk;
use crate::embedded::{HOUR, open, options};
use crate::example::{contents, fill};
use crate::offline::{exported, import};

fn golden(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name].iter().collect()
}

fn golden_disk(format: u8) -> Disk {
    let read = |kind| fs::read(golden(&format!("format-{format}.{kind}"))).expect("it is committed");
    Disk::holding(read("redb"), read("journal"))
}

fn golden_export(format: u8) -> String {
    fs::read_to_string(golden(&format!("format-{format}.jsonl"))).expect("it is committed")
}

/// Sessions had no identity.
#[test]
fn format_1_stays_readable() {
    let in_format_2 = golden_export(1)
        .replace("\"format\":1", "\"format\":2")
        .replace("\"expiry\"", "\"identity\":null,\"expiry\"");
    assert_eq!(exported(&golden_disk(1)), in_format_2);
    let imported = Disk::default();
    import(&imported, &golden_export(1)).unwrap();
    assert_eq!(exported(&imported), in_format_2);
}

/// Its first retained messages had no publisher, and are read without.
#[test]
fn format_2_stays_readable() {
    assert_eq!(exported(&golden_disk(2)), golden_export(2));
    let now = Disk::default();
    fill(&open(&now)).unwrap();
    assert_eq!(contents(&open(&golden_disk(2))), contents(&open(&now)));
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
    fs::write(golden("format-2.redb"), disk.bytes()).unwrap();
    fs::write(golden("format-2.journal"), disk.journal_bytes()).unwrap();
    drop(store);
    fs::write(golden("format-2.jsonl"), exported(&golden_disk(2))).unwrap();
}
