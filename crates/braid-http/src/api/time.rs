//! Times as clients see them: seconds since the Unix epoch.

use std::time::{Duration, Instant, SystemTime};

/// Time now.
pub(super) fn unix_now() -> f64 {
    rounded(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// Time of a monotonic instant, by the present difference of both clocks.
pub(super) fn unix(at: Instant) -> f64 {
    let now = Instant::now();
    let ahead = at.saturating_duration_since(now).as_secs_f64();
    rounded(unix_now() + ahead - now.saturating_duration_since(at).as_secs_f64())
}

/// Milliseconds with fractions.
pub(super) fn millis(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1000.0)
}

/// Three digits are enough for readers.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
