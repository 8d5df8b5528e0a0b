//! How a program ended.

use std::fmt;
use std::time::Duration;

/// How a program ended, and what it used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct End {
    /// Its exit code or the signal.
    pub how: How,
    /// Processor time, user and system, its own and that of children it waited for.
    pub cpu: Duration,
    /// The most main memory it had at a time, bytes, as of a quarter of a second before its end or its last output; `None`
    /// if it ended sooner, or /proc is that of other namespaces.
    pub peak_memory: Option<u64>,
    /// How long it ran.
    pub seconds: f64,
}

/// Exit code or signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It exited with this code.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
}

impl End {
    /// The exit code as a shell counts: 128 and the number of the signal.
    pub fn code(&self) -> i32 {
        match self.how {
            How::Exit(code) => code,
            How::Signal(number) => 128 + number,
        }
    }
}

impl fmt::Display for End {
    /// `exit code 1` or `signal 9`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.how {
            How::Exit(code) => write!(f, "exit code {code}"),
            How::Signal(number) => write!(f, "signal {number}"),
        }
    }
}
