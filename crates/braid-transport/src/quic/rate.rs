//! Rates in bytes per second, and bytes of a time.

use std::time::Duration;

/// Bytes that this rate has in a time.
pub(super) fn bytes_in(rate: u64, time: Duration) -> u64 {
    rate.saturating_mul(micros(time)) / 1_000_000
}

/// Rate of these bytes in a time.
pub(super) fn rate_of(bytes: u64, time: Duration) -> u64 {
    bytes.saturating_mul(1_000_000) / micros(time).max(1)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
