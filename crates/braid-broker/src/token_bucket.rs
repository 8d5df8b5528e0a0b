//! Token bucket that may be overdrawn.

use std::time::{Duration, Instant};

/// Size of a bucket, in time at its rate.
const BURST: Duration = Duration::from_secs(1);

/// Token bucket that may be overdrawn: the size of a message is known only when it has arrived, and may be larger than
/// the bucket. The bucket is then in debt until its rate has paid for the message.
///
/// The only state is the time at which everything that was taken is paid. Libraries refuse what is larger than the
/// bucket.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Tokens per second; never 0.
    rate: u64,
    paid_at: Instant,
}

impl TokenBucket {
    /// A full bucket; `None` for a rate of 0, which stands for no limit.
    pub(crate) fn new(rate: u64, now: Instant) -> Option<Self> {
        (rate > 0).then(|| Self { rate, paid_at: now.checked_sub(BURST).unwrap_or(now) })
    }

    /// Takes tokens, on credit if there are too few.
    pub(crate) fn take(&mut self, count: u64, now: Instant) {
        self.paid_at = self.paid_after(count, now);
    }

    /// Takes tokens if there are enough.
    pub(crate) fn try_take(&mut self, count: u64, now: Instant) -> bool {
        let paid_at = self.paid_after(count, now);
        if paid_at <= now {
            self.paid_at = paid_at;
        }
        paid_at <= now
    }

    /// Tests whether there are enough tokens.
    pub(crate) fn has(&self, count: u64, now: Instant) -> bool {
        self.paid_after(count, now) <= now
    }

    /// Tests whether nothing is missing.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.paid_at + BURST <= now
    }

    /// Time at which the debt is paid; `None` without a debt.
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

    /// Tokens per second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In any time a bucket grants its rate and one burst, whatever is taken.
    #[test]
    fn grants_its_rate_and_one_burst() {
        for (seed, rate) in [(1, 3), (2, 100), (3, 77_777)] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let start = Instant::now();
            let mut bucket = TokenBucket::new(rate, start).expect("a rate");
            let (mut now, mut taken, mut largest) = (start, 0, 0);
            for _ in 0..10_000 {
                if let Some(at) = bucket.in_debt_until(now) {
                    now = at;
                    assert_eq!(bucket.in_debt_until(now), None, "the debt is paid by then");
                }
                let count = rng.u64(1..=rate * 2);
                bucket.take(count, now);
                (taken, largest) = (taken + count, largest.max(count));
                let granted = (now - start).as_secs_f64() * rate as f64 + rate as f64 + 1.0;
                assert!(taken as f64 <= granted + largest as f64, "{taken} in {:?}", now - start);
            }
            // No less either.
            let granted = (now - start).as_secs_f64() * rate as f64;
            assert!(taken as f64 >= granted, "{taken} in {:?}", now - start);
        }
    }

    #[test]
    fn unused_tokens_are_not_saved() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(10, now).expect("a rate");
        now += Duration::from_secs(1000);
        assert_eq!((0..100).filter(|_| bucket.try_take(1, now)).count(), 10);
        assert!(TokenBucket::new(0, now).is_none());
        // No count overflows.
        bucket.take(u64::MAX, now);
        assert!(bucket.in_debt_until(now + Duration::from_secs(1_000_000)).is_some());
    }
}
