//! Data directories that `braidmq serve` refuses, and its error texts.

use std::fs;
use std::path::Path;
use std::process::Command;

use redb::{Database, TableDefinition};
use tempfile::TempDir;

use crate::broker::braidmq;
use crate::serve::{Running, refusal_of, start_command};

/// Listeners of the test: for the last one the broker creates a certificate in the data directory.
const LISTENERS: [&[&str]; 2] =
    [&["--tcp", "127.0.0.1:0"], &["--tcp", "127.0.0.1:0", "--tls", "127.0.0.1:0", "--quic", "127.0.0.1:0"]];

fn serve(directory: &Path) -> Command {
    serve_with(LISTENERS[0], directory)
}

fn serve_with(listeners: &[&str], directory: &Path) -> Command {
    let mut command = braidmq(&["serve"]);
    command.args(listeners).arg("--data-dir").arg(directory);
    command
}

/// Runs the broker with a file system of its own at `directory`, after `prepare` has run there.
fn serve_on(listeners: &[&str], directory: &Path, options: &str, prepare: &str) -> Command {
    const SCRIPT: &str = "mount -t tmpfs -o size=64k none \"$1\" && cd \"$1\" && eval \"$2\" && \
                          mount -o \"remount,$3\" \"$1\" && shift 3 && exec \"$@\"";
    let serve = serve_with(listeners, directory);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", SCRIPT, "sh"]);
    command.arg(directory).args([prepare, options]).arg(serve.get_program()).args(serve.get_args());
    command
}

fn refused(command: &mut Command) -> String {
    let (code, said) = refusal_of(command);
    assert_eq!(code, 2, "{said}");
    said
}

fn started(directory: &Path) -> Running {
    let (running, banner) = start_command(&mut serve(directory));
    assert!(banner.iter().any(|line| line.contains("before they are acknowledged")), "{banner:?}");
    running
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_data_directory_that_is_a_file_or_read_only_or_full_is_refused() {
    let directory = directory();
    let file = directory.path().join("file");
    fs::write(&file, "hello").unwrap();
    for listeners in LISTENERS {
        let said = refused(&mut serve_with(listeners, &file));
        assert!(
            said.contains("cannot be a data directory") && said.contains(file.to_str().unwrap()),
            "{said}"
        );
        let said = refused(&mut serve_on(listeners, directory.path(), "ro", ":"));
        assert!(said.contains("give the broker's user the right to"), "{said}");
        let fill = "! dd if=/dev/zero of=filler bs=1k 2>/dev/null";
        let said = refused(&mut serve_on(listeners, directory.path(), "rw", fill));
        assert!(said.contains("no space is left") && said.contains("make room and start again"), "{said}");
    }
}

/// Names of the files in the directory.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap_or_default())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_directory_that_is_refused_is_left_as_it_was() {
    let directory = directory();
    let file = directory.path().join("store.redb");
    fs::write(&file, "hello").unwrap();
    fs::write(directory.path().join("theirs"), "of another program").unwrap();
    let before = contents(directory.path());
    for listeners in LISTENERS {
        let said = refused(&mut serve_with(listeners, directory.path()));
        assert!(said.contains("is not a store of braidmq: move it away"), "{said}");
        assert_eq!(contents(directory.path()), before);
    }
    fs::remove_file(file).unwrap();
    let (running, _) = start_command(&mut serve_with(LISTENERS[1], directory.path()));
    let names: Vec<_> = contents(directory.path()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["cert.pem", "key.pem", "spool", "store.journal", "store.redb", "theirs"]);
    drop(running);
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let directory = directory();
    let first = started(directory.path());
    for listeners in LISTENERS {
        let said = refused(&mut serve_with(listeners, directory.path()));
        assert!(said.contains("open already: stop the other broker"), "{said}");
    }
    drop(first);
    started(directory.path());
}

#[test]
fn its_store_is_foreign_newer_or_damaged() {
    let directory = directory();
    let file = directory.path().join("store.redb");
    fs::write(&file, "hello").unwrap();
    let said = refused(&mut serve(directory.path()));
    assert!(said.contains("is not a store of braidmq: move it away"), "{said}");
    fs::remove_file(&file).unwrap();

    // In several places: damage within the last commit alone looks like a torn commit, and the previous one is used.
    for _ in 0..3 {
        drop(started(directory.path()));
    }
    let whole = fs::read(&file).unwrap();
    let database = Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
    transaction.open_table(meta).unwrap().insert("format", 99).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let said = refused(&mut serve(directory.path()));
    assert!(said.contains("has format 99") && said.contains("run a newer braidmq"), "{said}");

    // One row, in each page with a present or an earlier copy of it.
    let rows = whole.windows(6).enumerate().filter(|(_, bytes)| bytes == b"format");
    let mut damaged = whole.clone();
    rows.for_each(|(at, _)| damaged[at] ^= 1);
    assert_ne!(damaged, whole);
    fs::write(&file, damaged).unwrap();
    let said = refused(&mut serve(directory.path()));
    let check = format!("braidmq store check --data-dir {}", directory.path().display());
    assert!(said.contains("is damaged") && said.contains(&format!("`{check}`")), "{said}");
    let mut words = check.split(' ').skip(1);
    let checked = Command::new(env!("CARGO_BIN_EXE_braidmq")).args(&mut words).output().unwrap();
    let checked = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.contains("is damaged"), "the advised command works: {checked}");
    fs::write(&file, whole).unwrap();
    started(directory.path());
}

#[test]
fn the_durability_is_printed() {
    let directory = directory();
    for (durability, line) in [
        ("async", "a crash may lose the last 70 ms"),
        ("memory", "they end with this process"),
        ("sync", "before they are acknowledged"),
    ] {
        let mut command = serve(directory.path());
        command.args([
            "--set",
            "store.async_window_ms=70",
            "--set",
            &format!("store.durability={durability}"),
        ]);
        let (running, banner) = start_command(&mut command);
        assert!(banner.iter().any(|said| said.contains(line)), "{banner:?}");
        drop(running);
        for name in ["store.redb", "store.journal"] {
            let is_kept = fs::remove_file(directory.path().join(name)).is_ok();
            assert_eq!(is_kept, durability != "memory", "{name}");
        }
    }
}
