//! Errors of `braidmq store`, and their exit codes.

use braid_store::{OpenError, TransferError};
use thiserror::Error;

use super::{DAMAGED, REFUSED};

/// Failure of a command: one line with the remedy.
#[derive(Debug, Error)]
pub(super) enum Failure {
    #[error("the store {0} is in use: stop the broker first")]
    InUse(String),
    #[error(
        "{0} cannot be written, which looking at it needs too, since what a crash left is put in order: run this as \
         the broker's user, or copy it to where you may write"
    )]
    NotWritable(String),
    #[error(
        "the store {path} is damaged ({reason}): restore a backup with `braidmq store import --replace`, or move it \
         and its journal away to start with an empty one"
    )]
    Damaged { path: String, reason: String },
    #[error("no space is left on the device of {0}: make room and do it again, nothing was changed")]
    Full(String),
    #[error(transparent)]
    Store(OpenError),
    #[error("the store {0} is not empty: name another --data-dir, or replace what is there with --replace")]
    NotEmpty(String),
    #[error("{file}:{line}: {reason}; nothing was imported, export again")]
    Line { file: String, line: u64, reason: String },
    #[error("{file} has format {found} and this version reads up to {known}: run a newer braidmq")]
    NewerExport { file: String, found: u64, known: u64 },
    #[error("cannot open {what}: {reason}")]
    Open { what: String, reason: String },
    #[error("cannot read {what}: {reason}; nothing was imported")]
    Read { what: String, reason: String },
    #[error("cannot write {what}: {reason}")]
    Write { what: String, reason: String },
    #[error("no file is named and standard input is a terminal: name the file that was exported")]
    Terminal,
}

impl Failure {
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Damaged { .. }
            | Self::Full(_)
            | Self::Store(OpenError::Device { .. } | OpenError::JournalDamaged { .. })
            | Self::Line { .. }
            | Self::Read { .. }
            | Self::Write { .. } => DAMAGED,
            _ => REFUSED,
        }
    }

    /// Error of an import from `file`.
    pub(super) fn of_import(error: TransferError, file: &str) -> Self {
        let file = file.to_owned();
        match error {
            TransferError::Store(error) => error.into(),
            TransferError::NotEmpty { path } => Self::NotEmpty(path.to_string()),
            TransferError::Line { line, reason } => Self::Line { file, line, reason: reason.to_string() },
            TransferError::Newer { found, known } => Self::NewerExport { file, found, known },
            TransferError::Stream { reason } => Self::Read { what: file, reason: reason.to_string() },
            other => Self::Read { what: file, reason: other.to_string() },
        }
    }

    /// Error of an export to `file`.
    pub(super) fn of_export(error: TransferError, file: &str) -> Self {
        match error {
            TransferError::Store(error) => error.into(),
            TransferError::Stream { reason } => {
                Self::Write { what: file.to_owned(), reason: reason.to_string() }
            }
            other => Self::Write { what: file.to_owned(), reason: other.to_string() },
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse(path) => Self::InUse(path.to_string()),
            OpenError::NotWritable(path) => Self::NotWritable(path.to_string()),
            OpenError::Full(path) => Self::Full(path.to_string()),
            OpenError::Damaged { path, reason } => {
                Self::Damaged { path: path.to_string(), reason: reason.to_string() }
            }
            other => Self::Store(other),
        }
    }
}
