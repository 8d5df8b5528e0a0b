//! A QUIC connection, driven by the task that owns it.

mod arrivals;
mod streams;

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use noq_proto::congestion::Controller;
use noq_proto::{
    ClientConfig, ConnectError, ConnectionError, ConnectionHandle, ConnectionStats, EndpointConfig,
    EndpointEvent, Incoming, PathId, PathStats, ServerConfig, Side, StreamEvent, TransportError,
    TransportErrorCode, VarInt,
};

use self::arrivals::Arrivals;
use super::answer_delay::{AnswerDelay, Frames};
use super::batch;
use super::datagram_frames::{DatagramFrames, DatagramSource, SentPackets};
use super::datagram_queue::DatagramQueue;
use super::endpoint::{DoubtfulMark, Endpoint};
use super::event::Event;
use super::first_flight::{FirstFlight, Turn};
use super::own_endpoint::OwnEndpoint;
use super::paths::{LocalPaths, Paths};
use super::repetition::{self, Repetition};
use super::sender::Sender;
use super::socket::Socket;
use super::timer::{Timer, now};
use super::unordered::Unordered;
use crate::quic::amplification::PathValidationLimit;
use crate::quic::congestion::controller::SharedGate;
use crate::quic::congestion::path_activity::PathActivities;
use crate::quic::multipath::{PathReport, PathRole, PathState};
use crate::transport::canonical;

/// Datagrams that are sent before other tasks have a turn.
const MAX_SENT: usize = 20;

/// Longest time by which timeouts wait: that of a token of ten packets a second.
const LATEST_TIMEOUT: Duration = Duration::from_millis(100);

/// Receive window while everything is dropped: the library sends MAX_DATA for nothing with a smaller one.
const DISCARD_WINDOW: VarInt = VarInt::from_u32(8 << 10);

thread_local! {
    /// Buffer of the batch that is being sent on a thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Connection of either end, from its first packet on.
///
/// Its task calls [`Connection::receive`] at the begin of a turn and [`Connection::poll_event`] until there is none,
/// both again until all has come, and [`Connection::transmit`] at the end. Nothing that was written leaves before.
/// Dropped, it is closed with code 0.
pub(in crate::quic) struct Connection {
    library: noq_proto::Connection,
    handle: ConnectionHandle,
    source: Source,
    sender: Sender,
    gate: Option<Arc<SharedGate>>,
    /// PATH_CHALLENGE frames of the peer.
    challenges: u64,
    /// The last of them is not answered yet.
    is_challenged: bool,
    /// Datagram with a client's answer to it.
    repetition: Option<Box<Repetition>>,
    timer: Timer,
    /// Datagrams that have come.
    received: u64,
    arrivals: Option<Arrivals>,
    answers: AnswerDelay,
    /// DATAGRAM frames, where this end permits them.
    datagrams: Option<Box<DatagramFrames>>,
    /// Paths, unless there is one for good.
    paths: Option<Box<Paths>>,
    /// First packets of a client, until they are over.
    first_flight: Option<Box<FirstFlight>>,
    /// Streams that are read without order.
    unordered: Option<Box<Unordered>>,
    /// Bytes of all streams are dropped.
    is_discarding: bool,
    /// Reason for which the connection has ended.
    error: Option<ConnectionError>,
    /// [`Event::Lost`] is to be reported.
    has_news: bool,
    is_connected: bool,
    is_confirmed: bool,
    is_draining: bool,
    is_drained: bool,
    /// Dropped when the handshake is confirmed.
    until_confirmed: Option<Box<dyn Any + Send + Sync>>,
}

/// Source of the datagrams.
enum Source {
    /// The endpoint of a server.
    Shared { endpoint: Arc<Endpoint>, queue: Arc<DatagramQueue> },
    /// A socket of the connection's own.
    Own(Box<OwnEndpoint>),
}

impl Connection {
    /// Accepts the connection of a client.
    pub(in crate::quic) fn accept_client(
        endpoint: Arc<Endpoint>,
        incoming: Incoming,
        config: Arc<ServerConfig>,
        (gate, activities, paths): (Option<Arc<SharedGate>>, Option<PathActivities>, PathValidationLimit),
    ) -> Result<Self, ConnectionError> {
        let (library, handle, queue) = endpoint.accept(incoming, config)?;
        let sender = endpoint.sender(gate.clone(), paths);
        let paths = activities.map(|activities| Box::new(Paths::server(activities)));
        Ok(Self::new(library, handle, Source::Shared { endpoint, queue }, sender, (gate, paths)))
    }

    /// Begins a connection of a client on a socket of its own. `locals`: its local paths, if there are several.
    pub(in crate::quic) fn connect(
        config: EndpointConfig,
        client: ClientConfig,
        socket: Arc<Socket>,
        server: (SocketAddr, &str),
        gate: Option<Arc<SharedGate>>,
        locals: Option<(LocalPaths, PathActivities)>,
    ) -> Result<Self, ConnectError> {
        let mut sender = Sender::new(Arc::clone(&socket), None, gate.clone());
        let local = locals.as_ref().map(|(locals, _)| locals.first);
        let paths = locals.map(|(locals, activities)| {
            if let Ok(address) = socket.local_addr() {
                sender.set_route(address.ip(), Arc::clone(&socket));
            }
            Box::new(Paths::client(activities, locals, &socket, now()))
        });
        let (own, handle, library) = OwnEndpoint::connect(config, client, socket, local, server)?;
        Ok(Self::new(library, handle, Source::Own(Box::new(own)), sender, (gate, paths)))
    }

    fn new(
        library: noq_proto::Connection,
        handle: ConnectionHandle,
        source: Source,
        sender: Sender,
        (gate, paths): (Option<Arc<SharedGate>>, Option<Box<Paths>>),
    ) -> Self {
        let first_flight = library.side().is_client().then(Box::default);
        Self {
            library,
            handle,
            source,
            sender,
            gate,
            challenges: 0,
            is_challenged: false,
            repetition: None,
            timer: Timer::default(),
            received: 0,
            arrivals: None,
            answers: AnswerDelay::default(),
            datagrams: None,
            paths,
            first_flight,
            unordered: None,
            is_discarding: false,
            error: None,
            has_news: false,
            is_connected: false,
            is_confirmed: false,
            is_draining: false,
            is_drained: false,
            until_confirmed: None,
        }
    }

    // -- Turns -------------------------------------------------------------------------------------

    /// Has the library build packets. One with a PATH_RESPONSE leaves in any case: the library would hold it back while
    /// there is data that has to wait for the window.
    fn poll_transmit(
        &mut self,
        now: Instant,
        most: NonZeroUsize,
        buffer: &mut Vec<u8>,
    ) -> Option<noq_proto::Transmit> {
        if !self.is_challenged {
            return self.library.poll_transmit(now, most, buffer);
        }
        if let Some(gate) = &self.gate {
            gate.set_open(true);
        }
        let transmit = self.library.poll_transmit(now, NonZeroUsize::MIN, buffer);
        if let Some(gate) = &self.gate {
            gate.set_open(false);
        }
        transmit
    }

    /// Notes a packet that was sent, which is to be repeated if a client answers a PATH_CHALLENGE with it.
    fn note_sent(&mut self, transmit: &noq_proto::Transmit, contents: &[u8], now: Instant) {
        if !std::mem::take(&mut self.is_challenged) || !self.is_confirmed {
            return;
        }
        let datagram = batch::of(transmit, contents);
        if repetition::is_padded(&datagram)
            && let Some(stats) = self.path_stats()
        {
            let repetition = Repetition::new(&datagram, stats.frame_rx.acks, stats.rtt, now);
            self.repetition = Some(Box::new(repetition));
        }
    }

    /// Repeats a datagram, if one is due.
    fn repeat(&mut self, now: Instant) {
        let Some(mut repetition) = self.repetition.take_if(|repetition| repetition.due() <= now) else {
            return;
        };
        let Some(stats) = self.path_stats().filter(|_| self.error.is_none()) else { return };
        if let Some(datagram) = repetition.handle_due(stats.frame_rx.acks, now) {
            self.sender.leave(&datagram);
            self.repetition = Some(repetition);
        }
    }

    /// The next event.
    pub(in crate::quic) fn poll_event(&mut self) -> Option<Event> {
        let event = self.poll_own_event();
        event.or_else(|| self.paths.as_mut()?.take_notice().map(Event::Path))
    }

    /// The next event that is not about a path: those of paths wait for a link.
    fn poll_own_event(&mut self) -> Option<Event> {
        let taken = self.unordered.as_mut().and_then(|unordered| unordered.pop_event());
        let event = taken.or_else(|| self.next_event());
        if self.is_discarding
            && let Some(Event::Readable(id)) = event
        {
            self.discard(id);
        }
        event
    }

    /// The next event of the library, or the end.
    fn next_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.has_news) {
            return Some(Event::Lost);
        }
        while let Some(event) = self.library.poll() {
            return Some(match event {
                noq_proto::Event::Connected => {
                    self.is_connected = true;
                    self.paths.take_if(|paths| !paths.handle_connected(&mut self.library, now()));
                    if let Some(gate) = self.gate.as_ref().filter(|_| self.library.is_multipath_negotiated())
                    {
                        gate.expect_paths();
                    }
                    Event::Connected
                }
                noq_proto::Event::HandshakeConfirmed => {
                    self.is_confirmed = true;
                    self.until_confirmed = None;
                    Event::Confirmed
                }
                noq_proto::Event::ConnectionLost { reason } => {
                    self.error.get_or_insert(reason);
                    self.until_confirmed = None;
                    Event::Lost
                }
                noq_proto::Event::Stream(event) => match event {
                    StreamEvent::Opened { dir } => Event::Opened(dir),
                    StreamEvent::Available { dir } => Event::Available(dir),
                    StreamEvent::Readable { id } => Event::Readable(id),
                    StreamEvent::Writable { id } => Event::Writable(id),
                    StreamEvent::Stopped { id, error_code } => Event::Stopped(id, error_code),
                    StreamEvent::Finished { id } => Event::Finished(id),
                },
                noq_proto::Event::DatagramReceived => Event::Datagram,
                noq_proto::Event::Path(event) => {
                    let Some(paths) = &mut self.paths else { continue };
                    paths.handle_event(&event, &mut self.library, now());
                    continue;
                }
                _ => continue,
            });
        }
        None
    }

    /// Sends what there is and may leave now, and sets the timer.
    pub(in crate::quic) fn transmit(&mut self, cx: &mut Context<'_>) {
        self.transmit_with(cx, None);
    }

    /// Does the same with datagrams of `source`.
    pub(in crate::quic) fn transmit_with(
        &mut self,
        cx: &mut Context<'_>,
        source: Option<&mut dyn DatagramSource>,
    ) {
        // The endpoint has forgotten the connection: events of the library would reach another one in its place.
        if self.is_drained {
            return;
        }
        // Timeouts wait as well: a probe would carry the answer.
        if let Some(until) = self.answers.until()
            && until > now()
            && self.is_confirmed
            && self.error.is_none()
            && self.timer.poll(Some(until), cx).is_pending()
        {
            return;
        }
        self.send(cx, source);
        self.answers.handle_sent(|| Frames::from(&self.library.stats()));
    }

    /// Looks after the paths. A notice of it, if any, is for the next turn.
    fn turn_paths(&mut self, cx: &Context<'_>) {
        let Some(paths) = self.paths.as_mut().filter(|_| self.error.is_none()) else { return };
        let ends = match &mut self.source {
            Source::Own(own) => Some((&mut **own, &mut self.sender)),
            Source::Shared { .. } => None,
        };
        let before = paths.notices();
        paths.turn(&mut self.library, ends, now());
        if paths.notices() > before {
            cx.waker().wake_by_ref();
        }
    }

    fn send(&mut self, cx: &mut Context<'_>, mut source: Option<&mut dyn DatagramSource>) {
        self.turn_paths(cx);
        self.repeat(now());
        let most = self.sender.max_segments();
        let mut sent = 0;
        BUFFER.with_borrow_mut(|buffer| {
            loop {
                if self.sender.poll_room(cx).is_pending() {
                    // Timeouts do not wait for the socket.
                    while self.timer.poll(self.next_timeout(), cx).is_ready() {
                        self.handle_timeouts(cx);
                    }
                    return;
                }
                let now = now();
                if let Some(gate) = &self.gate {
                    gate.begin_try();
                }
                buffer.clear();
                let is_alone = source.as_deref_mut().is_some_and(|source| self.fill_packet(source));
                let segments =
                    if self.limit_path_validation() || is_alone { NonZeroUsize::MIN } else { most };
                if let Some(transmit) = self.poll_transmit(now, segments, buffer) {
                    sent += transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size.max(1)));
                    self.sender.send(&transmit, buffer);
                    self.note_sent(&transmit, buffer, now);
                    if let Some(source) = source.as_deref_mut() {
                        source.handle_sent(&SentPackets::of(&mut self.library, &transmit));
                    }
                    if sent >= MAX_SENT {
                        cx.waker().wake_by_ref();
                        return;
                    }
                    continue;
                }
                // After what was there, so that connection IDs have a packet of their own: the gate learns the path
                // from the first packets, and is tuned to these.
                if self.exchange_events() {
                    continue;
                }
                self.note_first_flight(now);
                let is_idle = self.gate.as_ref().is_some_and(|gate| gate.is_idle());
                if source.as_deref_mut().is_some_and(|source| source.handle_idle(is_idle)) {
                    continue;
                }
                // Last: a packet that leaves when a timeout is due, because the gate opens, takes the place of its
                // probes.
                if self.timer.poll(self.next_timeout(), cx).is_pending() {
                    return;
                }
                self.handle_timeouts(cx);
            }
        });
        self.exchange_events();
    }

    /// Limits the length of packets that validate a path. True: the next packet has to be built by itself.
    fn limit_path_validation(&mut self) -> bool {
        let Self { sender, library, paths, .. } = self;
        let Some(limit) = sender.path_validation() else { return false };
        let others = paths.iter().flat_map(|paths| paths.ids());
        let remote = |id| library.network_path(id).ok().map(|path| path.remote());
        limit.begin(others.chain([PathId::ZERO]).filter_map(remote))
    }

    /// Has the source add datagrams to the next packet. True: the packet has to be built by itself.
    fn fill_packet(&mut self, source: &mut dyn DatagramSource) -> bool {
        let (may_send, path) = (self.is_connected && self.error.is_none(), self.primary_path());
        self.datagrams.as_ref().is_some_and(|frames| may_send && frames.fill(&mut self.library, path, source))
    }

    /// Drives the connection until `find` finds something. Events that it does not take are discarded.
    pub(in crate::quic) async fn drive<T>(&mut self, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        poll_fn(|cx| {
            self.receive_all(cx, |_| ());
            let found = find(self);
            self.transmit(cx);
            // The end of a connection shows when there is nothing more to send.
            found.or_else(|| find(self)).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Does a turn, and discards its events.
    pub(in crate::quic) async fn take_turn(&mut self) {
        let mut is_done = false;
        self.drive(|_| std::mem::replace(&mut is_done, true).then_some(())).await;
    }

    /// Drives the connection until an event that `is_wanted`.
    pub(in crate::quic) async fn drive_to(&mut self, is_wanted: impl Fn(Event) -> bool) {
        poll_fn(|cx| {
            let mut has_come = false;
            self.receive_all(cx, |event| has_come |= is_wanted(event));
            self.transmit(cx);
            if has_come { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Drives the connection until its handshake is complete.
    pub(in crate::quic) async fn connected(&mut self) -> Result<(), ConnectionError> {
        self.drive(|connection| match &connection.error {
            _ if connection.is_connected => Some(Ok(())),
            Some(error) => Some(Err(error.clone())),
            None => None,
        })
        .await
    }

    /// Drives a connection that was closed until nothing is left of it: the peer may ask again for the close.
    pub(in crate::quic) async fn drained(mut self: Box<Self>) {
        if let Source::Shared { endpoint, .. } = &self.source {
            endpoint.note_closed(self.handle);
        }
        self.drive(|connection| connection.is_drained.then_some(())).await;
    }

    /// Time at which something is to be done.
    fn next_timeout(&self) -> Option<Instant> {
        let gate = self.gate.as_ref().and_then(|gate| gate.next_try());
        let ping = self.first_flight.as_ref().and_then(|first| first.due());
        let probe = self.gate.as_ref().filter(|_| self.is_confirmed).and_then(|gate| gate.ping_due());
        let paths = self.paths.as_ref().filter(|_| self.error.is_none());
        let paths = paths.and_then(|paths| paths.next_timeout(now()));
        let repetition = self.repetition.as_ref().map(|repetition| repetition.due());
        self.library_timeout()
            .into_iter()
            .chain(gate)
            .chain(ping)
            .chain(probe)
            .chain(paths)
            .chain(repetition)
            .min()
    }

    /// Time of the next timeout of the library, which waits a little where a probe would be dropped or delayed.
    fn library_timeout(&self) -> Option<Instant> {
        let at = self.library.poll_timeout()?;
        let until = self.gate.as_ref().and_then(|gate| gate.timeouts_wait());
        Some(until.map_or(at, |until| until.clamp(at, at + LATEST_TIMEOUT)))
    }

    /// Notes a turn of a client while packets are the first ones.
    fn note_first_flight(&mut self, now: Instant) {
        self.first_flight.take_if(|first| first.is_over(now));
        let (Some(rtt), Some(first)) = (self.rtt(), &mut self.first_flight) else {
            return;
        };
        if self.is_connected {
            let Frames { others: sent, answers, .. } = Frames::from(&self.library.stats());
            first.handle_turn(Turn { is_confirmed: self.is_confirmed, rtt, sent, answers }, now);
        }
    }

    fn handle_timeouts(&mut self, cx: &Context<'_>) {
        let now = now();
        while self.library_timeout().is_some_and(|at| at <= now) {
            self.library.handle_timeout(now);
        }
        self.turn_paths(cx);
        self.repeat(now);
        let ping = self.first_flight.as_mut().is_some_and(|first| first.take_ping(now));
        let probe = self.is_confirmed && self.gate.as_ref().is_some_and(|gate| gate.take_ping(now));
        if ping || probe {
            self.ping();
        }
        if self.library.is_closed() && self.error.is_none() {
            // The next turn reports it.
            cx.waker().wake_by_ref();
        }
    }

    /// Exchanges events with the endpoint: connection IDs, and the end. True if the endpoint has answered.
    fn exchange_events(&mut self) -> bool {
        let mut has_answer = false;
        while !self.is_drained
            && let Some(event) = self.library.poll_endpoint_events()
        {
            self.is_draining |= event.is_draining();
            self.is_drained |= event.is_drained();
            let answer = match &mut self.source {
                Source::Shared { endpoint, .. } => endpoint.handle_event(self.handle, event),
                Source::Own(own) => own.handle_event(self.handle, event),
            };
            if let Some(answer) = answer {
                has_answer = true;
                self.library.handle_event(answer);
            }
        }
        has_answer
    }

    // -- Ends --------------------------------------------------------------------------------------

    /// Begins to close the connection.
    pub(in crate::quic) fn close(&mut self, code: VarInt) {
        self.library.close(now(), code, Bytes::new());
        self.end(ConnectionError::LocallyClosed);
    }

    /// Ends the connection without another word to the peer, and asks the library for nothing more.
    pub(in crate::quic) fn lose(&mut self, reason: &str) {
        let error = TransportError::new(TransportErrorCode::INTERNAL_ERROR, reason.to_owned());
        self.end(ConnectionError::TransportError(error));
        self.is_draining = true;
        self.forget();
    }

    /// Has the endpoint forget the connection.
    fn forget(&mut self) {
        if !std::mem::replace(&mut self.is_drained, true)
            && let Source::Shared { endpoint, .. } = &self.source
        {
            endpoint.handle_event(self.handle, EndpointEvent::drained());
        }
    }

    fn end(&mut self, reason: ConnectionError) {
        if self.error.is_none() {
            self.error = Some(reason);
            self.has_news = true;
            self.until_confirmed = None;
        }
    }

    /// Reason for which the connection has ended.
    pub(in crate::quic) fn error(&self) -> Option<&ConnectionError> {
        self.error.as_ref()
    }

    pub(in crate::quic) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// True once the peer has answered the close, or need not be told any more.
    pub(in crate::quic) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(in crate::quic) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Keeps a value until the handshake is confirmed or the connection has ended.
    pub(in crate::quic) fn hold_until_confirmed(&mut self, value: impl Send + Sync + 'static) {
        self.until_confirmed = (!self.is_confirmed && self.error.is_none()).then(|| Box::new(value) as _);
    }

    // -- Properties --------------------------------------------------------------------------------

    pub(in crate::quic) fn side(&self) -> Side {
        self.library.side()
    }

    /// Tests whether the handshake is still going on.
    pub(in crate::quic) fn is_handshaking(&self) -> bool {
        self.library.is_handshaking()
    }

    /// Tests whether early data can be sent.
    pub(in crate::quic) fn has_early_keys(&self) -> bool {
        self.library.has_0rtt()
    }

    /// Tests whether the server has taken the early data.
    pub(in crate::quic) fn is_early_taken(&self) -> bool {
        self.library.accepted_0rtt()
    }

    pub(in crate::quic) fn session(&self) -> &dyn noq_proto::crypto::Session {
        self.library.crypto_session()
    }

    /// The path that carries data first.
    pub(in crate::quic) fn primary_path(&self) -> PathId {
        self.paths.as_ref().map_or(PathId::ZERO, |paths| paths.primary())
    }

    /// Address of the peer on this path.
    pub(in crate::quic) fn remote_address(&self) -> Option<SocketAddr> {
        self.library.network_path(self.primary_path()).ok().map(|path| path.remote())
    }

    pub(in crate::quic) fn stats(&mut self) -> ConnectionStats {
        self.library.stats()
    }

    pub(in crate::quic) fn path_stats(&mut self) -> Option<PathStats> {
        self.library.path_stats(self.primary_path())
    }

    /// All paths that are not closed.
    pub(in crate::quic) fn path_reports(&mut self) -> Vec<PathReport> {
        let mut reports = Vec::new();
        for (number, id) in (0..).zip(self.library.paths()) {
            if self.paths.as_ref().is_some_and(|paths| paths.is_closed(id)) {
                continue;
            }
            let (role, local) = match &self.paths {
                Some(paths) => (paths.role(id), paths.local(id)),
                None => (PathRole::InUse, None),
            };
            let stats = self.library.path_stats(id);
            let Some((path, stats)) = self.library.network_path(id).ok().zip(stats) else { continue };
            reports.push(PathReport {
                number: id.to_string().parse().unwrap_or(number),
                local,
                local_address: path.local_ip().map(|ip| ip.to_canonical()),
                remote: canonical(path.remote()),
                role,
                state: PathState::of(&stats),
                bytes_received: stats.udp_rx.bytes,
            });
        }
        reports
    }

    pub(in crate::quic) fn rtt(&self) -> Option<Duration> {
        self.library.rtt(self.primary_path())
    }

    /// Congestion window over all paths that carry data.
    pub(in crate::quic) fn congestion_window(&mut self) -> Option<u64> {
        let primary = self.primary_path();
        let Self { library, paths, .. } = self;
        let used = paths.iter().flat_map(|paths| paths.used());
        let sum = used.filter_map(|id| Some(library.path_stats(id)?.cwnd)).reduce(u64::saturating_add);
        sum.or_else(|| Some(library.path_stats(primary)?.cwnd))
    }

    pub(in crate::quic) fn congestion_controller(&self) -> Option<&dyn Controller> {
        self.library.congestion_state(self.primary_path())
    }

    /// Sends a PING.
    pub(in crate::quic) fn ping(&mut self) -> bool {
        self.library.ping_path(self.primary_path()).is_ok()
    }

    /// Has the library validate the address of a client again, unless the mark that is returned is dropped before the
    /// next datagram. `None` at a client, or if too many addresses have a mark.
    pub(in crate::quic) fn validate_again(&self) -> Option<DoubtfulMark> {
        match &self.source {
            Source::Shared { endpoint, .. } => endpoint.validate_again(self.remote_address()?),
            Source::Own(_) => None,
        }
    }

    /// Moves a client to another socket; the old one receives until something comes in on the new one. `open` makes it
    /// of the old one.
    pub(in crate::quic) fn rebind(
        &mut self,
        open: impl FnOnce(&Socket) -> io::Result<Socket>,
    ) -> io::Result<()> {
        let Source::Own(own) = &mut self.source else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only a client can move its connection"));
        };
        self.sender.set_socket(own.rebind(open)?);
        self.library.handle_network_change(None, now());
        self.answers = AnswerDelay::default();
        self.repetition = None;
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A library that has just panicked is asked for nothing more.
        if self.error.is_none() && !std::thread::panicking() {
            self.close(VarInt::from_u32(0));
            let mut buffer = Vec::new();
            if let Some(transmit) = self.library.poll_transmit(now(), NonZeroUsize::MIN, &mut buffer) {
                self.sender.send(&transmit, &buffer);
            }
        }
        self.forget();
    }
}
