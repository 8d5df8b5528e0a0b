use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Time since the Unix epoch: the system's clock, read once, plus the progress of tokio's clock. It never jumps, and
/// tests can pause it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    unix: Duration,
}

impl Clock {
    /// Reads both clocks.
    #[must_use]
    pub fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), unix }
    }

    /// Time at which both clocks were read.
    #[must_use]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// [`Clock::start`] since the Unix epoch.
    #[must_use]
    pub fn started_unix(&self) -> Duration {
        self.unix
    }

    /// A time since the Unix epoch; times before the start are those of the start.
    #[must_use]
    pub fn unix(&self, at: Instant) -> Duration {
        self.unix + at.saturating_duration_since(self.start)
    }

    /// [`Clock::started_unix`] in microseconds.
    pub(crate) fn started_unix_us(&self) -> u64 {
        u64::try_from(self.unix.as_micros()).unwrap_or(u64::MAX)
    }

    /// Whole seconds from the start to a time; times before the start are in second 0.
    pub(crate) fn second(&self, at: Instant) -> usize {
        usize::try_from(at.saturating_duration_since(self.start).as_secs()).unwrap_or(usize::MAX)
    }
}
