//! Rates of requests and of refused logins, by address.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use crate::network::of_host;

/// Addresses whose rates are remembered; the one that was seen longest ago is forgotten first.
const ADDRESSES: NonZeroUsize = NonZeroUsize::new(4096).expect("positive");

/// Token bucket of each address.
pub(super) struct RequestRate {
    per_sec: f64,
    burst: f64,
    buckets: Mutex<LruCache<IpAddr, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl RequestRate {
    pub(super) fn new(per_sec: u32, burst: u32) -> Self {
        Self { per_sec: per_sec.into(), burst: burst.into(), buckets: Mutex::new(LruCache::new(ADDRESSES)) }
    }

    /// Bucket that fills up in `per`.
    pub(super) fn slow(burst: u32, per: Duration) -> Self {
        Self { per_sec: f64::from(burst) / per.as_secs_f64(), ..Self::new(1, burst) }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is none; the time until there is one.
    pub(super) fn take(&self, address: IpAddr) -> Result<(), Duration> {
        self.take_at(address, Instant::now(), 1.0)
    }

    /// Tests whether there is a token, and leaves it.
    ///
    /// # Errors
    /// There is none; the time until there is one.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), Duration> {
        self.take_at(address, Instant::now(), 0.0)
    }

    /// Takes any number of tokens, also those that are not there yet.
    pub(super) fn charge(&self, address: IpAddr, tokens: f64) {
        let _ = self.take_at(address, Instant::now(), 0.0);
        if let Some(bucket) = self.buckets().peek_mut(&of_host(address)) {
            bucket.tokens -= tokens;
        }
    }

    fn buckets(&self) -> MutexGuard<'_, LruCache<IpAddr, Bucket>> {
        // Nothing panics while it is held.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_at(&self, address: IpAddr, now: Instant, taken: f64) -> Result<(), Duration> {
        let mut buckets = self.buckets();
        let full = Bucket { tokens: self.burst, at: now };
        let bucket = buckets.get_or_insert_mut(of_host(address), || full);
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        *bucket = Bucket { tokens: (bucket.tokens + since * self.per_sec).min(self.burst), at: now };
        if bucket.tokens < 1.0 {
            return Err(
                Duration::try_from_secs_f64((1.0 - bucket.tokens) / self.per_sec).unwrap_or(Duration::MAX)
            );
        }
        bucket.tokens -= taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_up_with_time() {
        let rate = RequestRate::new(2, 3);
        let (start, address) = (Instant::now(), |text: &str| text.parse::<IpAddr>().unwrap());
        let take = |text, ms, taken| rate.take_at(address(text), start + Duration::from_millis(ms), taken);
        for _ in 0..3 {
            assert_eq!(take("2001:db8::1", 0, 1.0), Ok(()));
        }
        assert_eq!(take("2001:db8::2", 0, 1.0), Err(Duration::from_millis(500)), "the same network");
        assert_eq!(take("192.0.2.1", 0, 1.0), Ok(()), "another one");
        assert_eq!(take("2001:db8::1", 400, 1.0), Err(Duration::from_millis(100)));
        assert_eq!(take("2001:db8::1", 500, 0.0), Ok(()));
        assert_eq!(take("2001:db8::1", 500, 1.0), Ok(()), "a check takes nothing");
        assert!(take("2001:db8::1", 500, 1.0).is_err());
        for _ in 0..3 {
            assert_eq!(take("2001:db8::1", 60_000, 1.0), Ok(()));
        }
        assert!(take("2001:db8::1", 60_000, 1.0).is_err(), "no more than the burst is kept");
        let now = Instant::now();
        let rate = RequestRate::new(1, 3);
        let price = address("192.0.2.1");
        assert_eq!(rate.take_at(price, now, 0.0), Ok(()));
        rate.charge(price, 100.0);
        let wait = rate.take_at(price, now, 1.0).unwrap_err();
        assert!((Duration::from_secs(97)..=Duration::from_secs(98)).contains(&wait), "a debt: {wait:?}");
    }
}
