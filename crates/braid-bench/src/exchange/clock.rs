use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// When a run began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    at: Instant,
    unix_micros: u64,
}

impl Started {
    pub(super) fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_micros = u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX);
        Self { at: Instant::now(), unix_micros }
    }

    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Microseconds since the Unix epoch.
    pub(super) fn unix_micros(&self) -> u64 {
        self.unix_micros
    }

    /// Seconds since then.
    pub(super) fn seconds(&self) -> f64 {
        self.at.elapsed().as_secs_f64()
    }

    /// Whole seconds since then.
    pub(super) fn second(&self) -> usize {
        usize::try_from(self.at.elapsed().as_secs()).unwrap_or(usize::MAX)
    }
}

/// Adds to what is counted for a second, in a list that begins with second 0.
pub(super) fn add_at(per_second: &mut Vec<u64>, second: usize, count: u64) {
    if per_second.len() <= second {
        per_second.resize(second + 1, 0);
    }
    per_second[second] += count;
}
