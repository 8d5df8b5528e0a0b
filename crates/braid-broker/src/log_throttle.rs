//! Throttle of recurring log lines.

use std::time::{Duration, Instant};

/// Shortest time between two log lines.
pub(crate) const LOG_EVERY: Duration = Duration::from_secs(10);

/// Throttles a recurring warning: logs the first, then one every 10 s, then the end.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// Time of the last line, until the end is logged.
    logged_at: Option<Instant>,
    /// Events since the last line.
    unlogged: u64,
}

impl LogThrottle {
    /// Counts events. Returns the number to log, if a line is due.
    pub(crate) fn note(&mut self, more: u64, now: Instant) -> Option<u64> {
        self.unlogged += more;
        let is_due = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_EVERY);
        if self.unlogged == 0 || !is_due {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Notes the end. Returns the number of events since the last line, if there was one.
    pub(crate) fn end(&mut self) -> Option<u64> {
        self.logged_at.take().map(|_| std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_logged_once_and_their_end_too() {
        let (mut throttle, now) = (LogThrottle::default(), Instant::now());
        assert_eq!(throttle.end(), None, "no event yet");
        assert_eq!(throttle.note(0, now), None, "no event");
        assert_eq!(throttle.note(3, now), Some(3));
        assert_eq!(throttle.note(4, now + Duration::from_secs(9)), None);
        assert_eq!(throttle.note(5, now + LOG_EVERY), Some(9));
        assert_eq!(throttle.note(0, now + 2 * LOG_EVERY), None, "nothing new");
        assert_eq!(throttle.note(6, now + LOG_EVERY), None);
        assert_eq!(throttle.note(0, now + 2 * LOG_EVERY), Some(6), "the unlogged ones");
        assert_eq!(throttle.note(7, now + 2 * LOG_EVERY), None);
        assert_eq!(throttle.end(), Some(7));
        assert_eq!(throttle.end(), None);
        assert_eq!(throttle.note(1, now + LOG_EVERY), Some(1), "a new beginning");
    }
}
