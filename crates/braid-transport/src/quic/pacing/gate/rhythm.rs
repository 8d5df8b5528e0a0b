//! When something urgent will come, where that follows a rhythm.

/// Intervals that have to agree before they are believed.
const ENOUGH: u32 = 3;

/// They agree within this share of an interval.
const TOLERANCE: f64 = 0.1;

/// Urgent writes within this time (s) are one.
const ONE: f64 = 0.005;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    last: Option<f64>,
    interval: f64,
    agreed: u32,
}

impl Rhythm {
    pub(super) fn handle(&mut self, now: f64) {
        let Some(last) = self.last else {
            self.last = Some(now);
            return;
        };
        let interval = now - last;
        if interval < ONE {
            return;
        }
        self.last = Some(now);
        if (interval - self.interval).abs() <= self.interval * TOLERANCE {
            self.agreed = (self.agreed + 1).min(ENOUGH + 1);
        } else {
            self.agreed = self.agreed.saturating_sub(2);
        }
        if self.agreed == 0 {
            self.interval = interval;
        }
    }

    /// s
    pub(super) fn last(&self) -> f64 {
        self.last.unwrap_or(f64::NEG_INFINITY)
    }

    /// When the next is due, if that can be said.
    pub(super) fn next(&self) -> Option<Expected> {
        let expected = Expected { at: self.last() + self.interval, interval: self.interval };
        (self.agreed >= ENOUGH).then_some(expected)
    }
}

/// Something urgent that is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// s
    pub(super) at: f64,
    /// s between two of them.
    pub(super) interval: f64,
}
