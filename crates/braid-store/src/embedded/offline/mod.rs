//! Operations on a store that no broker runs: check, statistics, export, import.

mod check;
mod export;
mod import;
mod record;
mod stats;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use braid_proto::packet::PacketId;
use redb::StorageBackend;
use thiserror::Error;

pub use self::check::{Check, Damage, Problem};
pub use self::import::Existing;
pub use self::stats::{QueueStats, Stats};

use super::error::{OpenError, ReadError};
use super::files;
use super::journal::JournalFile;
use super::options::Options;
use super::recovery::replay;
use super::tables::Tables;
use crate::ids::SessionId;
use crate::message::StoredMessage;

/// Limit of numbers: a broker that continued from here would run out of them.
const NUMBER_LIMIT: u64 = 1 << 62;

/// A store in a data directory whose broker does not run, locked while this value lives.
pub struct OfflineStore {
    tables: Tables,
    /// Bytes of the tables' file before it was opened.
    length: u64,
    options: Options,
}

impl OfflineStore {
    /// Opens the store in the data directory. Verifies every page and replays the journal, as when a broker opens it.
    ///
    /// # Errors
    /// One line with the remedy.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let (device, path, id) = files::existing_device(directory)?;
        let journal = || {
            id.check(directory, &path)?;
            JournalFile::in_directory(directory, false)
        };
        Self::over(device, &path, journal, options)
    }

    /// Opens the store on devices of the caller's: one for the tables, one for the journal.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(
        device: impl StorageBackend,
        journal: impl StorageBackend,
        options: Options,
    ) -> Result<Self, OpenError> {
        Self::over(device, &Arc::from("<device>"), || Ok(Some(JournalFile::on(journal))), options)
    }

    fn over(
        device: impl StorageBackend,
        path: &Arc<str>,
        journal: impl FnOnce() -> Result<Option<JournalFile>, OpenError>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let length = device.len().map_err(|error| OpenError::of_io(path, &error))?;
        let tables = Tables::open(device, path, &options)?;
        replay(&tables, journal()?.as_ref(), &options)?;
        Ok(Self { tables, length, options })
    }

    fn open_error(&self, error: ReadError) -> OpenError {
        error.open(&self.tables.path)
    }
}

impl std::fmt::Debug for OfflineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfflineStore").field("path", &self.tables.path).finish_non_exhaustive()
    }
}

/// Error of an export or import. A failed import changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store cannot be opened, read or written.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The store is not empty and was not to be replaced.
    #[error("the store {path} is not empty: import into another data directory, or replace it")]
    NotEmpty {
        /// The tables' file.
        path: Arc<str>,
    },
    /// A line that is not a record, or contradicts an earlier one.
    #[error("line {line}: {reason}; nothing was imported")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The defect.
        reason: Arc<str>,
    },
    /// A newer version wrote the export.
    #[error("the export has format {found} and this version reads up to {known}: run a newer braidmq")]
    Newer {
        /// Format of the export.
        found: u64,
        /// Newest format that this version reads.
        known: u64,
    },
    /// The records cannot be read or written.
    #[error("cannot read or write the records ({reason}): mend the cause and do it again")]
    Stream {
        /// Error of the system.
        reason: Arc<str>,
    },
}

impl From<io::Error> for TransferError {
    fn from(error: io::Error) -> Self {
        Self::Stream { reason: error.to_string().into() }
    }
}

/// Checks that a broker could have retained the message with a payload of this many bytes.
fn check_retained(message: &StoredMessage, payload: usize) -> Result<(), record::Invalid> {
    if payload == 0 {
        return Err("a message without payload is not retained: it removes the one that was");
    }
    if message.topic().as_str().starts_with("$SYS/") {
        return Err("what is below $SYS/ is not kept");
    }
    Ok(())
}

/// Packet identifiers in flight by session: two entries of a session with one identifier could not be told apart by
/// their PUBACK.
type InflightIds = BTreeSet<(SessionId, PacketId)>;
