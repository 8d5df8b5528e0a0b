//! Progress of long commands on standard error: one changing line on a terminal, a line every ten seconds elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_store::{Options, Progress, Stage};

use super::thousands;
use crate::output::replace_line;

/// Time before the first progress.
const DELAY: Duration = Duration::from_secs(2);
/// Interval on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

pub(crate) struct ProgressLine {
    begun: Instant,
    is_terminal: bool,
    /// Time of the last output.
    last: Mutex<Option<Instant>>,
}

impl ProgressLine {
    /// Starts the clock. Without output on a terminal that gets the records themselves.
    pub(crate) fn new(shares_terminal: bool) -> Arc<Self> {
        let is_terminal = io::stderr().is_terminal() && !shares_terminal;
        Arc::new(Self { begun: Instant::now(), is_terminal, last: Mutex::new(None) })
    }

    /// Options of a store that reports its progress here.
    pub(crate) fn options(self: &Arc<Self>) -> Options {
        let line = Arc::clone(self);
        let mut options = Options::default();
        options.progress = Arc::new(move |progress| line.show(progress));
        options
    }

    /// A poisoned lock is safe to use: the time of the last output is written whole.
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, progress: Progress) {
        let now = Instant::now();
        let mut last = self.lock();
        if !is_due(now - self.begun, last.map(|last| now - last), self.is_terminal) {
            return;
        }
        *last = Some(now);
        let text = text(progress);
        if self.is_terminal {
            replace_line(&text);
        } else {
            // A closed standard error is no failure.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Clears the terminal's line.
    pub(crate) fn finish(&self) {
        let last = self.lock().take();
        if self.is_terminal && last.is_some() {
            replace_line("");
        }
    }
}

/// Tests whether it is time for the next output: so long after the begin, and after the last output.
pub(crate) fn is_due(begun: Duration, last: Option<Duration>, is_terminal: bool) -> bool {
    let pause = if is_terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL };
    begun >= DELAY && last.is_none_or(|last| last >= pause)
}

fn text(progress: Progress) -> String {
    let Progress { stage, done, of } = progress;
    let [now, all] = [done.min(of), of].map(thousands);
    match stage {
        Stage::Checking => format!("verifying every page: {now} %"),
        Stage::Compacting => "giving free space back".into(),
        Stage::Replaying => format!("reading the journal: {now} of {all} groups"),
        Stage::Loading | Stage::Recovering | Stage::Reading => format!("reading: {now} of {all} rows"),
        Stage::Importing => format!("importing: {} records", thousands(done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_begins_after_two_seconds_with_an_interval_for_each_output() {
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
    fn progress_names_the_stage_and_its_units() {
        let progress = |stage, done, of| text(Progress { stage, done, of });
        assert_eq!(progress(Stage::Checking, 42, 100), "verifying every page: 42 %");
        assert_eq!(progress(Stage::Reading, 65_536, 1_000_000), "reading: 65,536 of 1,000,000 rows");
        assert_eq!(progress(Stage::Importing, 65_536, 0), "importing: 65,536 records");
    }
}
