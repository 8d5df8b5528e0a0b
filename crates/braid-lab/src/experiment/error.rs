//! Why nothing could be run.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::house::HouseError;

/// Why an experiment could not be run at all: one line that says what to change.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// A name on the command line that the scenario does not have.
    #[error("the scenario has no {what} {name:?}; it has {there}")]
    Unknown {
        /// Kind of the name.
        what: &'static str,
        /// The name.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// A program of the user that does not fit in.
    #[error("--replace: {0}")]
    Replaced(String),
    /// Nothing is left of the scenario.
    #[error("nothing to run: no variant fits the profiles that were chosen")]
    Nothing,
    /// A report that this plan cannot go on with.
    #[error("--resume: the report there has another {0}: start a new one with another --out")]
    Another(&'static str),
    /// Something that the chosen profile needs is not on this machine.
    #[error("{0}")]
    Missing(String),
    /// The network could not be built.
    #[error(transparent)]
    House(#[from] HouseError),
    /// A run's directory or file cannot be written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A command line that cannot be split.
    #[error("{program}: {problem}")]
    Command {
        /// The program.
        program: String,
        /// The cause.
        problem: String,
    },
}

/// Whether all `names` are among those of the scenario.
pub(super) fn known<'a>(
    what: &'static str,
    names: &[String],
    there: impl Iterator<Item = &'a str>,
) -> Result<(), ExperimentError> {
    let there: Vec<&str> = there.collect();
    match names.iter().find(|name| !there.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(ExperimentError::Unknown { what, name: name.clone(), there: there.join(", ") }),
    }
}
