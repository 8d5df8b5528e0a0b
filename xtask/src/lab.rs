//! Test of the laboratory for `make test`: the selftest, and two experiments in short without privileges.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::build;

/// User ID of the account `nobody` on Debian, which has no privileges.
const UNPRIVILEGED: u32 = 65_534;
/// Machines of continuous integration are busy and noisy. Shapes do not depend on it; latencies are for quiet machines.
const LATENESS: &str = "250ms";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The braidmq binary; without it, one is built.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Runs the steps. False when one failed.
///
/// # Errors
/// Those of the system.
pub(crate) fn run(args: &Args) -> io::Result<bool> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build(&["braidmq"], false).map_err(io::Error::other)?.join("braidmq"),
    };
    // The unprivileged account cannot read the folder of the build.
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
    let binary = {
        let copy = folder.path().join("braidmq");
        fs::copy(&binary, &copy)?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        copy
    };
    let steps = [
        ("selftest", false, "selftest"),
        (
            "hol --quick, one stream and many, without privileges",
            true,
            "run hol --quick --variant quic-single --variant quic-multi --check --no-selftest --out hol",
        ),
        (
            "h1-or-h3 --quick, two versions without loss and with 30 %, without privileges",
            true,
            "run h1-or-h3 --quick --variant tls --variant h3 --profile a --profile c --check --no-selftest --out h1-or-h3",
        ),
    ];
    for (name, is_unprivileged, arguments) in steps {
        println!("--- lab: {name}");
        if !step(&binary, folder.path(), is_unprivileged, arguments)? {
            eprintln!("xtask lab: {name} failed");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs the laboratory once, as the unprivileged account if that is wanted and this process is root.
fn step(binary: &Path, folder: &Path, is_unprivileged: bool, arguments: &str) -> io::Result<bool> {
    let mut command = Command::new(binary);
    command.arg("lab").args(arguments.split(' ')).args(["--lateness", LATENESS]).current_dir(folder);
    // The owner of a new folder is the user of this process.
    let is_root = std::os::unix::fs::MetadataExt::uid(&fs::metadata(folder)?) == 0;
    if is_unprivileged && is_root {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    Ok(command.status()?.success())
}
