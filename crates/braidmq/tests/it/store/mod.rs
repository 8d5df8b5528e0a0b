//! `braidmq store` from outside.

mod damage;
mod refusals;
mod transfer;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::broker::braidmq;

/// Content of a store of the present format, as it is exported.
/// Export of the store's golden file, with an identity that a broker reads.
pub(crate) fn golden() -> PathBuf {
    static WRITTEN: OnceLock<PathBuf> = OnceLock::new();
    let written = WRITTEN.get_or_init(|| {
        let golden: PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "../braid-store/tests/golden/format-2.jsonl"].iter().collect();
        let text = fs::read_to_string(golden).unwrap();
        assert!(text.contains(r#""identity":"u""#));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.jsonl", std::process::id()));
        fs::write(&path, text.replace(r#""identity":"u""#, r#""identity":"{\"user\":\"u\"}""#)).unwrap();
        path
    });
    written.clone()
}

fn store(arguments: &[&str], directory: &Path) -> Command {
    let mut command = braidmq(&["store"]);
    command.args(arguments).arg("--data-dir").arg(directory).env_remove("BRAIDMQ_DATA_DIR");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Output of a successful command.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    text(&output.stdout)
}

/// Exit code and the only line of a failed command.
fn refusal_of(output: &Output) -> (i32, String) {
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code().unwrap(), said.trim_end().to_owned())
}

fn refusal(command: &mut Command) -> (i32, String) {
    refusal_of(&command.output().unwrap())
}

/// Runs a command with `input` on standard input.
fn fed(command: &mut Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command need not read all of it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// A data directory with a store in it.
fn filled() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    said(store(&["import"], directory.path()).arg(golden()));
    directory
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
