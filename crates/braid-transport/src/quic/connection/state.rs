//! State of a link: a connection, its streams, and what they wait for.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use braid_proto::stream::{Priority, StreamKey};
use noq_proto::VarInt;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::close::ClosingLink;
use super::datagrams::{DatagramMeter, Datagrams};
use super::path_migration::PathMigration;
use super::receive_window::ReceiveWindow;
use super::send_limit::SendLimit;
use super::stream::{self, CloseReason, Stream};
use super::stream_finish::{PendingFinishes, UnsentBytes};
use super::unread_estimate::UnreadEstimate;
use super::write_scheduler::{ActivePriorities, Urgency, WriteScheduler};
use crate::quic::config::QuicOptions;
use crate::quic::congestion::controller::SharedGate;
use crate::quic::early::Early;
use crate::quic::io::{Connection, Socket};
use crate::transport::{Dir, Read};

/// Events that are handled before other tasks have a turn, about: an empty STREAM frame of three bytes makes one.
const MAX_WORK: usize = 4096;

/// Events that a datagram counts as, beside its own.
const DATAGRAM_WORK: usize = 8;

/// A connection whose control stream, the first bidirectional one, is open.
pub(in crate::quic) struct Established {
    pub(in crate::quic) connection: Box<Connection>,
    /// Address of the peer.
    pub(in crate::quic) address: SocketAddr,
    pub(in crate::quic) options: Arc<QuicOptions>,
    pub(in crate::quic) gate: Option<Arc<SharedGate>>,
    /// `None` if the handshake is confirmed, or need not be.
    pub(in crate::quic) early: Option<Early>,
    /// Opens a socket in place of another one at this address, for a client.
    pub(in crate::quic) rebind: Option<Rebind>,
}

/// Opens the socket that takes the place of another.
pub(in crate::quic) type Rebind =
    Arc<dyn Fn(&Socket, Option<SocketAddr>) -> io::Result<Socket> + Send + Sync>;

pub(crate) struct ConnectionState {
    pub(super) connection: Box<Connection>,
    pub(super) control: Stream,
    /// Data streams that have not ended in both directions.
    pub(super) streams: FxHashMap<StreamKey, Box<Stream>>,
    pub(super) reads: ReadQueue,
    pub(super) unread: UnreadEstimate,
    pub(super) window: ReceiveWindow,
    pub(super) writes: Writes,
    /// `None` unless this end permits datagrams.
    pub(super) datagrams: Option<Box<Datagrams>>,
    pub(super) early: Option<Early>,
    pub(super) gate: Option<Arc<SharedGate>>,
    pub(super) role: Role,
    /// Reason for which the connection, or the control stream, is of no more use.
    pub(super) close_reason: Option<CloseReason>,
    /// The datagrams that have come were taken in during this turn.
    pub(super) has_received: bool,
}

/// Streams to read, in turn. One that is not wanted stays in it.
#[derive(Default)]
pub(super) struct ReadQueue {
    pub(super) queue: VecDeque<StreamKey>,
    /// The peer may have opened streams: bidirectional, unidirectional.
    pub(super) are_incoming: [bool; 2],
    /// The control stream may have something.
    pub(super) is_control_queued: bool,
    /// The control stream had the last turn.
    pub(super) control_had_turn: bool,
    /// Datagrams that had the last turns.
    pub(super) datagram_turns: usize,
    /// The peer has finished the control stream.
    pub(super) is_control_finished: bool,
    /// Results of the next reads.
    pub(super) notices: VecDeque<Read>,
    /// Pieces of streams that are not taken in yet.
    pub(super) pieces_of_incoming: usize,
    /// Streams of which pieces may have to be taken out of the library, each once.
    pub(super) crowded: Vec<StreamKey>,
    /// Work since the task has left other tasks a turn: events, and some for each datagram.
    pub(super) work: usize,
}

/// Writes and FINs that wait.
pub(super) struct Writes {
    pub(super) active: ActivePriorities,
    pub(super) scheduler: WriteScheduler,
    pub(super) urgency: Urgency,
    pub(super) limit: SendLimit,
    pub(super) unsent: UnsentBytes,
    pub(super) finishes: PendingFinishes,
    /// Writes that found no room so far.
    pub(super) refused: u64,
}

/// Parts that differ between the two ends.
pub(super) enum Role {
    Server {
        migration: PathMigration,
        /// The CONNECT was accepted.
        is_trusted: bool,
    },
    Client {
        rebind: Option<Rebind>,
    },
}

impl ReadQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && !self.is_control_queued
    }
}

impl ConnectionState {
    pub(super) fn new(established: Established) -> Self {
        let Established { mut connection, address, options, gate, early, rebind } = established;
        if let Some(gate) = &gate {
            gate.begin_log(address);
            if early.is_none() {
                gate.set_established();
            }
        }
        if options.datagrams {
            connection.permit_datagrams();
        }
        let datagrams = options.datagrams.then(Box::default);
        let role = match connection.side() {
            noq_proto::Side::Client => Role::Client { rebind },
            noq_proto::Side::Server => {
                Role::Server { migration: PathMigration::new(address), is_trusted: false }
            }
        };
        Self {
            control: Stream::new(StreamKey::CONTROL, true, true, 1),
            streams: FxHashMap::default(),
            reads: ReadQueue { is_control_queued: true, are_incoming: [true; 2], ..ReadQueue::default() },
            unread: UnreadEstimate::new(options.stream_receive_window.into()),
            window: ReceiveWindow::new(options.receive_budget.clone(), connection.side()),
            writes: Writes {
                active: ActivePriorities::default(),
                scheduler: WriteScheduler::default(),
                urgency: Urgency::default(),
                limit: SendLimit::new(&mut connection, options.send_window),
                unsent: UnsentBytes::default(),
                finishes: PendingFinishes::default(),
                refused: 0,
            },
            datagrams,
            early,
            gate,
            role,
            close_reason: None,
            has_received: false,
            connection,
        }
    }

    /// Takes in what has come, as far as one turn goes; true if something has.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        self.has_received = true;
        if self.reads.work >= MAX_WORK {
            self.reads.work = 0;
            cx.waker().wake_by_ref();
            return false;
        }
        let is_resumed = self.connection.has_arrivals();
        let mut events = 0;
        let is_all = loop {
            let is_all = self.connection.receive(cx);
            let handled = self.handle_events();
            events += handled;
            self.reads.work += DATAGRAM_WORK + handled;
            if is_all || self.reads.work >= MAX_WORK {
                break is_all;
            }
        };
        if is_resumed || !is_all {
            cx.waker().wake_by_ref();
        }
        self.take_pieces();
        if let Some(address) = self.role.take_new_address(&mut self.connection) {
            self.reads.notices.push_back(Read::Moved(address));
            events += 1;
        }
        if events == 0 && is_all {
            self.reads.work = 0;
        }
        events > 0
    }

    /// Sends what was written, and sets the timers.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        // A turn without reads takes in acknowledgements, too. What is to be read needs another turn.
        if !self.has_received && self.receive(cx) {
            cx.waker().wake_by_ref();
        }
        self.has_received = false;
        if self.update_window() {
            cx.waker().wake_by_ref();
        }
        self.transmit(cx);
        // After the bytes before them, which had no chance to leave in a turn that took long.
        if self.poll_finishes(cx) {
            self.transmit(cx);
        }
    }

    fn transmit(&mut self, cx: &mut Context<'_>) {
        if self.datagrams.is_none() {
            return self.connection.transmit(cx);
        }
        let capacity = self.capacity();
        let blocked_limit = self.blocked_limit(&capacity);
        let Self { connection, writes, datagrams: Some(datagrams), gate, .. } = self else { return };
        let (scheduler, gate) = (&writes.scheduler, gate.as_deref());
        let mut meter = DatagramMeter { datagrams, scheduler, blocked_limit, patience: capacity.rtt, gate };
        connection.transmit_with(cx, Some(&mut meter));
    }

    pub(super) fn stream_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() { Some(&mut self.control) } else { self.streams.get_mut(&key).map(Box::as_mut) }
    }

    /// Takes a new stream in.
    pub(super) fn insert(&mut self, key: StreamKey, is_sending: bool, is_receiving: bool) {
        // The first is not told.
        let pieces = self.reads.pieces_of_incoming + 1;
        let mut stream = Box::new(Stream::new(key, is_sending, is_receiving, pieces));
        if is_receiving {
            stream.is_queued = true;
            self.reads.queue.push_back(key);
        }
        self.streams.insert(key, stream);
    }

    /// Handles STOP_SENDING. On a data stream the answer is RESET_STREAM (RFC 9000, 3.5) at once. [BQ-33]
    pub(super) fn handle_stop(&mut self, key: StreamKey, code: VarInt) {
        if key.is_control() {
            // The peer is about to end the connection. What it sent before is read first. [BQ-40] A client reads on to
            // the end of the stream, and finds out with its next write.
            if let Role::Server { .. } = self.role {
                self.close_reason.get_or_insert(CloseReason::ControlStopped(code.into_inner()));
            }
            return;
        }
        let Self { streams, connection, reads, datagrams, .. } = self;
        let Some(stream) = streams.get_mut(&key).filter(|stream| stream.is_sending) else { return };
        stream.reset(connection, code);
        if let Some(datagrams) = datagrams {
            datagrams.note_reset(key, stream.priority());
        }
        reads.notices.push_back(Read::Stopped(key, code.into_inner()));
        self.handle_send_ended(key);
    }

    /// The sending half of a stream has ended.
    pub(super) fn handle_send_ended(&mut self, key: StreamKey) {
        self.writes.scheduler.remove(key);
        self.writes.active.remove(key);
        self.writes.limit.remove(&mut self.connection, key);
        self.remove_if_over(key);
    }

    pub(super) fn remove_if_over(&mut self, key: StreamKey) {
        if self.streams.get(&key).is_some_and(|stream| stream.is_over()) {
            self.streams.remove(&key);
        }
    }

    pub(crate) fn set_priority(&mut self, key: StreamKey, priority: Priority) {
        if let Some(stream) = self.streams.get_mut(&key) {
            let before = stream.priority();
            stream.set_priority(&mut self.connection, priority);
            let (priority, has_written) = (stream.priority(), stream.written > 0);
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.note_priority(key, before, priority);
            }
            if has_written {
                self.writes.unsent.handle_moved(priority);
            }
            self.writes.scheduler.set_priority(key, priority);
            self.writes.active.set_priority(key, priority);
        }
    }

    pub(crate) fn abort(&mut self, key: StreamKey, code: u64) {
        let Some(mut stream) = self.streams.remove(&key) else { return };
        self.window.handle_held(&mut self.connection, stream.held(), 0);
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        stream.reset(&mut self.connection, code);
        stream.stop(&mut self.connection, code);
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.note_reset(key, stream.priority());
        }
        self.handle_send_ended(key);
    }

    pub(super) fn poll_open(&mut self, dir: Dir) -> Poll<io::Result<StreamKey>> {
        if let Role::Server { .. } = self.role {
            // [BQ-4]
            let error = io::Error::new(io::ErrorKind::Unsupported, "a server opens no streams");
            return Poll::Ready(Err(error));
        }
        if let Some(reason) = &self.close_reason {
            return Poll::Ready(Err(reason.clone().into()));
        }
        let library_dir = match dir {
            Dir::Bidi => noq_proto::Dir::Bi,
            Dir::Uni => noq_proto::Dir::Uni,
        };
        let Some(id) = self.connection.open(library_dir) else { return Poll::Pending };
        let Some(key) = stream::key(id) else {
            return Poll::Ready(Err(io::Error::other("the connection has had all streams it can have")));
        };
        self.insert(key, true, dir == Dir::Bidi);
        Poll::Ready(Ok(key))
    }

    pub(crate) fn set_trusted(&mut self) {
        if let Role::Server { is_trusted, .. } = &mut self.role
            && !std::mem::replace(is_trusted, true)
        {
            self.window.open(&mut self.connection);
        }
    }

    pub(crate) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        let Role::Client { rebind: Some(rebind) } = &self.role else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a client can move its connection"));
        };
        self.connection.rebind(|socket| rebind(socket, address))
    }

    pub(super) fn into_closing(mut self: Box<Self>) -> ClosingLink {
        self.end_wait();
        if let Some(gate) = &self.gate {
            gate.abandon();
        }
        let unsent = self.control.written.min(self.writes.limit.bytes());
        let delivery_time = self.capacity().delivery_time(unsent);
        let Self { control, streams, connection, .. } = *self;
        let data = streams.into_values().map(|stream| *stream).collect();
        ClosingLink { control, data, connection, delivery_time }
    }
}

impl Role {
    /// The peer's new address, once.
    pub(super) fn take_new_address(&mut self, connection: &mut Connection) -> Option<SocketAddr> {
        let Self::Server { migration, .. } = self else { return None };
        migration.take_new_address(connection)
    }

    /// Changes of the peer's address so far.
    pub(super) fn moves(&self) -> u64 {
        if let Self::Server { migration, .. } = self { migration.moves() } else { 0 }
    }

    /// Time at which to ask for a new address again.
    pub(super) fn next_poll(&self, connection: &Connection) -> Option<Instant> {
        let Self::Server { migration, .. } = self else { return None };
        migration.next_poll(connection)
    }
}

/// The wildcard address of the same family.
pub(in crate::quic) fn any_port(address: SocketAddr) -> SocketAddr {
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(any, 0)
}
