//! What standard error shows of something that takes long: one line that changes on a terminal, a line from time to
//! time elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use braid_store::{Options, Progress, Stage};

use super::thousands;

/// What takes no longer needs no progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two states of a terminal's line.
const BLINK: Duration = Duration::from_millis(100);
/// Between two lines elsewhere.
const SPARSE: Duration = Duration::from_secs(10);

pub(super) struct Watch {
    begun: Instant,
    is_terminal: bool,
    /// When something was shown.
    last: Mutex<Option<Instant>>,
}

impl Watch {
    /// Begins to count the time. Nothing is shown on a terminal that gets the records themselves.
    pub(super) fn new(shares_terminal: bool) -> Arc<Self> {
        let is_terminal = io::stderr().is_terminal() && !shares_terminal;
        Arc::new(Self { begun: Instant::now(), is_terminal, last: Mutex::new(None) })
    }

    /// For a store that tells its progress here.
    pub(super) fn options(self: &Arc<Self>) -> Options {
        let watch = Arc::clone(self);
        let mut options = Options::default();
        options.progress = Arc::new(move |progress| watch.show(progress));
        options
    }

    fn show(&self, progress: Progress) {
        let now = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_due(now - self.begun, last.map(|last| now - last), self.is_terminal) {
            return;
        }
        *last = Some(now);
        let text = text(progress);
        let mut stderr = io::stderr().lock();
        // A terminal that is gone is nobody's loss.
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{text}")
        };
    }

    /// Leaves the terminal as it was.
    pub(super) fn finish(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.is_terminal && last.is_some() {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}

fn is_due(begun: Duration, last: Option<Duration>, is_terminal: bool) -> bool {
    let pause = if is_terminal { BLINK } else { SPARSE };
    begun >= PATIENCE && last.is_none_or(|last| last >= pause)
}

fn text(progress: Progress) -> String {
    let Progress { stage, done, of } = progress;
    let [told, all] = [done.min(of), of].map(thousands);
    match stage {
        Stage::Checking => format!("verifying every page: {told} %"),
        Stage::Compacting => "giving free space back".into(),
        Stage::Replaying => format!("reading the journal: {told} of {all} groups"),
        Stage::Loading | Stage::Recovering | Stage::Reading => format!("reading: {told} of {all} rows"),
        Stage::Importing => format!("importing: {} records", thousands(done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_begins_after_two_seconds_and_is_sparse_where_lines_stay() {
        let ms = Duration::from_millis;
        for (begun, last, on_terminal, elsewhere) in [
            (ms(1999), None, false, false),
            (ms(2000), None, true, true),
            (ms(5000), Some(ms(99)), false, false),
            (ms(5000), Some(ms(100)), true, false),
            (ms(15_000), Some(ms(10_000)), true, true),
        ] {
            assert_eq!(is_due(begun, last, true), on_terminal, "{begun:?}");
            assert_eq!(is_due(begun, last, false), elsewhere, "{begun:?}");
        }
    }

    #[test]
    fn progress_says_what_is_done_and_how_much() {
        let progress = |stage, done, of| text(Progress { stage, done, of });
        assert_eq!(progress(Stage::Checking, 42, 100), "verifying every page: 42 %");
        assert_eq!(progress(Stage::Reading, 65_536, 1_000_000), "reading: 65,536 of 1,000,000 rows");
        assert_eq!(progress(Stage::Importing, 65_536, 0), "importing: 65,536 records");
    }
}
