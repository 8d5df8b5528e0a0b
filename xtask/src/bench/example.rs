//! `bench bulk` and `bench urgent`: hand over to an example of `braid-bench`, which needs broker and network in its
//! own process.

use std::process::{Command, ExitCode};

/// Runs the example of this name in release with the arguments as they are.
///
/// # Errors
/// cargo cannot be started.
pub(super) fn run(name: &str, arguments: &[String]) -> Result<ExitCode, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "braid-bench", "--example", name, "--"])
        .args(arguments)
        .status();
    let status = ended.map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
