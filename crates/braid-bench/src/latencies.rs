use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// How long messages took, from when each was due to when it arrived; those that never did are counted too.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Microseconds.
    arrived: Histogram<u64>,
    missing: u64,
}

/// What is read from [`Latencies`]. Milliseconds; `None` where the message in question never arrived.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of all messages took no longer.
    pub p50: Option<f64>,
    /// Nine tenths.
    pub p90: Option<f64>,
    /// 99 of 100.
    pub p99: Option<f64>,
    /// All.
    pub max: Option<f64>,
}

/// Latencies are told apart to one part in a thousand.
const DIGITS: u8 = 3;

impl Default for Latencies {
    fn default() -> Self {
        let arrived = Histogram::new(DIGITS).expect("0 to 5 digits");
        Self { arrived, missing: 0 }
    }
}

impl Latencies {
    /// A message arrived after so long.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        // The histogram grows, so there is no value that it cannot hold.
        let _ = self.arrived.record(micros);
    }

    /// So many messages were due and never arrived.
    pub fn record_missing(&mut self, messages: u64) {
        self.missing += messages;
    }

    /// Adds what another one has.
    pub fn add(&mut self, other: &Self) {
        // Both have the same precision and grow.
        let _ = self.arrived.add(&other.arrived);
        self.missing += other.missing;
    }

    /// Messages that were due.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.arrived.len() + self.missing
    }

    /// Messages that arrived.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.len()
    }

    /// The share of all due messages that took no longer than `limit`, 0 to 1.
    #[must_use]
    pub fn share_within(&self, limit: Duration) -> f64 {
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        let within = if self.arrived.is_empty() { 0 } else { self.arrived.count_between(0, limit) };
        within as f64 / (self.due().max(1)) as f64
    }

    /// What `fraction` (0 to 1) of all due messages did not exceed, in milliseconds.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "counts stay far below 2^53")]
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        // The rank counts missing messages as the slowest ones.
        let rank = (fraction * self.due() as f64).ceil().max(1.0) as u64;
        if rank > self.arrived.len() {
            return None;
        }
        let micros = self.arrived.value_at_quantile(rank as f64 / self.arrived.len() as f64);
        Some(micros.min(self.arrived.max()) as f64 / 1000.0)
    }

    /// The usual ones.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|fraction| self.quantile(fraction));
        Percentiles { p50, p90, p99, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(millis: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::default();
        millis.into_iter().for_each(|millis| latencies.record(Duration::from_millis(millis)));
        latencies
    }

    fn is_about(found: Option<f64>, wanted: f64) -> bool {
        found.is_some_and(|found| (found - wanted).abs() <= wanted / 500.0)
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let found = of(1..=1000).percentiles();
        assert!(is_about(found.p50, 500.0) && is_about(found.p90, 900.0), "{found:?}");
        assert!(is_about(found.p99, 990.0) && is_about(found.max, 1000.0), "{found:?}");
        let one = of([7]).percentiles();
        assert!([one.p50, one.p90, one.p99, one.max].iter().all(|found| is_about(*found, 7.0)), "{one:?}");
    }

    #[test]
    fn what_never_arrived_is_slower_than_everything() {
        let mut latencies = of(std::iter::repeat_n(10, 90));
        latencies.record_missing(10);
        let found = latencies.percentiles();
        assert!(is_about(found.p50, 10.0) && is_about(found.p90, 10.0), "{found:?}");
        assert_eq!((found.p99, found.max), (None, None));
        assert_eq!((latencies.due(), latencies.arrived()), (100, 90));
        assert!((latencies.share_within(Duration::from_secs(1)) - 0.9).abs() < 1e-9);
        assert_eq!(Latencies::default().percentiles().p50, None);
    }

    #[test]
    fn on_time_includes_the_limit() {
        let latencies = of([100, 200, 250, 260, 400]);
        assert!((latencies.share_within(Duration::from_millis(250)) - 0.6).abs() < 1e-9);
        let mut both = of([1]);
        both.add(&latencies);
        assert_eq!(both.due(), 6);
    }
}
