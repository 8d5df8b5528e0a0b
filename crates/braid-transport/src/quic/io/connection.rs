//! A QUIC connection, driven by the task that owns it.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use noq_proto::congestion::Controller;
use noq_proto::{
    Chunk, ClientConfig, ConnectError, ConnectionError, ConnectionHandle, ConnectionStats, Dir,
    EndpointConfig, EndpointEvent, FinishError, Incoming, PathId, PathStats, ReadError, ServerConfig, Side,
    StreamEvent, StreamId, TransportError, TransportErrorCode, VarInt, WriteError,
};
use tokio::io::ReadBuf;

use super::answer_delay::{AnswerDelay, Frames};
use super::datagram_frames::{DatagramFrames, DatagramSource, SentPackets};
use super::datagram_queue::{DatagramQueue, Order};
use super::endpoint::Endpoint;
use super::event::{Event, Received, Refused};
use super::first_flight::{FirstFlight, Turn};
use super::own_endpoint::OwnEndpoint;
use super::sender::Sender;
use super::socket::Socket;
use super::timer::{Timer, now};
use super::unordered::Unordered;
use crate::quic::codes::{self, code};
use crate::quic::congestion::controller::SharedGate;

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
/// Its task calls [`Connection::receive`] at the begin of a turn, [`Connection::poll_event`] until there is none, and
/// [`Connection::transmit`] at the end. Nothing that was written leaves before. Dropped, it is closed with code 0.
pub(in crate::quic) struct Connection {
    library: noq_proto::Connection,
    handle: ConnectionHandle,
    source: Source,
    sender: Sender,
    gate: Option<Arc<SharedGate>>,
    timer: Timer,
    /// Datagrams that have come.
    received: u64,
    answers: AnswerDelay,
    /// DATAGRAM frames, where this end permits them.
    datagrams: Option<Box<DatagramFrames>>,
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
        gate: Option<Arc<SharedGate>>,
    ) -> Result<Self, ConnectionError> {
        let (library, handle, queue) = endpoint.accept(incoming, config)?;
        let sender = endpoint.sender(gate.clone());
        Ok(Self::new(library, handle, Source::Shared { endpoint, queue }, sender, gate))
    }

    /// Begins a connection of a client on a socket of its own.
    pub(in crate::quic) fn connect(
        config: EndpointConfig,
        client: ClientConfig,
        socket: Arc<Socket>,
        (server, name): (SocketAddr, &str),
        gate: Option<Arc<SharedGate>>,
    ) -> Result<Self, ConnectError> {
        let sender = Sender::new(Arc::clone(&socket), None, gate.clone());
        let (own, handle, library) = OwnEndpoint::connect(config, client, socket, server, name)?;
        Ok(Self::new(library, handle, Source::Own(Box::new(own)), sender, gate))
    }

    fn new(
        library: noq_proto::Connection,
        handle: ConnectionHandle,
        source: Source,
        sender: Sender,
        gate: Option<Arc<SharedGate>>,
    ) -> Self {
        let first_flight = library.side().is_client().then(Box::default);
        Self {
            library,
            handle,
            source,
            sender,
            gate,
            timer: Timer::default(),
            received: 0,
            answers: AnswerDelay::default(),
            datagrams: None,
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

    /// Takes in what has come, and registers the task for more.
    pub(in crate::quic) fn receive(&mut self, cx: &mut Context<'_>) {
        let (datagrams, order) = match &mut self.source {
            Source::Shared { queue, .. } => queue.take(cx),
            Source::Own(own) => match own.receive(cx, self.handle) {
                Ok(datagrams) => (datagrams, None),
                Err(error) => return self.lose(&format!("its socket failed: {error}")),
            },
        };
        let count = datagrams.len();
        self.received += count as u64;
        for datagram in datagrams {
            self.library.handle_event(datagram);
            self.empty_unordered();
            if let Some(datagrams) = &mut self.datagrams {
                datagrams.take_received(&mut self.library);
            }
        }
        if count > 0 {
            self.answers.handle_received(count, now(), || Frames::from(&self.library.stats()));
        }
        match order {
            Some(Order::Close(code)) => self.close(code),
            Some(Order::Lost) => self.lose("its endpoint failed"),
            None => {}
        }
    }

    /// Takes the pieces of streams that are read without order out of the library.
    fn empty_unordered(&mut self) {
        let Some(mut unordered) = self.unordered.take() else { return };
        self.collect_events(&mut unordered);
        let is_complete = unordered.empty(&mut self.library);
        self.unordered = unordered.is_used().then_some(unordered);
        if !is_complete && self.error.is_none() {
            tracing::debug!("a peer has sent too many frames of one stream in a datagram");
            self.close(code(codes::CLOSE_ABNORMAL));
        }
    }

    /// Has events of the library wait until they are asked for.
    fn collect_events(&mut self, unordered: &mut Unordered) {
        while let Some(event) = self.next_event() {
            unordered.push_event(event);
        }
    }

    /// The next event.
    pub(in crate::quic) fn poll_event(&mut self) -> Option<Event> {
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

    fn send(&mut self, cx: &mut Context<'_>, mut source: Option<&mut dyn DatagramSource>) {
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
                let segments = if is_alone { NonZeroUsize::MIN } else { most };
                if let Some(transmit) = self.library.poll_transmit(now, segments, buffer) {
                    sent += transmit.segment_size.map_or(1, |size| transmit.size.div_ceil(size.max(1)));
                    self.sender.send(&transmit, buffer);
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

    /// Has the source add datagrams to the next packet. True: the packet has to be built by itself.
    fn fill_packet(&mut self, source: &mut dyn DatagramSource) -> bool {
        let may_send = self.is_connected && self.error.is_none();
        self.datagrams.as_ref().is_some_and(|frames| may_send && frames.fill(&mut self.library, source))
    }

    /// Drives the connection until `find` finds something. Events that it does not take are discarded.
    pub(in crate::quic) async fn drive<T>(&mut self, mut find: impl FnMut(&mut Self) -> Option<T>) -> T {
        poll_fn(|cx| {
            self.receive(cx);
            while self.poll_event().is_some() {}
            let found = find(self);
            self.transmit(cx);
            // The end of a connection shows when there is nothing more to send.
            found.or_else(|| find(self)).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Drives the connection until an event that `is_wanted`.
    pub(in crate::quic) async fn drive_to(&mut self, is_wanted: impl Fn(Event) -> bool) {
        poll_fn(|cx| {
            self.receive(cx);
            let mut has_come = false;
            while let Some(event) = self.poll_event() {
                has_come |= is_wanted(event);
            }
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
        self.drive(|connection| connection.is_drained.then_some(())).await;
    }

    /// Time at which something is to be done.
    fn next_timeout(&self) -> Option<Instant> {
        let gate = self.gate.as_ref().and_then(|gate| gate.next_try());
        let ping = self.first_flight.as_ref().and_then(|first| first.due());
        self.library_timeout().into_iter().chain(gate).chain(ping).min()
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
        let (Some(rtt), Some(first)) = (self.library.rtt(PathId::ZERO), &mut self.first_flight) else {
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
        if self.first_flight.as_mut().is_some_and(|first| first.take_ping(now)) {
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
        while let Some(event) = self.library.poll_endpoint_events() {
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

    // -- Streams -----------------------------------------------------------------------------------

    /// The next stream that the peer has opened.
    pub(in crate::quic) fn accept(&mut self, dir: Dir) -> Option<StreamId> {
        self.library.streams().accept(dir)
    }

    /// Opens a stream, if the peer permits one.
    pub(in crate::quic) fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.library.streams().open(dir)
    }

    /// Reads the next bytes of a stream. Pending: an event tells of more. `handle_piece` gets the length of each piece,
    /// and whether it was all that the library had of it.
    pub(in crate::quic) fn read(
        &mut self,
        id: StreamId,
        buffer: &mut ReadBuf<'_>,
        mut handle_piece: impl FnMut(usize, bool),
    ) -> Poll<Received> {
        let before = buffer.filled().len();
        let mut stream = self.library.recv_stream(id);
        // The last read has met the end behind its bytes.
        let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Received::Finished) };
        let end = loop {
            match chunks.next(buffer.remaining()) {
                Ok(Some(chunk)) => {
                    handle_piece(chunk.bytes.len(), chunk.bytes.len() < buffer.remaining());
                    buffer.put_slice(&chunk.bytes);
                }
                end => break end,
            }
            if buffer.remaining() == 0 {
                break Err(ReadError::Blocked);
            }
        };
        // Credit leaves with the next packets.
        let _ = chunks.finalize();
        match end {
            _ if buffer.filled().len() > before => Poll::Ready(Received::Bytes),
            Ok(_) => Poll::Ready(Received::Finished),
            Err(ReadError::Reset(code)) => Poll::Ready(Received::Reset(code)),
            Err(ReadError::Blocked) => Poll::Pending,
        }
    }

    /// Has a stream read without order from now on: by [`Self::take_pieces`], after events of it.
    pub(in crate::quic) fn read_unordered(&mut self, id: StreamId) {
        let mut unordered = self.unordered.take().unwrap_or_default();
        // Before frames are counted: those were in order.
        self.collect_events(&mut unordered);
        unordered.insert(id);
        self.unordered = Some(unordered);
        self.empty_unordered();
    }

    /// Takes the pieces of such a stream that have come, each byte once. Pending: an event tells of more.
    pub(in crate::quic) fn take_pieces(
        &mut self,
        id: StreamId,
        handle_piece: impl FnMut(Chunk),
    ) -> Poll<Received> {
        self.unordered.as_mut().map_or(Poll::Pending, |unordered| unordered.take(id, handle_piece))
    }

    /// Drops all bytes that come from now on, and gives next to no credit.
    pub(in crate::quic) fn discard_all(&mut self) {
        self.is_discarding = true;
        self.unordered = None;
        self.set_receive_window(DISCARD_WINDOW);
    }

    fn discard(&mut self, id: StreamId) {
        if let Ok(mut chunks) = self.library.recv_stream(id).read(false) {
            while let Ok(Some(_)) = chunks.next(usize::MAX) {}
        }
    }

    /// Writes as much of `slices` as is taken now, at most `max` bytes. Pending: an event tells of room.
    pub(in crate::quic) fn write(
        &mut self,
        id: StreamId,
        slices: &[IoSlice<'_>],
        max: usize,
    ) -> Poll<Result<usize, Refused>> {
        if let Some(error) = &self.error {
            return Poll::Ready(Err(Refused::Lost(error.clone())));
        }
        let mut stream = self.library.send_stream(id);
        let mut total = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            let slice = &slice[..slice.len().min(max - total)];
            match stream.write(slice) {
                Ok(written) => total += written,
                // Bytes taken so far count; the error comes back with the next write.
                Err(_) if total > 0 => break,
                Err(error) => return refused(&error),
            }
            if total == max {
                break;
            }
        }
        self.answers.handle_written(total);
        Poll::Ready(Ok(total))
    }

    /// Reads the next chunk of a stream, at most `max` bytes; `None` at its end.
    pub(in crate::quic) fn read_chunk(
        &mut self,
        id: StreamId,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, VarInt>> {
        let mut stream = self.library.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Ok(None)) };
        let next = chunks.next(max);
        let _ = chunks.finalize();
        match next {
            Ok(chunk) => Poll::Ready(Ok(chunk.map(|chunk| chunk.bytes))),
            Err(ReadError::Reset(code)) => Poll::Ready(Err(code)),
            Err(ReadError::Blocked) => Poll::Pending,
        }
    }

    /// Writes from the begin of `chunk`, and removes what was taken.
    pub(in crate::quic) fn write_chunk(
        &mut self,
        id: StreamId,
        chunk: &mut Bytes,
    ) -> Poll<Result<usize, Refused>> {
        if let Some(error) = &self.error {
            return Poll::Ready(Err(Refused::Lost(error.clone())));
        }
        match self.library.send_stream(id).write_chunks(&mut std::slice::from_mut(chunk)) {
            Ok(written) => {
                self.answers.handle_written(written);
                Poll::Ready(Ok(written))
            }
            Err(error) => refused(&error),
        }
    }

    /// Tells whether there is room for a write, without one: an empty write that is taken would send an empty frame.
    /// Pending: an event tells of room, unless the connection has ended. To be called while the send window is 0.
    pub(in crate::quic) fn poll_room(&mut self, id: StreamId) -> Poll<()> {
        match self.library.send_stream(id).write(&[]) {
            Err(WriteError::Blocked) if self.error.is_none() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Sends FIN. An error means that the stream has ended.
    pub(in crate::quic) fn finish(&mut self, id: StreamId) -> Result<(), FinishError> {
        self.library.send_stream(id).finish()
    }

    /// Sends RESET_STREAM, if the half is open.
    pub(in crate::quic) fn reset(&mut self, id: StreamId, code: VarInt) {
        let _ = self.library.send_stream(id).reset(code);
    }

    /// Sends STOP_SENDING, if the half is open.
    pub(in crate::quic) fn stop(&mut self, id: StreamId, code: VarInt) {
        let _ = self.library.recv_stream(id).stop(code);
        if let Some(unordered) = &mut self.unordered {
            unordered.remove(id);
        }
    }

    /// True once the peer has acknowledged all of a stream that was finished, or has stopped it, or the connection has
    /// ended.
    pub(in crate::quic) fn is_send_over(&mut self, id: StreamId) -> bool {
        self.error.is_some() || !matches!(self.library.send_stream(id).stopped(), Ok(None))
    }

    pub(in crate::quic) fn set_priority(&mut self, id: StreamId, priority: i32) {
        // An error means that the stream has ended, and the next write says so.
        let _ = self.library.send_stream(id).set_priority(priority);
    }

    /// Sets the bytes that may be written and unacknowledged over all streams.
    pub(in crate::quic) fn set_send_window(&mut self, bytes: u64) {
        self.library.set_send_window(bytes);
    }

    /// Sets the unread bytes that the peer may send over all streams.
    pub(in crate::quic) fn set_receive_window(&mut self, bytes: VarInt) {
        self.library.set_receive_window(bytes);
    }

    /// Tests whether streams are read without order.
    pub(in crate::quic) fn is_unordered(&self) -> bool {
        self.unordered.is_some()
    }

    /// Number of datagrams that have come.
    pub(in crate::quic) fn received(&self) -> u64 {
        self.received
    }

    /// Takes in DATAGRAM frames, and sends them, from now on.
    pub(in crate::quic) fn permit_datagrams(&mut self) {
        let mut datagrams = Box::new(DatagramFrames::new(&mut self.library));
        // Those that came before are read first, and not behind what was sent after them.
        datagrams.take_received(&mut self.library);
        self.datagrams = Some(datagrams);
    }

    /// Largest datagram that the path takes now; `None` if either end permits none.
    pub(in crate::quic) fn datagram_size(&mut self) -> Option<usize> {
        self.datagrams.as_ref().and_then(|_| self.library.datagrams().max_size())
    }

    pub(in crate::quic) fn datagrams(&self) -> Option<&DatagramFrames> {
        self.datagrams.as_deref()
    }

    pub(in crate::quic) fn datagrams_mut(&mut self) -> Option<&mut DatagramFrames> {
        self.datagrams.as_deref_mut()
    }

    /// A datagram is to be sent: acknowledgements do not wait any longer.
    pub(in crate::quic) fn note_datagram(&mut self, bytes: usize) {
        self.answers.handle_written(bytes);
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

    /// Address of the peer on the first path.
    pub(in crate::quic) fn remote_address(&self) -> Option<SocketAddr> {
        self.library.network_path(PathId::ZERO).ok().map(|path| path.remote())
    }

    pub(in crate::quic) fn stats(&mut self) -> ConnectionStats {
        self.library.stats()
    }

    pub(in crate::quic) fn path_stats(&mut self) -> Option<PathStats> {
        self.library.path_stats(PathId::ZERO)
    }

    pub(in crate::quic) fn rtt(&self) -> Option<Duration> {
        self.library.rtt(PathId::ZERO)
    }

    pub(in crate::quic) fn congestion_controller(&self) -> Option<&dyn Controller> {
        self.library.congestion_state(PathId::ZERO)
    }

    /// Sends a PING.
    pub(in crate::quic) fn ping(&mut self) -> bool {
        self.library.ping_path(PathId::ZERO).is_ok()
    }

    /// Has the library validate the address of a client again.
    pub(in crate::quic) fn validate_again(&self) {
        if let (Source::Shared { endpoint, .. }, Some(address)) = (&self.source, self.remote_address()) {
            endpoint.validate_again(address);
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

fn refused(error: &WriteError) -> Poll<Result<usize, Refused>> {
    match error {
        WriteError::Blocked => Poll::Pending,
        WriteError::Stopped(code) => Poll::Ready(Err(Refused::Stopped(*code))),
        WriteError::ClosedStream => Poll::Ready(Err(Refused::Closed)),
    }
}
