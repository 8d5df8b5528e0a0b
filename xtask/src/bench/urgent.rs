//! `bench urgent`: hands over to `braid-bench`'s example, which needs broker and network in its own process.

use std::process::{Command, ExitCode};

/// Runs it in release with the arguments as they are.
///
/// # Errors
/// cargo cannot be started.
pub(super) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "braid-bench", "--example", "urgent", "--"])
        .args(arguments)
        .status();
    let status = ended.map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
