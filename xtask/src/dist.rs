//! Release files: the binary without symbols, its symbols in a file of their own, and a Debian package.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tree;

mod notices;
mod package;
mod unit;

/// Cargo profile of the release with symbols, in the root `Cargo.toml`.
const PROFILE: &str = "symbols";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Package this binary, and build none.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// Builds the release files in `target/dist`: the binary, its symbols, and a Debian package of the binary and its
/// systemd unit, whose exposure is printed.
///
/// # Errors
/// A step failed.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    let root = tree::root();
    let folder = root.join("target/dist");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build(&root, &folder)?,
    };
    let package = package::build(&root, &binary, &notices::text(&root)?, &folder)?;
    println!("{}", listed(&package)?);
    println!("exposure of the unit by systemd-analyze: {:.1} of 10", unit::exposure(&root)?);
    Ok(true)
}

/// Builds `braidmq`, which is stripped, and `braidmq.debug`, where debuggers and `perf` find its symbols.
fn build(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let built = root.join("target").join(PROFILE).join("braidmq");
    let (binary, symbols) = (folder.join("braidmq"), folder.join("braidmq.debug"));
    // The environment may name another build directory, where the next steps would not find the binary.
    let build = ["build", "--package", "braidmq", "--profile", PROFILE, "--target-dir", "target"];
    output(Command::new("cargo").current_dir(root).args(build).stderr(Stdio::inherit()))?;
    output(Command::new("objcopy").arg("--only-keep-debug").args([&built, &symbols]))?;
    output(Command::new("objcopy").arg("--strip-all").args([&built, &binary]))?;
    // The link holds a checksum of the symbols, so that debuggers refuse those of another build.
    output(
        Command::new("objcopy").current_dir(folder).args(["--add-gnu-debuglink=braidmq.debug", "braidmq"]),
    )?;
    println!("{}\n{}", listed(&binary)?, listed(&symbols)?);
    Ok(binary)
}

/// Runs a program and returns its standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| {
        format!("cannot start {name}: {error}; the Debian packages build-essential and systemd have it")
    })?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} failed ({}): {}", output.status, reason.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
}

fn listed(file: &Path) -> Result<String, String> {
    let metadata = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(format!("{:>6.1} MB  {}", metadata.len() as f64 / 1e6, file.display()))
}
