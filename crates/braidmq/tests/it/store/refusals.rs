use std::fs;
use std::path::Path;
use std::process::Command;

use braid_store::{EmbeddedStore, Options};

use super::{fed, filled, golden, names, refusal, refusal_of, said, store, text};

const COMMANDS: [&str; 3] = ["check", "stats", "export"];

#[test]
fn a_directory_without_a_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [missing, file] = ["missing", "file"].map(|name| directory.path().join(name));
    fs::write(&file, "").unwrap();
    for command in COMMANDS {
        for (place, part) in [
            (directory.path(), "there is no store at "),
            (&missing, "there is no store at "),
            (&file, "file cannot be a data directory (Not a directory"),
        ] {
            let (code, line) = refusal(&mut store(&[command], place));
            assert!(code == 2 && line.contains(part), "{command}: {line}");
        }
    }
    let (code, line) = refusal(store(&["import"], &file).arg(golden()));
    assert!(code == 2 && line.contains("file cannot be a data directory"), "{line}");
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn a_file_that_is_not_ours_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store.redb");
    fs::write(&file, "a foreign file").unwrap();
    for command in COMMANDS {
        let (code, line) = refusal(&mut store(&[command], directory.path()));
        assert!(code == 2 && line.contains("is not a store of braidmq"), "{line}");
    }
    let (code, line) = refusal(store(&["import"], directory.path()).arg(golden()));
    assert!(code == 2 && line.contains("is not a store of braidmq"), "{line}");
    assert_eq!(fs::read(&file).unwrap(), b"a foreign file");
}

#[test]
fn a_store_that_a_broker_has_open_is_refused() {
    let directory = filled();
    let open = EmbeddedStore::open(directory.path(), Options::default()).unwrap();
    for command in COMMANDS {
        let (code, line) = refusal(&mut store(&[command], directory.path()));
        assert!(code == 2 && line.ends_with("store.redb is in use: stop the broker first"), "{line}");
    }
    let (code, line) = refusal(store(&["import", "--replace"], directory.path()).arg(golden()));
    assert!(code == 2 && line.contains("is in use"), "{line}");
    drop(open);
    said(&mut store(&["check"], directory.path()));
}

#[test]
fn a_wrong_line_is_named_by_file_and_number() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup.jsonl");
    let place = directory.path().join("store");
    let golden = fs::read_to_string(golden()).unwrap();
    let lines: Vec<&str> = golden.lines().collect();
    let with = |at: usize, line: &str| {
        let mut lines = lines.clone();
        lines[at] = line;
        lines.join("\n")
    };
    for (text, code, part) in [
        (with(3, r#"{"type":"subscription","session":1"#), 1, "backup.jsonl:4: EOF while parsing"),
        (with(3, "subscriptions"), 1, "backup.jsonl:4: there is no JSON object"),
        (with(3, "\u{1b}[2J"), 1, "backup.jsonl:4: there is no JSON object"),
        (with(3, "{\"type\":\"\u{7f}\"}"), 1, "backup.jsonl:4: unknown variant `?`"),
        (
            golden.replace(r#"{\"user\":\"u\"}"#, "alice"),
            1,
            "backup.jsonl:3: the identity: the stored identity is not valid: expected value",
        ),
        (lines[..9].join("\n"), 1, "backup.jsonl:10: the end is missing"),
        (
            with(0, r#"{"type":"store","format":3,"next_session":1,"next_lsn":1}"#),
            2,
            "backup.jsonl has format 3",
        ),
        (String::new(), 1, "backup.jsonl:1: the end is missing"),
    ] {
        fs::write(&file, text).unwrap();
        let (found, line) = refusal(store(&["import"], &place).arg(&file));
        assert!(found == code && line.contains(part), "{part}: {line}");
        assert_eq!(names(&place), Vec::<String>::new());
    }
    let (code, line) = refusal_of(&fed(&mut store(&["import"], &place), b"{}\n"));
    assert!(code == 1 && line.contains("standard input:1: missing field `type`"), "{line}");
}

#[test]
fn a_store_is_not_exported_over_itself() {
    let directory = filled();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("store.redb", &link).unwrap();
    fs::write(directory.path().join("store.journal"), "").unwrap();
    for file in [directory.path().join("store.redb"), directory.path().join("store.journal"), link] {
        let (code, line) = refusal(store(&["export"], directory.path()).arg(&file));
        assert!(code == 2 && line.contains("that is the store itself"), "{line}");
    }
    said(&mut store(&["check"], directory.path()));
}

#[test]
fn unreadable_input_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (file, part) in [
        (directory.path().join("missing"), "missing: No such file or directory"),
        (directory.path().to_owned(), ": is a directory"),
    ] {
        let (code, line) = refusal(store(&["import"], directory.path()).arg(&file));
        assert!(code == 2 && line.contains("cannot open ") && line.contains(part), "{line}");
    }
    assert_eq!(names(directory.path()), Vec::<String>::new());
}

/// Runs a script with mounts of its own, as a user that may make them.
fn mounted(script: &str, directory: &Path) -> Option<(i32, String)> {
    let mounts = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-ec", command]);
        unshare
    };
    if !mounts("mount -t tmpfs tmpfs /mnt").status().is_ok_and(|status| status.success()) {
        eprintln!("left out: this user may not mount");
        return None;
    }
    let output = mounts(script)
        .env("BRAIDMQ", env!("CARGO_BIN_EXE_braidmq"))
        .env("DIRECTORY", directory)
        .env("GOLDEN", golden())
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    Some((output.status.code().unwrap(), said))
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let directory = filled();
    for command in ["check", "stats", "export", "import --replace $GOLDEN"] {
        let script = format!(
            "mount --bind $DIRECTORY $DIRECTORY; mount -o remount,bind,ro $DIRECTORY; \
             exec $BRAIDMQ store {command} --data-dir $DIRECTORY"
        );
        let Some((code, line)) = mounted(&script, directory.path()) else { return };
        assert!(code == 2 && line.contains("cannot be written"), "{command}: {line}");
    }
}

#[test]
fn a_full_disk_is_one_line_and_leaves_what_was() {
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=32k tmpfs $DIRECTORY; \
                  $BRAIDMQ store import --data-dir $DIRECTORY $GOLDEN && exit 9; code=$?; \
                  test -z \"$(ls $DIRECTORY)\" || exit 8; exit $code";
    let Some((code, line)) = mounted(script, directory.path()) else { return };
    assert!(code == 1 && line.contains("no space is left on the device of "), "{code}: {line}");
}
