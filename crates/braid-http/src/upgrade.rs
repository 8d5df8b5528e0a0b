//! Seam of the automatic upgrade between TCP and QUIC: it sees each connection, and is asked before each response.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
pub use braid_transport::http::PathSample;
use braid_transport::http::{PathProbe, TcpProbe};

/// Policy of `Alt-Svc` (RFC 7838) and of the end of connections.
pub trait Upgrade: Send + Sync + 'static {
    /// Observer of a new connection.
    fn connected(&self, link: Link) -> Box<dyn Observer>;
}

/// Part of the policy that belongs to one connection. Its functions are called in the tasks of the connection: they
/// must not block.
pub trait Observer: Send + Sync {
    /// Advice for a response that is about to be sent.
    fn advise(&self) -> Advice;

    /// A response on HTTP/3 is complete, or broken (`None`).
    fn sent(&self, _response: Option<Sent>) {}

    /// Called about once a second while a response on HTTP/3 is being sent.
    fn tick(&self) {}

    /// The connection is about to end; it can be measured a last time.
    fn ended(&self) {}
}

/// Response that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of its content.
    pub bytes: u64,
    /// Time for which there was nothing of it to send yet.
    pub paused: Duration,
}

/// Addition to a response, and decision about its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Value of `Alt-Svc`, such as `h3=":18083"; ma=3600` or `clear`.
    pub alt_svc: Option<HeaderValue>,
    /// Ends the connection after all its responses: GOAWAY on HTTP/2 and 3, no keep-alive on HTTP/1.1.
    pub goaway: bool,
}

/// Policy that advertises nothing, and its observers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NoUpgrade;

impl Upgrade for NoUpgrade {
    fn connected(&self, _: Link) -> Box<dyn Observer> {
        Box::new(Self)
    }
}

impl Observer for NoUpgrade {
    fn advise(&self) -> Advice {
        Advice::default()
    }
}

/// Connection of a client, as far as a policy needs to know it.
#[derive(Clone, Debug)]
pub struct Link {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that it is connected to.
    pub listener: SocketAddr,
    /// True on TLS and QUIC: `Alt-Svc` has no effect elsewhere.
    pub is_encrypted: bool,
    pub(crate) probe: Arc<dyn Probe>,
}

impl Link {
    /// Measures the path now: a system call on TCP, a lock on QUIC. `None` if the connection has ended.
    #[must_use]
    pub fn sample(&self) -> Option<PathSample> {
        self.probe.sample()
    }

    /// Lets the calls of [`Observer::sent`] wait for the client's acknowledgement, or not; on HTTP/3.
    pub fn wait_for_acknowledgements(&self, wait: bool) {
        self.probe.wait_for_acknowledgements(wait);
    }

    /// True on HTTP/3.
    #[must_use]
    pub fn is_quic(&self) -> bool {
        self.probe.is_quic()
    }
}

/// Source of the measurements of a connection.
pub(crate) trait Probe: fmt::Debug + Send + Sync {
    /// See [`Link::sample`].
    fn sample(&self) -> Option<PathSample>;

    /// See [`Link::is_quic`].
    fn is_quic(&self) -> bool;

    /// See [`Link::wait_for_acknowledgements`]; without effect on TCP.
    fn wait_for_acknowledgements(&self, _wait: bool) {}
}

impl Probe for TcpProbe {
    fn sample(&self) -> Option<PathSample> {
        Self::sample(self).ok().map(PathSample::Tcp)
    }

    fn is_quic(&self) -> bool {
        false
    }
}

impl Probe for PathProbe {
    fn sample(&self) -> Option<PathSample> {
        Self::sample(self).ok().map(PathSample::Quic)
    }

    fn is_quic(&self) -> bool {
        true
    }

    fn wait_for_acknowledgements(&self, wait: bool) {
        Self::wait_for_acknowledgements(self, wait);
    }
}
