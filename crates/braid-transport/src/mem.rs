//! Links inside this process: whole-broker tests without sockets, on tokio's paused clock too.

use std::io;
use std::net::SocketAddr;

use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

use crate::incoming::{Incoming, IncomingKind};
use crate::link::Link;
use crate::listener::{AcceptFailure, Listener};
use crate::quic::EndpointHealth;
use crate::transport::{Peer, Transport};

/// Bytes that one direction of a listener's link holds before the writer waits.
const CAPACITY: usize = 64 * 1024;

/// Connections that wait for `accept` before `connect` waits.
const ACCEPT_QUEUE: usize = 1024;

/// Two connected links. `capacity` is the number of bytes that each direction holds before the
/// writer waits.
#[must_use]
pub fn pair(capacity: usize) -> (Link, Link) {
    let (left, right) = duplex(capacity);
    (link(left), link(right))
}

/// A listener without an address, and its connector.
#[must_use]
pub fn listener() -> (Listener, Connector) {
    let (sender, receiver) = mpsc::channel(ACCEPT_QUEUE);
    (Listener::in_memory(receiver), Connector { sender })
}

/// Connects to the [`Listener`] it was made with by [`listener`].
#[derive(Clone, Debug)]
pub struct Connector {
    sender: mpsc::Sender<Result<Incoming, AcceptFailure>>,
}

impl Connector {
    /// A new link to the listener, usable at once, even before it is accepted.
    ///
    /// # Errors
    /// `ConnectionRefused` when the listener is gone.
    pub async fn connect(&self) -> io::Result<Link> {
        self.connect_with_capacity(CAPACITY).await
    }

    /// Like [`connect`](Self::connect), for links whose writer must soon wait for its reader:
    /// `capacity` bytes per direction.
    ///
    /// # Errors
    /// `ConnectionRefused` when the listener is gone.
    pub async fn connect_with_capacity(&self, capacity: usize) -> io::Result<Link> {
        self.connect_with(capacity, None).await
    }

    /// Like [`connect`](Self::connect), for a link whose client has this address, as the listener sees it.
    ///
    /// # Errors
    /// `ConnectionRefused` when the listener is gone.
    pub async fn connect_from(&self, address: SocketAddr) -> io::Result<Link> {
        self.connect_with(CAPACITY, Some(address)).await
    }

    async fn connect_with(&self, capacity: usize, address: Option<SocketAddr>) -> io::Result<Link> {
        let (ours, io) = duplex(capacity);
        self.send(Ok(Incoming(IncomingKind::Mem { io, address }))).await?;
        Ok(link(ours))
    }

    /// Makes an `accept` of the listener fail, after it has accepted the connections before. From then on the listener
    /// reports `health`. A test sees with it how the caller of `accept` handles a failing endpoint.
    ///
    /// # Errors
    /// `ConnectionRefused` when the listener is gone.
    pub async fn fail_accept(&self, error: io::Error, health: EndpointHealth) -> io::Result<()> {
        self.send(Err(AcceptFailure { error, health })).await
    }

    async fn send(&self, arrival: Result<Incoming, AcceptFailure>) -> io::Result<()> {
        self.sender
            .send(arrival)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::ConnectionRefused, "the in-memory listener is gone"))
    }
}

fn link(io: DuplexStream) -> Link {
    Link::single(Peer::plain(Transport::Mem, None), io)
}
