//! The database: opened with everything that can be wrong with it, written by one transaction for each group, read
//! by snapshots. The only file that speaks to redb's transactions when the store runs.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use braid_proto::decoder::Spool;
use redb::backends::FileBackend;
use redb::{
    AccessGuard, Database, Key, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTableMetadata,
    StorageBackend, TableDefinition, TableError, Value, WriteTransaction,
};

use super::error::{OpenError, ReadError, place};
use super::keys::{self, FORMAT, Payload, meta};
use super::options::{Options, Progress, Stage};
use crate::identity::{Lsn, SessionId};
use crate::message::StoredMessage;
use crate::session::SessionRecord;

/// The store's file in its data directory.
const FILE: &str = "store.redb";
/// What is to take its place.
const NEW: &str = "store.redb.new";
/// What was acknowledged and is not in the store's file yet.
const JOURNAL: &str = "store.journal";
/// A file below this length is not worth compacting.
const SMALL: u64 = 16 << 20;

pub(super) struct File {
    database: Database,
    /// As in the options.
    pub(super) part: usize,
    pub(super) place: Arc<str>,
}

/// Opens the store's file in the directory, which is made if it is not there.
pub(super) fn device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    let at = place(directory);
    fs::create_dir_all(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            OpenError::Directory { place: Arc::clone(&at), reason: error.to_string().into() }
        }
        _ => OpenError::of_io(&at, &error),
    })?;
    let opened = open_device(directory, FILE, true)?;
    sync_names(directory)?;
    Ok(opened)
}

/// Whether there is a file of a store, or of anybody else, where ours would be.
pub(super) fn is_present(directory: &Path) -> bool {
    directory.join(FILE).symlink_metadata().is_ok()
}

/// Bytes of the files that are in the directory.
pub(super) fn size(directory: &Path) -> u64 {
    let files = [FILE, JOURNAL].map(|name| directory.join(name).metadata());
    files.into_iter().flatten().map(|file| file.len()).sum()
}

/// Keeps everybody else from opening the file, which need not be a store.
pub(super) fn lock(device: &FileBackend, place: &Arc<str>) -> Result<(), OpenError> {
    match device.try_lock_range(Bound::Unbounded, Bound::Unbounded) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenError::InUse { place: Arc::clone(place) }),
        Err(error) => Err(OpenError::Device { place: Arc::clone(place), reason: error.to_string().into() }),
    }
}

/// Begins an empty file beside the store's; [`put_in_place`] makes it the store's.
pub(super) fn new_device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    let (device, place) = open_device(directory, NEW, true)?;
    // Somebody was interrupted.
    device.set_len(0).map_err(|error| OpenError::of_io(&place, &error))?;
    Ok((device, place))
}

/// Puts the new file where the store's is. A power failure leaves the one or the other, whole.
pub(super) fn put_in_place(directory: &Path) -> Result<(), OpenError> {
    let path = directory.join(FILE);
    fs::rename(directory.join(NEW), &path).map_err(|error| OpenError::of_io(&place(&path), &error))?;
    sync_names(directory)
}

/// Takes the new file away again, and the store's too if it was made for this only.
pub(super) fn discard(directory: &Path, store_too: bool) {
    // Whatever cannot be taken away is empty or overwritten the next time.
    let _ = fs::remove_file(directory.join(NEW));
    if store_too {
        let _ = fs::remove_file(directory.join(FILE));
    }
}

/// A file must be found again by its name.
fn sync_names(directory: &Path) -> Result<(), OpenError> {
    let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| OpenError::of_io(&place(directory), &error))
}

/// Opens the store's file in the directory, where it must be.
pub(super) fn present_device(directory: &Path) -> Result<(FileBackend, Arc<str>), OpenError> {
    open_device(directory, FILE, false)
}

/// Opens the journal in the directory; without `create`, only if there is one. Whoever has the store's file is the only one
/// to ask for it, so it needs no lock of its own.
pub(super) fn journal_device(
    directory: &Path,
    create: bool,
) -> Result<Option<(FileBackend, Arc<str>)>, OpenError> {
    if !create && directory.join(JOURNAL).symlink_metadata().is_err() {
        return Ok(None);
    }
    let (device, place) = open_device(directory, JOURNAL, create)?;
    if create {
        sync_names(directory)?;
    }
    Ok(Some((device, place)))
}

fn open_device(directory: &Path, name: &str, create: bool) -> Result<(FileBackend, Arc<str>), OpenError> {
    let path = directory.join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    #[cfg(unix)]
    // Messages are nobody else's business.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let place = place(&path);
    if let Some(what) = not_a_file(&path) {
        return Err(OpenError::NotAFile { place, what });
    }
    let file = options.open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => OpenError::of_io(&super::error::place(directory), &error),
        // The directory is there, and takes no files: a part of /proc, for instance.
        io::ErrorKind::NotFound if create => OpenError::Directory {
            place: super::error::place(directory),
            reason: "no file can be made in it".into(),
        },
        _ => OpenError::of_io(&place, &error),
    })?;
    advise(&file, name == JOURNAL);
    let backend = FileBackend::new(file).map_err(|error| OpenError::of_database(&place, error))?;
    Ok((backend, place))
}

/// Lets what is read come from the device as far as the system does that: after a failed fsync some file systems keep
/// pages in memory as if they were written, and whoever verified those would build on what the device does not have.
/// The best that can be done, and no more: what is still to be written stays.
///
/// Of a journal only what is asked for is read, and nothing ahead of it: that would be kept in large pieces, each of which
/// counts as written when a block of it is.
#[cfg(target_os = "linux")]
fn advise(file: &fs::File, is_journal: bool) {
    use rustix::fs::{Advice, fadvise};

    // A system that refuses it leaves everything as it was.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    if is_journal {
        let _ = fadvise(file, 0, None, Advice::Random);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &fs::File, _: bool) {}

/// What has the name, if that is neither a file nor nothing. A link to a file is one.
fn not_a_file(path: &Path) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => None,
        Ok(found) if found.is_dir() => Some("a directory"),
        Ok(_) => Some("not a regular file"),
        Err(error) if error.kind() != io::ErrorKind::NotFound => None,
        Err(_) => path.symlink_metadata().is_ok().then_some("a link to nothing"),
    }
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
        let mut file = Self { database, part: options.part, place: Arc::clone(place) };
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

    /// One transaction of the caller's, for what is larger than a group.
    pub(super) fn transaction(&self) -> Result<WriteTransaction, ReadError> {
        Ok(self.database.begin_write()?)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, ReadError> {
        Ok(Snapshot(self.database.begin_read()?))
    }
}

fn split(message: Lsn, value: &[u8]) -> Result<(StoredMessage, Payload<'_>), ReadError> {
    keys::split_message(value).map_err(|error| ReadError::row("message", &keys::message_key(message), error))
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

    /// Rows of all tables that hold something of a client's.
    pub(super) fn all_rows(&self) -> Result<u64, ReadError> {
        Ok(self.rows(keys::SESSION)?
            + self.rows(keys::SUBSCRIPTION)?
            + self.rows(keys::WILL)?
            + self.rows(keys::RECEIVED)?
            + self.rows(keys::QUEUE)?
            + self.rows(keys::INFLIGHT)?
            + self.rows(keys::RETAINED)?
            + self.rows(keys::MESSAGE)?)
    }

    pub(super) fn session(&self, session: SessionId) -> Result<SessionRecord, ReadError> {
        let key = keys::session_key(session);
        let missing = || ReadError::Row(format!("session {session} is not there").into());
        let table = self.table(keys::SESSION)?.ok_or_else(missing)?;
        let value = table.get(&key)?.ok_or_else(missing)?;
        let record = keys::decode_session(session, value.value());
        record.map_err(|error| ReadError::row("session", &key, error))
    }

    /// A large payload is put into the spool.
    pub(super) fn message(
        &self,
        message: Lsn,
        spool: Option<&dyn Spool>,
    ) -> Result<Option<StoredMessage>, ReadError> {
        let Some(value) = self.message_row(message)? else { return Ok(None) };
        let (head, payload) = split(message, value.value())?;
        Ok(Some(match payload {
            Payload::Here(payload) => head.with_copy(payload, spool),
            Payload::Parts(length) => self.with_parts(message, head, length, spool)?,
        }))
    }

    /// The message without its payload, and how many bytes that has.
    pub(super) fn message_head(&self, message: Lsn) -> Result<Option<(StoredMessage, usize)>, ReadError> {
        let Some(value) = self.message_row(message)? else { return Ok(None) };
        let (head, payload) = split(message, value.value())?;
        Ok(Some((head, payload.len())))
    }

    /// The message as it is stored.
    pub(super) fn message_row(
        &self,
        message: Lsn,
    ) -> Result<Option<AccessGuard<'static, &'static [u8]>>, ReadError> {
        let Some(table) = self.table(keys::MESSAGE)? else { return Ok(None) };
        Ok(table.get(&keys::message_key(message))?)
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
