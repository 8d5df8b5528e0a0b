//! Rates of requests and of wrong logins, by address or another key.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

/// Keys whose rates are remembered; the one that was seen longest ago is forgotten first.
const KEYS: NonZeroUsize = NonZeroUsize::new(4096).expect("positive");

/// Token bucket of each key.
pub(super) struct RequestRate<K: Hash + Eq> {
    per_sec: f64,
    burst: f64,
    buckets: Mutex<LruCache<K, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Hash + Eq> RequestRate<K> {
    pub(super) fn new(per_sec: u32, burst: u32) -> Self {
        Self { per_sec: per_sec.into(), burst: burst.into(), buckets: Mutex::new(LruCache::new(KEYS)) }
    }

    /// Bucket that fills up in `per`.
    pub(super) fn slow(burst: u32, per: Duration) -> Self {
        Self { per_sec: f64::from(burst) / per.as_secs_f64(), ..Self::new(1, burst) }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// There is none; the time until there is one.
    pub(super) fn take(&self, key: K) -> Result<(), Duration> {
        self.take_at(key, Instant::now())
    }

    /// Puts a token back that was taken.
    pub(super) fn give_back(&self, key: &K) {
        let mut buckets = self.buckets();
        // One that was forgotten is full.
        if let Some(bucket) = buckets.get_mut(key) {
            bucket.tokens = (bucket.tokens + 1.0).min(self.burst);
        }
    }

    /// Takes any number of tokens, also those that are not there yet.
    pub(super) fn charge(&self, key: K, tokens: f64) {
        self.charge_at(key, Instant::now(), tokens);
    }

    fn charge_at(&self, key: K, now: Instant, tokens: f64) {
        self.bucket(&mut self.buckets(), key, now).tokens -= tokens;
    }

    /// Tests whether there is a token, and leaves it.
    ///
    /// # Errors
    /// There is none; the time until there is one.
    pub(super) fn check(&self, key: K) -> Result<(), Duration> {
        self.wait(self.bucket(&mut self.buckets(), key, Instant::now()))
    }

    fn buckets(&self) -> MutexGuard<'_, LruCache<K, Bucket>> {
        // Nothing panics while it is held.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_at(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets();
        let bucket = self.bucket(&mut buckets, key, now);
        self.wait(bucket)?;
        bucket.tokens -= 1.0;
        Ok(())
    }

    /// Bucket of a key, with the tokens of now.
    fn bucket<'a>(&self, buckets: &'a mut LruCache<K, Bucket>, key: K, now: Instant) -> &'a mut Bucket {
        let full = Bucket { tokens: self.burst, at: now };
        let bucket = buckets.get_or_insert_mut(key, || full);
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        *bucket = Bucket { tokens: (bucket.tokens + since * self.per_sec).min(self.burst), at: now };
        bucket
    }

    fn wait(&self, bucket: &Bucket) -> Result<(), Duration> {
        if bucket.tokens >= 1.0 {
            return Ok(());
        }
        let seconds = (1.0 - bucket.tokens) / self.per_sec;
        Err(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::network::of_host;

    #[test]
    fn a_bucket_fills_up_with_time() {
        let rate = RequestRate::new(2, 3);
        let (start, address) = (Instant::now(), |text: &str| text.parse::<IpAddr>().unwrap());
        let take = |text, ms| rate.take_at(of_host(address(text)), start + Duration::from_millis(ms));
        for _ in 0..3 {
            assert_eq!(take("2001:db8::1", 0), Ok(()));
        }
        assert_eq!(take("2001:db8::2", 0), Err(Duration::from_millis(500)), "the same network");
        assert_eq!(take("192.0.2.1", 0), Ok(()), "another one");
        assert_eq!(take("2001:db8::1", 400), Err(Duration::from_millis(100)));
        assert_eq!(take("2001:db8::1", 500), Ok(()));
        assert!(take("2001:db8::1", 500).is_err());
        rate.give_back(&of_host(address("2001:db8::1")));
        assert_eq!(take("2001:db8::1", 500), Ok(()), "it was put back");
        assert!(take("2001:db8::1", 500).is_err());
        for _ in 0..3 {
            assert_eq!(take("2001:db8::1", 60_000), Ok(()));
        }
        assert!(take("2001:db8::1", 60_000).is_err(), "no more than the burst is kept");
        for _ in 0..5 {
            rate.give_back(&of_host(address("192.0.2.1")));
        }
        assert_eq!((0..5).filter(|_| take("192.0.2.1", 0).is_ok()).count(), 3, "nor given back");
        rate.charge_at(of_host(address("192.0.2.9")), start, 100.0);
        assert_eq!(take("192.0.2.9", 1000), Err(Duration::from_secs(48)), "a debt");
    }
}
