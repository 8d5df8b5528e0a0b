//! Endpoint of a server: one socket, whose datagrams one task routes to the connections.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use noq_proto::{
    ConnectionError, ConnectionEvent, ConnectionHandle, DatagramEvent, EndpointConfig, EndpointEvent,
    FourTuple, Incoming, ServerConfig, VarInt,
};
use noq_udp::BATCH_SIZE;
use tokio::sync::Notify;

use super::admission::AdmissionQueue;
use super::batch;
use super::datagram_queue::{DatagramQueue, Order};
use super::sender::Sender;
use super::socket::{Datagram, Socket};
use super::timer::now;
use crate::quic::amplification::{AmplificationLimit, PathValidationLimit};
use crate::quic::congestion::controller::SharedGate;

/// Batches that are received before other tasks have a turn.
const MAX_BATCHES: usize = 8;

/// Endpoint of a server. It lives as long as its listener or one of its connections.
pub(in crate::quic) struct Endpoint {
    state: Mutex<State>,
    socket: Arc<Socket>,
    limit: AmplificationLimit,
    /// Notified when a client comes, and when the endpoint is lost.
    incoming: Notify,
    /// Notified when no connection is left that is neither closed nor lost, and when one of the closed ones has ended
    /// then.
    quiet: Notify,
    /// The task that receives.
    task: AtomicWaker,
    /// Held while a client is accepted: the library does its half of TLS, a millisecond and more, under the lock of the
    /// state. Others that have a client to accept wait as tasks, and keep no thread.
    admission: tokio::sync::Mutex<()>,
}

struct State {
    library: noq_proto::Endpoint,
    /// Queues of the connections, by the number of their handle.
    connections: Vec<Option<Entry>>,
    /// Connections that are neither closed nor lost.
    active: usize,
    /// Connections in `connections`.
    count: usize,
    /// First packets of clients that wait to be accepted.
    incoming: AdmissionQueue<Incoming>,
    /// Clients that were refused because they waited, or would have waited, for too long.
    turned_away: u64,
    /// Addresses that are to be validated again, each with its [`DoubtfulMark`].
    doubtful: HashSet<SocketAddr>,
    /// No client is accepted any more.
    is_closed: bool,
    /// The task has ended.
    is_lost: bool,
}

/// Header form (RFC 9000, 17.2).
const LONG_HEADER: u8 = 0x80;

struct Entry {
    queue: Arc<DatagramQueue>,
    is_active: bool,
}

impl Endpoint {
    /// Spawns the task of an endpoint. `limit`: its anti-amplification limit. `wait`: longest time for which a client
    /// is to wait until it is accepted.
    pub(in crate::quic) fn spawn(
        config: EndpointConfig,
        server: ServerConfig,
        socket: Arc<Socket>,
        limit: AmplificationLimit,
        wait: Duration,
    ) -> Arc<Self> {
        limit.set_socket(&socket);
        let library =
            noq_proto::Endpoint::new(Arc::new(config), Some(Arc::new(server)), !socket.may_fragment());
        let endpoint = Arc::new(Self {
            state: Mutex::new(State {
                library,
                connections: Vec::new(),
                active: 0,
                count: 0,
                incoming: AdmissionQueue::new(wait),
                turned_away: 0,
                doubtful: HashSet::new(),
                is_closed: false,
                is_lost: false,
            }),
            socket,
            limit,
            incoming: Notify::new(),
            quiet: Notify::new(),
            task: AtomicWaker::new(),
            admission: tokio::sync::Mutex::default(),
        });
        // Also if the task panics, or ends with its runtime.
        let guard = LostGuard(Arc::clone(&endpoint));
        tokio::spawn(async move {
            let LostGuard(endpoint) = &guard;
            if let Err(error) = std::future::poll_fn(|cx| endpoint.poll_task(cx)).await {
                tracing::error!(%error, "the socket of a QUIC endpoint failed");
            }
        });
        endpoint
    }

    pub(in crate::quic) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The next client; `None` once the endpoint is lost. Cancel safe.
    pub(in crate::quic) async fn next_incoming(&self) -> Option<Incoming> {
        loop {
            let notified = self.incoming.notified();
            {
                let mut state = self.lock();
                if state.is_lost {
                    return None;
                }
                let now = now();
                if let Some(late) = state.incoming.pop_late(now) {
                    state.turned_away += 1;
                    drop(state);
                    // Unanswered it would repeat its first packet, and that would wait as a new one.
                    self.refuse(late);
                    continue;
                }
                if let Some(incoming) = state.incoming.pop(now) {
                    return Some(incoming);
                }
            }
            notified.await;
        }
    }

    /// Tests whether clients wait to be accepted.
    pub(in crate::quic) fn has_waiting(&self) -> bool {
        !self.lock().incoming.is_empty()
    }

    /// Number of clients that were refused for their wait.
    pub(in crate::quic) fn turned_away(&self) -> u64 {
        self.lock().turned_away
    }

    /// Turn to accept a client, one at a time. Cancel safe.
    pub(in crate::quic) async fn admission(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.admission.lock().await
    }

    /// Accepts a client, in its turn. Returns the connection of the library with its handle and the queue of its
    /// datagrams.
    pub(super) fn accept(
        &self,
        incoming: Incoming,
        config: Arc<ServerConfig>,
    ) -> Result<(noq_proto::Connection, ConnectionHandle, Arc<DatagramQueue>), ConnectionError> {
        let mut answer = Vec::new();
        let mut state = self.lock();
        match state.library.accept(incoming, now(), &mut answer, Some(config)) {
            Ok((handle, connection)) => Ok((connection, handle, state.insert(handle))),
            Err(error) => {
                drop(state);
                if let Some(transmit) = &error.response {
                    self.respond(transmit, &answer);
                }
                Err(error.cause)
            }
        }
    }

    /// The sender of a connection. `gate` and `paths`: those of the connection.
    pub(super) fn sender(&self, gate: Option<Arc<SharedGate>>, paths: PathValidationLimit) -> Sender {
        Sender::new(Arc::clone(&self.socket), Some((self.limit.clone(), paths)), gate)
    }

    pub(in crate::quic) fn refuse(&self, incoming: Incoming) {
        let mut answer = Vec::new();
        let transmit = self.lock().library.refuse(incoming, &mut answer);
        self.respond(&transmit, &answer);
    }

    /// Has a client validate its address, and come again.
    pub(in crate::quic) fn retry(&self, incoming: Incoming) {
        let mut answer = Vec::new();
        let retried = self.lock().library.retry(incoming, &mut answer);
        match retried {
            Ok(transmit) => self.respond(&transmit, &answer),
            Err(error) => self.refuse(error.into_incoming()),
        }
    }

    /// Takes a configuration over for later clients.
    pub(in crate::quic) fn set_config(&self, config: ServerConfig) {
        self.lock().library.set_server_config(Some(Arc::new(config)));
    }

    /// Refuses all clients that wait to be accepted, and all later ones. The connections of the endpoint live on.
    /// `config`: the present one.
    pub(in crate::quic) fn stop_accepting(&self, config: &ServerConfig) {
        // Not `None`: the library reads the configuration when more comes from a client that waits, and panics.
        let mut refusing = config.clone();
        refusing.max_incoming(0).incoming_buffer_size(0);
        let incoming = {
            let mut state = self.lock();
            state.is_closed = true;
            state.library.set_server_config(Some(Arc::new(refusing)));
            state.incoming.take_all()
        };
        incoming.for_each(|incoming| self.refuse(incoming));
        self.task.wake();
    }

    /// Has the library validate an address again, which it does only where a client has moved: the next datagram from
    /// there seems to come from elsewhere, and the one after it from the address again. Elsewhere is port 0, for which
    /// nothing leaves, of another host: for a path of the same host the library gives up after three probe timeouts of
    /// what it knows, some 200 ms, and a peer that may send nothing for want of acknowledgements answers with its next
    /// probe, seconds later.
    ///
    /// Returns the mark of the address; `None` if there is one for each connection.
    pub(super) fn validate_again(self: &Arc<Self>, address: SocketAddr) -> Option<DoubtfulMark> {
        let mut state = self.lock();
        // Each is the address of a connection, unless that has just ended.
        if state.doubtful.len() >= state.count {
            return None;
        }
        state.doubtful.insert(address);
        Some(DoubtfulMark { endpoint: Arc::clone(self), address })
    }

    /// Waits until each connection is lost, or has sent its close.
    pub(in crate::quic) async fn wait_quiet(&self) {
        self.wait_until(|state| state.active == 0).await;
    }

    /// Waits until no connection is left that would send its close again to a peer which asks for it.
    pub(in crate::quic) async fn wait_empty(&self) {
        self.wait_until(|state| state.active == 0 && state.count == 0).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let notified = self.quiet.notified();
            if is_so(&self.lock()) {
                return;
            }
            notified.await;
        }
    }

    /// Notes that a connection has sent its close. It needs the endpoint where that is lost only, and peers that have
    /// gone never answer.
    pub(super) fn note_closed(&self, handle: ConnectionHandle) {
        let mut state = self.lock();
        state.deactivate(handle);
        if state.active == 0 {
            self.quiet.notify_waiters();
        }
    }

    /// Has all connections close with this code.
    pub(in crate::quic) fn close_all(&self, code: VarInt) {
        let queues = self.lock().queues();
        queues.iter().for_each(|queue| queue.order(Order::Close(code)));
    }

    /// Handles an event of a connection, and returns the answer to it.
    pub(super) fn handle_event(
        &self,
        handle: ConnectionHandle,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        let mut state = self.lock();
        if event.is_draining() || event.is_drained() {
            state.deactivate(handle);
            if event.is_drained() {
                state.remove(handle);
            }
            if state.active == 0 {
                self.quiet.notify_waiters();
            }
            if state.is_over() {
                self.task.wake();
            }
        }
        state.library.handle_event(handle, event)
    }

    /// Receives and routes datagrams. Ready when the endpoint is of no more use.
    fn poll_task(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.task.register(cx.waker());
        for _ in 0..MAX_BATCHES {
            if self.state.is_poisoned() {
                let reason = "the QUIC library panicked; what it knows of its connections may be wrong";
                return Poll::Ready(Err(io::Error::other(reason)));
            }
            let mut woken = Vec::new();
            let received =
                self.socket.poll_receive(cx, BATCH_SIZE, |datagram| self.route(datagram, &mut woken));
            woken.into_iter().for_each(Waker::wake);
            match received {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if self.lock().is_over() => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// `woken`: the wakers of the connections that have got something.
    fn route(&self, datagram: Datagram, woken: &mut Vec<Waker>) {
        let Datagram { from, to, ecn, bytes } = datagram;
        self.limit.handle_received(from, &bytes);
        let (mut answer, now) = (Vec::new(), now());
        // As the library writes it.
        let (source, length) = (FourTuple::new(from, to).remote(), bytes.len());
        let mut state = self.lock();
        let from = state.seen_from(from, &bytes);
        match state.library.handle(now, FourTuple::new(from, to), ecn, bytes, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let entry = state.connections.get(handle.0).and_then(Option::as_ref);
                woken.extend(entry.and_then(|entry| entry.queue.push(event, source, length)));
            }
            Some(DatagramEvent::NewConnection(incoming)) if state.is_closed => {
                drop(state);
                self.refuse(incoming);
            }
            Some(DatagramEvent::NewConnection(incoming)) => match state.incoming.push(incoming, now) {
                Ok(()) => self.incoming.notify_one(),
                Err(incoming) => {
                    state.turned_away += 1;
                    drop(state);
                    self.refuse(incoming);
                }
            },
            Some(DatagramEvent::Response(transmit)) => {
                drop(state);
                self.respond(&transmit, &answer);
            }
            None => {}
        }
    }

    /// Sends an answer of the endpoint itself: a packet that the client asks for again if it is lost, for want of room
    /// too.
    fn respond(&self, transmit: &noq_proto::Transmit, answer: &[u8]) {
        let batch = batch::of(transmit, answer);
        if let Some(batch) = self.limit.pass(&mut None, &batch) {
            let _ = self.socket.try_send(&batch);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic of the library the task ends with the next datagram, and the listener restarts the endpoint.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, handle: ConnectionHandle) -> Arc<DatagramQueue> {
        let queue = Arc::new(DatagramQueue::default());
        if self.is_lost {
            queue.order(Order::Lost);
        }
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        if let Some(slot) = self.connections.get_mut(handle.0) {
            *slot = Some(Entry { queue: Arc::clone(&queue), is_active: true });
            self.active += 1;
            self.count += 1;
        }
        queue
    }

    /// The address that the library is told for a datagram. One with a long header may begin another connection.
    fn seen_from(&mut self, from: SocketAddr, bytes: &[u8]) -> SocketAddr {
        let is_long = bytes.first().is_some_and(|first| first & LONG_HEADER != 0);
        if self.doubtful.is_empty() || !self.doubtful.remove(&from) || is_long {
            return from;
        }
        let elsewhere: IpAddr = match from.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(elsewhere, 0)
    }

    fn deactivate(&mut self, handle: ConnectionHandle) {
        if let Some(Some(entry)) = self.connections.get_mut(handle.0)
            && std::mem::take(&mut entry.is_active)
        {
            self.active = self.active.saturating_sub(1);
        }
    }

    fn remove(&mut self, handle: ConnectionHandle) {
        if let Some(slot) = self.connections.get_mut(handle.0)
            && slot.take().is_some()
        {
            self.count -= 1;
        }
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.count == 0
    }

    fn queues(&self) -> Vec<Arc<DatagramQueue>> {
        self.connections.iter().flatten().map(|entry| Arc::clone(&entry.queue)).collect()
    }
}

/// Mark of an address that is to be validated again. Dropped, it is taken back, unless the validation has begun: an
/// address that its client has left must not take the place of another.
pub(in crate::quic) struct DoubtfulMark {
    endpoint: Arc<Endpoint>,
    address: SocketAddr,
}

impl Drop for DoubtfulMark {
    fn drop(&mut self) {
        self.endpoint.lock().doubtful.remove(&self.address);
    }
}

/// Ends the connections of an endpoint whose task has ended.
struct LostGuard(Arc<Endpoint>);

impl Drop for LostGuard {
    fn drop(&mut self) {
        let queues = {
            let mut state = self.0.lock();
            state.is_lost = true;
            state.active = 0;
            let incoming = state.incoming.take_all();
            // A library that has panicked is asked for nothing more: another panic would end the process.
            if !self.0.state.is_poisoned() {
                incoming.for_each(|incoming| state.library.ignore(incoming));
            }
            state.queues()
        };
        queues.iter().for_each(|queue| queue.order(Order::Lost));
        self.0.incoming.notify_waiters();
        self.0.quiet.notify_waiters();
    }
}
