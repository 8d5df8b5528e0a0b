//! Listeners.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_transport::{EndpointHealth, Listener, Transport};

/// State of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerStatus {
    /// Transport.
    pub transport: Transport,
    /// Bound address; `None` for one in memory.
    pub address: Option<SocketAddr>,
    /// Tag, which rules of access control lists refer to.
    pub tag: Option<Box<str>>,
    /// Open connections.
    pub connections: u64,
    /// Connections accepted, those that have ended included.
    pub accepted: u64,
    /// False while its QUIC endpoint has failed and cannot restart.
    pub is_available: bool,
    /// Times that its QUIC endpoint was restarted after a failure.
    pub restarts: u64,
}

/// State of a listener, as its tasks keep it. Relaxed atomics: they guard no other memory.
#[derive(Debug)]
pub(crate) struct ListenerState {
    transport: Transport,
    address: Option<SocketAddr>,
    tag: Option<Box<str>>,
    connections: AtomicU64,
    accepted: AtomicU64,
    is_unavailable: AtomicBool,
    restarts: AtomicU64,
}

impl ListenerState {
    pub(crate) fn new(listener: &Listener, tag: Option<Box<str>>) -> Self {
        Self {
            transport: listener.transport(),
            address: listener.local_addr(),
            tag,
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
        }
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes the condition of the endpoint. True if it was restarted since.
    pub(crate) fn note_health(&self, health: EndpointHealth) -> bool {
        self.is_unavailable.store(!health.is_available, Ordering::Relaxed);
        self.restarts.swap(health.restarts, Ordering::Relaxed) < health.restarts
    }

    /// Open connections.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self) -> ListenerStatus {
        ListenerStatus {
            transport: self.transport,
            address: self.address,
            tag: self.tag.clone(),
            connections: self.connections(),
            accepted: self.accepted.load(Ordering::Relaxed),
            is_available: !self.is_unavailable.load(Ordering::Relaxed),
            restarts: self.restarts.load(Ordering::Relaxed),
        }
    }
}
