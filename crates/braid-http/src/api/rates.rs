//! Rates of counters between two looks at them. Nothing is sampled while no client asks.

use std::time::{Duration, Instant};

/// Least time between the two samples of a rate.
const LEAST: Duration = Duration::from_secs(1);

/// Number of counters.
pub(super) const COUNTERS: usize = 6;

/// Values of counters at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    at: Instant,
    values: [u64; COUNTERS],
}

/// Samples of counters at the last two looks that were a second apart.
#[derive(Debug, Default)]
pub(super) struct RateSampler {
    older: Option<Sample>,
    newer: Option<Sample>,
}

impl RateSampler {
    /// Increase of each counter in a second, since the look before. At the first look: since `began`, when all were 0.
    pub(super) fn rates(&mut self, values: [u64; COUNTERS], began: Instant, now: Instant) -> [f64; COUNTERS] {
        let start = Sample { at: began, values: [0; COUNTERS] };
        let newer = *self.newer.get_or_insert(start);
        if now.saturating_duration_since(newer.at) >= LEAST {
            self.older = Some(newer);
            self.newer = Some(Sample { at: now, values });
        }
        let older = self.older.unwrap_or(start);
        let time = now.saturating_duration_since(older.at).max(LEAST).as_secs_f64();
        std::array::from_fn(|index| {
            // Exact up to 2^53 in the interval.
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let increase = values[index].saturating_sub(older.values[index]) as f64;
            increase / time
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_since_a_look_at_least_a_second_ago() {
        let (mut sampler, began) = (RateSampler::default(), Instant::now());
        let mut look =
            |ms, value| sampler.rates([value; COUNTERS], began, began + Duration::from_millis(ms))[5];
        assert_eq!(look(500, 10), 10.0, "less than a second counts as one");
        assert_eq!(look(2000, 100), 50.0, "since the start");
        assert_eq!(look(2500, 110), 44.0, "a second look at once changes nothing");
        assert_eq!(look(3000, 300), 200.0, "since the one at two seconds");
        assert_eq!(look(3500, 310), 140.0);
        assert_eq!(look(13_000, 300), 0.0);
    }
}
