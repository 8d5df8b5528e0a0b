//! `[spool]`: where messages are received that do not belong into the heap.

use std::path::PathBuf;

use braid_store::spool::SpoolOptions;
use serde::{Deserialize, Serialize};

use super::Config;

/// Large messages are received into files, and mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SpoolConfig {
    /// PUBLISH packets of more bytes are spooled; from `mqtt.maximum_packet_size` on there is no spool.
    pub(crate) threshold: usize,
    /// Where the files are; `spool` in the data directory unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathBuf>,
    /// Bytes of all files together.
    pub(crate) bytes: u64,
    /// Bytes that the files leave free on their file system.
    pub(crate) keep_free: u64,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self { threshold: 1 << 20, directory: None, bytes: 128 << 30, keep_free: 256 << 20 }
    }
}

impl Config {
    /// Where the spool is and how it works; `None` when no packet is that large.
    pub(crate) fn spool(&self) -> Option<(PathBuf, SpoolOptions)> {
        let SpoolConfig { threshold, bytes, keep_free, .. } = self.spool;
        let directory = self.spool.directory.clone().unwrap_or_else(|| self.data_dir.join("spool"));
        let is_needed = threshold < self.mqtt.maximum_packet_size as usize;
        is_needed.then_some((directory, SpoolOptions { threshold, bytes, keep_free }))
    }
}
