//! End of a client's credentials by the wall clock.

use std::time::{Duration, Instant};

/// Longest time between two readings of the wall clock.
const INTERVAL: Duration = Duration::from_secs(60);

/// End of credentials by a wall clock, which may jump.
#[derive(Clone, Copy, Debug)]
pub struct Expiry {
    at: Duration,
    clock: fn() -> Duration,
}

impl Expiry {
    /// End at this time since the Unix epoch. `clock` reads the wall clock, as the time since the Unix epoch; it is
    /// read when the client is accepted, and every minute from then on.
    pub const fn new(at: Duration, clock: fn() -> Duration) -> Self {
        Self { at, clock }
    }

    /// Time that is left; zero from the end on.
    pub fn left(&self) -> Duration {
        self.at.saturating_sub((self.clock)())
    }
}

/// Timer of the connection that has the credentials.
#[derive(Debug)]
pub(crate) struct ExpiryTimer {
    expiry: Expiry,
    /// Next reading of the wall clock.
    next: Instant,
}

impl ExpiryTimer {
    pub(crate) fn new(expiry: Expiry, now: Instant) -> Self {
        Self { expiry, next: now + expiry.left().min(INTERVAL) }
    }

    /// Next instant for [`ExpiryTimer::handle_timeout`].
    pub(crate) const fn next_timeout(&self) -> Instant {
        self.next
    }

    /// Tests whether the credentials have ended, as far as the wall clock was read.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        *self = Self::new(self.expiry, now);
        self.next == now
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(0) };
    }

    /// Each step: seconds that pass, the wall clock then; whether the credentials have ended, and the seconds to the
    /// next reading.
    #[test]
    fn the_wall_clock_is_read_at_bounded_intervals_and_decides() {
        let clock = || Duration::from_secs(CLOCK.get());
        let steps: [&[(u64, u64, bool, u64)]; 5] = [
            &[(60, 1060, false, 40), (39, 1099, false, 1), (1, 1100, true, 0)],
            &[(59, 5000, false, 1), (1, 5001, true, 0)], // forwards: noticed at the next reading
            &[(60, 100, false, 60), (60, 160, false, 60), (60, 1090, false, 10), (10, 1100, true, 0)], // backwards
            &[(60, 0, false, 60)],
            &[(60, u64::MAX, true, 0)],
        ];
        for steps in steps {
            CLOCK.set(1000);
            let mut now = Instant::now();
            let mut timer = ExpiryTimer::new(Expiry::new(Duration::from_secs(1100), clock), now);
            for &(seconds, wall, has_ended, left) in steps {
                CLOCK.set(wall);
                now += Duration::from_secs(seconds);
                assert_eq!(timer.handle_timeout(now), has_ended, "{steps:?}: {wall}");
                assert_eq!((timer.next_timeout() - now).as_secs(), left, "{steps:?}: {wall}");
            }
        }
        let never = ExpiryTimer::new(Expiry::new(Duration::MAX, clock), Instant::now());
        assert!(never.next_timeout() <= Instant::now() + INTERVAL, "no overflow");
    }
}
