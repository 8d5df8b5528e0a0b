//! The database: opened with everything that can be wrong with it, written by one transaction for each group, read
//! by snapshots. The only file that speaks to redb's transactions when the store runs.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{
    Database, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageBackend, TableDefinition, TableError, Value, WriteTransaction,
};

use super::error::{OpenError, ReadError, place};
use super::keys::{self, FORMAT, meta};
use super::options::{Options, Progress, Stage};
use super::write::write;
use super::writes::Writes;
use crate::error::StoreError;
use crate::identity::{Lsn, SessionId};
use crate::message::StoredMessage;
use crate::recover::NextIds;

/// The store's file in its data directory.
const FILE: &str = "store.redb";
/// A file below this length is not worth compacting.
const SMALL: u64 = 16 << 20;

pub(super) struct File {
    database: Database,
    pub(super) place: Arc<str>,
}

/// Opens the store's file in the directory, which is made if it is not there.
pub(super) fn device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    let at = place(directory);
    let directory_error = |error: &io::Error| OpenError::of_io(&at, error);
    fs::create_dir_all(directory).map_err(|error| directory_error(&error))?;
    let opened = open_device(directory, true)?;
    // A new file must be found again by its name.
    fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| directory_error(&error))?;
    Ok(opened)
}

/// Opens the store's file in the directory, where it must be.
pub(super) fn present_device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    open_device(directory, false)
}

fn open_device(directory: &Path, create: bool) -> Result<(FileBackend, Arc<str>), OpenError> {
    let path = directory.join(FILE);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    #[cfg(unix)]
    // Messages are nobody else's business.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let place = place(&path);
    let file = options.open(&path).map_err(|error| OpenError::of_io(&place, &error))?;
    let backend = FileBackend::new(file).map_err(|error| OpenError::of_database(&place, error))?;
    Ok((backend, place))
}

impl File {
    /// Opens what is on the device, or begins an empty store there. Verifies every page.
    pub(super) fn open(
        device: impl StorageBackend,
        place: &Arc<str>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let length = device.len().map_err(|error| OpenError::of_io(place, &error))?;
        let progress = Arc::clone(&options.progress);
        let mut builder = Database::builder();
        builder.set_cache_size(options.cache);
        // Without it redb trusts a file that was closed in order, and ends the process where it should not have.
        builder.set_check_integrity_on_open(true);
        builder.set_repair_callback(move |session| {
            // A fraction of 1.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100")]
            let done = (session.progress() * 100.0) as u64;
            progress(Progress { stage: Stage::Checking, done, of: 100 });
        });
        let database =
            builder.create_with_backend(device).map_err(|error| OpenError::of_database(place, error))?;
        let mut file = Self { database, place: Arc::clone(place) };
        file.check_format()?;
        file.compact(length, options)?;
        Ok(file)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let snapshot = self.snapshot().map_err(|error| error.open(&self.place))?;
        let found = snapshot.number(meta::FORMAT).map_err(|error| error.open(&self.place))?;
        match found {
            Some(found) if found > FORMAT => Err(OpenError::Newer { place: Arc::clone(&self.place), found }),
            Some(FORMAT) => Ok(()),
            Some(found) => Err(OpenError::damaged(&self.place, format!("there is no format {found}"))),
            None if snapshot.is_empty().map_err(|error| error.open(&self.place))? => Ok(()),
            None => Err(OpenError::Foreign { place: Arc::clone(&self.place) }),
        }
    }

    /// Gives space back when more than half of the file is free.
    fn compact(&mut self, length: u64, options: &Options) -> Result<(), OpenError> {
        if length < SMALL || self.used()? > length / 2 {
            return Ok(());
        }
        let tell = |done| (options.progress)(Progress { stage: Stage::Compacting, done, of: 1 });
        tell(0);
        self.database.compact().map_err(|error| OpenError::of_redb(&self.place, error.into()))?;
        tell(1);
        Ok(())
    }

    /// Bytes of the pages that hold something.
    pub(super) fn used(&self) -> Result<u64, OpenError> {
        let failed = |error: redb::Error| OpenError::of_redb(&self.place, error);
        let transaction = self.database.begin_write().map_err(|error| failed(error.into()))?;
        let stats = transaction.stats().map_err(|error| failed(error.into()))?;
        transaction.abort().map_err(|error| failed(error.into()))?;
        Ok(stats.allocated_pages().saturating_mul(stats.page_size() as u64))
    }

    /// Counts this opening; nothing is granted or numbered before it is durable.
    pub(super) fn begin(&self) -> Result<(u64, NextIds), OpenError> {
        self.count_opening().map_err(|error| error.open(&self.place))
    }

    fn count_opening(&self) -> Result<(u64, NextIds), ReadError> {
        let transaction = self.database.begin_write()?;
        let numbers = {
            let mut meta = transaction.open_table(keys::META)?;
            let number = |name| meta.get(name).map(|value| value.map(|value| value.value()));
            let opens = number(meta::OPENS)?.unwrap_or(0).saturating_add(1);
            let next = NextIds {
                session: number(meta::NEXT_SESSION)?.map_or(NextIds::FIRST.session, SessionId::new),
                lsn: number(meta::NEXT_LSN)?.map_or(NextIds::FIRST.lsn, Lsn::new),
            };
            meta.insert(meta::FORMAT, FORMAT)?;
            meta.insert(meta::OPENS, opens)?;
            (opens, next)
        };
        transaction.commit()?;
        Ok(numbers)
    }

    /// Writes a group and waits until the device has it.
    pub(super) fn write(&self, writes: &Writes) -> Result<(), StoreError> {
        let written = || -> Result<(), ReadError> {
            let transaction = self.database.begin_write()?;
            write(&transaction, writes)?;
            transaction.commit()?;
            Ok(())
        };
        // Whatever it was: nobody knows what the device holds now.
        written().map_err(|error| match error {
            ReadError::Redb(error) => StoreError::Failed { reason: error.to_string().into() },
            ReadError::Row(reason) => StoreError::Failed { reason },
        })
    }

    /// One transaction of the caller's, for what is larger than a group.
    pub(super) fn transaction(&self) -> Result<WriteTransaction, ReadError> {
        Ok(self.database.begin_write()?)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, ReadError> {
        Ok(Snapshot(self.database.begin_read()?))
    }
}

/// What was committed when it was taken.
pub(super) struct Snapshot(ReadTransaction);

impl Snapshot {
    /// `None` when nothing was ever written to the table.
    pub(super) fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>, ReadError> {
        match self.0.open_table(table) {
            Ok(table) => Ok(Some(table)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn rows<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'_, K, V>,
    ) -> Result<u64, ReadError> {
        self.table(table)?.map_or(Ok(0), |table| Ok(table.len()?))
    }

    pub(super) fn message(&self, message: Lsn) -> Result<Option<StoredMessage>, ReadError> {
        let Some(table) = self.table(keys::MESSAGE)? else { return Ok(None) };
        let key = keys::message_key(message);
        let Some(value) = table.get(&key)? else { return Ok(None) };
        let message = keys::decode_message(value.value());
        message.map(Some).map_err(|error| ReadError::row("message", &key, error))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ReadError> {
        let Some(table) = self.table(keys::META)? else { return Ok(None) };
        Ok(table.get(name)?.map(|value| value.value()))
    }

    /// Whether there is no table at all.
    fn is_empty(&self) -> Result<bool, ReadError> {
        Ok(self.0.list_tables()?.next().is_none() && self.0.list_multimap_tables()?.next().is_none())
    }
}
