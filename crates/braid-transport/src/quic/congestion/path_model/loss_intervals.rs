//! Intervals with many losses, and whether a policer makes them.
//!
//! Behind a policer that is sent too much, each interval delivers the same, whatever is sent. Random losses leave a
//! share of what is sent. The rule of two intervals in a row is that of BBR's long-term bandwidth.

use super::startup::random_losses;

/// Packets of an interval.
const INTERVAL: f64 = 32.0;

/// Probability of random losses, and standard deviations above which losses are more.
const RANDOM_LOSS: f64 = 0.1;
const DEVIATIONS: f64 = 2.0;

/// Share within which delivery rates are the same.
const EQUAL: f64 = 0.125;

/// Losses of the last interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Losses {
    /// Few enough for random losses.
    Few,
    /// More: the next interval shows why.
    Once,
    /// The next interval is not over.
    Pending,
    /// More for the second time, with another delivery rate.
    Many,
    /// More for the second time, with the same delivery rate (packets per second).
    Policed(f64),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossIntervals {
    /// Packets per second that the interval before has delivered, if it lost many.
    before: Option<f64>,
    delivered: f64,
    lost: f64,
    /// s
    time: f64,
}

impl LossIntervals {
    /// Adds the packets of a round of so many seconds.
    pub(super) fn handle_round(&mut self, delivered: u32, lost: u32, time: f64) -> Losses {
        self.delivered += f64::from(delivered);
        self.lost += f64::from(lost);
        self.time += time;
        let all = self.delivered + self.lost;
        if all < INTERVAL {
            return if self.before.is_some() { Losses::Pending } else { Losses::Few };
        }
        let Self { before, delivered, lost, time } = std::mem::take(self);
        let rate = delivered / time;
        if lost <= random_losses(all, RANDOM_LOSS, DEVIATIONS) {
            return Losses::Few;
        }
        match before {
            None => {
                self.before = Some(rate);
                Losses::Once
            }
            Some(before) if (rate - before).abs() < rate * EQUAL => Losses::Policed((rate + before) / 2.0),
            Some(_) => Losses::Many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rates_beside_many_losses_show_a_policer() {
        let after = |rounds: &[(u32, u32)]| {
            let mut intervals = LossIntervals::default();
            let mut last = Losses::Few;
            rounds
                .iter()
                .for_each(|(delivered, lost)| last = intervals.handle_round(*delivered, *lost, 0.25));
            last
        };
        assert_eq!(after(&[(30, 3)]), Losses::Few, "random");
        assert_eq!(after(&[(25, 10)]), Losses::Once);
        assert_eq!(after(&[(25, 10), (26, 20)]), Losses::Policed(102.0));
        assert_eq!(after(&[(25, 10), (50, 25)]), Losses::Many, "half of what is sent, whatever that is");
        assert_eq!(after(&[(25, 10), (32, 0), (25, 10)]), Losses::Once, "in a row");
        assert_eq!(after(&[(12, 6), (12, 6), (10, 6)]), Losses::Pending, "an interval has 32 packets");
        assert_eq!(after(&[(12, 6), (12, 6), (12, 6), (12, 6)]), Losses::Policed(48.0));
    }
}
