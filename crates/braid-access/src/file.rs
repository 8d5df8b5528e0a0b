//! Files of secrets and rules, read whole and with a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// File that cannot be used: one line.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: the file cannot be read: {source}", path = .path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is longer than any of its kind.
    #[error("{path}: the file has more than {limit} bytes; is it the right one?", path = .path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
        /// Bound in bytes.
        limit: usize,
    },
    /// Its content is not valid. The text names the file.
    #[error("{0}")]
    Content(String),
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// The file cannot be read, or is longer.
pub fn read(path: &Path, limit: usize) -> Result<Vec<u8>, FileError> {
    let mut content = Vec::new();
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    file.take(limit as u64 + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() > limit {
        return Err(FileError::TooLong { path: path.to_owned(), limit });
    }
    Ok(content)
}
