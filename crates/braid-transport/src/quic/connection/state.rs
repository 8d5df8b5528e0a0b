//! Everything of a link that the library can panic in, so that it can be forgotten as one.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use braid_proto::stream::{Priority, StreamKey};
use noq::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use rustc_hash::FxHashMap;

use super::active_priorities::ActivePriorities;
use super::close::Remains;
use super::close_reason::CloseReason;
use super::gating::Gating;
use super::incoming::{IncomingEvents, incoming};
use super::path_migration::PathMigration;
use super::send_limit::SendLimit;
use super::stream::Stream;
use super::stream_finish::PendingFinishes;
use super::unsent_bytes::UnsentBytes;
use super::urgency::Urgency;
use super::wakers::{Event, Wakers};
use super::write_scheduler::WriteScheduler;
use crate::link::{Dir, Read};
use crate::quic::link::{Confirmed, Established};

/// Streams that ended by RESET_STREAM of ours while STOP_SENDING was watched for: the library keeps
/// a word for each until the connection ends. Beyond so many, STOP_SENDING is noticed by writes only.
const FORGOTTEN_WATCHES: usize = 4096;

pub(super) struct ConnectionState {
    pub(super) connection: Connection,
    pub(super) control: Stream,
    /// The data streams that have not ended in both directions.
    pub(super) streams: FxHashMap<StreamKey, Box<Stream>>,
    /// Data streams that may hold room of the window.
    pub(super) active_priorities: ActivePriorities,
    /// Streams whose last write found no room.
    pub(super) write_scheduler: WriteScheduler,
    /// Data streams to read, in turn. One that is not wanted stays.
    pub(super) queue: VecDeque<StreamKey>,
    /// The control stream may have something.
    pub(super) control_is_queued: bool,
    /// The control stream had the last turn.
    pub(super) control_had_turn: bool,
    /// What is to be told before anything is read.
    pub(super) told: VecDeque<Read>,
    pub(super) wakers: Arc<Wakers>,
    pub(super) events: Vec<Event>,
    pub(super) incoming: Option<IncomingEvents>,
    /// The connection's bell has rung.
    pub(super) has_arrivals: bool,
    pub(super) connection_bell: Waker,
    pub(super) confirmed: Option<Confirmed>,
    opening: [Option<Opening>; 2],
    pub(super) window: SendLimit,
    pub(super) unsent_bytes: UnsentBytes,
    pub(super) urgency: Urgency,
    pub(super) finishes: PendingFinishes,
    pub(super) gating: Gating,
    /// Of a server: where the client is.
    pub(super) migration: Option<PathMigration>,
    /// A client's own endpoint.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) is_trusted: bool,
    forgotten_watches: usize,
    /// The peer has finished the control stream.
    pub(super) is_over: bool,
    /// The connection, or the control stream, is of no more use.
    pub(super) close_reason: Option<CloseReason>,
}

type Opened = Result<(SendStream, Option<RecvStream>), ConnectionError>;
type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

impl ConnectionState {
    pub(super) fn new(established: Established, wakers: Arc<Wakers>) -> Self {
        let Established { control: (send, recv), connection, address, endpoint, failures, .. } = established;
        let is_server = endpoint.is_none();
        let gating = Gating::new(established.gate, &connection, address);
        if established.confirmed.is_none() {
            gating.set_established();
        }
        Self {
            control: Stream::new(StreamKey::CONTROL, Some(send), Some(recv), &wakers),
            streams: FxHashMap::default(),
            active_priorities: ActivePriorities::default(),
            write_scheduler: WriteScheduler::default(),
            queue: VecDeque::new(),
            control_is_queued: true,
            control_had_turn: false,
            told: VecDeque::new(),
            events: Vec::new(),
            incoming: Some(incoming(connection.clone(), failures)),
            has_arrivals: true,
            connection_bell: wakers.waker(Event::Connection),
            wakers,
            confirmed: established.confirmed,
            opening: [None, None],
            window: SendLimit::new(&connection, established.send_window),
            unsent_bytes: UnsentBytes::default(),
            urgency: Urgency::default(),
            finishes: PendingFinishes::default(),
            gating,
            migration: if is_server { PathMigration::new(&connection, address) } else { None },
            endpoint,
            is_trusted: !is_server,
            forgotten_watches: 0,
            is_over: false,
            close_reason: None,
            connection,
        }
    }

    pub(super) fn stream_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() { Some(&mut self.control) } else { self.streams.get_mut(&key).map(Box::as_mut) }
    }

    /// Takes in a stream that begins.
    pub(super) fn insert(&mut self, key: StreamKey, send: Option<SendStream>, recv: Option<RecvStream>) {
        let mut stream = Box::new(Stream::new(key, send, recv, &self.wakers));
        if stream.recv.is_some() {
            stream.is_queued = true;
            self.queue.push_back(key);
        }
        self.streams.insert(key, stream);
        if self.is_trusted {
            self.watch_stop(key);
        }
    }

    /// From now on STOP_SENDING is told without a write.
    fn watch_stop(&mut self, key: StreamKey) {
        if self.forgotten_watches < FORGOTTEN_WATCHES
            && let wakers = Arc::clone(&self.wakers)
            && let Some(stream) = self.stream_mut(key)
        {
            stream.watch_stop(key, &wakers);
            self.look_for_stop(key);
        }
    }

    /// Tells of STOP_SENDING, if it came.
    pub(super) fn look_for_stop(&mut self, key: StreamKey) {
        let Some(stream) = self.stream_mut(key) else { return };
        let Poll::Ready(code) = stream.poll_stopped() else { return };
        if key.is_control() {
            // The peer is about to end the connection. What it said before is read first. [BQ-40]
            self.close_reason.get_or_insert(CloseReason::control_stopped(code));
        } else {
            self.stopped_by_peer(key, code);
        }
    }

    /// STOP_SENDING is answered with RESET_STREAM (RFC 9000, 3.5), here and now. [BQ-33]
    pub(super) fn stopped_by_peer(&mut self, key: StreamKey, code: VarInt) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.reset(code);
        self.told.push_back(Read::Stopped(key, code.into_inner()));
        self.sending_ended(key);
    }

    /// After the sending half of a stream has ended.
    pub(super) fn sending_ended(&mut self, key: StreamKey) {
        self.write_scheduler.forget(key);
        self.active_priorities.forget(key);
        self.window.forget(&self.connection, key);
        self.retire(key);
    }

    /// Forgets a stream that has ended in both directions.
    pub(super) fn retire(&mut self, key: StreamKey) {
        if self.streams.get(&key).is_some_and(|stream| stream.is_over()) {
            self.streams.remove(&key);
        }
    }

    pub(super) fn set_priority(&mut self, key: StreamKey, priority: Priority) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.set_priority(priority);
            let priority = stream.priority();
            self.write_scheduler.set_priority(key, priority);
            self.active_priorities.set_priority(key, priority);
        }
    }

    pub(super) fn abort(&mut self, key: StreamKey, code: u64) {
        let Some(mut stream) = self.streams.remove(&key) else { return };
        let code = VarInt::from_u64(code).unwrap_or(VarInt::MAX);
        if stream.is_watched() {
            self.forgotten_watches += 1;
        }
        stream.reset(code);
        stream.stop(code);
        self.sending_ended(key);
    }

    pub(super) fn poll_open(&mut self, dir: Dir) -> Poll<io::Result<StreamKey>> {
        if self.endpoint.is_none() {
            // [BQ-4]
            let error = io::Error::new(io::ErrorKind::Unsupported, "a server opens no streams");
            return Poll::Ready(Err(error));
        }
        let opening = &mut self.opening[match dir {
            Dir::Bidi => 0,
            Dir::Uni => 1,
        }];
        let future = opening.get_or_insert_with(|| open(self.connection.clone(), dir));
        let opened = ready!(future.as_mut().poll(&mut Context::from_waker(&self.connection_bell)));
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
        // It has to be read once for its bell to be known.
        self.connection_bell.wake_by_ref();
        Poll::Ready(Ok(key))
    }

    pub(super) fn set_trusted(&mut self) {
        if !self.is_trusted {
            self.is_trusted = true;
            self.connection.set_receive_window(VarInt::MAX);
            // A watch costs memory, which strangers are not given.
            let keys: Vec<StreamKey> = self.streams.keys().copied().chain([StreamKey::CONTROL]).collect();
            keys.into_iter().for_each(|key| self.watch_stop(key));
            // What was found is told by a read.
            self.connection_bell.wake_by_ref();
        }
    }

    pub(super) fn rebind(&mut self, address: Option<SocketAddr>) -> io::Result<()> {
        let Some(endpoint) = self.endpoint.as_ref() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a client can move its connection"));
        };
        let address = match address {
            Some(address) => address,
            None => any_port(endpoint.local_addr()?),
        };
        endpoint.rebind(UdpSocket::bind(address)?)?;
        self.gating.handle_rebind();
        Ok(())
    }

    pub(super) fn into_remains(self: Box<Self>) -> Remains {
        self.gating.abandon();
        let settles = self.pace().settles(self.control.written.min(self.window.size()));
        let Self { control, streams, connection, endpoint, .. } = *self;
        let data = streams.into_values().map(|stream| *stream).collect();
        Remains { control, data, connection, endpoint, settles }
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
