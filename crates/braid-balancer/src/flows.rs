//! Sockets towards the nodes: one for each pair of a client's address and a node, so that the node sees different
//! source ports, and its answers find the client.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::health::Health;

/// Most bytes of a datagram.
pub(crate) const MAX_DATAGRAM: usize = 1 << 16;

/// Answers of a node that are passed on with one buffer.
const BURST: usize = 64;

/// Nodes behind a UDP port, and the port itself.
pub(crate) struct Front {
    pub(crate) socket: UdpSocket,
    pub(crate) nodes: Vec<SocketAddr>,
    health: Mutex<Health>,
    idle: Duration,
}

impl Front {
    pub(crate) fn new(socket: UdpSocket, nodes: Vec<SocketAddr>, health: Health, idle: Duration) -> Self {
        Self { socket, nodes, health: Mutex::new(health), idle }
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_failure(&self, node: usize, error: &io::Error) {
        if self.health().note_failure(node, Instant::now()) {
            let node = self.nodes[node];
            tracing::warn!(%node, %error, "the node takes no QUIC datagrams; others take new clients");
        }
    }

    fn note_success(&self, node: usize) {
        if self.health().note_success(node) {
            tracing::info!(node = %self.nodes[node], "the node answers QUIC datagrams again");
        }
    }
}

/// Address of a client, and position of a node.
type Key = (SocketAddr, usize);

struct Flow {
    socket: Arc<FlowSocket>,
    /// Task that passes on the answers.
    task: AbortHandle,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Socket towards a node.
struct FlowSocket {
    socket: UdpSocket,
    /// Time of the last datagram in either direction.
    used: Mutex<Instant>,
}

impl FlowSocket {
    fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Table of the sockets towards nodes, bounded by their number and by the time that they are idle.
pub(crate) struct Flows {
    front: Arc<Front>,
    table: LruCache<Key, Flow>,
    tasks: JoinSet<Key>,
}

impl Flows {
    pub(crate) fn new(front: Arc<Front>, most: NonZeroUsize) -> Self {
        Self { front, table: LruCache::sparse(most), tasks: JoinSet::new() }
    }

    /// Sends a datagram of a client to a node. Like any datagram it may be lost.
    ///
    /// # Errors
    /// There is no socket for it.
    pub(crate) fn send(&mut self, client: SocketAddr, node: usize, datagram: &[u8]) -> io::Result<()> {
        let key = (client, node);
        let flow = match self.table.get(&key) {
            Some(flow) => flow,
            None => self.open(key)?,
        };
        *flow.socket.used() = Instant::now();
        // Past tokio, which does not know yet that a new socket can send.
        match SockRef::from(&flow.socket.socket).send(datagram) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.table.pop(&key);
                self.front.note_failure(node, &error);
            }
            // The socket's buffer is full, or the datagram is too large for the path.
            Err(error) => tracing::debug!(%error, "a datagram is lost"),
            Ok(_) => {}
        }
        Ok(())
    }

    /// Opens a socket. The one that was unused for longest gives way if there are too many.
    fn open(&mut self, key: Key) -> io::Result<&Flow> {
        let (client, node) = key;
        let address = self.front.nodes[node];
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        socket.bind(&any.into())?;
        // Then only this node's datagrams are received, and its refusals are reported.
        socket.connect(&address.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        let socket = Arc::new(FlowSocket { socket, used: Mutex::new(Instant::now()) });
        let (front, answering) = (Arc::clone(&self.front), Arc::clone(&socket));
        let task = self.tasks.spawn(async move {
            if let Err(error) = answer(&front, &answering, client, node).await {
                front.note_failure(node, &error);
            }
            key
        });
        Ok(self.table.get_or_insert(key, || Flow { socket, task }))
    }

    /// Removes a flow that has ended. Cancel safe; waits forever if there are none.
    pub(crate) async fn remove_ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            // A newer flow may have its place.
            Some(Ok((id, key))) if self.table.peek(&key).is_some_and(|flow| flow.task.id() == id) => {
                self.table.pop(&key);
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }

    /// Ends all flows.
    pub(crate) async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Error of the last datagram: the node's machine says that no program has the port (ICMP).
fn take_error(socket: &UdpSocket) -> io::Result<io::Error> {
    socket.take_error()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
}

/// Passes the answers of a node on to a client until the flow is idle.
///
/// # Errors
/// The node refuses datagrams.
async fn answer(front: &Front, flow: &FlowSocket, client: SocketAddr, node: usize) -> io::Result<()> {
    loop {
        let end = *flow.used() + front.idle;
        match timeout_at(end, flow.socket.ready(Interest::READABLE | Interest::ERROR)).await {
            Ok(ready) => {
                if ready?.is_error()
                    && let Ok(error) = flow.socket.try_io(Interest::ERROR, || take_error(&flow.socket))
                {
                    return Err(error);
                }
                // A buffer only while there are answers: most clients are silent most of the time.
                let mut datagram = Vec::with_capacity(MAX_DATAGRAM);
                for _ in 0..BURST {
                    datagram.clear();
                    match flow.socket.try_recv_buf(&mut datagram) {
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    }
                    *flow.used() = Instant::now();
                    front.note_success(node);
                    if let Err(error) = front.socket.send_to(&datagram, client).await {
                        tracing::debug!(%error, "an answer is lost");
                    }
                }
            }
            Err(_) if *flow.used() + front.idle <= Instant::now() => return Ok(()),
            Err(_) => {}
        }
    }
}
