//! Runtime of QUIC endpoints: tokio, with a panic guard around each task of the library, and on sockets the PTO filter
//! and a server's anti-amplification limit.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::time::Instant;

use noq::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::sync::watch;

use super::amplification::AmplificationLimit;
use super::congestion::pto_filter::PtoFilter;
use super::panic_guard::{Broken, PanicGuard};

/// Runtime of one endpoint.
#[derive(Debug, Default)]
pub(super) struct GuardedRuntime {
    failures: watch::Sender<()>,
    /// Limit of a server.
    limit: Option<AmplificationLimit>,
}

/// Receiver that resolves when the task of a connection has panicked. The panic of an endpoint's task has no receiver:
/// it aborts the process (see [`panic_guard`](super::panic_guard)).
pub(super) type Failures = watch::Receiver<()>;

impl GuardedRuntime {
    /// Runtime of a server with this limit.
    pub(super) fn limited(limit: AmplificationLimit) -> Self {
        Self { failures: watch::Sender::default(), limit: Some(limit) }
    }

    /// Subscribes to panics from now on. Each connection tests for itself whether it is broken.
    pub(super) fn failures(&self) -> Failures {
        self.failures.subscribe()
    }

    /// A socket with the filters of this endpoint.
    pub(super) fn filtered(&self, socket: Box<dyn AsyncUdpSocket>) -> Box<dyn AsyncUdpSocket> {
        let limited = match &self.limit {
            Some(limit) => limit.limited(socket),
            None => socket,
        };
        Box::new(PtoFilter::new(limited))
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
        Ok(self.filtered(TokioRuntime.wrap_udp_socket(socket)?))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
