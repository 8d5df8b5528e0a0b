//! Search for `nats-server`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use braid_cluster::{OLDEST, Version};

/// Name of the program in the folders of `PATH`.
const NAME: &str = "nats-server";

/// Path at which `make nats-server` of the sources installs it.
const INSTALLED: &str = "./.peers/bin/nats-server";

/// Time for the program to print its version.
const ANSWER: Duration = Duration::from_secs(10);

/// Time between two looks at a program that is to end.
const LOOK: Duration = Duration::from_millis(5);

/// Program with a version that the cluster needs: the given one, or else the first that fits in `PATH` and at
/// `./.peers/bin/nats-server`.
///
/// # Errors
/// There is none, or it is too old: one line that says how to install it.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(given) = given {
        return check(given).map_err(|problem| format!("--nats-server {problem}"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let candidates = folders.map(|folder| folder.join(NAME)).chain([PathBuf::from(INSTALLED)]);
    choose(candidates.filter(|candidate| candidate.is_file()))
}

fn choose(candidates: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf, String> {
    let mut problem = None;
    for candidate in candidates {
        match check(&candidate) {
            Ok(program) => return Ok(program),
            Err(error) => drop(problem.get_or_insert(error)),
        }
    }
    Err(problem.unwrap_or_else(|| {
        format!(
            "the demo needs nats-server {OLDEST} or later, and there is none in PATH or at {INSTALLED}: {}, or name it by \
             --nats-server PATH",
            install()
        )
    }))
}

fn install() -> String {
    format!(
        "install it by `go install github.com/nats-io/nats-server/v2@v{OLDEST}` (into ~/go/bin), from a package of \
         https://github.com/nats-io/nats-server/releases, or by `make nats-server` in the sources of braidmq"
    )
}

/// Absolute path of a program whose version is new enough.
fn check(program: &Path) -> Result<PathBuf, String> {
    let shown = program.display();
    // A name without a folder would be looked up in PATH.
    let absolute = program.canonicalize().map_err(|error| format!("{shown}: {error}: {}", install()))?;
    let text = version_text(&absolute).map_err(|error| format!("{shown}: does not run: {error}"))?;
    let version = text.lines().next().and_then(|line| line.strip_prefix("nats-server: v"));
    let Some(version) = version.and_then(|version| Version::parse(version.trim())) else {
        return Err(format!("{shown}: is no nats-server: `nats-server --version` prints another text"));
    };
    if version < OLDEST {
        return Err(format!(
            "{shown}: is nats-server {version}, and the demo needs {OLDEST} or later: {}",
            install()
        ));
    }
    Ok(absolute)
}

fn version_text(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let give_up = Instant::now() + ANSWER;
    while child.try_wait()?.is_none() {
        if Instant::now() >= give_up {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("it does not print its version"));
        }
        thread::sleep(LOOK);
    }
    let mut text = String::new();
    // A pipe holds 64 KiB: more is of another program.
    child.stdout.take().map(|out| out.take(4096).read_to_string(&mut text)).transpose()?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that prints a text.
    fn program(dir: &Path, name: &str, prints: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{prints}'\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_version_decides() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for (prints, expected) in [
            ("nats-server: v2.15.2", None),
            ("nats-server: v3.0.0-RC.1", None),
            (
                "nats-server: v2.15.1",
                Some("is nats-server 2.15.1, and the demo needs 2.15.2 or later: install"),
            ),
            ("nats-server: v2", Some("is no nats-server")),
            ("redis 7", Some("is no nats-server")),
            ("", Some("is no nats-server")),
        ] {
            let path = program(&dir, "server", prints);
            match (find(Some(&path)), expected) {
                (Ok(found), None) => assert_eq!(found, path),
                (Err(error), Some(expected)) => {
                    let begin = format!("--nats-server {}: {expected}", path.display());
                    assert!(error.starts_with(&begin) && !error.contains('\n'), "{error}");
                }
                (found, expected) => panic!("{prints}: {found:?}, {expected:?}"),
            }
        }
        fs::set_permissions(dir.join("server"), fs::Permissions::from_mode(0o644)).unwrap();
        for path in [dir.join("server"), dir.clone(), dir.join("none")] {
            let error = find(Some(&path)).unwrap_err();
            assert!(error.starts_with(&format!("--nats-server {}: ", path.display())), "{error}");
        }
    }

    #[test]
    fn the_first_that_fits_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let old = program(&dir, "old", "nats-server: v2.9.0");
        let older = program(&dir, "older", "nats-server: v2.8.0");
        let new = program(&dir, "new", "nats-server: v2.16.0");
        assert_eq!(choose([old.clone(), new.clone()]).unwrap(), new);
        assert!(choose([old, older]).unwrap_err().contains("/old: is nats-server 2.9.0"));
        let error = choose([]).unwrap_err();
        for part in [
            "2.15.2 or later",
            "./.peers/bin/nats-server",
            "go install github.com/nats-io/nats-server/v2@v2.15.2",
        ] {
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }
}
