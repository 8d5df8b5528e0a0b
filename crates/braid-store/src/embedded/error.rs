use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::{DatabaseError, StorageError, TableError};
use thiserror::Error;

use super::keys::{FORMAT, Malformed};
use crate::error::StoreError;

/// Why a store could not be opened. Each line says what to change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The path cannot be a data directory, for instance because it is a file.
    #[error("{place} cannot be a data directory ({reason}): name a directory that exists or can be made")]
    Directory {
        /// Which path.
        place: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// The user of the process may not write there, or nobody may.
    #[error("{place} cannot be written: give the broker's user the right to, or name another data directory")]
    NotWritable {
        /// Which path.
        place: Arc<str>,
    },
    /// What has the name of the store's file is none.
    #[error("{place} is {what} and cannot be a store: move it away or name another data directory")]
    NotAFile {
        /// Which path.
        place: Arc<str>,
        /// What it is.
        what: &'static str,
    },
    /// There is no store to look at.
    #[error("there is no store at {place}: name the data directory of a broker")]
    Missing {
        /// Which file.
        place: Arc<str>,
    },
    /// Another process, or this one, has the store open.
    #[error(
        "the store {place} is open already: stop the other broker or give this one its own data directory"
    )]
    InUse {
        /// Which file.
        place: Arc<str>,
    },
    /// The file was not written by a store.
    #[error("{place} is not a store of braidmq: move it away or name another data directory")]
    Foreign {
        /// Which file.
        place: Arc<str>,
    },
    /// A newer version wrote it.
    #[error(
        "the store {place} has format {found} and this version reads up to {FORMAT}: run a newer braidmq, or let \
         that one export it and import it here"
    )]
    Newer {
        /// Which file.
        place: Arc<str>,
        /// Its format.
        found: u64,
    },
    /// The store was not closed in order, so what it acknowledged last is in its journal alone.
    #[error(
        "the journal of the store {place} is missing, and with it what was acknowledged last: put the file back that was \
         beside it, or restore a copy"
    )]
    JournalMissing {
        /// The store's own file.
        place: Arc<str>,
    },
    /// The journal that is there was not written beside this store.
    #[error(
        "the journal {place} belongs to another store than the one beside it: put that store's file back, or move the \
         journal away too"
    )]
    JournalOfAnother {
        /// Which journal.
        place: Arc<str>,
    },
    /// The store needs its journal, and that is not what was written.
    #[error(
        "the journal {place} is damaged ({reason}), and what was acknowledged last is in it alone: restore a copy, or \
         move both the journal and the store beside it away to start with an empty one"
    )]
    JournalDamaged {
        /// Which journal.
        place: Arc<str>,
        /// What is wrong and where.
        reason: Arc<str>,
    },
    /// The device is full.
    #[error("no space is left on the device of {place}: make room and start again, nothing is lost")]
    Full {
        /// Which file.
        place: Arc<str>,
    },
    /// The device refuses to read or write.
    #[error("the device of {place} fails ({reason}): mend or replace it, then start again or restore a copy")]
    Device {
        /// Which file.
        place: Arc<str>,
        /// What the system said.
        reason: Arc<str>,
    },
    /// What is stored is not what was written.
    #[error(
        "the store {place} is damaged ({reason}): restore a copy, or move it and its journal away to start with an \
         empty one"
    )]
    Damaged {
        /// Which file.
        place: Arc<str>,
        /// What is wrong and where.
        reason: Arc<str>,
    },
}

impl OpenError {
    pub(super) fn damaged(place: &Arc<str>, reason: impl Into<Arc<str>>) -> Self {
        Self::Damaged { place: Arc::clone(place), reason: reason.into() }
    }

    pub(super) fn journal_damaged(journal: &Arc<str>, reason: impl Into<Arc<str>>) -> Self {
        Self::JournalDamaged { place: Arc::clone(journal), reason: reason.into() }
    }

    /// For the file itself: what opening or writing it said.
    pub(super) fn of_io(place: &Arc<str>, error: &io::Error) -> Self {
        let place = Arc::clone(place);
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::NotWritable { place }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { place },
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory => {
                Self::Directory { place, reason: error.to_string().into() }
            }
            io::ErrorKind::NotFound => Self::Missing { place },
            io::ErrorKind::UnexpectedEof => Self::Damaged { place, reason: "it ends too early".into() },
            _ => Self::Device { place, reason: error.to_string().into() },
        }
    }

    pub(super) fn of_database(place: &Arc<str>, error: DatabaseError) -> Self {
        let place = Arc::clone(place);
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => Self::InUse { place },
            // redb's own older formats: none of ours was ever written in one.
            DatabaseError::UpgradeRequired(_) => Self::Foreign { place },
            // What redb says of a file that does not begin as its files do.
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Foreign { place }
            }
            DatabaseError::Storage(error) => Self::of_storage(&place, error),
            other => Self::Device { place, reason: other.to_string().into() },
        }
    }

    pub(super) fn of_storage(place: &Arc<str>, error: StorageError) -> Self {
        match error {
            StorageError::Io(error) => Self::of_io(place, &error),
            StorageError::Corrupted(reason) => Self::damaged(place, reason),
            other => Self::Device { place: Arc::clone(place), reason: other.to_string().into() },
        }
    }

    pub(super) fn of_redb(place: &Arc<str>, error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => Self::of_io(place, &error),
            redb::Error::Corrupted(reason) => Self::damaged(place, reason),
            // A table that has our name and not our types.
            redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. } => Self::Foreign { place: Arc::clone(place) },
            other => Self::Device { place: Arc::clone(place), reason: other.to_string().into() },
        }
    }
}

/// What went wrong while rows were read.
#[derive(Debug)]
pub(super) enum ReadError {
    Redb(redb::Error),
    /// A row that this format does not have.
    Row(Arc<str>),
}

impl ReadError {
    pub(super) fn row(table: &str, key: &[u8], Malformed(what): Malformed) -> Self {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::Row(format!("table {table}, key {key}: {what} was expected").into())
    }

    pub(super) fn open(self, place: &Arc<str>) -> OpenError {
        match self {
            Self::Redb(error) => OpenError::of_redb(place, error),
            Self::Row(reason) => OpenError::damaged(place, reason),
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

/// The place of a file or directory in messages.
pub(super) fn place(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}
