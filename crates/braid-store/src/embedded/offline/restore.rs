use std::io::Read;
use std::path::Path;

use redb::StorageBackend;

use super::super::error::OpenError;
use super::super::file;
use super::super::journal::Candidate;
use super::super::options::Options;
use super::{OfflineStore, TransferError};

/// What becomes of a store that is in the data directory already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, unless there is nothing in it.
    Keep,
    /// It goes once the other one is whole, also when it is damaged or not a store.
    Replace,
}

impl OfflineStore {
    /// Makes the data directory's store of what [`export`](Self::export) wrote. It is written beside the one that is
    /// there and takes its place when all of it is durable; until then, and if anything fails, nothing is changed.
    /// How many records there were.
    ///
    /// # Errors
    /// Every [`TransferError`].
    pub fn restore(
        directory: &Path,
        existing: Existing,
        from: &mut dyn Read,
        options: Options,
    ) -> Result<u64, TransferError> {
        let was_there = file::is_present(directory);
        // Held until the end, so that no broker begins with what is about to go.
        let held = Self::hold(directory, existing, &options)?;
        let restored = Self::restore_beside(directory, from, options);
        if restored.is_err() {
            file::discard(directory, !was_there);
        }
        drop(held);
        restored
    }

    /// Opens the file that is there or begins one, so that nobody else can.
    fn hold(directory: &Path, existing: Existing, options: &Options) -> Result<Box<dyn Send>, TransferError> {
        let (device, place) = file::device(directory)?;
        let length = device.len().map_err(|error| OpenError::of_io(&place, &error))?;
        if existing == Existing::Replace || length == 0 {
            file::lock(&device, &place)?;
            return Ok(Box::new(device));
        }
        let store =
            Self::over(device, &place, || Candidate::in_directory(directory, false), options.clone())?;
        if store.is_empty()? { Ok(Box::new(store)) } else { Err(TransferError::NotEmpty { place }) }
    }

    fn restore_beside(directory: &Path, from: &mut dyn Read, options: Options) -> Result<u64, TransferError> {
        let (device, place) = file::new_device(directory)?;
        // Its journal begins with the first broker that opens it; one that is there is not asked.
        let store = Self::over(device, &place, || Ok(None), options)?;
        let records = store.import(from)?;
        // Closing writes, too.
        drop(store);
        file::put_in_place(directory)?;
        Ok(records)
    }
}
