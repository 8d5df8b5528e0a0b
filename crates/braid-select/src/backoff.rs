//! Exponential back-off of QUIC where it does not work.

use std::time::Duration;

/// Back-off after the first failure, as in Chrome.
const FIRST: Duration = Duration::from_secs(300);

/// Longest back-off. Measurements are older than this too late anyway.
const MAX: Duration = Duration::from_secs(24 * 3600);

/// Failures of QUIC since it worked last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Back-off of an earlier run, in which `retry_in` was left of its wait.
    pub(crate) fn restored(now: Duration, failures: u32, retry_in: Duration) -> Self {
        Self { failures: failures.min(31), until: now.saturating_add(retry_in.min(MAX * 5 / 4)) }
    }

    /// Counts a failure: QUIC is broken for 300 s times two to the power of the failures before, at most 24 h, and up
    /// to a quarter more by `jitter` from 0 to 1.
    pub(crate) fn fail(&mut self, now: Duration, jitter: f64) {
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(MAX);
        self.failures = (self.failures + 1).min(31);
        self.until = now.saturating_add(wait + wait.mul_f64(jitter.clamp(0.0, 1.0) / 4.0));
    }

    /// Forgets the failures: QUIC works.
    pub(crate) fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Failures since QUIC worked last.
    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Time until QUIC may be tried again; `None` if that is now.
    pub(crate) fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.checked_sub(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_day() {
        let mut backoff = Backoff::default();
        let now = Duration::from_secs(7);
        assert_eq!(backoff.remaining(now), None);
        for seconds in [300, 600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 86_400, 86_400] {
            backoff.fail(now, 0.0);
            assert_eq!(backoff.remaining(now), Some(Duration::from_secs(seconds)));
        }
        backoff.fail(now, 1.0);
        assert_eq!(backoff.remaining(now), Some(Duration::from_secs(108_000)));
        (0..100).for_each(|_| backoff.fail(now, 0.0));
        backoff.succeed();
        backoff.fail(now, 0.0);
        assert_eq!(backoff.remaining(now + FIRST), None);
    }
}
