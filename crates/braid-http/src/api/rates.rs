//! Rates of counters over the last seconds. Nothing is sampled while no client asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time that a rate is the mean of, where a sample is that old.
const WINDOW: Duration = Duration::from_secs(2);

/// Least time of a rate.
const LEAST: Duration = Duration::from_secs(1);

/// Least time between two samples.
const SPACING: Duration = Duration::from_millis(500);

/// Age of samples that say nothing about the present.
const STALE: Duration = Duration::from_secs(60);

/// Number of counters.
pub(super) const COUNTERS: usize = 6;

/// Values of counters at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at: Instant,
    values: [u64; COUNTERS],
}

/// Samples of counters at the looks of all clients, the oldest first: those of the window and one before it.
#[derive(Debug, Default)]
pub(super) struct RateSampler(VecDeque<Sample>);

impl RateSampler {
    /// Increase of each counter in a second, over the window or the time since the look before it, however many clients
    /// look. `None` without a look in the last minute that was at least a second ago.
    pub(super) fn rates(&mut self, values: [u64; COUNTERS], now: Instant) -> Option<[f64; COUNTERS]> {
        let samples = &mut self.0;
        let age = |sample: &Sample| now.saturating_duration_since(sample.at);
        while samples.front().is_some_and(|first| age(first) > STALE)
            || samples.get(1).is_some_and(|second| age(second) >= WINDOW)
        {
            samples.pop_front();
        }
        let first = samples.front().copied();
        if samples.back().is_none_or(|last| age(last) >= SPACING) {
            samples.push_back(Sample { at: now, values });
        }
        let first = first.filter(|first| age(first) >= LEAST)?;
        let secs = age(&first).as_secs_f64();
        Some(std::array::from_fn(|index| {
            // Exact up to 2^53 in the interval.
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let increase = values[index].saturating_sub(first.values[index]) as f64;
            increase / secs
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds_however_many_look() {
        let (mut sampler, began) = (RateSampler::default(), Instant::now());
        let mut look = |ms: u64, value| {
            let rates = sampler.rates([value; COUNTERS], began + Duration::from_millis(ms));
            rates.map(|rates| rates[COUNTERS - 1])
        };
        assert_eq!(look(0, 1000), None, "the first look");
        assert_eq!(look(900, 1100), None);
        assert_eq!(look(1000, 1200), Some(200.0));
        assert_eq!(look(2000, 1400), Some(200.0));
        // Looks at short intervals do not shorten the window.
        for ms in [2001, 2002, 2003] {
            let since = f64::from(u32::try_from(ms).unwrap()) / 1000.0;
            assert_eq!(look(ms, 1600), Some(600.0 / since));
        }
        assert_eq!(look(3000, 3100), Some(2000.0 / 2.1), "since the look at 0.9 s");
        // A client that looks every ten seconds has the mean of them.
        assert_eq!(look(13_000, 4100), Some(100.0));
        assert_eq!(look(23_000, 4100), Some(0.0));
        assert_eq!(look(84_000, 9000), None, "an old look says nothing about the present");
        assert_eq!(look(85_000, 9010), Some(10.0));
        for ms in (86_000..100_000).step_by(10) {
            look(ms, 0);
        }
        assert!(sampler.0.len() <= 6, "{}", sampler.0.len());
    }
}
