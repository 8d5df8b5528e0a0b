//! A file and its journal on one machine, on redb.
//!
//! A commit is checked and applied to an index in memory on the caller's thread; what it changes in the tables joins
//! the pending group. One writer thread takes the group, appends it to the journal with one write and one sync, and tells
//! everybody in it; what is handed over meanwhile is the next group. Lazy batches wait for a group that somebody
//! else needs. Durable groups are joined in memory until another thread brings them into the tables, many in one
//! transaction.

mod ahead;
mod checkpoint;
mod error;
mod file;
mod group;
mod index;
mod journal;
mod keys;
mod load;
mod marks;
mod offline;
mod options;
mod parts;
mod queue;
mod replay;
mod rows;
mod window;
mod write;
mod writer;
mod writes;

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

use self::ahead::Ahead;
use self::file::File;
use self::group::{Group, Shared};
use self::journal::Candidate;
use self::marks::Opening;
use self::window::Window;
use crate::batch::Batch;
use crate::commit::{Commit, Completion};
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};
use crate::message::StoredMessage;
use crate::ownership::Ownership;
use crate::recover::{NextIds, Recover};
use crate::store::Store;
use crate::unread::Unread;

/// Claims of one opening; the next opening's are all greater.
const CLAIMS: u32 = 40;

/// A [`Store`] in one file and a journal beside it. Dropping it writes what is pending and closes both, and waits for that.
///
/// [`message`](Store::message) reads on the caller's thread, from memory or the page cache as a rule.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    ahead: Arc<Ahead>,
    file: Arc<File>,
    /// Where its files are; `None` on devices of somebody else's.
    directory: Option<PathBuf>,
    options: Options,
    spool: Option<Arc<dyn Spool>>,
    /// `None` once they have ended.
    writer: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
}

impl EmbeddedStore {
    /// Opens the store in the data directory, or begins one there. Nobody else can open it meanwhile.
    ///
    /// May block for as long as reading the whole file takes: every page is verified.
    ///
    /// # Errors
    /// One line that says what to change.
    pub fn open(directory: &Path, options: Options) -> Result<Self, OpenError> {
        let (device, place) = file::device(directory)?;
        let journal = |create| Candidate::in_directory(directory, create);
        let mut store = Self::over(device, &place, journal, options)?;
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
        let mut journal = Some(Candidate::on(journal));
        Self::over(device, &Arc::from("<device>"), |_| Ok(journal.take()), options)
    }

    /// `journal` is asked for what is there, and if that is nothing once more to make it.
    fn over(
        device: impl StorageBackend,
        place: &Arc<str>,
        mut journal: impl FnMut(bool) -> Result<Option<Candidate>, OpenError>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let file = File::open(device, place, &options)?;
        let found = journal(false)?;
        replay::replay(&file, found.as_ref(), &options)?;
        let made = if found.is_none() { journal(true)? } else { found };
        let missing = || OpenError::JournalMissing { place: Arc::clone(place) };
        let journal = made.ok_or_else(missing)?.adopt(&file, options.journal)?;
        let (opens, next) = file.note_opening(Opening::Journaled(journal.store()))?;
        let snapshot = file.snapshot().map_err(|error| error.open(place))?;
        let first_claim = Claim::new(opens << CLAIMS);
        let index = snapshot.load(first_claim, next, &options).map_err(|error| error.open(place))?;
        let settled = snapshot.marks().map_err(|error| error.open(place))?.journal;
        drop(snapshot);
        let at_risk = match options.durability {
            Durability::Sync => Duration::ZERO,
            Durability::Async { at_risk } => at_risk,
        };
        let shared = Arc::new(Shared::new(index, Group::default(), Window::new(at_risk)));
        let ahead = Arc::new(Ahead::new(journal, settled, options.checkpoint));
        let file = Arc::new(file);
        let mut store = Self {
            shared,
            ahead,
            file,
            directory: None,
            options,
            spool: None,
            writer: None,
            checkpointer: None,
        };
        store.start().map_err(|error| OpenError::of_io(place, &error))?;
        Ok(store)
    }

    fn start(&mut self) -> io::Result<()> {
        let spawn = |name: &str, run: fn(&Shared, &Ahead, &File)| {
            let (shared, ahead, file) =
                (Arc::clone(&self.shared), Arc::clone(&self.ahead), Arc::clone(&self.file));
            thread::Builder::new().name(name.into()).spawn(move || run(&shared, &ahead, &file))
        };
        let checkpointer = spawn("checkpoint", checkpoint::run)?;
        let writer = spawn("store", writer::run);
        // Without a writer too it is joined.
        self.checkpointer = Some(checkpointer);
        self.writer = Some(writer?);
        Ok(())
    }

    /// Puts large payloads that are read from the file there from now on ([`Spool::keep`]). Without it, or without room
    /// even so, they are in the heap.
    pub fn set_spool(&mut self, spool: Arc<dyn Spool>) {
        self.spool = Some(spool);
    }

    /// Why nothing is committed any more; `None` while all is well.
    pub fn failure(&self) -> Option<StoreError> {
        self.shared.lock().failure.clone()
    }

    /// Is done, with the error, when the store fails; with [`StoreError::Closed`] when it is dropped before.
    pub fn failed(&self) -> Completion<()> {
        self.shared.watch()
    }

    /// Writes what is pending and closes the file.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when that, or anything before, could not be written.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.end();
        self.failure().map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.shared.close();
        // They catch what could end them.
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
        // Nobody appends any more.
        self.ahead.close();
        if let Some(checkpointer) = self.checkpointer.take() {
            drop(checkpointer.join());
        }
    }

    /// How long a batch may wait for others.
    fn patience(&self, lazy: bool) -> Duration {
        match self.options.durability {
            // The other half is the device's, or the window would be closed whenever a group is written.
            Durability::Async { at_risk } => at_risk / 2,
            Durability::Sync if lazy => self.options.lazy,
            Durability::Sync => self.options.linger,
        }
    }

    /// Waits until everything that was handed over before is in the tables.
    fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if !state.pending.is_empty() || state.writing.is_some() {
            let flushed = state.pending.wait(Ok(()));
            self.shared.expect(&mut state, 0, Duration::ZERO, self.options.changes);
            drop(state);
            flushed.wait()?;
        } else {
            drop(state);
        }
        self.ahead.flush()
    }
}

impl Store for EmbeddedStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.flush()?;
        let next = self.shared.lock().index.next();
        let claim = |session| self.shared.lock().index.claim_of(session);
        let snapshot = self.file.snapshot().map_err(error::ReadError::store)?;
        snapshot.show(into, claim, &self.options).map_err(error::ReadError::store)?;
        Ok(next)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        let mut state = self.shared.lock();
        Completion::Done(match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.index.claim(client_id)),
        })
    }

    fn commit(&self, batch: Batch) -> Commit {
        let mut guard = self.shared.lock();
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
        // Nothing to write and nobody to wait for: unknown things, or a refusal.
        if state.pending.is_empty() && state.writing.is_none() {
            return Completion::Done(outcome);
        }
        let commit = match self.options.durability {
            Durability::Sync => {
                state.pending.eager += usize::from(!lazy);
                state.pending.wait(outcome)
            }
            Durability::Async { .. } => state.pass(outcome),
        };
        self.shared.expect(state, changes, self.patience(lazy), self.options.changes);
        commit
    }

    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
        let state = self.shared.lock();
        if let Some(failure) = &state.failure {
            return Completion::Done(Err(failure.clone()));
        }
        if !state.index.holds(message) {
            return Completion::Done(Ok(None));
        }
        let groups = [Some(&state.pending.writes), state.writing.as_deref()];
        let written = groups.into_iter().flatten().find_map(|writes| writes.messages.get(&message));
        if let Some(stored) = written.and_then(|write| write.value()) {
            return Completion::Done(Ok(Some(stored.clone())));
        }
        // In the order in which it moves, so that it is not missed on its way.
        drop(state);
        if let Some(stored) = self.ahead.message(message) {
            return Completion::Done(Ok(Some(stored)));
        }
        let spool = self.spool.as_deref();
        let read = self.file.snapshot().and_then(|snapshot| snapshot.message(message, spool));
        Completion::Done(read.map_err(error::ReadError::store))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError> {
        self.flush()?;
        let snapshot = self.file.snapshot().map_err(error::ReadError::store)?;
        snapshot.each_unread(&self.options, self.spool.as_deref(), show).map_err(error::ReadError::store)
    }

    fn size(&self) -> u64 {
        self.directory.as_deref().map_or(0, file::size)
    }

    fn ahead(&self) -> u64 {
        self.ahead.groups()
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").field("place", &self.file.place).finish_non_exhaustive()
    }
}
