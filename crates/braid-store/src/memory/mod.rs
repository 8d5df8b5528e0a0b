//! Everything in memory. It outlives the broker's value, not the process: the whole-broker tests restart a
//! broker over it, and `durability = "memory"` uses it.

mod held;
mod session;
mod state;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_proto::packet::ClientId;

use self::state::State;
use crate::batch::Batch;
use crate::commit::{Commit, Completion};
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};
use crate::message::StoredMessage;
use crate::recover::{NextIds, Recover};
use crate::store::Store;
use crate::unread::Unread;

/// A [`Store`] in memory. Every commit is done when it returns; messages are shared with the live ones, not
/// copied.
pub struct MemoryStore {
    /// A std mutex: held for the few map operations of a batch, never across anything that waits. The order of
    /// taking it is the order of commits.
    state: Arc<Mutex<State>>,
    holder: Holder,
}

/// Which of the values over one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder(u64);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::over(Arc::default())
    }

    /// Another value over the same state, as a broker that starts again has one, or another node of a cluster.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self::over(Arc::clone(&self.state))
    }

    fn over(state: Arc<Mutex<State>>) -> Self {
        let holder = lock(&state).next_holder();
        Self { state, holder }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        Ok(self.lock().recover(into, self.holder))
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        Completion::Done(Ok(self.lock().claim(client_id, self.holder)))
    }

    fn commit(&self, batch: Batch) -> Commit {
        Completion::Done(self.lock().commit(batch, self.holder))
    }

    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
        Completion::Done(Ok(self.lock().message(message)))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError> {
        for (lsn, message) in self.lock().messages() {
            show(lsn, Unread::of(message));
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("holder", &self.holder.0).finish_non_exhaustive()
    }
}
