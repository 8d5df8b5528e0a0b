//! Urgent bytes that wait to be sent, and the period in which they arrive.

/// Intervals that have to agree before a period is used.
const AGREEING_INTERVALS: u32 = 3;

/// Intervals agree within this share of the period.
const TOLERANCE: f64 = 0.1;

/// Urgent writes within this time (s) count as one arrival.
const SAME_ARRIVAL: f64 = 0.005;

/// Upper bound of the count of agreeing intervals: a period that ends is soon forgotten.
const MOST_AGREED: u32 = 6;

/// Bytes of a packet that are not stream payload, about.
pub(super) const OVERHEAD: u64 = 40;

/// Urgent bytes that were written and are not sent, about: the library does not report which packet holds them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UrgentBytes {
    pub(super) bytes: u64,
    /// Time (s) since which there are some.
    pub(super) since: Option<f64>,
    pub(super) arrivals: ArrivalPeriod,
}

impl UrgentBytes {
    /// Adds bytes that were written, or were in a packet that is lost.
    pub(super) fn add(&mut self, bytes: u64, now: f64) {
        self.bytes += bytes;
        self.since.get_or_insert(now);
    }

    /// Takes the urgent bytes that a packet of this size carries.
    pub(super) fn take(&mut self, packet_bytes: u64) -> u64 {
        let taken = self.bytes.min(packet_bytes.saturating_sub(OVERHEAD));
        self.bytes -= taken;
        if self.bytes == 0 {
            self.since = None;
        }
        taken
    }

    pub(super) fn forget(&mut self) {
        (self.bytes, self.since) = (0, None);
    }
}

/// Estimator of the period of urgent arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArrivalPeriod {
    /// Time (s) of the last arrival that fits the period.
    last: Option<f64>,
    interval: f64,
    agreed: u32,
}

impl ArrivalPeriod {
    pub(super) fn handle_arrival(&mut self, now: f64) {
        let interval = now - *self.last.get_or_insert(now);
        if interval < SAME_ARRIVAL {
            return;
        }
        let agrees = (interval - self.interval).abs() <= self.interval * TOLERANCE;
        let is_between = !agrees && interval < self.interval;
        self.agreed = match agrees {
            true => (self.agreed + 1).min(MOST_AGREED),
            false => self.agreed.saturating_sub(if is_between { 1 } else { 2 }),
        };
        if self.agreed == 0 {
            self.interval = interval;
        }
        // A ping between two alarms does not shift the period: the next alarm comes as if there had been none.
        if !is_between || self.agreed == 0 {
            self.last = Some(now);
        }
    }

    /// Time (s) of the last periodic arrival.
    pub(super) fn last(&self) -> f64 {
        self.last.unwrap_or(f64::NEG_INFINITY)
    }

    /// Predicted next arrival.
    pub(super) fn next(&self) -> Option<Expected> {
        let expected = Expected { at: self.last() + self.interval, interval: self.interval };
        (self.agreed >= AGREEING_INTERVALS).then_some(expected)
    }
}

/// Predicted urgent arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Expected {
    /// s
    pub(super) at: f64,
    /// Period (s).
    pub(super) interval: f64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HALF: Duration = Duration::from_micros(500);

    fn after(times: impl IntoIterator<Item = f64>) -> ArrivalPeriod {
        let mut period = ArrivalPeriod::default();
        times.into_iter().for_each(|at| period.handle_arrival(at));
        period
    }

    /// ms
    fn due(period: &ArrivalPeriod) -> Option<u128> {
        period.next().map(|next| (Duration::from_secs_f64(next.at) + HALF).as_millis())
    }

    #[test]
    fn alarms_are_expected_once_three_intervals_agree() {
        let alarms = |count: u32| after((0..count).map(|alarm| f64::from(alarm) * 0.1));
        assert_eq!(due(&alarms(4)), None);
        assert_eq!(due(&alarms(5)), Some(500));
    }

    #[test]
    fn pings_among_alarms_do_not_shift_the_period() {
        let mut times: Vec<f64> = (0..40).map(|alarm| f64::from(alarm) * 0.1).collect();
        times.extend((0..8).map(|ping| 0.047 + f64::from(ping) * 0.5));
        times.sort_by(f64::total_cmp);
        let mut period = ArrivalPeriod::default();
        let mut known = 0;
        for at in times {
            period.handle_arrival(at);
            known += u32::from(due(&period).is_some_and(|due| due % 100 == 0));
        }
        assert!(known >= 35, "expected after {known} of 48 writes");
    }

    #[test]
    fn a_new_period_replaces_the_old_one() {
        let slow = (0..10).map(|alarm| f64::from(alarm) * 0.1);
        let fast = (1..16).map(|alarm| 0.9 + f64::from(alarm) * 0.03);
        assert_eq!(due(&after(slow.clone().chain(fast))), Some(1380));
        let slower = (1..8).map(|alarm| 0.9 + f64::from(alarm));
        assert_eq!(due(&after(slow.chain(slower))), Some(8900));
    }
}
