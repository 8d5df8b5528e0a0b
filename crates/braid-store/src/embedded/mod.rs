//! Embedded store: tables in redb and a write-ahead log, in files of one machine.
//!
//! A commit is checked and applied to the [index](crate::index) on the caller's thread, and its row changes are added
//! to the pending group ([`group_commit`]). One writer thread appends each group to the journal with one write and one
//! fsync and completes its callers; the batches that arrive meanwhile are the next group. Lazy batches wait for a group
//! that another batch needs. Durable groups are merged in memory ([`wal`]) until the checkpointer thread writes many of
//! them to the [`tables`] in one transaction. Opening replays the journal ([`recovery`]).

mod checkpoint;
mod codec;
mod error;
mod files;
mod group_commit;
mod journal;
mod offline;
mod options;
mod recovery;
mod snapshot;
mod tables;
mod wal;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_proto::decoder::Spool;
use braid_proto::packet::ClientId;
use redb::StorageBackend;

pub use self::error::OpenError;
pub use self::offline::{Check, Damage, Existing, OfflineStore, Problem, QueueStats, Stats, TransferError};
pub use self::options::{Durability, Options, Progress, Stage};

use self::error::ReadError;
use self::group_commit::{EarlyAcks, GroupCommit};
use self::journal::JournalFile;
use self::snapshot::{Snapshot, Unread};
use self::tables::Tables;
use self::wal::Wal;
use crate::change::{Batch, Ownership};
use crate::completion::{Commit, Completion};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds};
use crate::message::{LazyMessage, StoredMessage};
use crate::recovery::Recover;
use crate::store::Store;
use crate::write_set::Write;

/// Bits of a claim below the number of the opening, so that claims of later openings are greater.
const CLAIM_BITS: u32 = 40;

/// A [`Store`] in a file of tables and a journal beside it. Dropping it writes everything that is pending, closes both
/// files, and blocks until then.
///
/// [`messages_of`](Store::messages_of) reads on the caller's thread, mostly from memory or the page cache.
pub struct EmbeddedStore {
    commits: Arc<GroupCommit>,
    wal: Arc<Wal>,
    tables: Arc<Tables>,
    /// Directory of its files; `None` on devices of the caller's.
    directory: Option<PathBuf>,
    options: Options,
    spool: Option<Arc<dyn Spool>>,
    /// `None` once the threads have ended.
    writer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens the store in the data directory, or creates one there, and locks it.
    ///
    /// Blocks while it reads the whole file: every page is verified.
    ///
    /// # Errors
    /// One line with the remedy.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let (device, path, id) = files::tables_device(directory)?;
        // The journal is opened when the tables are locked.
        let journal = |create| {
            id.check(directory, &path)?;
            JournalFile::in_directory(directory, create)
        };
        let mut store = Self::over(device, &path, journal, options)?;
        store.directory = Some(directory.to_owned());
        Ok(store)
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
        let mut journal = Some(JournalFile::on(journal));
        Self::over(device, &Arc::from("<device>"), |_| Ok(journal.take()), options)
    }

    /// `journal` is called to open the journal, and if there is none once more, with true, to create it.
    fn over(
        device: impl StorageBackend,
        path: &Arc<str>,
        mut journal: impl FnMut(bool) -> Result<Option<JournalFile>, OpenError>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let tables = Tables::open(device, path, &options)?;
        let found = journal(false)?;
        recovery::replay(&tables, found.as_ref(), &options)?;
        let journal = if found.is_none() { journal(true)? } else { found };
        let missing = || OpenError::JournalMissing(Arc::clone(path));
        let journal = journal.ok_or_else(missing)?.adopt(&tables, options.journal)?;
        let opened = tables.count_opening(journal.store());
        let loaded = opened.and_then(|(opens, next)| {
            let snapshot = tables.snapshot()?;
            let index = snapshot.load(Claim::new(opens << CLAIM_BITS), next, &options)?;
            Ok((index, snapshot.checkpoint_state()?.applied))
        });
        let (index, applied) = loaded.map_err(|error| error.open(path))?;
        let loss_window = match options.durability {
            Durability::Sync => Duration::ZERO,
            Durability::Async { loss_window } => loss_window,
        };
        let mut store = Self {
            commits: Arc::new(GroupCommit::new(index, EarlyAcks::new(loss_window))),
            wal: Arc::new(Wal::new(journal, applied, options.checkpoint)),
            tables: Arc::new(tables),
            directory: None,
            options,
            spool: None,
            writer: None,
            checkpointer: None,
        };
        store.start().map_err(|error| OpenError::of_io(path, &error))?;
        Ok(store)
    }

    fn start(&mut self) -> io::Result<()> {
        let spawn = |name: &str, run: fn(&GroupCommit, &Wal, &Tables)| {
            let (commits, wal, tables) = (self.commits.clone(), self.wal.clone(), self.tables.clone());
            thread::Builder::new().name(name.into()).spawn(move || run(&commits, &wal, &tables))
        };
        let checkpointer = spawn("checkpoint", checkpoint::run)?;
        let writer = spawn("store", group_commit::run);
        // Set first: it is joined even if the writer cannot be spawned.
        self.checkpointer = Some(checkpointer);
        self.writer = Some(writer?);
        Ok(())
    }

    /// Sets the spool to which large payloads are read from now on ([`Spool::begin_reserved`]). Without one, or when it
    /// is full, they are read to the heap.
    pub fn set_spool(&mut self, spool: Arc<dyn Spool>) {
        self.spool = Some(spool);
    }

    /// The error that ended all commits; `None` while the store works.
    pub fn failure(&self) -> Option<StoreError> {
        self.commits.lock().failure.clone()
    }

    /// Completes with the error when the store fails, and with [`StoreError::Closed`] when it is dropped before.
    pub fn failed(&self) -> Completion<()> {
        self.commits.watch()
    }

    /// Writes everything that is pending and closes the files.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when that or an earlier write failed.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.end();
        self.failure().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.commits.close();
        // The threads catch panics, so joining them gives no error.
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
        // After the writer, so that nothing is appended behind the last checkpoint.
        self.wal.close();
        if let Some(checkpointer) = self.checkpointer.take() {
            drop(checkpointer.join());
        }
    }

    /// Longest delay of a batch's group.
    fn group_delay(&self, lazy: bool) -> Duration {
        match self.options.durability {
            // The other half is for the write, or acknowledgements would be delayed by every write.
            Durability::Async { loss_window } => loss_window / 2,
            Durability::Sync if lazy => self.options.lazy,
            Durability::Sync => self.options.linger,
        }
    }

    /// Reads the messages that are in a group, and returns the others that something references.
    fn read_groups<'m>(
        &self,
        lsns: &[Lsn],
        messages: &'m mut [Option<StoredMessage>],
    ) -> Result<Vec<Unread<'m>>, StoreError> {
        let state = self.commits.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let groups = || [Some(&state.pending.writes), state.writing.as_deref()].into_iter().flatten();
        let mut unread = Vec::new();
        for (&lsn, message) in lsns.iter().zip(messages) {
            if !state.index.holds(lsn) {
                continue;
            }
            *message = groups().find_map(|writes| writes.messages.get(&lsn)).and_then(Write::value).cloned();
            if message.is_none() {
                unread.push((lsn, message));
            }
        }
        Ok(unread)
    }

    /// Blocks until the tables have all earlier commits.
    fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.commits.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if !state.pending.is_empty() || state.writing.is_some() {
            let flushed = state.pending.wait(Ok(()));
            self.commits.schedule(&mut state, 0, Duration::ZERO, self.options.changes);
            drop(state);
            flushed.wait()?;
        } else {
            drop(state);
        }
        self.wal.flush()
    }
}

impl Store for EmbeddedStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.flush()?;
        let next = self.commits.lock().index.next();
        let claim = |session| self.commits.lock().index.claim_of(session);
        let shown = self.tables.snapshot().and_then(|snapshot| snapshot.show(into, claim, &self.options));
        shown.map(|()| next).map_err(ReadError::store)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        let mut state = self.commits.lock();
        Completion::Done(match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.index.claim(client_id)),
        })
    }

    fn commit(&self, batch: Batch) -> Commit {
        let mut guard = self.commits.lock();
        let state = &mut *guard;
        if let Some(failure) = &state.failure {
            return Completion::Done(Err(failure.clone()));
        }
        if batch.is_empty() {
            return Completion::Done(Ok(()));
        }
        let (changes, lazy) = (batch.changes().len(), batch.is_lazy());
        let outcome = state.index.check(batch.changes());
        if outcome.is_ok() {
            state.index.apply(batch, &mut state.pending.writes);
        }
        // Nothing to write and no earlier commit to wait for: unknown names, or a refusal.
        if state.pending.is_empty() && state.writing.is_none() {
            return Completion::Done(outcome);
        }
        let commit = match self.options.durability {
            Durability::Sync => {
                state.pending.eager += usize::from(!lazy);
                state.pending.wait(outcome)
            }
            Durability::Async { .. } => state.acknowledge_early(outcome),
        };
        self.commits.schedule(state, changes, self.group_delay(lazy), self.options.changes);
        commit
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        let mut messages = vec![None; lsns.len()];
        // Group, log, tables: the order in which a message moves, so that it is not missed between them.
        let read = self.read_groups(lsns, &mut messages).and_then(|mut unread| {
            self.wal.read(&mut unread);
            if unread.is_empty() {
                return Ok(());
            }
            let read = |snapshot: Snapshot| snapshot.read(unread, self.spool.as_deref());
            self.tables.snapshot().and_then(read).map_err(ReadError::store)
        });
        Completion::Done(read.map(|()| messages))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.flush()?;
        let spool = self.spool.as_deref();
        let shown =
            self.tables.snapshot().and_then(|snapshot| snapshot.show_messages(&self.options, spool, show));
        shown.map_err(ReadError::store)
    }

    fn size(&self) -> u64 {
        self.directory.as_deref().map_or(0, files::size)
    }

    fn wal_groups(&self) -> u64 {
        self.wal.unapplied_groups()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").field("path", &self.tables.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;
    use std::sync::atomic::Ordering;

    use braid_proto::packet::QoS;
    use braid_proto::topic::TopicName;
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::change::Change;

    #[test]
    fn messages_are_read_from_the_tables_in_one_transaction() {
        let device = InMemoryBackend::new;
        let store = EmbeddedStore::open_on(device(), device(), Options::default()).unwrap();
        let commit = |topics: RangeInclusive<u64>| {
            let changes = topics.flat_map(|lsn| {
                let (lsn, topic) = (Lsn::new(lsn), TopicName::parse(&lsn.to_string()).unwrap());
                let message = StoredMessage::from_parts(topic, "x", QoS::AtLeastOnce, true, None, None);
                [Change::Stored { lsn, message }, Change::Retained { message: lsn }]
            });
            store.commit(changes.collect()).wait().unwrap();
        };
        commit(1..=100);
        store.flush().unwrap();
        commit(101..=200);
        let read = |lsns: RangeInclusive<u64>| {
            let before = store.tables.snapshots.load(Ordering::Relaxed);
            let lsns: Vec<_> = lsns.map(Lsn::new).collect();
            let found = store.messages_of(&lsns).wait().unwrap().iter().flatten().count();
            (found, store.tables.snapshots.load(Ordering::Relaxed) - before)
        };
        assert_eq!(read(101..=210), (100, 0), "from the write-ahead log");
        assert_eq!(read(1..=210), (200, 1));
    }
}
