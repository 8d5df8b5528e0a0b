//! Times in which the queues of all clients that are away hold too much together: they are told.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines in the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What the log was told of it.
///
/// A std Mutex: it is locked while something is dropped, and held for a comparison.
#[derive(Debug, Default)]
pub(crate) struct Crowding(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The last line that something was dropped, while nothing said that it is over.
    at: Option<Instant>,
    /// Dropped and not told.
    dropped: u64,
}

impl Crowding {
    /// Some were dropped for it; how many are to be logged, if it is time.
    pub(crate) fn note(&self, dropped: u64, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.dropped += dropped;
        if told.at.is_some_and(|at| now.saturating_duration_since(at) < LOG_EVERY) {
            return None;
        }
        told.at = Some(now);
        Some(std::mem::take(&mut told.dropped))
    }

    /// There is room again; how many were dropped since the last line, if there was one.
    pub(crate) fn end(&self) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.at.take().map(|_| std::mem::take(&mut told.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_is_told_once_and_the_end_too() {
        let (crowding, now) = (Crowding::default(), Instant::now());
        assert_eq!(crowding.end(), None, "nothing has begun");
        assert_eq!(crowding.note(3, now), Some(3));
        assert_eq!(crowding.note(4, now + Duration::from_secs(9)), None);
        assert_eq!(crowding.note(5, now + LOG_EVERY), Some(9));
        assert_eq!(crowding.note(6, now + LOG_EVERY), None);
        assert_eq!(crowding.end(), Some(6));
        assert_eq!(crowding.end(), None);
        assert_eq!(crowding.note(1, now + LOG_EVERY), Some(1), "it begins anew");
    }
}
