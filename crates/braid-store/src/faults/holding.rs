use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_proto::packet::ClientId;

use crate::batch::Batch;
use crate::commit::{Commit, Completer, Completion};
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};
use crate::message::StoredMessage;
use crate::recover::{NextIds, Recover};
use crate::store::Store;
use crate::unread::Unread;

/// A store whose device is slow: every commit is pending until the test releases it. For tests: no
/// acknowledgement may leave before its commit is done, and what was held when the power went is lost.
#[derive(Debug)]
pub struct HoldingStore<S> {
    inner: S,
    held: Mutex<VecDeque<(Batch, Completer<()>)>>,
}

impl<S: Store> HoldingStore<S> {
    /// Holds every commit back from `inner`.
    pub const fn new(inner: S) -> Self {
        Self { inner, held: Mutex::new(VecDeque::new()) }
    }

    /// The store inside: what is durable.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// How many commits are held.
    pub fn held(&self) -> usize {
        self.lock().len()
    }

    /// Commits the oldest that is held; false when there is none. For stores inside that are done at once.
    pub fn release(&self) -> bool {
        let Some((batch, completer)) = self.lock().pop_front() else { return false };
        completer.complete(self.inner.commit(batch).wait());
        true
    }

    /// Loses everything that is held, as a power failure does: each is answered [`StoreError::Closed`].
    pub fn lose(&self) {
        let held = std::mem::take(&mut *self.lock());
        drop(held);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Batch, Completer<()>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Store for HoldingStore<S> {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        let (completer, commit) = Completion::pending();
        self.lock().push_back((batch, completer));
        commit
    }

    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
        self.inner.message(message)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}
