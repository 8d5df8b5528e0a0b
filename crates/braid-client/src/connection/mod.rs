//! Connection: protocol machine, link and timer in one poll loop.

mod authentication;
mod close;
mod datagrams;
mod send;
mod streams;
mod writer;

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::connection::{Cause, Client as Protocol, ClientEvent, Incoming};
use braid_proto::packet::Disconnect;
use braid_proto::reason::ReasonCode;
use braid_proto::session::Session;
use braid_proto::stream::StreamKey;
use braid_transport::quic::is_early_data_rejected;
use braid_transport::{Link, Read};
use tokio::io::ReadBuf;
use tokio::time::{Sleep, sleep_until};
use tracing::debug;

use self::authentication::Authentication;
use self::datagrams::handle_datagram;
use self::streams::{Phase, Streams};
use self::writer::LinkWriter;
use crate::auto::{Auto, Replacement};
use crate::error::{Error, OptionsError};
use crate::receive_queue::{Receipt, Received};
use crate::scram::Exchange;
use crate::send_queue::{ConnectionRequest, answer};
use crate::state::{ClientState, now};

/// Maximum number of rounds of one poll, after which other tasks of the runtime run.
const ROUNDS: usize = 32;
/// Maximum bytes of one read.
const READ_SIZE: usize = 64 * 1024;

thread_local! {
    /// Read buffer of all connections of a thread: an idle connection needs none.
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into());
}

/// Connection of a client, from CONNECT to the end of its link.
pub(crate) struct Connection {
    link: Link,
    protocol: Protocol,
    /// Number of the connection, from 1.
    number: u64,
    streams: Streams,
    writer: LinkWriter,
    timer: Timer,
    authentication: Authentication,
    /// Maximum number of unacknowledged messages of QoS 1 and 2: the lower of the client's limit and the server's.
    send_maximum: usize,
    /// Messages of one read; kept for its allocation.
    arrived: Vec<Received>,
    ending: Ending,
    /// Whether the receive queue is full: then streams that carry messages are not read.
    is_paused: bool,
}

/// Signs of the end of a connection, as they come.
#[derive(Default)]
struct Ending {
    /// Error that the server reported before it ended the connection.
    reported: Option<Error>,
    /// Server Reference that came with it.
    server_reference: Option<Box<str>>,
    /// Whether the server rejected the early data, and has received nothing.
    is_early_rejected: bool,
    /// Link that takes the place of this one, and the time from which on this one is not waited for.
    replacement: Option<(Replacement, Instant)>,
}

/// Outcome of a connection.
pub(crate) struct End {
    /// `Ok`: this side ended it.
    pub(crate) result: Result<(), Error>,
    pub(crate) session: Option<Session>,
    /// Whether the server rejected the early data, and has received nothing. [BQ-62]
    pub(crate) is_early_rejected: bool,
    /// Server Reference of CONNACK or DISCONNECT.
    pub(crate) server_reference: Option<Box<str>>,
    /// Link on which the next connection begins at once.
    pub(crate) replacement: Option<Replacement>,
}

impl Connection {
    /// Connection on a link. `exchange`: the authentication that CONNECT begins.
    pub(crate) fn new(link: Link, mut protocol: Protocol, number: u64, exchange: Option<Exchange>) -> Self {
        if link.is_multi() {
            protocol.place_resends(); // Those on the control stream precede all requests.
        }
        Self {
            link,
            protocol,
            number,
            streams: Streams::new(now()),
            writer: LinkWriter::default(),
            timer: Timer::new(),
            authentication: Authentication::begun(exchange),
            send_maximum: usize::MAX,
            arrived: Vec::new(),
            ending: Ending::default(),
            is_paused: false,
        }
    }

    /// Runs the connection as far as it goes. Ready when it has ended.
    ///
    /// One round: (1) acknowledgements of the application, (2) one read and the answer to a challenge, (3) requests,
    /// and whether another link takes the place of this one, (4) the request to close, (5) one write, (6) ends of
    /// streams, (7) the timer. Acknowledgements and requests thus share a write with the answers to what was read.
    pub(crate) fn poll(&mut self, state: &mut ClientState, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..ROUNDS {
            let now = now();
            self.poll_acknowledged(state, cx, now);
            self.protocol.continue_resend(now);
            let had_failed = self.writer.has_failed();
            let has_read = self.poll_read(state, cx, now);
            let has_answered = self.poll_authentication(cx);
            let has_taken = self.poll_requests(state, cx, now);
            self.poll_replacement(state, cx);
            self.close_if_wanted(state, cx, now);
            let has_written = self.writer.poll(&mut self.link, &mut self.protocol, &mut self.streams, cx);
            if has_written && let Some(auto) = state.settings.route.auto() {
                auto.note_sent();
            }
            let has_ended = self.end_streams(state, now);
            state.set_unwritten(self.protocol.unwritten());
            if self.has_left(state, now) {
                return Poll::Ready(self.leave(state, cx));
            }
            if self.poll_closed(cx, now).is_ready() {
                self.count_datagrams(state);
                return Poll::Ready(self.end());
            }
            // A link that takes nothing more is lost once everything that it received is read.
            if had_failed
                && !has_read
                && let Some(error) = self.writer.take_error()
            {
                self.handle_link_lost(&error);
            }
            let is_due = self.poll_timer(state, cx, now);
            if !(has_read || has_answered || has_taken || has_written || has_ended || is_due) {
                self.flush(state, cx);
                return Poll::Pending;
            }
        }
        self.flush(state, cx);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what the link holds back: encrypted and framed bytes, and on QUIC all packets. An error comes with the
    /// next read or write as well.
    fn flush(&mut self, state: &ClientState, cx: &mut Context<'_>) {
        let waits = self.timer.deadline.is_some() && self.link.unsent_datagrams() > 0;
        let _ = self.link.poll_flush(cx);
        if waits && self.link.unsent_datagrams() == 0 {
            cx.waker().wake_by_ref(); // The connection may be closed.
        }
        self.count_datagrams(state);
    }

    fn poll_acknowledged(&mut self, state: &ClientState, cx: &mut Context<'_>, now: Instant) {
        if let Some(receipt) = state.channels.received.poll_acknowledged(cx)
            && receipt.connection == self.number
        {
            self.protocol.acknowledge(receipt.token, now);
        }
    }

    /// Asks whether another link takes the place of this one.
    fn poll_replacement(&mut self, state: &mut ClientState, cx: &mut Context<'_>) {
        let is_wanted = self.ending.replacement.is_none()
            && !self.protocol.is_closed()
            && !state.channels.received.is_closing();
        let Some(auto) = state.settings.route.auto().filter(|_| is_wanted) else { return };
        let (is_established, unsent) = (self.protocol.is_established(), self.protocol.unwritten());
        if let Poll::Ready(replacement) = auto.poll_replacement(&mut self.link, is_established, unsent, cx) {
            debug!(reason = replacement.reason, "leaving the link");
            let until = now() + replacement.settle;
            self.ending.replacement = Some((replacement, until));
            self.confirm_streams(state);
        }
    }

    /// Whether another link is there, and nothing more is waited for on this one: answers of the server,
    /// acknowledgements of the application, and QoS 0 on its way.
    fn has_left(&mut self, state: &ClientState, now: Instant) -> bool {
        if state.channels.received.is_closing() {
            self.ending.replacement = None;
        }
        let Some((_, until)) = &self.ending.replacement else { return false };
        let is_settled = state.inflight.is_settled()
            && self.streams.is_settled()
            && self.protocol.unwritten() == 0
            && self.protocol.unacknowledged() == 0;
        (is_settled || *until <= now) && !self.protocol.is_closed()
    }

    /// Ends the connection on this link for one on the next. The server keeps the session, and discards the Will.
    /// [BQ-91]
    fn leave(&mut self, state: &ClientState, cx: &mut Context<'_>) -> End {
        if self.protocol.is_established() {
            self.protocol.disconnect(Disconnect::new(ReasonCode::Success));
            self.writer.poll(&mut self.link, &mut self.protocol, &mut self.streams, cx);
            self.flush(state, cx);
        } else {
            // Its CONNECT must not arrive any more: the server would take it for another client.
            self.protocol.handle_link_closed();
            self.link.close_by(now());
        }
        let replacement = self.ending.replacement.take().map(|(replacement, _)| replacement);
        self.ending.reported = Some(Error::ConnectionLost);
        End { replacement, ..self.end() }
    }

    fn end(&mut self) -> End {
        let cause = self.protocol.cause().unwrap_or(Cause::Lost);
        debug!(%cause, "connection ended");
        let session = self.protocol.take_session();
        let Ending { reported, server_reference, is_early_rejected, replacement } =
            std::mem::take(&mut self.ending);
        let result = match (reported, cause) {
            (Some(error), _) => Err(error),
            (None, Cause::Closed(_)) => Ok(()),
            (None, cause) => Err(Error::from_cause(cause)),
        };
        let lost = result.as_ref().err().cloned().unwrap_or(Error::Closed);
        self.streams.fail(&lost);
        self.authentication.end(&Err(lost));
        // A server that ends the connection by itself has its reason.
        let replacement = replacement.filter(|_| matches!(result, Err(Error::ConnectionLost)));
        let replacement = replacement.map(|(replacement, _)| replacement);
        End { result, session, is_early_rejected, server_reference, replacement }
    }

    /// Handles requests of the application about the connection itself.
    fn handle_connection_requests(&mut self, state: &mut ClientState) {
        for (request, waiter) in state.channels.requests.take_connection_requests() {
            match request {
                ConnectionRequest::Rebind => {
                    let moved = self.link.rebind(None);
                    debug!(?moved, "moving to another local port");
                    let result =
                        moved.map_err(|error| Error::Rebind { reason: Arc::from(error.to_string()) });
                    answer(waiter, result);
                }
                ConnectionRequest::Move => {
                    let auto = state.settings.route.auto();
                    let result = auto.map(Auto::move_now).ok_or(Error::Options(OptionsError::NotAuto));
                    answer(waiter, result);
                }
                ConnectionRequest::Reauthenticate => {
                    let credentials = state.settings.scram.as_ref();
                    self.authentication.begin_again(&mut self.protocol, credentials, waiter);
                }
            }
        }
    }

    /// Arms the timer for the next deadline. True: one has passed and was handled.
    fn poll_timer(&mut self, state: &mut ClientState, cx: &mut Context<'_>, now: Instant) -> bool {
        let streams = self.stream_deadline(state);
        let leave = self.ending.replacement.as_ref().map(|(_, until)| *until);
        let leave = leave.filter(|_| !self.protocol.is_closed());
        let deadlines = [self.protocol.poll_timeout(), self.timer.deadline, streams, leave];
        let Some(next) = deadlines.into_iter().flatten().min() else { return false };
        if self.timer.poll(next, cx).is_pending() {
            return false;
        }
        let now = now.max(next);
        self.protocol.handle_timeout(now);
        self.handle_stream_deadlines(state, now);
        true
    }

    // -- Reading -----------------------------------------------------------------------------------

    fn poll_read(&mut self, state: &mut ClientState, cx: &mut Context<'_>, now: Instant) -> bool {
        if self.protocol.is_closed() {
            return false;
        }
        // CONNACK is read, however many messages of the connection before are queued. And a link that takes nothing
        // more is read to its end: the server may have said why it closed it.
        let may_pause = self.protocol.is_established() && !self.writer.has_failed();
        let is_full = may_pause && state.channels.received.is_full();
        if is_full != self.is_paused {
            self.is_paused = is_full;
            self.protocol.pause(is_full, now);
        }
        let Poll::Ready(read) = self.poll_link(state, cx, now) else { return false };
        match read {
            // Opened and Moved are reported to servers only.
            Ok(Read::Bytes(_) | Read::Datagram | Read::Confirmed | Read::Opened(_) | Read::Moved(_)) => {}
            Ok(Read::Path(notice)) => state.handle_path(notice),
            Ok(Read::Finished(stream)) => self.handle_finished(state, stream, now),
            Ok(Read::Reset(stream, code) | Read::Stopped(stream, code)) => {
                self.handle_reset(state, stream, code, now);
            }
            Ok(Read::Closed) => self.protocol.handle_link_closed(),
            Err(error) => self.handle_link_lost(&error),
        }
        self.drain_events(state, now);
        true
    }

    /// Reads once from the link; the protocol machine handles the bytes.
    fn poll_link(
        &mut self,
        state: &ClientState,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<std::io::Result<Read>> {
        let Self { link, protocol, streams, is_paused, .. } = self;
        // Messages arrive only on streams that carried a SUBSCRIBE. The others carry acknowledgements, which are read
        // even while the receive queue is full.
        let carries_messages =
            |stream: StreamKey| stream.is_control() || streams.get(stream).is_some_and(|s| s.is_subscribed());
        // The answer to an early packet may arrive before CONNACK, which has to be read first.
        let is_established = protocol.is_established();
        let mut wants = |stream: StreamKey| {
            (is_established || stream.is_control()) && (!*is_paused || !carries_messages(stream))
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let read = ready!(link.poll_read(cx, &mut buffer, &mut wants));
            match read {
                Ok(Read::Bytes(stream)) => protocol.handle_bytes(stream, buffer.filled(), now),
                Ok(Read::Datagram) => handle_datagram(protocol, state, buffer.filled(), now),
                _ => {}
            }
            Poll::Ready(read)
        })
    }

    fn handle_link_lost(&mut self, error: &std::io::Error) {
        self.ending.is_early_rejected |= is_early_data_rejected(error);
        debug!(%error, "link lost");
        self.protocol.handle_link_closed();
    }

    /// Handles FIN of the server, in answer to that of this side or before it.
    fn handle_finished(&mut self, state: &mut ClientState, stream: StreamKey, now: Instant) {
        self.protocol.handle_stream_finished(stream, now);
        if self.streams.get(stream).is_some_and(|known| known.phase() == Phase::Ended) {
            self.remove_stream(state, stream, &Error::StreamEnded { code: None });
        }
    }

    /// Handles RESET_STREAM or STOP_SENDING of the server.
    fn handle_reset(&mut self, state: &mut ClientState, stream: StreamKey, code: u64, now: Instant) {
        debug!(%stream, code, "the server ended a stream");
        match self.refused_message(state, stream, code) {
            Some(reason) => {
                // Ended by this side: the lane keeps its count of resets, for which the message is to blame.
                self.streams.end(stream, None);
                self.protocol.handle_stream_refused(stream, reason, now);
            }
            None => self.protocol.handle_stream_reset(stream, now),
        }
        self.link.abort(stream, code);
        self.drain_events(state, now);
        self.remove_stream(state, stream, &Error::StreamEnded { code: Some(code) });
    }

    /// Reason for which the server refuses the only message of a stream; `None`: it refuses the stream.
    fn refused_message(&self, state: &ClientState, stream: StreamKey, code: u64) -> Option<ReasonCode> {
        let lane = self.streams.get(stream)?.lane()?;
        let reason = u8::try_from(code).ok().and_then(ReasonCode::from_u8)?;
        let is_about_message = matches!(
            reason,
            ReasonCode::TopicNameInvalid
                | ReasonCode::PacketTooLarge
                | ReasonCode::QuotaExceeded
                | ReasonCode::PayloadFormatInvalid
                | ReasonCode::QosNotSupported
        );
        (is_about_message && state.lanes.is_own(lane)).then_some(reason)
    }

    // -- Events of the protocol --------------------------------------------------------------------

    fn drain_events(&mut self, state: &mut ClientState, now: Instant) {
        while let Some(event) = self.protocol.poll_event() {
            match event {
                ClientEvent::Message(incoming) => {
                    let message = &incoming.message;
                    debug!(topic = %message.topic, qos = %message.qos, bytes = message.payload.len(), "received PUBLISH");
                    self.arrived.push(received(incoming, self.number));
                }
                ClientEvent::Published(id, reason) => {
                    debug!(%id, %reason, "published");
                    let on = state.inflight.handle_published(id, reason);
                    if let Some(stream) = on.and_then(|on| self.streams.get_mut(on)) {
                        stream.handle_acknowledged(now);
                    }
                }
                ClientEvent::Subscribed(suback) => {
                    debug!(id = %suback.packet_id, codes = ?suback.codes, "received SUBACK");
                    let handled = state.handle_suback(suback.packet_id, suback.codes);
                    self.end_if_violated(handled);
                }
                ClientEvent::Unsubscribed(unsuback) => {
                    debug!(id = %unsuback.packet_id, "received UNSUBACK");
                    let handled = state.handle_unsuback(unsuback.packet_id, unsuback.codes);
                    self.end_if_violated(handled);
                }
                ClientEvent::Connected(connected) => {
                    let own = usize::from(state.settings.protocol.maximum_inflight);
                    let theirs = connected.properties.receive_maximum.unwrap_or(u16::MAX);
                    self.send_maximum = own.min(theirs.into());
                    self.authentication.end(&Ok(()));
                    let transport = self.link.peer().transport;
                    state.handle_connected(*connected, transport, self.link.is_multi());
                    state.enqueue_resends(self.protocol.take_resends());
                }
                ClientEvent::Continued(continued) => state.handle_continued(continued),
                ClientEvent::Refused(connack) => {
                    let text = connack.properties.reason_string.as_deref().map(Into::into);
                    self.ending.reported = Some(Error::Refused { reason: connack.reason, text });
                    self.ending.server_reference = connack.properties.server_reference;
                }
                ClientEvent::Disconnected(disconnect) => {
                    let text = disconnect.reason_string.map(Into::into);
                    self.ending.reported = Some(Error::Disconnected { reason: disconnect.reason, text });
                    self.ending.server_reference = disconnect.server_reference;
                }
                ClientEvent::Auth(auth) => {
                    let handled = self.authentication.handle_auth(*auth);
                    self.end_if_violated(handled);
                }
                ClientEvent::StreamViolated(stream, violation) => {
                    debug!(%stream, %violation, "the server broke the specification on a data stream");
                }
                ClientEvent::StreamEnded(stream, unanswered) => {
                    // First, because a lane with a retransmission is not idle.
                    state.enqueue_resends(self.protocol.take_resends());
                    self.handle_stream_ended(state, stream, unanswered);
                }
            }
        }
        if !self.arrived.is_empty()
            && let Some(discarded) = state.channels.received.put(&mut self.arrived)
        {
            self.protocol.acknowledge(discarded.token, now);
        }
    }

    /// Answers the challenge of the server once the answer is computed. True: it was.
    fn poll_authentication(&mut self, cx: &mut Context<'_>) -> bool {
        let Poll::Ready(answered) = self.authentication.poll(&mut self.protocol, cx) else { return false };
        self.end_if_violated(answered);
        true
    }

    /// Ends the connection if the server broke the specification in a way that the protocol machine cannot know.
    fn end_if_violated(&mut self, handled: Result<(), Error>) {
        if let Err(error) = handled {
            self.ending.reported = Some(error);
            self.protocol.disconnect(Disconnect::new(ReasonCode::ProtocolError));
        }
    }
}

fn received(incoming: Incoming, connection: u64) -> Received {
    let Incoming { message, dup, packet_id, topic_alias, subscription_ids, token } = incoming;
    let receipt = token.map(|token| Receipt { connection, token });
    Received { message, dup, packet_id, topic_alias, subscription_ids, receipt }
}

/// Timer of a connection.
struct Timer {
    sleep: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    /// Time at which the connection ends even with unanswered requests or unsent bytes.
    deadline: Option<Instant>,
}

impl Timer {
    fn new() -> Self {
        Self { sleep: Box::pin(sleep_until(tokio::time::Instant::now())), armed: None, deadline: None }
    }

    /// Ready once `at` has passed.
    fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.armed != Some(at) {
            self.armed = Some(at);
            self.sleep.as_mut().reset(at.into());
        }
        ready!(self.sleep.as_mut().poll(cx));
        self.armed = None;
        Poll::Ready(())
    }
}
