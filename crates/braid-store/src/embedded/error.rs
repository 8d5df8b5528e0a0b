//! Errors of opening and reading the store's files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::{DatabaseError, StorageError, TableError};
use thiserror::Error;

use super::codec::{FORMAT, Malformed};
use crate::error::StoreError;

/// Refusal to open a store: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path cannot be a data directory; it may be a file.
    #[error("{path} cannot be a data directory ({reason}): name a directory that exists or can be made")]
    Directory {
        /// The path.
        path: Arc<str>,
        /// Error of the system.
        reason: Arc<str>,
    },
    /// The process has no right to write there.
    #[error("{0} cannot be written: give the broker's user the right to, or name another data directory")]
    NotWritable(Arc<str>),
    /// The name of the store's file belongs to something else.
    #[error("{path} is {what} and cannot be a store: move it away or name another data directory")]
    NotAFile {
        /// The path.
        path: Arc<str>,
        /// Its kind.
        what: &'static str,
    },
    /// The store does not exist.
    #[error("there is no store at {0}: name the data directory of a broker")]
    Missing(Arc<str>),
    /// Another process, or this one, has the store open.
    #[error("the store {0} is open already: stop the other broker or give this one its own data directory")]
    InUse(Arc<str>),
    /// Another program wrote the file.
    #[error("{0} is not a store of braidmq: move it away or name another data directory")]
    Foreign(Arc<str>),
    /// A newer version wrote the file.
    #[error(
        "the store {path} has format {found} and this version reads up to {FORMAT}: run a newer braidmq, or let \
         that one export it and import it here"
    )]
    Newer {
        /// The file.
        path: Arc<str>,
        /// Its format.
        found: u64,
    },
    /// The store was not closed in order, so its last acknowledged changes are in its journal alone.
    #[error(
        "the journal of the store {0} is missing, and with it what was acknowledged last: put the file back that was \
         beside it, or restore a copy"
    )]
    JournalMissing(Arc<str>),
    /// The journal belongs to another store.
    #[error(
        "the journal {0} belongs to another store than the one beside it: put that store's file back, or move the \
         journal away too"
    )]
    JournalOfAnother(Arc<str>),
    /// The store needs its journal, which is damaged.
    #[error(
        "the journal {path} is damaged ({reason}), and what was acknowledged last is in it alone: restore a copy, or \
         move both the journal and the store beside it away to start with an empty one"
    )]
    JournalDamaged {
        /// The journal.
        path: Arc<str>,
        /// Kind of damage and its location.
        reason: Arc<str>,
    },
    /// The device is full.
    #[error("no space is left on the device of {0}: make room and start again, nothing is lost")]
    Full(Arc<str>),
    /// The device refuses to read or write.
    #[error("the device of {path} fails ({reason}): mend or replace it, then start again or restore a copy")]
    Device {
        /// The file.
        path: Arc<str>,
        /// Error of the system.
        reason: Arc<str>,
    },
    /// Stored content differs from what was written.
    #[error(
        "the store {path} is damaged ({reason}): restore a copy, or move it and its journal away to start with an \
         empty one"
    )]
    Damaged {
        /// The file.
        path: Arc<str>,
        /// Kind of damage and its location.
        reason: Arc<str>,
    },
}

impl OpenError {
    pub(super) fn damaged(path: &Arc<str>, reason: impl Into<Arc<str>>) -> Self {
        Self::Damaged { path: Arc::clone(path), reason: reason.into() }
    }

    pub(super) fn journal_damaged(journal: &Arc<str>, reason: impl Into<Arc<str>>) -> Self {
        Self::JournalDamaged { path: Arc::clone(journal), reason: reason.into() }
    }

    /// Error of opening or writing the file itself.
    pub(super) fn of_io(path: &Arc<str>, error: &io::Error) -> Self {
        let path = Arc::clone(path);
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::NotWritable(path),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(path),
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => {
                Self::Directory { path, reason: error.to_string().into() }
            }
            io::ErrorKind::NotFound => Self::Missing(path),
            io::ErrorKind::UnexpectedEof => Self::Damaged { path, reason: "it ends too early".into() },
            _ => Self::Device { path, reason: error.to_string().into() },
        }
    }

    pub(super) fn of_database(path: &Arc<str>, error: DatabaseError) -> Self {
        let path = Arc::clone(path);
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::InUse(path),
            // An older format of redb, in which no store was ever written.
            DatabaseError::UpgradeRequired(_) => Self::Foreign(path),
            // Another program's file.
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Foreign(path)
            }
            DatabaseError::Storage(error) => Self::of_redb(&path, error.into()),
            other => Self::Device { path, reason: other.to_string().into() },
        }
    }

    pub(super) fn of_redb(path: &Arc<str>, error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => Self::of_io(path, &error),
            redb::Error::Corrupted(reason) => Self::damaged(path, reason),
            // A table with our name and other types.
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. } => Self::Foreign(Arc::clone(path)),
            other => Self::Device { path: Arc::clone(path), reason: other.to_string().into() },
        }
    }
}

/// Error of reading rows.
#[derive(Debug)]
pub(super) enum ReadError {
    Redb(redb::Error),
    /// A row that does not decode, or contradicts another.
    Row(Arc<str>),
}

impl ReadError {
    pub(super) fn row(table: &str, key: &[u8], Malformed(what): Malformed) -> Self {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::Row(format!("table {table}, key {key}: {what} was expected").into())
    }

    pub(super) fn open(self, path: &Arc<str>) -> OpenError {
        match self {
            Self::Redb(error) => OpenError::of_redb(path, error),
            Self::Row(reason) => OpenError::damaged(path, reason),
        }
    }

    pub(super) fn store(self) -> StoreError {
        match self {
            Self::Redb(redb::Error::Corrupted(reason)) => StoreError::Damaged { reason: reason.into() },
            Self::Redb(error) => StoreError::Failed { reason: error.to_string().into() },
            Self::Row(reason) => StoreError::Damaged { reason },
        }
    }
}

macro_rules! read_errors {
    ($($error:ty),*) => {$(
        impl From<$error> for ReadError {
            fn from(error: $error) -> Self {
                Self::Redb(error.into())
            }
        }
    )*};
}

read_errors!(StorageError, TableError, redb::TransactionError, redb::CommitError);

/// Path of a file or directory for errors.
pub(super) fn path_text(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}
