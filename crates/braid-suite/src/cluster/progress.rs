//! Progress lines of steps that take long.

use std::time::{Duration, Instant};

/// Time without a line.
const INTERVAL: Duration = Duration::from_secs(2);

/// Prints how far a step is, every two seconds.
pub(super) struct Progress {
    step: &'static str,
    began: Instant,
    shown: Instant,
}

impl Progress {
    pub(super) fn new(step: &'static str) -> Self {
        let now = Instant::now();
        Self { step, began: now, shown: now }
    }

    /// Prints a line on standard error if none was printed for two seconds.
    pub(super) fn show(&mut self, state: impl FnOnce() -> String) {
        if self.shown.elapsed() >= INTERVAL {
            self.shown = Instant::now();
            eprintln!("# {}, {:.0} s: {}", self.step, self.began.elapsed().as_secs_f64(), state());
        }
    }
}
