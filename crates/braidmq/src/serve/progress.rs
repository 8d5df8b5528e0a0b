//! Progress of a long start.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_broker::Recovery;
use braid_http::HealthState;
use braid_store::{Progress, Stage};

/// Time without a line of progress.
const INTERVAL: Duration = Duration::from_secs(2);

/// Reporter of the start: one line on standard error every two seconds, and the health state. Cheap to clone.
#[derive(Clone)]
pub(super) struct ProgressReporter {
    began: Instant,
    health: HealthState,
    throttle: Arc<Mutex<Throttle>>,
}

impl ProgressReporter {
    pub(super) fn start(health: HealthState) -> Self {
        Self { began: Instant::now(), health, throttle: Arc::default() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reports the progress of opening and reading the file.
    pub(super) fn opened(&self, progress: Progress) {
        self.report(describe(progress));
    }

    /// Reports the recovered sessions and messages.
    pub(super) fn recovered(&self, Recovery { sessions, queued, retained }: Recovery) {
        self.report(format!(
            "recovered {sessions} sessions, {queued} queued and {retained} retained messages"
        ));
    }

    /// Called once for thousands of records.
    fn report(&self, text: String) {
        let elapsed = self.elapsed();
        // A poisoned throttle is safe to use: its only field is one time, which is written whole.
        let is_due = self.throttle.lock().unwrap_or_else(PoisonError::into_inner).is_due(elapsed);
        if is_due {
            eprintln!("braidmq: starting for {:.0} s: {text} so far", elapsed.as_secs_f64());
        }
        self.health.starting(text);
    }
}

fn describe(Progress { stage, done, of }: Progress) -> String {
    match stage {
        Stage::Checking => format!("checked {done} % of the store"),
        Stage::Compacting => format!("compacted in {done} of {of} steps"),
        Stage::Replaying => format!("replayed {done} of {of} groups of the write-ahead log"),
        Stage::Loading => format!("counted {done} of {of} sessions and queued messages"),
        Stage::Recovering => format!("read {done} of {of} sessions and queued messages"),
        Stage::Reading => format!("read {done} of {of} messages"),
        Stage::Importing => format!("imported {done} records"),
    }
}

/// Throttle of the lines: the time of the last one, from the start.
#[derive(Default)]
struct Throttle {
    last: Duration,
}

impl Throttle {
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed.saturating_sub(self.last) >= INTERVAL;
        if is_due {
            self.last = elapsed;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_reports_every_two_seconds() {
        let mut throttle = Throttle::default();
        let due: Vec<_> = [0, 1999, 2000, 2001, 3999, 4000, 9000, 10_500, 11_000]
            .map(|at| throttle.is_due(Duration::from_millis(at)))
            .into();
        assert_eq!(due, [false, false, true, false, false, true, true, false, true]);
    }
}
