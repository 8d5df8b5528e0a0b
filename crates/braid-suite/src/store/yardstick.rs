//! Yardsticks of the disk, by the example `commit` of `braid-store`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The built example.
pub(crate) struct Yardstick {
    program: PathBuf,
}

/// Output of the example.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Figures {
    /// Messages per second, and the time until a message is durable.
    #[serde(flatten)]
    pub(crate) reached: Reached,
    /// Duration of one fdatasync.
    pub(crate) sync_p50_milliseconds: f64,
    pub(crate) sync_p99_milliseconds: f64,
}

/// Rate and latency of the publishers.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Reached {
    /// PUBACKs per second.
    pub(crate) rate: f64,
    /// From the write of a message to the read that brought its PUBACK.
    pub(crate) p50_milliseconds: f64,
    pub(crate) p99_milliseconds: f64,
}

impl Yardstick {
    /// Builds the example.
    ///
    /// # Errors
    /// cargo fails.
    pub(crate) fn build() -> Result<Self, String> {
        Ok(Self { program: build_example("commit")? })
    }

    /// One write of 4 KiB and one fdatasync at a time, in a file that grows.
    ///
    /// # Errors
    /// The example fails, for instance because the disk is full.
    pub(crate) fn raw(&self, directory: &Path) -> Result<Figures, String> {
        self.measure(directory, &["raw"])
    }

    /// A log of messages of `payload` bytes, `window` of which may be not yet durable.
    ///
    /// # Errors
    /// As [`raw`](Self::raw).
    pub(crate) fn log(&self, directory: &Path, window: u32, payload: usize) -> Result<Figures, String> {
        self.measure(directory, &["log", &window.to_string(), &payload.to_string()])
    }

    fn measure(&self, directory: &Path, arguments: &[&str]) -> Result<Figures, String> {
        let output = Command::new(&self.program).arg("--one").arg(directory).args(arguments).output();
        let output = output.map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        if !output.status.success() {
            return Err(format!("commit {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("commit {arguments:?}: {error}"))
    }
}

/// Builds an example of `braid-store` in release; it lies below this program.
///
/// # Errors
/// cargo fails.
pub(crate) fn build_example(name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "braid-store", "--example", name])
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !built.success() {
        return Err(format!("the example {name} of braid-store cannot be built"));
    }
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    Ok(own.with_file_name("examples").join(name))
}
