//! Histogram of latencies, and its quantiles.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::spread::nearest_rank;

/// Precision of the histogram: one part in a thousand.
const DIGITS: u8 = 3;
/// Least rise of a curve from one point to the next, in messages of 1,000.
const RISE: u64 = 1;
/// Number of the slowest messages that have points of their own in a curve.
const SLOWEST: u64 = 500;

/// Latencies of messages from due time to arrival. Messages that never arrived are counted too.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// In multiples of the resolution.
    arrived: Histogram<u64>,
    /// Nanoseconds.
    resolution: u64,
    missing: u64,
}

/// Percentiles of [`Latencies`] in milliseconds; `None` where the message in question never arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// Quantiles of one quantity, in the unit that the name of the field says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// 19 of 20; `None` in files of older versions.
    #[serde(default)]
    pub p95: Option<f64>,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// All.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Number of values.
    pub count: u64,
}

impl Default for Latencies {
    /// Empty, with a resolution of a microsecond.
    fn default() -> Self {
        Self::with_resolution(Duration::from_micros(1))
    }
}

impl Latencies {
    /// Empty; latencies are rounded down to multiples of `resolution`, at least 1 ns.
    #[must_use]
    pub fn with_resolution(resolution: Duration) -> Self {
        let arrived = Histogram::new(DIGITS).expect("0 to 5 digits");
        Self { arrived, resolution: nanoseconds(resolution).max(1), missing: 0 }
    }

    /// Counts a message that arrived after `latency`.
    pub fn record(&mut self, latency: Duration) {
        // The histogram resizes itself, so that it holds every value.
        let _ = self.arrived.record(nanoseconds(latency) / self.resolution);
    }

    /// Counts messages that were due and never arrived.
    pub fn record_missing(&mut self, messages: u64) {
        self.missing += messages;
    }

    /// Adds the counts of `other`, which has the same resolution.
    pub fn add(&mut self, other: &Self) {
        debug_assert_eq!(self.resolution, other.resolution);
        // Both have the same precision and resize themselves.
        let _ = self.arrived.add(&other.arrived);
        self.missing += other.missing;
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.arrived.reset();
        self.missing = 0;
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

    /// Share of all due messages that took no longer than `limit`, 0 to 1.
    #[must_use]
    pub fn share_within(&self, limit: Duration) -> f64 {
        let limit = nanoseconds(limit) / self.resolution;
        let within = if self.arrived.is_empty() { 0 } else { self.arrived.count_between(0, limit) };
        within as f64 / (self.due().max(1)) as f64
    }

    /// Latency that `fraction` (0 to 1) of all due messages did not exceed, in milliseconds.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        // The rank counts missing messages as the slowest ones.
        let rank = nearest_rank(fraction, self.due() as f64);
        let share = rank as f64 / self.arrived.len() as f64;
        (rank <= self.arrived.len()).then(|| self.value(share) as f64 / self.per(1_000_000))
    }

    /// Quantiles of the messages that arrived, in microseconds; `None` without any.
    #[must_use]
    pub fn quantiles_us(&self) -> Option<Quantiles> {
        let unit = self.per(1_000);
        let of = |fraction| self.value(fraction) as f64 / unit;
        (!self.arrived.is_empty()).then(|| Quantiles {
            p50: of(0.5),
            p90: of(0.9),
            p95: Some(of(0.95)),
            p99: of(0.99),
            p999: of(0.999),
            max: of(1.0),
            mean: self.arrived.mean() / unit,
            count: self.arrived.len(),
        })
    }

    fn value(&self, fraction: f64) -> u64 {
        self.arrived.value_at_quantile(fraction).min(self.arrived.max())
    }

    /// Multiples of the resolution in so many nanoseconds.
    fn per(&self, nanoseconds: u64) -> f64 {
        nanoseconds as f64 / self.resolution as f64
    }

    /// Cumulative distribution of the messages that arrived: microseconds, and the share (0 to 1] of messages that took
    /// no longer. A point for each thousandth, and for each of the 500 slowest: fine enough for the share of messages
    /// above any bound, as slow ones are few.
    #[must_use]
    pub fn curve_us(&self) -> Vec<(u64, f64)> {
        let all = self.arrived.len();
        let mut next = 0;
        let mut points = Vec::new();
        for (micros, seen) in self.steps_us() {
            if seen >= next || all - seen < SLOWEST {
                points.push((micros, seen as f64 / all as f64));
                next = seen + (all * RISE).div_ceil(1000);
            }
        }
        points
    }

    /// Latencies that occurred, in microseconds and rising, each with the number of messages that took no longer.
    pub fn steps_us(&self) -> impl Iterator<Item = (u64, u64)> {
        self.arrived.iter_recorded().scan(0_u64, |seen, step| {
            *seen += step.count_since_last_iteration();
            let value = step.value_iterated_to().min(self.arrived.max());
            Some((value.saturating_mul(self.resolution) / 1000, *seen))
        })
    }

    /// Median, 90th and 99th percentile and maximum.
    #[must_use]
    pub fn percentiles(&self) -> Percentiles {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|fraction| self.quantile(fraction));
        Percentiles { p50, p90, p99, max }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
    fn quantiles_and_curve_leave_missing_messages_out() {
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
        assert!((900..=1000).contains(&curve.len()), "{} points", curve.len());
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(curve.last().map(|point| point.1), Some(1.0));
        let at_half = curve.iter().find(|point| point.1 >= 0.5).expect("it reaches 1").0;
        assert!(at_half.abs_diff(500_000) <= 1_500, "{at_half}");
        assert!(Latencies::default().quantiles_us().is_none() && Latencies::default().curve_us().is_empty());
    }

    #[test]
    fn the_curve_is_short_and_knows_each_of_the_slowest() {
        let mut latencies = Latencies::default();
        for micros in 0..200_000 {
            latencies.record(Duration::from_micros(1_000 + micros));
        }
        for second in 1..=10 {
            latencies.record(Duration::from_secs(second));
        }
        let points = latencies.curve_us();
        assert!(points.len() <= 1500, "{} points", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        let slower_than = |micros| {
            let share =
                points.iter().take_while(|point| point.0 <= micros).last().map_or(0.0, |point| point.1);
            ((1.0 - share) * 200_010.0).round()
        };
        assert_eq!([slower_than(500_000), slower_than(5_500_000), slower_than(11_000_000)], [10.0, 5.0, 0.0]);
        let p95 = latencies.quantiles_us().and_then(|quantiles| quantiles.p95).expect("some arrived");
        assert!((p95 - 191_010.0).abs() < 400.0, "{p95}");
    }

    #[test]
    fn missing_messages_are_the_slowest() {
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
    fn nanoseconds_are_told_apart_where_that_is_the_resolution() {
        let mut latencies = Latencies::with_resolution(Duration::from_nanos(1));
        latencies.record(Duration::from_nanos(1_500));
        assert_eq!(latencies.quantile(0.5), Some(0.0015));
        assert_eq!(latencies.quantiles_us().map(|quantiles| quantiles.max), Some(1.5));
        latencies.clear();
        assert_eq!(latencies.due(), 0);
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
