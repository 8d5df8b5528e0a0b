//! Failures of `braidmq store`, and their exit codes.

use braid_store::{OpenError, TransferError};

use super::{DAMAGED, REFUSED};

/// Failure of a command: its exit code, and one line with the remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    /// Nothing was done, and the user must change something.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { code: REFUSED, message: message.into() }
    }

    /// Damage or failure of the store, the disk, or the imported records.
    pub(crate) fn damaged(message: impl Into<String>) -> Self {
        Self { code: DAMAGED, message: message.into() }
    }

    /// Error of an import from `file`.
    pub(crate) fn of_import(error: TransferError, file: &str) -> Self {
        let unreadable =
            |reason: &str| Self::damaged(format!("cannot read {file}: {reason}; nothing was imported"));
        match error {
            TransferError::Store(error) => error.into(),
            TransferError::NotEmpty { path } => Self::refused(format!(
                "the store {path} is not empty: name another --data-dir, or replace what is there with --replace"
            )),
            TransferError::Line { line, reason } => {
                Self::damaged(format!("{file}:{line}: {reason}; nothing was imported, export again"))
            }
            TransferError::Newer { found, known } => Self::refused(format!(
                "{file} has format {found} and this version reads up to {known}: run a newer braidmq"
            )),
            TransferError::Stream { reason } => unreadable(&reason),
            other => unreadable(&other.to_string()),
        }
    }

    /// Error of an export to `file`.
    pub(crate) fn of_export(error: TransferError, file: &str) -> Self {
        match error {
            TransferError::Store(error) => error.into(),
            TransferError::Stream { reason } => Self::damaged(format!("cannot write {file}: {reason}")),
            other => Self::damaged(format!("cannot write {file}: {other}")),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse(path) => {
                Self::refused(format!("the store {path} is in use: stop the broker first"))
            }
            OpenError::NotWritable(path) => Self::refused(format!(
                "{path} cannot be written, which looking at it needs too, since what a crash left is put in order: \
                 run this as the broker's user, or copy it to where you may write"
            )),
            OpenError::Full(path) => Self::damaged(format!(
                "no space is left on the device of {path}: make room and do it again, nothing was changed"
            )),
            OpenError::Damaged { path, reason } => Self::damaged(format!(
                "the store {path} is damaged ({reason}): restore a backup with `braidmq store import --replace`, or \
                 move it and its journal away to start with an empty one"
            )),
            OpenError::Device { .. } | OpenError::JournalDamaged { .. } => Self::damaged(error.to_string()),
            other => Self::refused(other.to_string()),
        }
    }
}
