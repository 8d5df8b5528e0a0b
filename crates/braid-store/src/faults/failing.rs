use std::sync::atomic::{AtomicU64, Ordering};

use braid_proto::packet::ClientId;

use crate::batch::Batch;
use crate::commit::{Commit, Completion};
use crate::error::StoreError;
use crate::identity::{Claim, Lsn};
use crate::message::StoredMessage;
use crate::recover::{NextIds, Recover};
use crate::store::Store;
use crate::unread::Unread;

/// A store whose device dies: the n-th commit fails, and with it every later commit and claim. Nothing of a
/// failed batch reaches the store inside. For tests: no acknowledgement may leave after a failed commit.
#[derive(Debug)]
pub struct FailingStore<S> {
    inner: S,
    /// How many commits still succeed.
    left: AtomicU64,
}

impl<S: Store> FailingStore<S> {
    /// Lets `commits` commits through to `inner`; the next one fails.
    pub const fn after(commits: u64, inner: S) -> Self {
        Self { inner, left: AtomicU64::new(commits) }
    }

    /// The store inside: what survived.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn failure() -> StoreError {
        StoreError::Failed { reason: "the device fails, as this test wants".into() }
    }
}

impl<S: Store> Store for FailingStore<S> {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        if self.left.load(Ordering::SeqCst) == DEAD {
            return Completion::Done(Err(Self::failure()));
        }
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        let step = |left| match left {
            DEAD => None,
            0 => Some(DEAD),
            left => Some(left - 1),
        };
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step) {
            Ok(left) if left > 0 => self.inner.commit(batch),
            Ok(_) | Err(_) => Completion::Done(Err(Self::failure())),
        }
    }

    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
        self.inner.message(message)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, Unread<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

/// No commit is left, and one has failed.
const DEAD: u64 = u64::MAX;
