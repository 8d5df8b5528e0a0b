//! Errors of the testbed and of programs in it.

use std::io;

use thiserror::Error;

/// Error of the testbed: one line that says what to change.
#[derive(Debug, Error)]
#[error("{0}")]
pub enum TestbedError {
    /// A system program failed.
    Tool(String),
    /// A program ended too early.
    Ended(String),
    /// A program did not write the expected text in time.
    Silent(String),
    /// Other cause: the machine does not permit namespaces, a plan is invalid, a system call failed.
    Other(String),
}

impl TestbedError {
    /// Converts an I/O error; `what` is the operation: `create a network namespace`.
    pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            let what = what.into();
            Self::Other(match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("may not {what}: call testbed::enter first, or run as root")
                }
                _ => format!("cannot {what}: {error}"),
            })
        }
    }
}
