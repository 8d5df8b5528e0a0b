//! The chores as they are run: a folder, a command, its lines and its exit code.

mod spec;
mod tidy;

use std::path::Path;
use std::process::Command;

/// Writes `files` below a fresh folder.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("make the folder");
        std::fs::write(path, text).expect("write the file");
    }
    folder
}

/// Runs `cargo xtask ARGUMENTS --root ROOT`: what it printed, its errors, its exit code.
fn xtask(root: &Path, arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(arguments)
        .arg("--root")
        .arg(root)
        .output()
        .expect("xtask runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.code())
}
