use std::fs;
use std::path::{Path, PathBuf};

use redb::{Database, TableDefinition};

use super::{filled, refusal, said, store, text};
use crate::broker::braidmq;
use crate::serve::refusal_of;

const MESSAGES: TableDefinition<'_, &[u8; 8], &[u8]> = TableDefinition::new("message");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

fn database(directory: &Path) -> Database {
    Database::open(directory.join("store.redb")).unwrap()
}

#[test]
fn a_sound_store_is_said_to_be_so() {
    let directory = filled();
    assert!(
        said(&mut store(&["check"], directory.path()))
            .ends_with(" is sound: 22 rows, and all fit together.\n")
    );
}

#[test]
fn a_damage_is_told_with_what_it_means_and_what_to_do() {
    let directory = filled();
    let transaction = database(directory.path()).begin_write().unwrap();
    transaction.open_table(MESSAGES).unwrap().remove(&[0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
    for number in 100..121_u64 {
        transaction
            .open_table(MESSAGES)
            .unwrap()
            .insert(&number.to_be_bytes(), b"\x00\x01t".as_slice())
            .unwrap();
    }
    transaction.commit().unwrap();
    let output = store(&["check"], directory.path()).output().unwrap();
    let report = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()), "{report}");
    for part in [
        "is damaged: 23 problems in ",
        "  entry 1 of session 1: message 1 is not there\n",
        "  entry 1 of session 2: message 1 is not there\n    That means: a message that was acknowledged is lost.\n",
        "  and 1 more of this kind\n    That means: the message takes room",
        "What to do: ",
        "store import --data-dir",
    ] {
        assert!(report.contains(part), "{part} is not in\n{report}");
    }
}

#[test]
fn a_truncated_or_changed_file_is_refused_by_everything_that_reads() {
    let directory = filled();
    let file = directory.path().join("store.redb");
    let sound = fs::read(&file).unwrap();
    let mut changed = sound.clone();
    // A page behind those of the header, which hold the numbers of the last commit twice.
    let at = sound.windows(4).position(|window| window == b"four").unwrap();
    changed[at] ^= 1;
    for damaged in [&changed[..], &sound[..sound.len() / 2]] {
        for command in ["check", "stats", "export"] {
            fs::write(&file, damaged).unwrap();
            let (code, line) = refusal(&mut store(&[command], directory.path()));
            assert_eq!(code, 1, "{line}");
            assert!(line.contains("is damaged (") && line.contains("store import --replace"), "{line}");
        }
    }
}

#[test]
fn a_newer_store_is_refused() {
    let directory = filled();
    let transaction = database(directory.path()).begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", 3).unwrap();
    transaction.commit().unwrap();
    for command in ["check", "stats", "export"] {
        let (code, line) = refusal(&mut store(&[command], directory.path()));
        assert!(code == 2 && line.contains("has format 3") && line.contains("run a newer braidmq"), "{line}");
    }
}

/// The journal has the changes that the tables need, so no further check is possible.
#[test]
fn a_damaged_journal_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let golden: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../braid-store/tests/golden"].iter().collect();
    let mut journal = fs::read(golden.join("format-1.journal")).unwrap();
    journal[20] ^= 1;
    fs::write(directory.path().join("store.journal"), journal).unwrap();
    fs::copy(golden.join("format-1.redb"), directory.path().join("store.redb")).unwrap();
    for command in ["check", "stats", "export"] {
        let (code, line) = refusal(&mut store(&[command], directory.path()));
        assert_eq!(code, 1, "{line}");
        assert!(line.contains("store.journal is damaged (its header is not whole)"), "{line}");
        assert!(line.contains("move both the journal and the store beside it away"), "{line}");
    }
    let mut serve = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--data-dir"]);
    let (_, line) = refusal_of(serve.arg(directory.path()));
    assert!(line.contains("store.journal is damaged (") && !line.contains("store check"), "{line}");
}
