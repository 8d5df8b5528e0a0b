use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::summary::Quantiles;

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

/// The least rise from one point of a curve to the next..
const STEP: f64 = 0.005;
/// ..unless the next one leaves no more than this share of what the last one left above it.
const TAIL_STEP: f64 = 0.7;

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

    /// Of the messages that arrived, in microseconds; `None` if there was none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "microseconds stay far below 2^53")]
    pub fn quantiles_us(&self) -> Option<Quantiles> {
        let of = |fraction| self.arrived.value_at_quantile(fraction).min(self.arrived.max()) as f64;
        (!self.arrived.is_empty()).then(|| Quantiles {
            p50: of(0.5),
            p90: of(0.9),
            p99: of(0.99),
            p999: of(0.999),
            max: of(1.0),
            mean: self.arrived.mean(),
            count: self.arrived.len(),
        })
    }

    /// As a curve that rises: microseconds, and the share (0 to 1] of the messages that arrived which took no longer.
    /// As many points as a picture needs, closer together towards the slowest.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn curve_us(&self) -> Vec<(u64, f64)> {
        let (mut points, mut last) = (Vec::new(), 0.0);
        for (micros, seen) in self.steps_us() {
            let share = seen as f64 / self.arrived.len() as f64;
            let is_end = seen == self.arrived.len();
            // A step of the curve, or of what is left of it.
            if is_end || points.is_empty() || share - last >= STEP || 1.0 - share <= (1.0 - last) * TAIL_STEP
            {
                points.push((micros, share));
                last = share;
            }
        }
        points
    }

    /// The latencies that occurred, in microseconds and rising, each with how many messages took no longer.
    pub(crate) fn steps_us(&self) -> impl Iterator<Item = (u64, u64)> {
        self.arrived.iter_recorded().scan(0_u64, |seen, step| {
            *seen += step.count_since_last_iteration();
            Some((step.value_iterated_to().min(self.arrived.max()), *seen))
        })
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
    fn quantiles_and_curve_are_of_what_arrived() {
        let mut latencies = of(1..=1000);
        latencies.record_missing(5000);
        let found = latencies.quantiles_us().expect("some arrived");
        assert_eq!(found.count, 1000);
        for (found, wanted) in
            [(found.p50, 500e3), (found.p90, 900e3), (found.p99, 990e3), (found.p999, 999e3)]
        {
            assert!((found - wanted).abs() <= wanted / 500.0, "{found} is not {wanted}");
        }
        assert!((found.max - 1e6).abs() <= 1e3 && (found.mean - 500_500.0).abs() < 1e3, "{found:?}");
        let curve = latencies.curve_us();
        assert!((100..=260).contains(&curve.len()), "{} points", curve.len());
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(curve.last().map(|point| point.1), Some(1.0));
        let at_half = curve.iter().find(|point| point.1 >= 0.5).expect("it reaches 1").0;
        assert!(at_half.abs_diff(500_000) <= 6_000, "{at_half}");
        assert!(Latencies::default().quantiles_us().is_none() && Latencies::default().curve_us().is_empty());
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
