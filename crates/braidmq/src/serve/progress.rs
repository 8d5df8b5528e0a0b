//! What a start that takes long says meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_broker::Recovery;
use braid_http::HealthState;
use braid_store::{Progress, Stage};

/// Nobody wonders about a start that takes no longer, nor about a silence between two lines.
const PATIENCE: Duration = Duration::from_secs(2);

/// Writes to standard error how far the start is, if it takes long, and tells it whoever asks. Cheap to clone.
#[derive(Clone)]
pub(super) struct Announcer {
    began: Instant,
    health: HealthState,
    rhythm: Arc<Mutex<Rhythm>>,
}

impl Announcer {
    pub(super) fn start(health: HealthState) -> Self {
        Self { began: Instant::now(), health, rhythm: Arc::default() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// How far opening and reading the file is.
    pub(super) fn opened(&self, progress: Progress) {
        self.say(describe(progress));
    }

    /// How much is there again.
    pub(super) fn recovered(&self, Recovery { sessions, queued, retained }: Recovery) {
        self.say(format!("recovered {sessions} sessions, {queued} queued and {retained} retained messages"));
    }

    /// Comes once for thousands of records.
    fn say(&self, text: String) {
        let elapsed = self.elapsed();
        let is_due = self.rhythm.lock().unwrap_or_else(PoisonError::into_inner).is_due(elapsed);
        if is_due {
            eprintln!("braidmq: starting for {:.0} s: {text} so far", elapsed.as_secs_f64());
        }
        self.health.starting(text);
    }
}

fn describe(Progress { stage, done, of }: Progress) -> String {
    match stage {
        Stage::Checking => format!("checked {done} % of the store"),
        Stage::Compacting => format!("gave free space back in {done} of {of} steps"),
        Stage::Replaying => format!("brought {done} of {of} groups of the journal into the tables"),
        Stage::Loading => format!("counted {done} of {of} sessions and queued messages"),
        Stage::Recovering => format!("read {done} of {of} sessions and queued messages"),
        Stage::Reading => format!("read {done} of {of} messages"),
        Stage::Importing => format!("imported {done} records"),
    }
}

/// When the last line was written, counted from the start.
#[derive(Default)]
struct Rhythm {
    last: Duration,
}

impl Rhythm {
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed.saturating_sub(self.last) >= PATIENCE;
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
    fn a_quick_start_says_nothing_and_a_slow_one_a_line_every_two_seconds() {
        let mut rhythm = Rhythm::default();
        let due: Vec<_> = [0, 1999, 2000, 2001, 3999, 4000, 9000, 10_500, 11_000]
            .map(|at| rhythm.is_due(Duration::from_millis(at)))
            .into();
        assert_eq!(due, [false, false, true, false, false, true, true, false, true]);
    }
}
