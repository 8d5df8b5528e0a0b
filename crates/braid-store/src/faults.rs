//! Stores over others whose device fails or is slow, for tests of their callers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_proto::packet::ClientId;

use crate::change::Batch;
use crate::completion::{Commit, Completer, Completion};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds};
use crate::message::{LazyMessage, StoredMessage};
use crate::recovery::Recover;
use crate::store::{Store, forward};

/// A store whose device fails: the n-th commit fails, and with it every later commit and claim. No part of a
/// failed batch reaches the inner store. For tests that no acknowledgement leaves after a failed commit.
#[derive(Debug)]
pub struct FailingStore<S> {
    inner: S,
    /// Number of commits that still succeed, or [`FAILED`].
    left: AtomicU64,
}

/// Value of `FailingStore::left` after the first failure.
const FAILED: u64 = u64::MAX;

impl<S: Store> FailingStore<S> {
    /// Lets `commits` commits through to `inner`; the next one fails.
    pub const fn after(commits: u64, inner: S) -> Self {
        Self { inner, left: AtomicU64::new(commits) }
    }

    /// The inner store, with the content that survived.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn failure<T>() -> Completion<T> {
        let reason = "the device fails, as this test wants".into();
        Completion::Done(Err(StoreError::Failed { reason }))
    }
}

impl<S: Store> Store for FailingStore<S> {
    forward!((.inner): recover, messages_of, messages, wall_clock);

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        let has_failed = self.left.load(Ordering::SeqCst) == FAILED;
        if has_failed { Self::failure() } else { self.inner.claim(client_id) }
    }

    fn commit(&self, batch: Batch) -> Commit {
        let step =
            |left: u64| if left == FAILED { None } else { Some(left.checked_sub(1).unwrap_or(FAILED)) };
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step) {
            Ok(left) if left > 0 => self.inner.commit(batch),
            Ok(_) | Err(_) => Self::failure(),
        }
    }
}

/// A store whose device is slow: every commit is pending until the test releases it. For tests that no
/// acknowledgement leaves before its commit is done, and that a power failure loses the held batches.
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

    /// The inner store, with the durable content.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Number of held commits.
    pub fn held(&self) -> usize {
        self.lock().len()
    }

    /// Commits the oldest held batch; false without any. For inner stores whose commits are done at once.
    pub fn release(&self) -> bool {
        let Some((batch, completer)) = self.lock().pop_front() else { return false };
        completer.complete(self.inner.commit(batch).wait());
        true
    }

    /// Loses every held batch, as a power failure does: each is answered [`StoreError::Closed`].
    pub fn lose(&self) {
        let held = std::mem::take(&mut *self.lock());
        drop(held);
    }

    /// A poisoned queue is safe to use: each use of the lock is one call of `VecDeque`, and wakes no caller.
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Batch, Completer<()>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Store for HoldingStore<S> {
    forward!((.inner): recover, claim, messages_of, messages, wall_clock);

    fn commit(&self, batch: Batch) -> Commit {
        let (completer, commit) = Completion::pending();
        self.lock().push_back((batch, completer));
        commit
    }
}
