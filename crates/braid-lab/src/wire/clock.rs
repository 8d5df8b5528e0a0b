//! The time of a link.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since the start of the link, the same for both directions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    start: Instant,
    /// The start as wall time, since 1970.
    epoch: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), epoch }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Now, and the same as wall time since 1970: not earlier, so that what is subtracted from it is not too young.
    pub(super) fn now_and_wall(&self) -> (Duration, Duration) {
        let now = self.now();
        (now, SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    pub(super) fn epoch(&self) -> Duration {
        self.epoch
    }
}
