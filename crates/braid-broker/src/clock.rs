//! Monotonic clock, which tests may pause.

use std::time::Instant;

/// The present time.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
