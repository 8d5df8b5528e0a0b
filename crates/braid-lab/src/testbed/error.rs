//! Errors of the testbed and of programs in it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::output::End;
use crate::wire::WireError;

/// Error of the testbed: one line that says what to change.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// The machine does not permit namespaces.
    #[error("{0}")]
    Refused(String),
    /// The process has more than one thread, and threads change namespaces one by one.
    #[error("this program has started threads: call testbed::enter before that")]
    Threads,
    /// Operation that is permitted inside the testbed only.
    #[error("may not {0}: call testbed::enter first, or run as root")]
    Forbidden(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// Operation that was requested.
        what: String,
        /// Cause.
        source: io::Error,
    },
    /// A system program is not installed.
    #[error("`{tool}` is not installed: install the package {package}{instead}")]
    NoTool {
        /// Name of the program.
        tool: &'static str,
        /// Debian package of the program.
        package: &'static str,
        /// Alternative, after a comma; may be empty.
        instead: &'static str,
    },
    /// A system program failed.
    #[error("`{command}` in the namespace {namespace} failed: {said}")]
    Tool {
        /// Command line.
        command: String,
        /// Namespace in which it ran.
        namespace: String,
        /// Its error output, or its exit status.
        said: String,
    },
    /// The plan of the topology is invalid.
    #[error("{0}")]
    Plan(String),
    /// An emulated link could not be started.
    #[error("link {link}: {source}")]
    Wire {
        /// Name of the link.
        link: String,
        /// Cause.
        source: WireError,
    },
    /// A program could not be started.
    #[error("{name}: cannot start `{command}`: {why}")]
    Start {
        /// Name of the program in the experiment.
        name: String,
        /// Command line.
        command: String,
        /// Cause.
        why: String,
    },
    /// The log file of a program could not be created.
    #[error("{name}: cannot write {}: {source}", path.display())]
    Log {
        /// Name of the program in the experiment.
        name: String,
        /// Path of the log file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A program ended too early.
    #[error("{name} ended with {end}: `{command}`{last}")]
    Ended {
        /// Name of the program in the experiment.
        name: String,
        /// Command line.
        command: String,
        /// Exit code or signal.
        end: End,
        /// Last line that it wrote, after a colon; may be empty.
        last: String,
    },
    /// A program did not write the expected text in time.
    #[error("{name} has not written \"{wanted}\" within {within:?}: `{command}`{last}")]
    Silent {
        /// Name of the program in the experiment.
        name: String,
        /// Command line.
        command: String,
        /// Expected text.
        wanted: String,
        /// Time that it had.
        within: Duration,
        /// Last line that it wrote, after a colon; may be empty.
        last: String,
    },
}

impl TestbedError {
    /// Converts an I/O error; `what` is the operation: `create a network namespace`.
    pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Forbidden(what.into()),
            _ => Self::Kernel { what: what.into(), source },
        }
    }
}
