//! What passed a host's end of its link.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::conditions::Direction;

/// One datagram as the host sent it, or as it came out of the network towards the host. What its
/// own link drops is part of the recording.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// When it was sent.
    pub at: Instant,
    /// Whether the host sent it, or it was sent to the host.
    pub direction: Direction,
    /// Where it was sent to.
    pub to: SocketAddr,
    /// The UDP payload.
    pub bytes: Bytes,
}

/// All datagrams of a host since [`Host::record`](super::Host::record). It goes on for as long as
/// the network lives.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    datagrams: Arc<Mutex<Vec<Datagram>>>,
}

impl Recording {
    pub(super) fn push(&self, datagram: Datagram) {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner).push(datagram);
    }

    /// Those so far.
    #[must_use]
    pub fn datagrams(&self) -> Vec<Datagram> {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
