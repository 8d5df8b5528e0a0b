//! Defects of a data directory, and the errors of opening it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use braid_store::{EmbeddedStore, OfflineStore, OpenError, Options, RecoveredState, Store};
use redb::{Database, TableDefinition};
use tempfile::TempDir;

use crate::disk::Disk;
use crate::embedded::{open, options};
use crate::example::{open_session, queue, queued};

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn file(directory: &Path) -> std::path::PathBuf {
    directory.join("store.redb")
}

fn refused(directory: &Path) -> OpenError {
    let error = EmbeddedStore::open(directory, Options::default()).expect_err("it is refused");
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    error
}

#[test]
fn a_store_in_a_directory_outlives_its_value() {
    let directory = directory();
    let deeper = directory.path().join("made/for/it");
    for number in 1..=3 {
        let store = EmbeddedStore::open(&deeper, Options::default()).unwrap();
        if number == 1 {
            open_session(&store).unwrap();
        }
        store.commit(queued(number)).wait().unwrap();
    }
    let store = EmbeddedStore::open(&deeper, Options::default()).unwrap();
    assert_eq!(queue(&store), [1, 2, 3]);
}

#[test]
fn a_store_is_opened_once() {
    let directory = directory();
    let store = EmbeddedStore::open(directory.path(), Options::default()).unwrap();
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&*directory.path().to_string_lossy()), "{error}");
    drop(store);
    EmbeddedStore::open(directory.path(), Options::default()).unwrap();
}

#[test]
fn a_file_is_no_data_directory() {
    let directory = directory();
    let path = directory.path().join("file");
    fs::write(&path, "hello").unwrap();
    assert!(matches!(refused(&path), OpenError::Directory { .. }));
    assert!(matches!(refused(&path.join("below")), OpenError::Directory { .. }));
    assert_eq!(fs::read(&path).unwrap(), b"hello");
}

#[test]
fn other_kinds_of_files_are_refused() {
    let directory = directory();
    let path = file(directory.path());
    let mut expected = vec![];
    std::os::unix::fs::symlink(directory.path().join("nothing"), &path).unwrap();
    expected.push((refused(directory.path()), "a link to nothing"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    expected.push((refused(directory.path()), "a directory"));
    fs::remove_dir(&path).unwrap();
    // A socket, since a FIFO could be opened.
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    expected.push((refused(directory.path()), "not a regular file"));
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    expected.push((refused(directory.path()), "not a regular file"));
    expected
        .push((OfflineStore::open(directory.path(), Options::default()).unwrap_err(), "not a regular file"));
    for (error, what) in expected {
        assert!(matches!(error, OpenError::NotAFile { what: found, .. } if found == what), "{what}: {error}");
    }
    // A link to a file is accepted.
    fs::remove_file(&path).unwrap();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
    drop(EmbeddedStore::open(directory.path(), Options::default()).unwrap());
    assert!(fs::metadata(elsewhere.path()).unwrap().len() > 0);
}

#[test]
fn foreign_files_are_left_alone() {
    let directory = directory();
    let path = file(directory.path());
    for text in ["hello", &"hello".repeat(100_000)] {
        fs::write(&path, text).unwrap();
        let error = refused(directory.path());
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), text.as_bytes());
    }
}

#[test]
fn a_database_of_another_program_is_refused() {
    let directory = directory();
    let database = Database::create(file(directory.path())).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u64, u64>::new("theirs")).unwrap().insert(1, 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
}

fn with_format(directory: &Path, format: u64) -> Result<(), redb::Error> {
    let database = Database::create(file(directory))?;
    let transaction = database.begin_write()?;
    transaction.open_table(TableDefinition::<&str, u64>::new("meta"))?.insert("format", format)?;
    Ok(transaction.commit()?)
}

#[test]
fn a_newer_format_is_refused() {
    let directory = directory();
    drop(EmbeddedStore::open(directory.path(), Options::default()).unwrap());
    with_format(directory.path(), 3).unwrap();
    let error = refused(directory.path());
    assert!(matches!(error, OpenError::Newer { found: 3, .. }), "{error}");
    assert!(error.to_string().contains("run a newer braidmq"), "{error}");
    with_format(directory.path(), 1).unwrap();
    EmbeddedStore::open(directory.path(), Options::default()).unwrap();
}

/// Opens tables that may be damaged: refused with a remedy, or complete.
fn open_damaged(tables: Vec<u8>, intact: &RecoveredState, what: &str) -> bool {
    let disk = Disk::holding(tables, Vec::new());
    match EmbeddedStore::open_on(disk.device(), disk.journal(), options()) {
        Ok(store) => {
            let mut image = RecoveredState::default();
            store.recover(&mut image).expect(what);
            for (id, session) in &mut image.sessions {
                session.claim = intact.sessions[id].claim;
            }
            assert_eq!(image, *intact, "{what}");
            false
        }
        Err(error) => {
            assert!(
                matches!(error, OpenError::Damaged { .. } | OpenError::Foreign { .. }),
                "{what}: {error}"
            );
            true
        }
    }
}

fn stored() -> (Vec<u8>, RecoveredState) {
    let disk = Disk::default();
    let store = open(&disk);
    open_session(&store).expect("the disk is well");
    for number in 1..=300 {
        drop(store.commit(queued(number)));
    }
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("the disk is well");
    drop(store);
    (disk.bytes(), image)
}

#[test]
fn a_damaged_file_is_refused() {
    let (bytes, intact) = stored();
    assert!(!open_damaged(bytes.clone(), &intact, "as it was"));
    let mut refusals = 0;
    for at in (0..bytes.len()).step_by(509) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        refusals += u32::from(open_damaged(damaged, &intact, &format!("byte {at}")));
    }
    assert!(refusals > 20, "{refusals}");
}

#[test]
fn a_truncated_file_is_refused() {
    let (bytes, intact) = stored();
    for length in [1, 100, 4096, bytes.len() / 2, bytes.len() - 4096] {
        assert!(open_damaged(bytes[..length].to_vec(), &intact, &format!("{length} bytes")), "{length}");
    }
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused() {
    // /proc refuses files even from the super-user.
    for path in ["/proc/braidmq", "/proc"] {
        let error = refused(Path::new(path));
        assert!(matches!(error, OpenError::Directory { .. } | OpenError::NotWritable { .. }), "{error}");
        assert!(error.to_string().contains(path), "{error}");
    }
    assert_eq!(fs::metadata("/proc/braidmq").unwrap_err().kind(), ErrorKind::NotFound);
}
