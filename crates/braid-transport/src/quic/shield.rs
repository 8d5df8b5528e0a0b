//! Keeps a panic of the QUIC library inside one connection.
//!
//! The library guards a connection with a mutex that it unwraps everywhere, in destructors too. A
//! panic in the task that drives a connection poisons that mutex; the next handle to be dropped
//! then panics, and if that happens while unwinding, the process aborts. So every call is caught,
//! and handles of a broken connection are forgotten instead of dropped: a leak, in place of the end.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::sync::watch;

use super::probes::Thinned;

/// The library panicked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl From<Broken> for io::Error {
    fn from(_: Broken) -> Self {
        Self::other("the QUIC stack failed; this connection is lost")
    }
}

/// Runs `call`, which may only touch things that are forgotten when it panics.
pub(super) fn shielded<T>(call: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Broken)
}

/// Whether a connection's state can still be locked, and its handles be dropped.
pub(super) fn is_sound(connection: &noq::Connection) -> bool {
    shielded(|| connection.close_reason()).is_ok()
}

/// A future that is forgotten when it panics.
pub(super) struct Shield<F> {
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Shield<F> {
    pub(super) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)) }
    }
}

impl<F: Future> Future for Shield<F> {
    type Output = Result<F::Output, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.future.as_mut() else { return Poll::Ready(Err(Broken)) };
        match shielded(|| future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(Broken) => {
                std::mem::forget(self.future.take());
                Poll::Ready(Err(Broken))
            }
        }
    }
}

impl<F> Drop for Shield<F> {
    fn drop(&mut self) {
        let future = self.future.take();
        let _ = shielded(move || drop(future));
    }
}

/// tokio, with every task of the library shielded, and sockets that send one probe in place of two.
#[derive(Debug, Default)]
pub(super) struct ShieldedRuntime {
    failures: watch::Sender<()>,
}

/// Resolves when a task of an endpoint has panicked.
pub(super) type Failures = watch::Receiver<()>;

impl ShieldedRuntime {
    /// Tells of every panic from now on. Which connection it was each must find out for itself.
    pub(super) fn failures(&self) -> Failures {
        self.failures.subscribe()
    }
}

impl Runtime for ShieldedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let failures = self.failures.clone();
        tokio::spawn(async move {
            if Shield::new(future).await == Err(Broken) {
                tracing::error!("a task of the QUIC stack panicked; what it drove is lost, the rest goes on");
                failures.send_replace(());
            }
        });
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        Ok(Box::new(Thinned::new(TokioRuntime.wrap_udp_socket(socket)?)))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
