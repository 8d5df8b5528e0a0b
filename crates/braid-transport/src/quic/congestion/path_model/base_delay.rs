//! What round trips are longer by than the least one, without any queue of ours.

use super::rtt_samples::median;

/// So many packets are judged at once.
const COUNT: usize = 16;

/// A bottleneck that has nothing to do for the rest of the time holds no queue of ours.
const BUSY: f64 = 0.8;

/// So much (s) is worth a correction.
const LEAST: f64 = 0.000_1;

/// Another way, another's queue, jitter: whatever it is, waits that come of it say nothing about the bottleneck.
///
/// A sender that takes them for a queue of its own sends less, and since they stay, less and less. Then the bottleneck would be
/// idle most of the time, and that tells them apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Offset {
    /// s
    value: f64,
    /// When (s) it was last corrected: what was sent before says nothing about it.
    since: f64,
    /// Place and time of sending of the first that is judged.
    first: Option<(u64, f64)>,
    /// By how much (s) waits were longer than expected.
    residuals: Vec<f64>,
}

impl Offset {
    /// s
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// A packet was sent as the `place`th at `at`, and waited `residual` s longer than expected behind packets that take
    /// `service` s each. True: waits were longer for something else.
    pub(super) fn handle(&mut self, place: u64, at: f64, residual: f64, service: f64, now: f64) -> bool {
        if at < self.since {
            return false;
        }
        let (first, begun) = *self.first.get_or_insert((place, at));
        self.residuals.push(residual);
        if self.residuals.len() < COUNT {
            return false;
        }
        let busy = place.saturating_sub(first) as f64 * service;
        let residual = median(&self.residuals);
        let is_longer = busy < (at - begun) * BUSY && residual > LEAST;
        if is_longer || (residual < -LEAST && self.value > 0.0) {
            self.value = (self.value + residual).max(0.0);
            self.since = now;
        }
        self.first = None;
        self.residuals.clear();
        is_longer
    }
}
