//! Reads `report.json`.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Report, SCHEMA};

/// Why a file is no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{} is not a report of braidmq lab, but {what}: name the report.json that lab run wrote", path.display())]
    NotReport {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: String,
    },
    /// It has another form.
    #[error(
        "{} has the schema {found:?}, this braidmq reads {SCHEMA:?}: use the braidmq that wrote it, or run the \
         scenario again",
        path.display()
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
    /// It says the right schema and does not follow it.
    #[error("{} is damaged: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and how.
        source: serde_json::Error,
    },
}

/// What every report begins with.
#[derive(Deserialize)]
struct Beginning {
    schema: Option<String>,
}

/// The report in a file that [`super::write`] made.
///
/// # Errors
///
/// One line that names the file: it cannot be read, is something else, has another schema, or is damaged.
pub fn load(path: &Path) -> Result<Report, LoadError> {
    let path_of = || path.to_owned();
    let text = std::fs::read(path).map_err(|source| LoadError::Read { path: path_of(), source })?;
    let not_report = |what: String| LoadError::NotReport { path: path_of(), what };
    let beginning: Beginning = serde_json::from_slice(&text).map_err(|error| {
        not_report(if error.is_data() { "other JSON".into() } else { format!("no JSON ({error})") })
    })?;
    match beginning.schema {
        None => Err(not_report("JSON without a schema".into())),
        Some(schema) if schema != SCHEMA => Err(LoadError::Schema { path: path_of(), found: schema }),
        Some(_) => {
            serde_json::from_slice(&text).map_err(|source| LoadError::Damaged { path: path_of(), source })
        }
    }
}
