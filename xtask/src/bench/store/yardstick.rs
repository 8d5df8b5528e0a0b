//! What the disk itself can do, told by the example `commit` of `braid-store`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::example;

/// The example, built.
pub(super) struct Yardstick {
    program: PathBuf,
}

/// What it prints.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    /// Messages per second.
    pub(super) rate: f64,
    /// Of a message, until it is durable.
    pub(super) p50_milliseconds: f64,
    pub(super) p99_milliseconds: f64,
    /// Of one fdatasync.
    pub(super) sync_p50_milliseconds: f64,
    pub(super) sync_p99_milliseconds: f64,
}

impl Yardstick {
    /// Builds it.
    ///
    /// # Errors
    /// cargo fails.
    pub(super) fn build() -> Result<Self, String> {
        Ok(Self { program: example::build("commit")? })
    }

    /// One write of 4 KiB and one fdatasync at a time, in a file that grows.
    ///
    /// # Errors
    /// It fails, for instance because the disk is full.
    pub(super) fn raw(&self, directory: &Path) -> Result<Figures, String> {
        self.measure(directory, &["raw"])
    }

    /// A log of messages of `payload` bytes, of which `window` may wait to be durable.
    ///
    /// # Errors
    /// As [`raw`](Self::raw).
    pub(super) fn log(&self, directory: &Path, window: u32, payload: usize) -> Result<Figures, String> {
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
