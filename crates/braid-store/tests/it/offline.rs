use braid_store::{EmbeddedStore, Image, OfflineStore, OpenError, Options, Store, TransferError};
use redb::{Database, TableDefinition};

use crate::disk::Disk;
use crate::embedded::{open, options};
use crate::example::{contents, fill, queue, queued};

fn filled() -> Disk {
    let disk = Disk::default();
    fill(&open(&disk)).expect("the disk is well");
    disk
}

pub(crate) fn offline(disk: &Disk) -> OfflineStore {
    OfflineStore::open_on(disk.device(), options()).expect("the disk is well")
}

pub(crate) fn exported(disk: &Disk) -> String {
    let mut text = Vec::new();
    let records = offline(disk).export(&mut text).expect("memory takes everything");
    let text = String::from_utf8(text).expect("JSON is text");
    assert_eq!(text.lines().count() as u64, records);
    text
}

fn import(disk: &Disk, text: &str) -> Result<u64, TransferError> {
    offline(disk).import(&mut text.as_bytes())
}

#[test]
fn what_is_exported_and_imported_is_equal() {
    let disk = filled();
    let text = exported(&disk);
    let copy = Disk::default();
    assert_eq!(import(&copy, &text), Ok(text.lines().count() as u64));
    assert_eq!(exported(&copy), text);
    let (original, copy) = (open(&disk), open(&copy));
    let expected = contents(&original);
    assert_eq!(contents(&copy), expected);
    assert_eq!(expected.0.sessions.len(), 2);
    assert!(expected.1[..4].iter().all(Option::is_some));
}

#[test]
fn an_empty_store_is_exported_and_imported() {
    let disk = Disk::default();
    drop(open(&disk));
    let text = exported(&disk);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(import(&Disk::default(), &text), Ok(2));
}

#[test]
fn only_an_empty_store_takes_an_import() {
    let (disk, text) = (filled(), exported(&filled()));
    let error = import(&disk, &text).unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "{error}");
    assert_eq!(exported(&disk), text);
}

#[test]
fn an_import_that_ends_too_early_leaves_nothing() {
    let text = exported(&filled());
    let disk = Disk::default();
    let lines: Vec<&str> = text.lines().collect();
    for count in 0..lines.len() {
        let error = import(&disk, &lines[..count].join("\n")).unwrap_err();
        let expected = count as u64 + 1;
        assert!(matches!(error, TransferError::Line { line, .. } if line == expected), "{count}: {error}");
    }
    assert_eq!(import(&disk, &text), Ok(lines.len() as u64), "the store is still empty");
}

#[test]
fn no_line_may_be_missing_or_twice() {
    let text = exported(&filled());
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() {
        let mut without = lines.clone();
        without.remove(at);
        let mut twice = lines.clone();
        twice.insert(at, lines[at]);
        for lines in [without, twice] {
            // What follows the end is not read.
            if lines.last() == lines.get(lines.len().wrapping_sub(2)) {
                continue;
            }
            let error = import(&Disk::default(), &lines.join("\n")).unwrap_err();
            assert!(matches!(error, TransferError::Line { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}

#[test]
fn a_wrong_line_is_named() {
    let good = r#"{"type":"store","format":1,"next_session":1,"next_lsn":1}"#;
    let session = r#"{"type":"session","session":1,"client_id":"a","expiry":1,"parked_at":null}"#;
    for (lines, line, what) in [
        (vec!["{"], 1, "EOF"),
        (vec![good, "{}"], 2, "type"),
        (vec![session], 1, "first record"),
        (vec![good, r#"{"type":"received","session":1,"packet_id":1}"#], 2, "session is not there"),
        (vec![good, session, r#"{"type":"received","session":1,"packet_id":0}"#], 3, "cannot be 0"),
        (vec![good, session, session], 3, "twice"),
        (vec![good, r#"{"type":"retained","message":4}"#], 2, "message is not there"),
        (
            vec![
                good,
                r##"{"type":"message","lsn":1,"content":{"topic":"#","qos":1,"retain":false,"payload":""}}"##,
            ],
            2,
            "topic name",
        ),
        (
            vec![
                good,
                r#"{"type":"message","lsn":1,"content":{"topic":"t","qos":1,"retain":false,"payload_hex":"f"}}"#,
            ],
            2,
            "pairs",
        ),
    ] {
        let error = import(&Disk::default(), &lines.join("\n")).unwrap_err();
        let TransferError::Line { line: found, reason } = &error else { panic!("{error}") };
        assert!(*found == line && reason.contains(what), "{error}");
    }
    let newer = import(&Disk::default(), &good.replace("\"format\":1", "\"format\":2"));
    assert_eq!(newer, Err(TransferError::Newer { found: 2, known: 1 }));
}

#[test]
fn a_store_that_is_well_has_no_problems() {
    let disk = filled();
    let check = offline(&disk).check().unwrap();
    assert_eq!(check.problems, Vec::<String>::new());
    let stats = offline(&disk).stats().unwrap();
    let counted = (stats.sessions, stats.subscriptions, stats.wills, stats.received);
    assert_eq!(counted, (2, 3, 1, 1));
    assert_eq!((stats.queued, stats.inflight, stats.retained, stats.messages), (5, 4, 2, 4));
    assert_eq!(check.rows, 2 + 3 + 1 + 1 + 5 + 4 + 2 + 4);
    assert_eq!((stats.format, stats.opens), (1, 1));
    assert!(stats.used > 0 && stats.length >= stats.used);
}

/// Takes the last row out of a table, behind the store's back.
fn without_a_row_of(name: &str) -> Disk {
    let disk = filled();
    let database = Database::builder().create_with_backend(disk.device()).expect("the disk is well");
    let transaction = database.begin_write().expect("nobody else writes");
    let removed = match name {
        "session" | "message" => {
            let table = TableDefinition::<&[u8; 8], &[u8]>::new(name);
            let mut table = transaction.open_table(table).expect("it is there");
            table.pop_last().map(|row| row.is_some())
        }
        _ => {
            let table = TableDefinition::<&[u8; 16], &[u8]>::new(name);
            let mut table = transaction.open_table(table).expect("it is there");
            table.pop_last().map(|row| row.is_some())
        }
    };
    assert!(removed.expect("it can be changed"));
    transaction.commit().expect("the disk is well");
    disk
}

#[test]
fn what_belongs_to_nothing_is_found_and_refused() {
    for name in ["session", "message", "queue"] {
        let disk = without_a_row_of(name);
        let problems = offline(&disk).check().unwrap().problems;
        assert!(!problems.is_empty(), "{name}");
        let error = EmbeddedStore::open_on(disk.device(), options()).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{name}: {error}");
    }
}

#[test]
fn looking_for_a_store_makes_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nothing");
    let error = OfflineStore::open(&path, Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_store_goes_from_directory_to_directory() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = EmbeddedStore::open(from.path(), Options::default()).unwrap();
    fill(&store).unwrap();
    assert!(matches!(OfflineStore::open(from.path(), Options::default()), Err(OpenError::InUse { .. })));
    drop(store);
    let mut text = Vec::new();
    OfflineStore::open(from.path(), Options::default()).unwrap().export(&mut text).unwrap();
    OfflineStore::create(to.path(), Options::default()).unwrap().import(&mut &*text).unwrap();
    let store = EmbeddedStore::open(to.path(), Options::default()).unwrap();
    store_goes_on(&store);
}

/// New numbers are behind everything that came along.
fn store_goes_on(store: &EmbeddedStore) {
    let next = store.recover(&mut Image::default()).expect("it can be read");
    assert!(next.lsn.value() > 6 && next.session.value() > 2, "{next:?}");
    assert_eq!(store.commit(queued(next.lsn.value())).wait(), Ok(()));
    assert_eq!(queue(store).last(), Some(&next.lsn.value()));
}
