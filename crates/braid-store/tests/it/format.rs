//! Every format that was ever released stays readable: `golden/format-N.redb` is a store that the version with that
//! format wrote, `golden/format-N.jsonl` what is in it.

use std::fs;
use std::path::PathBuf;

use braid_store::{EmbeddedStore, Options};

use crate::disk::Disk;
use crate::embedded::open;
use crate::example::{contents, fill};
use crate::offline::exported;

fn golden(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", name].iter().collect()
}

#[test]
fn format_1_stays_readable() {
    let disk = Disk::holding(fs::read(golden("format-1.redb")).unwrap());
    assert_eq!(exported(&disk), fs::read_to_string(golden("format-1.jsonl")).unwrap());
    let now = Disk::default();
    fill(&open(&now)).unwrap();
    assert_eq!(contents(&open(&disk)), contents(&open(&now)));
}

/// For a new format only: `cargo test -p braid-store --test it -- --ignored write_the_golden_store`.
#[test]
#[ignore = "writes files"]
fn write_the_golden_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), Options::default()).unwrap();
    fill(&store).unwrap();
    drop(store);
    let bytes = fs::read(directory.path().join("store.redb")).unwrap();
    fs::create_dir_all(golden("")).unwrap();
    fs::write(golden("format-1.redb"), &bytes).unwrap();
    fs::write(golden("format-1.jsonl"), exported(&Disk::holding(bytes))).unwrap();
}
