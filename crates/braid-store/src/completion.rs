//! Completions: answers of a store, now or later, outside of any runtime.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::error::StoreError;

/// Outcome of [`Store::commit`](crate::Store::commit): `Ok` once every later recovery finds the batch.
pub type Commit = Completion<()>;

/// Answer of a store, now or later. Await it in any runtime, or [`wait`](Self::wait) on a thread that may block.
/// Dropping it cancels nothing.
#[derive(Debug)]
#[must_use = "nothing may be acknowledged before this is done"]
pub enum Completion<T> {
    /// Already decided; awaiting it never yields.
    Done(Result<T, StoreError>),
    /// To be decided by the [`Completer`].
    Pending(Receiver<T>),
}

impl<T> Completion<T> {
    /// A completion that is decided later, with its deciding half.
    pub fn pending() -> (Completer<T>, Self) {
        let shared = Arc::new(Mutex::new(Shared { outcome: None, waker: None }));
        (Completer { shared: Some(Arc::clone(&shared)) }, Self::Pending(Receiver { shared }))
    }

    /// Takes the outcome if there is one. After that, and after the future was ready, the outcome is
    /// [`StoreError::Closed`].
    pub fn try_take(&mut self) -> Option<Result<T, StoreError>> {
        match self {
            Self::Done(outcome) => Some(mem::replace(outcome, Err(StoreError::Closed))),
            Self::Pending(receiver) => {
                let outcome = lock(&receiver.shared).outcome.take()?;
                *self = Self::Done(Err(StoreError::Closed));
                Some(outcome)
            }
        }
    }

    /// Blocks the thread until there is an outcome. Never for use inside a runtime.
    ///
    /// # Errors
    /// Those of the store.
    pub fn wait(mut self) -> Result<T, StoreError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut self).poll(&mut context) {
                return outcome;
            }
            thread::park();
        }
    }
}

// Nothing is ever pinned inside it.
impl<T> Unpin for Completion<T> {}

impl<T> Future for Completion<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Pending(receiver) = &*self {
            let mut shared = lock(&receiver.shared);
            if shared.outcome.is_none() {
                match &mut shared.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
        }
        self.try_take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// The waiting half of a pending [`Completion`].
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// The deciding half of a pending [`Completion`]. Dropped undecided, it answers [`StoreError::Closed`].
#[derive(Debug)]
pub struct Completer<T> {
    /// `None` once it has decided.
    shared: Option<Arc<Mutex<Shared<T>>>>,
}

impl<T> Completer<T> {
    /// Decides the outcome and wakes the waiting half.
    pub fn complete(mut self, outcome: Result<T, StoreError>) {
        self.decide(outcome);
    }

    fn decide(&mut self, outcome: Result<T, StoreError>) {
        let Some(shared) = self.shared.take() else { return };
        let waker = {
            let mut shared = lock(&shared);
            shared.outcome = Some(outcome);
            shared.waker.take()
        };
        // Outside the lock: the woken thread finds it free.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.decide(Err(StoreError::Closed));
    }
}

#[derive(Debug)]
struct Shared<T> {
    outcome: Option<Result<T, StoreError>>,
    waker: Option<Waker>,
}

/// A std mutex, held for a few instructions and never while anything is woken or awaited.
///
/// A poisoned state is safe to use: each field is written whole and depends on no other, so a panic (of a foreign
/// waker's `clone`) leaves either the old or the new value.
fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
