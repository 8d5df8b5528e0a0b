//! A path that is left to the congestion controller, until it limits after all.

use super::FAST;

/// It is judged every so often (s).
const PERIOD: f64 = 0.5;

/// In so many periods in a row it has to look limited.
const PERIODS: u32 = 3;

/// A policer loses this share, and so many packets at least.
const SHARE: f64 = 0.2;
const LOST: u32 = 8;

/// By so much (s) is the round trip longer than its least where there is a queue.
const QUEUED: f64 = 0.015;

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    since: f64,
    acked: u32,
    lost: u32,
    is_app_limited: bool,
    least: f64,
    limited: u32,
}

impl Open {
    pub(super) fn new(now: f64, least: f64) -> Self {
        Self { since: now, acked: 0, lost: 0, is_app_limited: false, least, limited: 0 }
    }

    pub(super) fn handle(&mut self, acked: u32, lost: u32) {
        self.acked = self.acked.saturating_add(acked);
        self.lost = self.lost.saturating_add(lost);
    }

    /// `trip`: the smoothed round trip (s); `is_blind`: it says nothing about queues. How many packets are on their way,
    /// if it limits.
    pub(super) fn judge(&mut self, trip: f64, is_blind: bool, is_app_limited: bool, now: f64) -> Option<f64> {
        self.is_app_limited |= is_app_limited;
        self.least = self.least.min(trip);
        if now - self.since < PERIOD {
            return None;
        }
        let rate = f64::from(self.acked) / (now - self.since);
        let is_lossy = self.lost >= LOST && f64::from(self.lost) > f64::from(self.acked + self.lost) * SHARE;
        let is_queued = !is_blind && !self.is_app_limited && trip > self.least + QUEUED;
        let is_limited = rate < FAST && (is_lossy || is_queued);
        let limited = if is_limited { self.limited + 1 } else { 0 };
        *self = Self { limited, ..Self::new(now, self.least) };
        (limited >= PERIODS).then_some(rate * trip)
    }
}
