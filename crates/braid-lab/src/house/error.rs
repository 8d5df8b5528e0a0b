//! Why there is no house, or why somebody in it does not do what it should.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::end::End;
use crate::wire::WireError;

/// What went wrong, in one line that says what to change.
#[derive(Debug, Error)]
pub enum HouseError {
    /// The machine does not let this process make namespaces.
    #[error("{0}")]
    Refused(String),
    /// Threads cannot change their namespaces together.
    #[error("this program has started threads: enter the house before that")]
    Threads,
    /// Something that is allowed inside the house only.
    #[error("may not {0}: do it inside the house (house::enter) or as root")]
    Forbidden(String),
    /// The kernel does not do something.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What it should have done.
        what: String,
        /// What it says.
        source: io::Error,
    },
    /// A program that the house needs is not installed.
    #[error("there is no `{tool}` here: install the package {package}{instead}")]
    NoTool {
        /// The program.
        tool: &'static str,
        /// The Debian package with it.
        package: &'static str,
        /// What does the same, after a comma.
        instead: &'static str,
    },
    /// A program that the house needs refuses.
    #[error("`{command}` in the namespace {namespace} failed: {said}")]
    Tool {
        /// Its command line.
        command: String,
        /// Where it ran.
        namespace: String,
        /// What it wrote, or how it ended.
        said: String,
    },
    /// A plan that no topology can follow.
    #[error("{0}")]
    Plan(String),
    /// An emulated link that cannot be.
    #[error("link {link}: {source}")]
    Wire {
        /// Its name.
        link: String,
        /// Why.
        source: WireError,
    },
    /// A program that cannot be started.
    #[error("{name}: cannot start `{command}`: {why}")]
    Start {
        /// The program's name in the experiment.
        name: String,
        /// Its command line.
        command: String,
        /// Why.
        why: String,
    },
    /// A log file that cannot be made.
    #[error("{name}: cannot write {}: {source}", path.display())]
    Log {
        /// The program's name in the experiment.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that ended when it should not have.
    #[error("{name} ended with {end}: `{command}`{last}")]
    Ended {
        /// The program's name in the experiment.
        name: String,
        /// Its command line.
        command: String,
        /// How.
        end: End,
        /// Its last line, after a colon, if it wrote any.
        last: String,
    },
    /// A program that did not say what it should have.
    #[error("{name} has not written \"{wanted}\" within {within:?}: `{command}`{last}")]
    Silent {
        /// The program's name in the experiment.
        name: String,
        /// Its command line.
        command: String,
        /// What it should have written.
        wanted: String,
        /// How long it had.
        within: Duration,
        /// Its last line, after a colon, if it wrote any.
        last: String,
    },
}

impl HouseError {
    /// `what` is what the kernel was asked for: `create a network namespace`.
    pub(super) fn kernel(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Forbidden(what.into()),
            _ => Self::Kernel { what: what.into(), source },
        }
    }
}
