//! `[store]`: what outlives the broker's process.

use std::time::Duration;

use braid_store::{Durability, Options};
use serde::{Deserialize, Serialize};

/// What is kept in the data directory, and when it is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreConfig {
    /// When something is acknowledged.
    pub(crate) durability: DurabilityConfig,
    /// Milliseconds of what was acknowledged that a crash may cost with `async`: while the disk is slower, acknowledgements
    /// wait.
    pub(crate) async_window_ms: u64,
    /// Bytes of the store's file that are kept in memory.
    pub(crate) cache_bytes: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        let cache_bytes = Options::default().cache;
        Self { durability: DurabilityConfig::default(), async_window_ms: 100, cache_bytes }
    }
}

/// When something is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityConfig {
    /// When the disk has it.
    #[default]
    Sync,
    /// When it is on its way to the disk.
    Async,
    /// At once, and nothing outlives the process.
    Memory,
}

impl StoreConfig {
    /// What the store in the data directory is told; `None` when there is none.
    pub(crate) fn options(&self) -> Option<Options> {
        let durability = match self.durability {
            DurabilityConfig::Sync => Durability::Sync,
            DurabilityConfig::Async => {
                Durability::Async { at_risk: Duration::from_millis(self.async_window_ms) }
            }
            DurabilityConfig::Memory => return None,
        };
        let mut options = Options::default();
        (options.durability, options.cache) = (durability, self.cache_bytes);
        Some(options)
    }
}
