//! Runtime of QUIC endpoints: tokio, with a panic guard around each task of the library and the PTO filter on sockets.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::time::Instant;

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::sync::watch;

use super::congestion::pto_filter::PtoFilter;
use super::panic_guard::{Broken, PanicGuard};

/// Runtime of one endpoint.
#[derive(Debug, Default)]
pub(super) struct GuardedRuntime {
    failures: watch::Sender<()>,
}

/// Receiver that resolves when the task of a connection has panicked. The panic of an endpoint's task has no receiver:
/// it aborts the process (see [`panic_guard`](super::panic_guard)).
pub(super) type Failures = watch::Receiver<()>;

impl GuardedRuntime {
    /// Subscribes to panics from now on. Each connection tests for itself whether it is broken.
    pub(super) fn failures(&self) -> Failures {
        self.failures.subscribe()
    }
}

impl Runtime for GuardedRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let failures = self.failures.clone();
        tokio::spawn(async move {
            if PanicGuard::new(future).await == Err(Broken) {
                tracing::error!(
                    "the task of a QUIC connection panicked: the connection is lost, its endpoint goes on"
                );
                failures.send_replace(());
            }
        });
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        Ok(Box::new(PtoFilter::new(TokioRuntime.wrap_udp_socket(socket)?)))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
