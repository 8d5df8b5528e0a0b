//! What goes wrong again and again is told when it begins, then now and then, and when it is over.

use std::time::{Duration, Instant};

/// Between two lines in the log.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(10);

/// What the log was told of one time of it.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// The last line, while none said that it is over.
    at: Option<Instant>,
    /// What went wrong and was not told.
    untold: u64,
}

impl LogThrottle {
    /// So much more went wrong; how much is to be logged, if it is time.
    pub(crate) fn note(&mut self, more: u64, now: Instant) -> Option<u64> {
        self.untold += more;
        let is_time = self.at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_EVERY);
        if self.untold == 0 || !is_time {
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.untold))
    }

    /// It is over; how much went wrong since the last line, if there was one.
    pub(crate) fn end(&mut self) -> Option<u64> {
        self.at.take().map(|_| std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_told_once_and_the_end_too() {
        let (mut throttle, now) = (LogThrottle::default(), Instant::now());
        assert_eq!(throttle.end(), None, "nothing has begun");
        assert_eq!(throttle.note(0, now), None, "nor now");
        assert_eq!(throttle.note(3, now), Some(3));
        assert_eq!(throttle.note(4, now + Duration::from_secs(9)), None);
        assert_eq!(throttle.note(5, now + LOG_EVERY), Some(9));
        assert_eq!(throttle.note(0, now + 2 * LOG_EVERY), None, "nothing new");
        assert_eq!(throttle.note(6, now + LOG_EVERY), None);
        assert_eq!(throttle.note(0, now + 2 * LOG_EVERY), Some(6), "what was not told yet");
        assert_eq!(throttle.note(7, now + 2 * LOG_EVERY), None);
        assert_eq!(throttle.end(), Some(7));
        assert_eq!(throttle.end(), None);
        assert_eq!(throttle.note(1, now + LOG_EVERY), Some(1), "it begins anew");
    }
}
