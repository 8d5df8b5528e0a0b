//! When something urgent will come, where that follows a rhythm.

/// Intervals that have to agree before they are believed.
const ENOUGH: u32 = 3;

/// They agree within this share of an interval.
const TOLERANCE: f64 = 0.1;

/// Urgent writes within this time (s) are one.
const ONE: f64 = 0.005;

/// What agrees beyond this counts no more: a rhythm that ends is soon forgotten.
const MOST: u32 = 6;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rhythm {
    /// The last that belonged to it (s).
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
        let tolerance = self.interval * TOLERANCE;
        if (interval - self.interval).abs() <= tolerance {
            self.agreed = (self.agreed + 1).min(MOST);
            self.last = Some(now);
            return;
        }
        let is_between = interval < self.interval;
        self.agreed = self.agreed.saturating_sub(if is_between { 1 } else { 2 });
        if self.agreed == 0 {
            self.interval = interval;
        }
        // A ping among alarms is no beat: the next alarm comes when it would have come.
        if !is_between || self.agreed == 0 {
            self.last = Some(now);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HALF: Duration = Duration::from_micros(500);

    fn after(times: impl IntoIterator<Item = f64>) -> Rhythm {
        let mut rhythm = Rhythm::default();
        times.into_iter().for_each(|at| rhythm.handle(at));
        rhythm
    }

    /// ms
    fn due(rhythm: &Rhythm) -> Option<u128> {
        rhythm.next().map(|next| (Duration::from_secs_f64(next.at) + HALF).as_millis())
    }

    #[test]
    fn alarms_are_expected_once_three_intervals_agree() {
        let alarms = |count: u32| after((0..count).map(|alarm| f64::from(alarm) * 0.1));
        assert_eq!(due(&alarms(4)), None);
        assert_eq!(due(&alarms(5)), Some(500));
    }

    #[test]
    fn pings_among_alarms_are_no_beat() {
        let mut times: Vec<f64> = (0..40).map(|alarm| f64::from(alarm) * 0.1).collect();
        times.extend((0..8).map(|ping| 0.047 + f64::from(ping) * 0.5));
        times.sort_by(f64::total_cmp);
        let mut rhythm = Rhythm::default();
        let mut known = 0;
        for at in times {
            rhythm.handle(at);
            known += u32::from(due(&rhythm).is_some_and(|due| due % 100 == 0));
        }
        assert!(known >= 35, "expected after {known} of 48 writes");
    }

    #[test]
    fn another_rhythm_takes_the_place_of_one() {
        let slow = (0..10).map(|alarm| f64::from(alarm) * 0.1);
        let fast = (1..16).map(|alarm| 0.9 + f64::from(alarm) * 0.03);
        assert_eq!(due(&after(slow.clone().chain(fast))), Some(1380));
        let slower = (1..8).map(|alarm| 0.9 + f64::from(alarm));
        assert_eq!(due(&after(slow.chain(slower))), Some(8900));
    }
}
