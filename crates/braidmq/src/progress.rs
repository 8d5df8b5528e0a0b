//! Progress of long commands on standard error: one changing line on a terminal, a line every ten seconds elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output::replace_line;

/// Time before the first progress.
const DELAY: Duration = Duration::from_secs(2);
/// Interval on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one command.
pub(crate) struct ProgressLine {
    begun: Instant,
    is_terminal: bool,
    /// Time of the last output.
    last: Mutex<Option<Instant>>,
}

impl ProgressLine {
    /// Starts the clock. Without output on a terminal that gets the records themselves.
    pub(crate) fn new(shares_terminal: bool) -> Self {
        let is_terminal = io::stderr().is_terminal() && !shares_terminal;
        Self { begun: Instant::now(), is_terminal, last: Mutex::new(None) }
    }

    /// A poisoned lock is safe to use: the time of the last output is written whole.
    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the progress, if it is time for that.
    pub(crate) fn show(&self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        let mut last = self.lock();
        if !is_due(now - self.begun, last.map(|last| now - last), self.is_terminal) {
            return;
        }
        *last = Some(now);
        if self.is_terminal {
            replace_line(&text());
        } else {
            // A closed standard error is no failure.
            let _ = writeln!(io::stderr(), "{}", text());
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
fn is_due(begun: Duration, last: Option<Duration>, is_terminal: bool) -> bool {
    let pause = if is_terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL };
    begun >= DELAY && last.is_none_or(|last| last >= pause)
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
}
