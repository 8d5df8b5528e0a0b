//! Examples of `braid-store`: this program itself knows nothing of stores.

use std::path::PathBuf;
use std::process::Command;

/// Builds the example in release, as this program was; it lies beside it.
///
/// # Errors
/// cargo fails.
pub(super) fn build(name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "braid-store", "--example", name])
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the example {name} of braid-store cannot be built"));
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let program = own.with_file_name("examples").join(name);
    if program.is_file() { Ok(program) } else { Err(format!("{} was not built", program.display())) }
}
