//! How often something may happen.

use std::time::{Duration, Instant};

/// What may happen at once, and is paid for afterwards: as much as in so much time.
const BURST: Duration = Duration::from_secs(1);

/// A token bucket that may be overdrawn: a message is not known before it is there, and may be larger than all that the
/// bucket holds. It is then in debt until its rate has paid for that.
///
/// It is one moment: when everything that was taken is paid. No library on virtual time has this; those there are refuse
/// what is larger than the bucket.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// In a second; never 0.
    rate: u64,
    paid_at: Instant,
}

impl TokenBucket {
    /// A full bucket; `None` for a rate of 0, which is none.
    pub(crate) fn new(rate: u64, now: Instant) -> Option<Self> {
        (rate > 0).then(|| Self { rate, paid_at: now.checked_sub(BURST).unwrap_or(now) })
    }

    /// Takes so many, whether they are there or not.
    pub(crate) fn take(&mut self, count: u64, now: Instant) {
        self.paid_at = self.paid_after(count, now);
    }

    /// Takes so many if they are there.
    pub(crate) fn try_take(&mut self, count: u64, now: Instant) -> bool {
        let paid_at = self.paid_after(count, now);
        if paid_at <= now {
            self.paid_at = paid_at;
        }
        paid_at <= now
    }

    /// When the debt is paid; `None` if there is none.
    pub(crate) fn in_debt_until(&self, now: Instant) -> Option<Instant> {
        (self.paid_at > now).then_some(self.paid_at)
    }

    fn paid_after(&self, count: u64, now: Instant) -> Instant {
        let full_at = now.checked_sub(BURST).unwrap_or(now);
        let nanos = u128::from(count) * 1_000_000_000 / u128::from(self.rate);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let from = self.paid_at.max(full_at);
        from.checked_add(cost).unwrap_or(from)
    }

    /// In a second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However it is drawn from, it gives its rate and one burst in any time.
    #[test]
    fn a_bucket_gives_its_rate_and_a_burst() {
        for (seed, rate) in [(1, 3), (2, 100), (3, 77_777)] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let start = Instant::now();
            let mut bucket = TokenBucket::new(rate, start).expect("a rate");
            let (mut now, mut taken, mut largest) = (start, 0, 0);
            for _ in 0..10_000 {
                if let Some(at) = bucket.in_debt_until(now) {
                    now = at;
                    assert_eq!(bucket.in_debt_until(now), None, "it says when to come back");
                }
                let count = rng.u64(1..=rate * 2);
                bucket.take(count, now);
                (taken, largest) = (taken + count, largest.max(count));
                let granted = (now - start).as_secs_f64() * rate as f64 + rate as f64 + 1.0;
                assert!(taken as f64 <= granted + largest as f64, "{taken} in {:?}", now - start);
            }
            // And no less.
            let granted = (now - start).as_secs_f64() * rate as f64;
            assert!(taken as f64 >= granted, "{taken} in {:?}", now - start);
        }
    }

    #[test]
    fn what_is_not_taken_is_not_saved_up() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(10, now).expect("a rate");
        now += Duration::from_secs(1000);
        assert_eq!((0..100).filter(|_| bucket.try_take(1, now)).count(), 10);
        assert!(TokenBucket::new(0, now).is_none());
        // Without an overflow, whatever comes.
        bucket.take(u64::MAX, now);
        assert!(bucket.in_debt_until(now + Duration::from_secs(1_000_000)).is_some());
    }
}
