//! Counts of passed and failed cases.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// Counts of cases. A known difference is a case that a foreign broker fails by its own bug.
#[derive(Default)]
pub(super) struct Tally {
    passed: usize,
    pub(super) failed: usize,
    known: usize,
}

impl Tally {
    /// True before the first case.
    pub(super) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.known == 0
    }

    /// Prints and counts a passed case of our own.
    pub(super) fn pass(&mut self, name: &str, elapsed: Duration) {
        self.take(&format!("ok {name} ({} ms)", elapsed.as_millis()));
    }

    /// Prints and counts a failed case of our own.
    pub(super) fn fail(&mut self, name: &str, reason: &str) {
        self.take(&format!("FAIL {name}: {reason}"));
    }

    pub(super) fn take(&mut self, line: &str) {
        println!("{line}");
        match line.split_once(' ') {
            Some(("ok", _)) => self.passed += 1,
            Some(("FAIL", _)) => self.failed += 1,
            Some(("known", _)) => self.known += 1,
            _ => {}
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.known += other.known;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed", self.passed, self.failed)?;
        if self.known > 0 {
            write!(formatter, ", {} known differences of the broker", self.known)?;
        }
        Ok(())
    }
}
