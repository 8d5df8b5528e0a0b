use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Cause, Client, ClientEvent, ClientOptions, Connected, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE, Incoming,
    Sent, StreamAction, Token,
};
use braid_proto::message::Delivery;
use braid_proto::packet::{Connect, Disconnect, PacketId, QoS, SubscribeEntry, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Session;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use braid_transport::quic::codes;
use braid_transport::{Close, Dir, Link, Read, Transport};
use bytes::Buf;
use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep_until};

use crate::failure::Failure;

/// Most bytes of one read.
const READ_AT_ONCE: usize = 64 * 1024;
/// Reads of one poll, before their events are returned.
const READS: usize = 32;
/// Datagrams that wait to be sent, from which on no more are made: a quarter of what the link keeps.
const UNSENT_DATAGRAMS: usize = 64;
/// Slices of one vectored write.
const SLICES: usize = 16;

thread_local! {
    /// Buffer shared by all connections of a thread: a thousand idle ones need none.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_AT_ONCE].into());
}

/// Client connection without tasks, queues and reconnects. The caller polls it,
/// so that a generator spends as little as can be on each message.
#[derive(Debug)]
pub struct Connection {
    link: Link,
    protocol: Client,
    timer: Pin<Box<Sleep>>,
    /// Schedule of PINGREQ packets, if there is one.
    pings: Option<Pings>,
    /// Reused by every write.
    to_write: Vec<StreamKey>,
    /// Bytes that may be written before the next call of `write_at_most`; `None` is no limit.
    allowance: Option<usize>,
    /// True if the link may hold back bytes that it has taken.
    is_unflushed: bool,
    /// Reason of the end, until it is returned.
    failure: Option<Failure>,
    /// Events that were not returned yet, with the stream that brought them.
    events: VecDeque<(StreamKey, ClientEvent)>,
    /// Byte counts of every stream, in the order of their keys.
    traffic: BTreeMap<StreamKey, StreamTraffic>,
    session_present: bool,
    /// True if the session of an earlier connection may have messages to retransmit.
    resumes: bool,
}

/// Result of sending a message.
#[derive(Debug)]
pub enum SendOutcome {
    /// Queued in the outbox of its stream, with QoS 1 and 2 under this identifier.
    Queued(Option<PacketId>),
    /// The server's limit of inflight messages is reached; the message was not taken.
    Blocked(Delivery),
}

/// Event for the application of a connection.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A message; if it has a token, pass it to [`Connection::acknowledge`].
    Message(Incoming),
    /// Last acknowledgement of a published message.
    Published(PacketId, ReasonCode),
    /// Answer to [`Connection::subscribe`].
    Subscribed(ReasonCode),
    /// Answer to [`Connection::unsubscribe`].
    Unsubscribed,
    /// A data stream has ended with its unacknowledged messages; those of QoS 1 and 2 continue on the
    /// control stream. The number is that of subscriptions without an answer.
    StreamEnded(StreamKey, usize),
}

impl Connection {
    /// Connects over a fresh `link`.
    ///
    /// # Errors
    /// The server refuses, or the link fails.
    pub async fn establish(link: Link, connect: Connect) -> Result<Self, Failure> {
        Self::resume(link, connect, &mut None).await
    }

    /// Connects as [`Connection::establish`], and continues a session from [`Connection::into_session`] if the server
    /// has it too. Without Clean Start there must be one, empty or not.
    ///
    /// # Errors
    /// The server refuses, or the link fails; the session remains then.
    pub async fn resume(
        link: Link,
        connect: Connect,
        session: &mut Option<Session>,
    ) -> Result<Self, Failure> {
        Self::resume_subscribing(link, connect, session, Vec::new()).await
    }

    /// Connects as [`Connection::resume`], and sends a SUBSCRIBE for each filter behind CONNECT without waiting for
    /// CONNACK. Each of them has a [`ConnectionEvent::Subscribed`]. MQTT 5, 3.1.4, allows it.
    ///
    /// # Errors
    /// As [`Connection::resume`], or the filters exceed what may be sent before CONNACK.
    pub async fn resume_subscribing(
        mut link: Link,
        mut connect: Connect,
        session: &mut Option<Session>,
        early: Vec<(SubscribeEntry, UserProperties)>,
    ) -> Result<Self, Failure> {
        let options = ClientOptions {
            maximum_inflight: u16::MAX,
            // Data streams have no topic aliases, and only the streams are to differ. [BQ-18]
            outbound_topic_aliases: 0,
            ..ClientOptions::default()
        };
        let resumes = session.is_some();
        if link.datagram_size().is_some() && connect.version.is_v5() {
            connect.properties.user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE); // [BQ-81]
        }
        let mut protocol = Client::new(Arc::new(options), connect, session.take(), now());
        for (entry, user) in early {
            let asked = protocol.subscribe_early(StreamKey::CONTROL, vec![entry], None, user);
            if let Err(error) = asked {
                *session = protocol.into_end().1;
                return Err(Failure::Send(error));
            }
        }
        let timer = Box::pin(sleep_until(tokio::time::Instant::now()));
        let mut connection = Self {
            link,
            protocol,
            timer,
            pings: None,
            to_write: Vec::new(),
            allowance: None,
            is_unflushed: false,
            failure: None,
            events: VecDeque::new(),
            traffic: BTreeMap::new(),
            session_present: false,
            resumes,
        };
        if let Err(failure) = poll_fn(|cx| connection.poll_established(cx)).await {
            *session = connection.into_session();
            return Err(failure);
        }
        connection.session_present =
            connection.connected().is_some_and(|connected| connected.session_present);
        Ok(connection)
    }

    fn poll_established(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        while !self.protocol.is_established() {
            let moved = ready!(self.poll_link(cx));
            self.take_events(StreamKey::CONTROL);
            if self.connected().is_some() {
                // Packets behind CONNACK belong to the session, even if the link has ended since.
                break;
            }
            moved?;
        }
        Poll::Ready(Ok(()))
    }

    /// Contents of CONNACK, until the event is returned.
    fn connected(&self) -> Option<&Connected> {
        self.events.iter().find_map(|(_, event)| match event {
            ClientEvent::Connected(connected) => Some(&**connected),
            _ => None,
        })
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Transport of the link.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.link.peer().transport
    }

    /// True if the link has data streams.
    #[must_use]
    pub fn is_multi(&self) -> bool {
        self.link.is_multi()
    }

    /// True if the server takes messages of QoS 0 in datagrams: both ends permit them. Such messages are sent so.
    #[must_use]
    pub fn sends_datagrams(&self) -> bool {
        self.protocol.sends_datagrams()
    }

    /// True if so few datagrams wait to be sent that none is dropped for another.
    pub fn has_datagram_room(&mut self) -> bool {
        self.link.unsent_datagrams() < UNSENT_DATAGRAMS
    }

    /// True if the server continued the session.
    #[must_use]
    pub fn session_present(&self) -> bool {
        self.session_present
    }

    /// Session with the state of each inflight message, as long as the connection lives.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.protocol.session()
    }

    /// Bytes queued on a stream, without payloads by reference.
    pub fn waiting(&mut self, on: StreamKey) -> usize {
        self.protocol.outbox(on).map_or(0, |outbox| outbox.packets_len())
    }

    /// Bytes that the link has taken on all streams.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.traffic.values().map(|stream| stream.written).sum()
    }

    /// Position of the next byte on a stream, and the position up to which the link has taken it.
    pub fn progress(&mut self, on: StreamKey) -> (u64, u64) {
        let written = self.traffic.get(&on).map_or(0, |stream| stream.written);
        (written + self.protocol.outbox(on).map_or(0, |outbox| outbox.len() as u64), written)
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Opens a data stream; a link without any gives the control stream.
    ///
    /// # Errors
    /// The link failed.
    pub async fn open(&mut self, priority: Priority) -> Result<StreamKey, Failure> {
        poll_fn(|cx| self.poll_open(priority, cx)).await
    }

    /// Completes [`Connection::open`] as soon as the server allows another stream.
    ///
    /// # Errors
    /// The link failed.
    pub fn poll_open(
        &mut self,
        priority: Priority,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamKey, Failure>> {
        if !self.link.is_multi() {
            return Poll::Ready(Ok(StreamKey::CONTROL));
        }
        let stream = ready!(self.link.poll_open(cx, Dir::Bidi))?;
        self.link.set_priority(stream, priority);
        self.protocol.handle_stream_opened(stream);
        Poll::Ready(Ok(stream))
    }

    /// Subscribes on a stream; [`ConnectionEvent::Subscribed`] is the answer.
    ///
    /// # Errors
    /// The server does not take it, or the connection has ended.
    pub fn subscribe(&mut self, on: StreamKey, filter: TopicFilter, qos: QoS) -> Result<(), Failure> {
        self.subscribe_with(on, filter, qos, UserProperties::default())
    }

    /// Subscribes as [`Connection::subscribe`], with User Properties.
    ///
    /// # Errors
    /// As [`Connection::subscribe`].
    pub fn subscribe_with(
        &mut self,
        on: StreamKey,
        filter: TopicFilter,
        qos: QoS,
        user: UserProperties,
    ) -> Result<(), Failure> {
        let asked = self.protocol.subscribe(on, vec![SubscribeEntry::new(filter, qos)], None, user, now());
        asked.map(drop).map_err(Failure::Send)
    }

    /// Ends a subscription; [`ConnectionEvent::Unsubscribed`] is the answer.
    ///
    /// # Errors
    /// No packet can be sent now.
    pub fn unsubscribe(&mut self, filter: TopicFilter) -> Result<(), Failure> {
        let user = UserProperties::default();
        let asked = self.protocol.unsubscribe(StreamKey::CONTROL, vec![filter], user, now());
        asked.map(drop).map_err(Failure::Send)
    }

    /// Queues a message in the outbox of its stream, which the next poll writes. `false` if the server's limit of
    /// inflight messages is reached; the message was not taken then.
    ///
    /// # Errors
    /// The server does not take it, or the connection has ended.
    pub fn publish(&mut self, delivery: Delivery) -> Result<bool, Failure> {
        match (self.send(delivery)?, self.protocol.cause()) {
            (SendOutcome::Queued(_), _) => Ok(true),
            (SendOutcome::Blocked(_), Some(cause)) => Err(Failure::Ended(cause)),
            (SendOutcome::Blocked(_), None) => Ok(false),
        }
    }

    /// Queues a message as [`Connection::publish`], and returns its identifier. A message that cannot leave now is
    /// returned, as is one after the end of the connection, which the next poll reports.
    ///
    /// # Errors
    /// The server does not take it.
    pub fn send(&mut self, delivery: Delivery) -> Result<SendOutcome, Failure> {
        let len = delivery.message.payload_len();
        if self.protocol.sends_datagrams()
            && let Some(limit) = self.link.datagram_size()
            && let Some(packet) = self.protocol.datagram(&delivery, limit, now())
        {
            self.link.send_datagram(delivery.priority, packet);
            self.is_unflushed = true;
            return Ok(SendOutcome::Queued(None));
        }
        match self.protocol.publish(delivery, now()).map_err(Failure::Send)? {
            Sent::Out(id) => Ok(SendOutcome::Queued(id)),
            Sent::TooLarge => Err(Failure::TooLarge(len)),
            // Only messages with an expiry interval expire, and none has one.
            Sent::Expired => Ok(SendOutcome::Queued(None)),
            Sent::Blocked(delivery) => Ok(SendOutcome::Blocked(*delivery)),
        }
    }

    /// Acknowledges this message and every one before it.
    pub fn acknowledge(&mut self, token: Token) {
        self.protocol.acknowledge(token, now());
    }

    /// Bytes by stream since the last call: taken by the link, and brought by it.
    pub fn take_traffic(&mut self, mut each: impl FnMut(StreamKey, u64, u64)) {
        for (key, stream) in &mut self.traffic {
            if stream.fresh != (0, 0) {
                let (written, read) = std::mem::take(&mut stream.fresh);
                each(*key, written, read);
            }
        }
    }

    /// Limits the bytes written on all streams together until the next call, for clients that are to be slow.
    pub fn write_at_most(&mut self, bytes: usize) {
        self.allowance = Some(bytes);
    }

    /// Sends PINGREQ with this period, besides those of Keep Alive; [`Connection::take_round_trips`] returns the round
    /// trips. A PINGREQ that is due while one is unanswered is not sent, and answered with that one.
    pub fn ping_every(&mut self, interval: Duration) {
        self.pings = Some(Pings::every(interval, now()));
    }

    /// Times from the due times of PINGREQ packets to the last PINGRESP, each returned once. A PINGREQ of Keep Alive is
    /// due when it is sent.
    pub fn take_round_trips(&mut self) -> Vec<Duration> {
        let Some(took) = self.protocol.take_round_trip() else { return Vec::new() };
        match &mut self.pings {
            Some(pings) => pings.answer(took, now()),
            None => vec![took],
        }
    }

    /// Takes the PINGREQ packets that were due before `end` and have no PINGRESP: their number, and the times since
    /// they were due of those that have waited longer than any answered one.
    pub(crate) fn take_unanswered(&mut self, end: tokio::time::Instant) -> (u64, Vec<Duration>) {
        self.pings.as_mut().map_or_else(Default::default, |pings| pings.give_up(end.into_std()))
    }

    /// Queues DISCONNECT, the last packet.
    pub fn disconnect(&mut self) {
        self.protocol.disconnect(Disconnect::new(ReasonCode::Success));
    }

    /// Writes what is queued after [`Connection::disconnect`], and closes the link.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_write(cx).is_err() {
            return Poll::Ready(());
        }
        if self.protocol.unwritten() > 0 {
            return Poll::Pending;
        }
        self.link.poll_close(cx, Close { code: codes::CLOSE_NORMAL, stop: None }).map(drop)
    }

    /// Session for the next connection; `None` if it never began.
    #[must_use]
    pub fn into_session(self) -> Option<Session> {
        self.protocol.into_end().1
    }

    // -- Polling -----------------------------------------------------------------------------------

    /// Writes what is queued, and returns the next event.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn next(&mut self) -> Result<ConnectionEvent, Failure> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for [`Connection::next`].
    ///
    /// # Errors
    /// As [`Connection::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<ConnectionEvent, Failure>> {
        self.poll_next_from(cx).map_ok(|(_, event)| event)
    }

    /// Polls as [`Connection::poll_next`], with the stream of the event.
    ///
    /// # Errors
    /// As [`Connection::next`].
    pub fn poll_next_from(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(StreamKey, ConnectionEvent), Failure>> {
        loop {
            self.take_events(StreamKey::CONTROL);
            while let Some((stream, event)) = self.events.pop_front() {
                let event = match event {
                    ClientEvent::Message(message) => ConnectionEvent::Message(message),
                    ClientEvent::Published(id, reason) => ConnectionEvent::Published(id, reason),
                    ClientEvent::Subscribed(suback) => ConnectionEvent::Subscribed(
                        suback.codes.first().copied().unwrap_or(ReasonCode::UnspecifiedError),
                    ),
                    ClientEvent::Unsubscribed(_) => ConnectionEvent::Unsubscribed,
                    ClientEvent::StreamEnded(ended, requests) => {
                        ConnectionEvent::StreamEnded(ended, requests.len())
                    }
                    _ => continue,
                };
                return Poll::Ready(Ok((stream, event)));
            }
            if let Some(failure) = self.failure.take() {
                return Poll::Ready(Err(failure));
            }
            if let Err(failure) = ready!(self.poll_link(cx)) {
                // Events before the end precede the error: the session has taken over their messages.
                self.failure = Some(failure);
            }
        }
    }

    fn take_events(&mut self, from: StreamKey) {
        while let Some(event) = self.protocol.poll_event() {
            self.events.push_back((from, event));
        }
    }

    /// Moves bytes both ways. Ready when there may be an event.
    fn poll_link(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.poll_write(cx)?;
        if self.resumes {
            self.protocol.continue_resend(now());
            self.poll_write(cx)?;
        }
        if let Some(cause) = self.protocol.cause() {
            return Poll::Ready(Err(Failure::Ended(cause)));
        }
        let mut has_read = false;
        for _ in 0..READS {
            match self.read_once(cx) {
                Poll::Pending => break,
                Poll::Ready(read) => read?,
            }
            has_read = true;
        }
        if has_read || self.poll_timer(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.link.is_multi() {
            // Arrivals may let more leave, acknowledgements among it.
            let _ = self.link.poll_flush(cx)?;
        }
        Poll::Pending
    }

    fn read_once(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            let read = ready!(self.link.poll_read(cx, &mut buffer, &mut |_| true))?;
            let protocol = &mut self.protocol;
            match read {
                Read::Bytes(stream) => {
                    protocol.handle_bytes(stream, buffer.filled(), now());
                    self.traffic.entry(stream).or_default().fresh.1 += buffer.filled().len() as u64;
                    while let Some(event) = protocol.poll_event() {
                        self.events.push_back((stream, event));
                    }
                }
                Read::Finished(stream) => protocol.handle_stream_finished(stream, now()),
                Read::Reset(stream, _) | Read::Stopped(stream, _) => {
                    protocol.handle_stream_reset(stream, now())
                }
                Read::Datagram => {
                    // One that is no message has no effect. [BQ-85]
                    let _ = protocol.handle_datagram(buffer.filled(), now());
                    while let Some(event) = protocol.poll_event() {
                        self.events.push_back((StreamKey::CONTROL, event));
                    }
                }
                Read::Opened(_) | Read::Confirmed | Read::Moved(_) | Read::Path(_) => {}
                Read::Closed => {
                    protocol.handle_link_closed();
                    return Poll::Ready(Err(Failure::Ended(protocol.cause().unwrap_or(Cause::Lost))));
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        let mut streams = std::mem::take(&mut self.to_write);
        self.protocol.streams_to_write(&mut streams);
        self.is_unflushed |= !streams.is_empty();
        for stream in streams.drain(..) {
            self.write_stream(stream, cx)?;
        }
        self.to_write = streams;
        while let Some(action) = self.protocol.poll_stream() {
            match action {
                StreamAction::Finish(stream) => self.link.finish(stream),
                StreamAction::Abort(stream, reason) => self.link.abort(stream, reason.value().into()),
            }
        }
        // Encrypted links hold bytes back, those of earlier writes too, and QUIC sends nothing before.
        if (self.is_unflushed || self.link.is_multi())
            && let Poll::Ready(flushed) = self.link.poll_flush(cx)
        {
            flushed?;
            self.is_unflushed = false;
        }
        Ok(())
    }

    fn write_stream(&mut self, stream: StreamKey, cx: &mut Context<'_>) -> Result<(), Failure> {
        while let Some(outbox) = self.protocol.outbox(stream)
            && outbox.has_remaining()
            && self.allowance != Some(0)
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = match self.allowance {
                None => outbox.chunks_vectored(&mut slices),
                Some(allowance) => {
                    let chunk = outbox.chunk();
                    slices[0] = IoSlice::new(&chunk[..chunk.len().min(allowance)]);
                    1
                }
            };
            match self.link.poll_write(cx, stream, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    outbox.advance(taken);
                    self.allowance = self.allowance.map(|allowance| allowance.saturating_sub(taken));
                    let traffic = self.traffic.entry(stream).or_default();
                    traffic.written += taken as u64;
                    traffic.fresh.0 += taken as u64;
                }
                Poll::Ready(Ok(_)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                // The stream has ended, which the next read reports.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::NotConnected => break,
                Poll::Ready(Err(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ping = self.pings.as_ref().map(|pings| pings.next);
        let at = [self.protocol.poll_timeout(), ping].into_iter().flatten().min();
        let Some(at) = at else { return Poll::Pending };
        let at = tokio::time::Instant::from_std(at);
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        ready!(Future::poll(self.timer.as_mut(), cx));
        if self.pings.as_mut().is_some_and(|pings| pings.take_due(now())) {
            self.protocol.ping(now());
        }
        self.protocol.handle_timeout(now());
        Poll::Ready(())
    }
}

/// Open-loop schedule of PINGREQ packets: one that is late or unanswered delays no due time.
#[derive(Debug)]
struct Pings {
    interval: Duration,
    next: Instant,
    /// Due times without a PINGRESP, in order.
    unanswered: VecDeque<Instant>,
    /// Time of sending of the first of them, unless one of Keep Alive was unanswered then.
    sent: Instant,
    /// Longest round trip so far.
    longest: Duration,
}

impl Pings {
    fn every(interval: Duration, now: Instant) -> Self {
        let next = now + interval;
        Self { interval, next, unanswered: VecDeque::new(), sent: now, longest: Duration::ZERO }
    }

    /// Takes what is due; true if a PINGREQ is.
    fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.next <= now;
        if is_due && self.unanswered.is_empty() {
            self.sent = now;
        }
        while self.next <= now {
            self.unanswered.push_back(self.next);
            self.next += self.interval.max(Duration::from_millis(1));
        }
        is_due
    }

    /// Round trips that end with a PINGRESP, which came `took` after its PINGREQ.
    fn answer(&mut self, took: Duration, now: Instant) -> Vec<Duration> {
        // The PINGRESP may have come a little before it is asked for. One of Keep Alive was sent before `sent`.
        let at = self.sent.checked_add(took).filter(|at| *at <= now).unwrap_or(now);
        let mut all: Vec<Duration> =
            self.unanswered.drain(..).map(|due| at.saturating_duration_since(due)).collect();
        if all.first().is_none_or(|first| *first < took) {
            all.insert(0, took);
        }
        self.longest = all.iter().copied().fold(self.longest, Duration::max);
        all
    }

    /// See [`Connection::take_unanswered`].
    fn give_up(&mut self, end: Instant) -> (u64, Vec<Duration>) {
        let waited: Vec<Duration> =
            self.unanswered.drain(..).filter_map(|due| end.checked_duration_since(due)).collect();
        let count = waited.len() as u64;
        (count, waited.into_iter().filter(|waited| *waited > self.longest).collect())
    }
}

/// Current time of tokio's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Byte counts of a stream.
#[derive(Debug, Default)]
struct StreamTraffic {
    /// Bytes written since the stream began.
    written: u64,
    /// Bytes written and read since the last call.
    fresh: (u64, u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pingreq_that_is_due_while_one_is_unanswered_has_its_own_time() {
        let start = now();
        let mut pings = Pings::every(SECOND, start);
        assert!(!pings.take_due(start + SECOND / 2));
        assert!((1..=4).all(|second| pings.take_due(start + second * SECOND)));
        let took = pings.answer(SECOND * 7 / 2, start + SECOND * 9 / 2);
        assert_eq!(took, [7, 5, 3, 1].map(|halves| SECOND * halves / 2));
        assert_eq!(pings.give_up(start + 5 * SECOND), (0, Vec::new()));
        // A late timer delays the later ones by nothing.
        assert!(pings.take_due(start + SECOND * 13 / 2));
        assert_eq!(pings.answer(SECOND, start + SECOND * 15 / 2), [SECOND * 5 / 2, SECOND * 3 / 2]);
        assert_eq!(pings.next, start + 7 * SECOND);
    }

    #[test]
    fn a_pingreq_of_keep_alive_has_the_time_since_it_was_sent() {
        let start = now();
        let mut pings = Pings::every(SECOND, start);
        assert_eq!(pings.answer(SECOND / 4, start + SECOND / 2), [SECOND / 4]);
        assert!(pings.take_due(start + SECOND));
        assert_eq!(pings.answer(2 * SECOND, start + SECOND * 3 / 2), [2 * SECOND, SECOND / 2]);
    }

    #[test]
    fn pingreqs_without_an_answer_are_told_if_they_waited_longest() {
        let start = now();
        let mut pings = Pings::every(SECOND, start);
        assert!(pings.take_due(start + SECOND));
        assert_eq!(pings.answer(SECOND / 2, start + SECOND * 3 / 2).len(), 1);
        assert!(pings.take_due(start + 3 * SECOND));
        let waited = pings.give_up(start + SECOND * 13 / 4);
        assert_eq!(waited, (2, vec![SECOND * 5 / 4]), "a quarter of a second tells nothing");
    }
}
