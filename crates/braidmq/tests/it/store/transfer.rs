use std::fs;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use super::{fed, filled, golden, names, refusal, said, store, text};
use crate::broker::braidmq;

#[test]
fn a_store_goes_into_a_file_and_comes_back() {
    let (from, to) = (filled(), tempfile::tempdir().unwrap());
    let file = from.path().join("backup.jsonl");
    fs::write(&file, "an older one").unwrap();
    assert!(said(store(&["export"], from.path()).arg(&file)).starts_with("21 records are in "));
    assert_eq!(fs::read(&file).unwrap(), fs::read(golden()).unwrap());
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600,
        "only the owner reads messages"
    );
    assert_eq!(names(from.path()), ["backup.jsonl", "store.redb"]);
    said(store(&["import"], to.path()).arg(&file));
    assert_eq!(said(&mut store(&["export"], to.path())), fs::read_to_string(golden()).unwrap());
}

#[test]
fn a_store_goes_through_a_pipe() {
    let (from, to) = (filled(), tempfile::tempdir().unwrap());
    let records = said(&mut store(&["export", "-"], from.path()));
    let imported = fed(&mut store(&["import", "-"], to.path()), records.as_bytes());
    assert!(imported.status.success() && imported.stderr.is_empty(), "{}", text(&imported.stderr));
    assert_eq!(said(&mut store(&["export"], to.path())), records);
}

#[test]
fn an_existing_store_is_replaced_only_on_request() {
    let directory = filled();
    let before = said(&mut store(&["export"], directory.path()));
    let small = "{\"type\":\"store\",\"format\":2,\"next_session\":1,\"next_lsn\":1}\n{\"type\":\"end\",\"records\":1}\n";
    let file = directory.path().join("small.jsonl");
    fs::write(&file, small).unwrap();
    let (code, line) = refusal(store(&["import"], directory.path()).arg(&file));
    assert!(code == 2 && line.contains("--replace"), "{line}");
    assert_eq!(said(&mut store(&["export"], directory.path())), before);
    said(store(&["import", "--replace"], directory.path()).arg(&file));
    assert_eq!(said(&mut store(&["export"], directory.path())), small);
}

#[test]
fn a_damaged_store_is_replaced_by_a_backup() {
    let directory = filled();
    fs::write(directory.path().join("store.redb"), "what is left of it").unwrap();
    said(store(&["import", "--replace"], directory.path()).arg(golden()));
    assert_eq!(said(&mut store(&["export"], directory.path())), fs::read_to_string(golden()).unwrap());
    assert_eq!(names(directory.path()), ["store.redb"]);
}

#[test]
fn a_failed_export_is_one_line_and_leaves_the_older_backup() {
    let directory = filled();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = store(&["export"], directory.path()).stdout(Stdio::from(full)).output().unwrap();
    let line = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && line.contains("cannot write standard output: No space left"),
        "{line}"
    );
    let (code, line) = refusal(store(&["export"], directory.path()).arg("/dev/full"));
    assert!(code == 1 && line.contains("cannot write /dev/full: No space left"), "{line}");
    let nowhere = directory.path().join("nowhere/backup.jsonl");
    let (code, line) = refusal(store(&["export"], directory.path()).arg(&nowhere));
    assert_eq!(code, 2);
    assert!(line.ends_with("nowhere/backup.jsonl: No such file or directory (os error 2)"), "{line}");
}

#[test]
fn stats_are_a_table_and_json() {
    let directory = filled();
    let table = said(&mut store(&["stats"], directory.path()));
    for part in [
        "queued                      5",
        "oldest queued message: $a//é, 3 bytes, for a (connected to the last)",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    let json: Value =
        serde_json::from_str(&said(&mut store(&["stats", "--json"], directory.path()))).unwrap();
    for (key, value) in [("format", 2), ("sessions", 2), ("subscriptions", 3), ("queued", 5), ("inflight", 4)]
    {
        assert_eq!(json[key], value, "{key}");
    }
    for (key, value) in [("retained", 2), ("wills", 1), ("received", 1), ("messages", 4), ("opened", 1)] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["file_bytes"], fs::metadata(directory.path().join("store.redb")).unwrap().len());
    assert_eq!(json["largest_queues"][1]["away_since"], "2027-01-15T08:00:00Z");
}

#[test]
fn an_empty_store_has_stats() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("store.redb"), "").unwrap();
    assert!(said(&mut store(&["stats"], directory.path())).contains("format 0"));
    assert!(said(&mut store(&["check"], directory.path())).contains("is sound: 0 rows"));
}

#[test]
fn help_tells_exit_codes_and_what_to_type() {
    let help = said(&mut braidmq(&["store", "--help"]));
    for part in ["Exit codes:", "braidmq store export backup.jsonl", "Stop the broker first"] {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
}
