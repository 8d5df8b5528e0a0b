//! Seam of the automatic upgrade between TCP and QUIC: asked before each response, it may advertise another protocol.

use std::net::SocketAddr;

use axum::http::{HeaderValue, Version};
use braid_transport::http::{PathProbe, PathStats, TcpMetrics, TcpProbe};

/// Policy of `Alt-Svc` (RFC 7838) and of the end of connections. Called in the tasks of connections: it must not
/// block.
pub trait Upgrade: Send + Sync + 'static {
    /// Advice for a response that is about to be sent.
    fn advise(&self, exchange: &Exchange<'_>) -> Advice;

    /// The connection with this number has ended.
    fn closed(&self, _connection: u64) {}
}

/// Addition to a response, and decision about its connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Value of `Alt-Svc`, such as `h3=":18083"; ma=3600` or `clear`.
    pub alt_svc: Option<HeaderValue>,
    /// Ends the connection gracefully: GOAWAY on HTTP/2 and 3, no keep-alive on HTTP/1.1.
    pub goaway: bool,
}

/// Policy that advertises nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoUpgrade;

impl Upgrade for NoUpgrade {
    fn advise(&self, _: &Exchange<'_>) -> Advice {
        Advice::default()
    }
}

/// A request that was answered, on its connection.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// Number of the connection, unique in the process.
    pub connection: u64,
    /// Address of the client.
    pub client: SocketAddr,
    /// Host and port that the client asked for.
    pub authority: Option<&'a str>,
    /// Version of the connection.
    pub version: Version,
    /// True on TLS and QUIC: `Alt-Svc` has no effect elsewhere.
    pub is_encrypted: bool,
    pub(crate) probe: &'a Probe,
}

impl Exchange<'_> {
    /// Measures the path now: a system call on TCP, a lock on QUIC. `None` if the connection has ended.
    #[must_use]
    pub fn path(&self) -> Option<PathSample> {
        match self.probe {
            Probe::Tcp(probe) => probe.sample().ok().map(PathSample::Tcp),
            Probe::Quic(probe) => probe.sample().ok().map(PathSample::Quic),
        }
    }
}

/// Measurements of a path.
#[derive(Clone, Copy, Debug)]
pub enum PathSample {
    /// HTTP/1.1 and 2.
    Tcp(TcpMetrics),
    /// HTTP/3.
    Quic(PathStats),
}

#[derive(Clone, Debug)]
pub(crate) enum Probe {
    Tcp(TcpProbe),
    Quic(PathProbe),
}
