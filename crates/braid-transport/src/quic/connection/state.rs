//! State of a link: everything that the library can panic in, so that it can be forgotten as one.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use braid_proto::stream::{Priority, StreamKey};
use noq::{Connection, ConnectionError, ConnectionStats, Endpoint, RecvStream, SendStream, VarInt};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::close::ClosingLink;
use super::events::{Confirmed, ConnectionEvents, Event, EventWakers, PathMigration};
use super::send_limit::SendLimit;
use super::stream::{CloseReason, Stream};
use super::stream_finish::{PendingFinishes, UnsentBytes};
use super::write_scheduler::{ActivePriorities, Urgency, WriteScheduler};
use crate::quic::config::QuicOptions;
use crate::quic::congestion::controller::SharedGate;
use crate::quic::runtime::Failures;
use crate::transport::{Dir, Read};

/// Number of streams that ended by RESET_STREAM of this end while they were watched for STOP_SENDING: the library keeps
/// memory for each until the connection ends. Beyond it only writes notice STOP_SENDING.
const MAX_RESET_WATCHES: usize = 4096;

/// A connection with its control stream.
pub(in crate::quic) struct Established {
    /// The client's first bidirectional stream.
    pub(in crate::quic) control: (SendStream, RecvStream),
    pub(in crate::quic) connection: Connection,
    /// Address of the peer.
    pub(in crate::quic) address: SocketAddr,
    /// Endpoint of a client, which serves this connection alone.
    pub(in crate::quic) endpoint: Option<Endpoint>,
    /// Panics in tasks of the endpoint.
    pub(in crate::quic) failures: Failures,
    pub(in crate::quic) options: Arc<QuicOptions>,
    pub(in crate::quic) gate: Option<Arc<SharedGate>>,
    /// Resolves when the handshake is confirmed; `None` if it is.
    pub(in crate::quic) confirmed: Option<Confirmed>,
}

pub(crate) struct ConnectionState {
    pub(super) connection: Connection,
    pub(super) control: Stream,
    /// Data streams that have not ended in both directions.
    pub(super) streams: FxHashMap<StreamKey, Box<Stream>>,
    pub(super) reads: ReadQueue,
    pub(super) unread: UnreadEstimate,
    pub(super) writes: Writes,
    pub(super) wakers: Arc<EventWakers>,
    /// Buffer for [`EventWakers::take`].
    pub(super) woken: Vec<Event>,
    pub(super) events: ConnectionEvents,
    pub(super) gate: Option<Arc<SharedGate>>,
    pub(super) role: Role,
    /// Reason for which the connection, or the control stream, is of no more use.
    pub(super) close_reason: Option<CloseReason>,
}

/// Streams to read, in turn. One that is not wanted stays in it.
#[derive(Default)]
pub(super) struct ReadQueue {
    pub(super) queue: VecDeque<StreamKey>,
    /// The control stream may have something.
    pub(super) is_control_queued: bool,
    /// The control stream had the last turn.
    pub(super) control_had_turn: bool,
    /// The peer has finished the control stream.
    pub(super) is_control_finished: bool,
    /// Results of the next reads.
    pub(super) notices: VecDeque<Read>,
}

/// Writes and FINs that wait.
pub(super) struct Writes {
    pub(super) active: ActivePriorities,
    pub(super) scheduler: WriteScheduler,
    pub(super) urgency: Urgency,
    pub(super) limit: SendLimit,
    pub(super) unsent: UnsentBytes,
    pub(super) finishes: PendingFinishes,
}

/// Parts that differ between the two ends.
pub(super) enum Role {
    Server {
        migration: Option<PathMigration>,
        /// The CONNECT was accepted.
        is_trusted: bool,
        /// See [`MAX_RESET_WATCHES`].
        reset_watches: usize,
    },
    Client {
        endpoint: Endpoint,
        /// Streams that are being opened: bidirectional, unidirectional.
        opening: [Option<Opening>; 2],
    },
}

type Opened = Result<(SendStream, Option<RecvStream>), ConnectionError>;
type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

impl ReadQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.is_control_queued
    }
}

impl ConnectionState {
    pub(super) fn new(established: Established, wakers: Arc<EventWakers>) -> Self {
        let Established { control: (send, recv), connection, address, endpoint, gate, confirmed, .. } =
            established;
        if let Some(gate) = &gate {
            gate.set_connection(&connection, address);
            if confirmed.is_none() {
                gate.set_established();
            }
        }
        let role = match endpoint {
            Some(endpoint) => Role::Client { endpoint, opening: [None, None] },
            None => Role::Server {
                migration: PathMigration::new(&connection, address),
                is_trusted: false,
                reset_watches: 0,
            },
        };
        let waker = wakers.waker(Event::Connection);
        Self {
            control: Stream::new(StreamKey::CONTROL, Some(send), Some(recv), &wakers),
            streams: FxHashMap::default(),
            reads: ReadQueue { is_control_queued: true, ..ReadQueue::default() },
            unread: UnreadEstimate::new(established.options.stream_receive_window.into()),
            writes: Writes {
                active: ActivePriorities::default(),
                scheduler: WriteScheduler::default(),
                urgency: Urgency::default(),
                limit: SendLimit::new(&connection, established.options.send_window),
                unsent: UnsentBytes::default(),
                finishes: PendingFinishes::default(),
            },
            wakers,
            woken: Vec::new(),
            events: ConnectionEvents::new(connection.clone(), confirmed, established.failures, waker),
            gate,
            role,
            close_reason: None,
            connection,
        }
    }

    pub(super) fn stream_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() { Some(&mut self.control) } else { self.streams.get_mut(&key).map(Box::as_mut) }
    }

    /// Takes a new stream in.
    pub(super) fn insert(&mut self, key: StreamKey, send: Option<SendStream>, recv: Option<RecvStream>) {
        let mut stream = Box::new(Stream::new(key, send, recv, &self.wakers));
        if stream.recv.is_some() {
            stream.is_queued = true;
            self.reads.queue.push_back(key);
        }
        self.streams.insert(key, stream);
        if !matches!(self.role, Role::Server { is_trusted: false, .. }) {
            self.watch_stop(key);
        }
    }

    /// Reports STOP_SENDING without a write from now on.
    fn watch_stop(&mut self, key: StreamKey) {
        let Self { control, streams, wakers, role, .. } = self;
        if matches!(role, Role::Server { reset_watches: MAX_RESET_WATCHES.., .. }) {
            return;
        }
        let stream = if key.is_control() { Some(control) } else { streams.get_mut(&key).map(Box::as_mut) };
        if let Some(stream) = stream {
            stream.watch_stop(key, wakers);
            self.poll_stop(key);
        }
    }

    /// Handles STOP_SENDING, if it came.
    pub(super) fn poll_stop(&mut self, key: StreamKey) {
        let Some(stream) = self.stream_mut(key) else { return };
        let Poll::Ready(code) = stream.poll_stopped() else { return };
        if key.is_control() {
            // The peer is about to end the connection. What it sent before is read first. [BQ-40]
            self.close_reason.get_or_insert(CloseReason::ControlStopped(code.into_inner()));
        } else {
            self.handle_stop(key, code);
        }
    }

    /// Answers STOP_SENDING with RESET_STREAM (RFC 9000, 3.5) at once. [BQ-33]
    pub(super) fn handle_stop(&mut self, key: StreamKey, code: VarInt) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.reset(code);
        self.reads.notices.push_back(Read::Stopped(key, code.into_inner()));
        self.handle_send_ended(key);
    }

    /// The sending half of a stream has ended.
    pub(super) fn handle_send_ended(&mut self, key: StreamKey) {
        self.writes.scheduler.remove(key);
        self.writes.active.remove(key);
        self.writes.limit.remove(&self.connection, key);
        self.remove_if_over(key);
    }

    pub(super) fn remove_if_over(&mut self, key: StreamKey) {
        if self.streams.get(&key).is_some_and(|stream| stream.is_over()) {
            self.streams.remove(&key);
        }
    }

    pub(crate) fn set_priority(&mut self, key: StreamKey, priority: Priority) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.set_priority(priority);
            let priority = stream.priority();
            self.writes.scheduler.set_priority(key, priority);
            self.writes.active.set_priority(key, priority);
        }
    }

    pub(crate) fn abort(&mut self, key: StreamKey, code: u64) {
        let Some(mut stream) = self.streams.remove(&key) else { return };
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        if let Role::Server { reset_watches, .. } = &mut self.role
            && stream.is_watched()
        {
            *reset_watches += 1;
        }
        stream.reset(code);
        stream.stop(code);
        self.handle_send_ended(key);
    }

    pub(super) fn poll_open(&mut self, dir: Dir) -> Poll<io::Result<StreamKey>> {
        let Role::Client { opening, .. } = &mut self.role else {
            // [BQ-4]
            let error = io::Error::new(io::ErrorKind::Unsupported, "a server opens no streams");
            return Poll::Ready(Err(error));
        };
        let opening = &mut opening[usize::from(dir == Dir::Uni)];
        let future = opening.get_or_insert_with(|| open(self.connection.clone(), dir));
        let opened = ready!(future.as_mut().poll(&mut Context::from_waker(&self.events.waker)));
        *opening = None;
        let (send, recv) = opened.map_err(|error| io::Error::from(CloseReason::Connection(error)))?;
        let Ok(index) = u32::try_from(send.id().index()) else {
            return Poll::Ready(Err(io::Error::other("the connection has had all streams it can have")));
        };
        let key = match dir {
            Dir::Bidi => StreamKey::bidi(index),
            Dir::Uni => StreamKey::uni(index),
        };
        self.insert(key, Some(send), recv);
        // The stream has to be read once to register its waker.
        self.events.waker.wake_by_ref();
        Poll::Ready(Ok(key))
    }

    pub(crate) fn set_trusted(&mut self) {
        if let Role::Server { is_trusted, .. } = &mut self.role
            && !std::mem::replace(is_trusted, true)
        {
            self.connection.set_receive_window(VarInt::MAX);
            // A watch costs memory, which no client gets before its CONNECT.
            let keys: Vec<StreamKey> = self.streams.keys().copied().chain([StreamKey::CONTROL]).collect();
            keys.into_iter().for_each(|key| self.watch_stop(key));
            // A read reports what was found.
            self.events.waker.wake_by_ref();
        }
    }

    pub(crate) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        let Role::Client { endpoint, .. } = &self.role else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a client can move its connection"));
        };
        let address = match address {
            Some(address) => address,
            None => any_port(endpoint.local_addr()?),
        };
        endpoint.rebind(UdpSocket::bind(address)?)?;
        if let Some(gate) = &self.gate {
            gate.handle_rebind();
        }
        Ok(())
    }

    pub(super) fn into_closing(self: Box<Self>) -> ClosingLink {
        if let Some(gate) = &self.gate {
            gate.abandon();
        }
        let unsent = self.control.written.min(self.writes.limit.bytes());
        let delivery_time = self.capacity().delivery_time(unsent);
        let Self { control, streams, connection, role, .. } = *self;
        let data = streams.into_values().map(|stream| *stream).collect();
        let endpoint = match role {
            Role::Client { endpoint, .. } => Some(endpoint),
            Role::Server { .. } => None,
        };
        ClosingLink { control, data, connection, endpoint, delivery_time }
    }
}

impl Role {
    /// The peer's new address, once.
    pub(super) fn take_new_address(&mut self) -> Option<SocketAddr> {
        let Self::Server { migration, .. } = self else { return None };
        migration.as_mut()?.take_new_address()
    }

    /// Time at which to ask for a new address again.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        let Self::Server { migration, .. } = self else { return None };
        migration.as_ref()?.next_poll()
    }
}

/// The wildcard address of the same family.
fn any_port(address: SocketAddr) -> SocketAddr {
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, 0)
}

fn open(connection: Connection, dir: Dir) -> Opening {
    Box::pin(async move {
        match dir {
            Dir::Bidi => connection.open_bi().await.map(|(send, recv)| (send, Some(recv))),
            Dir::Uni => connection.open_uni().await.map(|send| (send, None)),
        }
    })
}

/// Least overhead of a datagram with STREAM frames: short header with a connection ID of eight bytes, AEAD tag, frame
/// type and stream ID.
const OVERHEAD: u64 = 28;

/// Interval at which the estimate is corrected while nothing is unread.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(1);

/// Upper estimate of the bytes that were received and not read. The library reports the bytes of datagrams only: what
/// came in them since everything was read, less what was read since.
pub(super) struct UnreadEstimate {
    /// Bytes that one stream can hold.
    stream_window: u64,
    /// Payload of all datagrams when everything was read last.
    received: u64,
    /// Bytes read since then.
    read: u64,
    corrected_at: Option<Instant>,
}

impl UnreadEstimate {
    fn new(stream_window: u64) -> Self {
        Self { stream_window, received: 0, read: 0, corrected_at: None }
    }

    pub(super) fn handle_read(&mut self, bytes: usize) {
        self.read += bytes as u64;
    }

    /// Everything was read.
    pub(super) fn handle_empty(&mut self, stats: impl FnOnce() -> ConnectionStats) {
        let now = Instant::now();
        if self.corrected_at.is_none_or(|at| now - at >= CORRECTION_INTERVAL) {
            (self.received, self.read, self.corrected_at) = (payload(&stats()), 0, Some(now));
        }
    }

    /// Bytes on `streams` streams that are not read.
    pub(super) fn bytes(&self, stats: &ConnectionStats, streams: usize) -> usize {
        let unread = payload(stats).saturating_sub(self.received).saturating_sub(self.read);
        usize::try_from(unread.min(self.stream_window.saturating_mul(streams as u64))).unwrap_or(usize::MAX)
    }
}

fn payload(stats: &ConnectionStats) -> u64 {
    stats.udp_rx.bytes.saturating_sub(stats.udp_rx.datagrams.saturating_mul(OVERHEAD))
}
