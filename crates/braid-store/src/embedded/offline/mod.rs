//! What is done with a store that no broker runs: looking at it, and moving it from one format or machine to
//! another.

mod check;
mod export;
mod import;
mod record;
mod restore;
mod sound;
mod stats;

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;
use thiserror::Error;

pub use self::check::{Check, Damage, Problem};
pub use self::restore::Existing;
pub use self::stats::{QueueStats, Stats};

use super::error::{OpenError, ReadError};
use super::file::{self, File};
use super::journal::Candidate;
use super::options::Options;
use super::replay::replay;

/// Nothing counts so far: a broker that went on from here would soon have no number that is free.
const BEYOND: u64 = 1 << 62;

/// A store in a data directory whose broker does not run. Nobody else can open it meanwhile.
pub struct OfflineStore {
    file: File,
    /// Of the file, when it was opened.
    length: u64,
    options: Options,
}

impl OfflineStore {
    /// Opens the store that is in the data directory. Every page is verified; what a crash left is put in order,
    /// as when a broker opens it.
    ///
    /// # Errors
    /// One line that says what to change.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let (device, place) = file::present_device(directory)?;
        Self::over(device, &place, || Candidate::in_directory(directory, false), options)
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
        Self::over(device, &Arc::from("<device>"), || Ok(Some(Candidate::on(journal))), options)
    }

    fn over(
        device: impl StorageBackend,
        place: &Arc<str>,
        journal: impl FnOnce() -> Result<Option<Candidate>, OpenError>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let length = device.len().map_err(|error| OpenError::of_io(place, &error))?;
        let file = File::open(device, place, &options)?;
        replay(&file, journal()?.as_ref(), &options)?;
        Ok(Self { file, length, options })
    }

    fn open_error(&self, error: ReadError) -> OpenError {
        error.open(&self.file.place)
    }
}

impl std::fmt::Debug for OfflineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfflineStore").field("place", &self.file.place).finish_non_exhaustive()
    }
}

/// Why a store was not exported or imported. An import that fails changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store itself.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Something is stored already, and nobody said that it may go.
    #[error("the store {place} is not empty: import into another data directory, or replace it")]
    NotEmpty {
        /// Which file.
        place: Arc<str>,
    },
    /// A line that is no record, or contradicts those before.
    #[error("line {line}: {reason}; nothing was imported")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// A newer version exported it.
    #[error("the export has format {found} and this version reads up to {known}: run a newer braidmq")]
    Newer {
        /// Of the export.
        found: u64,
        /// Of this version.
        known: u64,
    },
    /// The other end of the records.
    #[error("cannot read or write the records ({reason}): mend the cause and do it again")]
    Stream {
        /// What the system said.
        reason: Arc<str>,
    },
}

impl From<io::Error> for TransferError {
    fn from(error: io::Error) -> Self {
        Self::Stream { reason: error.to_string().into() }
    }
}
