//! Panic guard: keeps a panic of the QUIC library inside one connection, where the library permits it.
//!
//! The library has a mutex for each connection and one for each endpoint. A panic in a task or call that holds one
//! poisons it, and the library unwraps every lock, in destructors too. A destructor that panics while the first panic
//! unwinds aborts the process.
//!
//! - Task of a connection with two handles or more, which every [`Link`](crate::Link) has: the connection is lost. All
//!   calls on it are caught, and its handles are forgotten, not dropped: a leak in place of an abort.
//! - Task of a connection with fewer handles, in a handshake or after its link was dropped: the process aborts, because
//!   the destructor of the task locks the connection.
//! - Task of an endpoint: the process aborts, because the destructor of the task locks the endpoint. It runs before the
//!   panic reaches a guard around the task, so that no restart is possible.
//! - Call on an endpoint, such as accepting or refusing a client: the panic is caught. The process aborts when the task
//!   of the endpoint runs next, which panics at the poisoned lock.
//!
//! An endpoint whose socket fails does not panic: its task ends, and the listener restarts it.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Error of a call in which the library panicked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl From<Broken> for io::Error {
    fn from(_: Broken) -> Self {
        Self::other("the QUIC stack failed; this connection is lost")
    }
}

/// Runs `call`. It may only use values that are forgotten when it panics.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Broken)
}

/// Tests whether a connection's state can still be locked, and its handles be dropped.
pub(super) fn is_sound(connection: &noq::Connection) -> bool {
    guarded(|| connection.close_reason()).is_ok()
}

/// Two handles of a connection, the fewest with which a panic of its task does not abort. Forgotten, not dropped, once
/// the library has panicked in the connection.
pub(super) struct SharedConnection(Option<[noq::Connection; 2]>);

impl SharedConnection {
    pub(super) fn new(connection: noq::Connection) -> Arc<Self> {
        Arc::new(Self(Some([connection.clone(), connection])))
    }

    /// The connection; `None` never while it is shared.
    pub(super) fn handle(&self) -> Option<&noq::Connection> {
        self.0.as_ref().map(|[connection, _]| connection)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.handle().is_some_and(is_sound)
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        if !self.is_sound() {
            std::mem::forget(self.0.take());
        }
    }
}

/// Part of a connection, such as a stream. Forgotten, not dropped, once the library has panicked in the connection.
pub(super) struct Part<T> {
    value: Option<T>,
    connection: Arc<SharedConnection>,
}

impl<T> Part<T> {
    pub(super) fn new(value: T, connection: &Arc<SharedConnection>) -> Self {
        Self { value: Some(value), connection: Arc::clone(connection) }
    }

    /// Another part of the same connection.
    pub(super) fn beside<U>(&self, value: U) -> Part<U> {
        Part::new(value, &self.connection)
    }

    pub(super) fn with<R>(&mut self, call: impl FnOnce(&mut T) -> R) -> Result<R, Broken> {
        let value = self.value.as_mut().ok_or(Broken)?;
        guarded(|| call(value)).inspect_err(|_| std::mem::forget(self.value.take()))
    }
}

impl<T> Drop for Part<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.connection.is_sound() {
            let _ = guarded(move || drop(value));
        } else {
            std::mem::forget(value);
        }
    }
}

/// Future that is forgotten when it panics.
pub(super) struct PanicGuard<F: ?Sized> {
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> PanicGuard<F> {
    pub(super) fn new(future: F) -> Self {
        Self::of(Box::pin(future))
    }
}

impl<F: Future + ?Sized> PanicGuard<F> {
    pub(super) fn of(future: Pin<Box<F>>) -> Self {
        Self { future: Some(future) }
    }
}

impl<F: Future + ?Sized> Future for PanicGuard<F> {
    type Output = Result<F::Output, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.future.as_mut() else { return Poll::Ready(Err(Broken)) };
        match guarded(|| future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(Broken) => {
                std::mem::forget(self.future.take());
                Poll::Ready(Err(Broken))
            }
        }
    }
}

impl<F: ?Sized> Drop for PanicGuard<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        let _ = guarded(move || drop(future));
    }
}
