//! Release files: the binary without symbols, and its symbols in a file of their own.

use std::path::Path;
use std::process::Command;

use crate::tree;

/// Cargo profile of the release with symbols, in the root `Cargo.toml`.
const PROFILE: &str = "symbols";

#[derive(clap::Args)]
pub(crate) struct Args {}

/// Builds `target/dist/braidmq`, which is stripped, and `target/dist/braidmq.debug`, where debuggers and `perf` find
/// its symbols.
///
/// # Errors
/// A step failed.
pub(crate) fn run(_: &Args) -> Result<bool, String> {
    let root = tree::root();
    let built = root.join("target").join(PROFILE).join("braidmq");
    let folder = root.join("target/dist");
    let (binary, symbols) = (folder.join("braidmq"), folder.join("braidmq.debug"));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let build = ["build", "--package", "braidmq", "--profile", PROFILE];
    step(Command::new("cargo").current_dir(&root).args(build))?;
    step(Command::new("objcopy").arg("--only-keep-debug").args([&built, &symbols]))?;
    step(Command::new("objcopy").arg("--strip-all").args([&built, &binary]))?;
    // The link holds a checksum of the symbols, so that debuggers refuse those of another build.
    step(
        Command::new("objcopy").current_dir(&folder).args(["--add-gnu-debuglink=braidmq.debug", "braidmq"]),
    )?;
    println!("{}\n{}", listed(&binary)?, listed(&symbols)?);
    Ok(true)
}

fn step(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => {
            Err(format!("cannot start {name}: {error}; it is in the Debian package build-essential"))
        }
    }
}

fn listed(file: &Path) -> Result<String, String> {
    let metadata = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(format!("{:>6.1} MB  {}", metadata.len() as f64 / 1e6, file.display()))
}
