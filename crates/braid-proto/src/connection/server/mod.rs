//! Server end of a Network Connection.

mod authentication;
#[cfg(test)]
mod cost_tests;
mod handshake;
mod options;
mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::datagram::{self, DatagramDecoder};
use super::exchange::{Acknowledged, Exchange, PendingAck};
use super::{Cause, Progress, Sent, StreamReport, Timer, Timers, Token};
use crate::decoder::{Decoder, OffsetProblem, PartialMessages};
use crate::message::{Delivery, SharedMessage};
use crate::packet::{
    Auth, BorrowedPacket, Connect, Disconnect, Packet, Suback, Subscribe, Unsuback, Unsubscribe,
    UserProperties, Will,
};
use crate::session::{Session, SessionExpiry};
use crate::types::{PacketId, PacketType, ProtocolVersion, ReasonCode, StreamKey, Violation};

use authentication::Authentication;
pub use handshake::{Acceptance, End};
use handshake::{Closed, Deciding};
pub use options::{EarlyPublish, ServerOptions};
use streams::UnacceptedStream;

/// Event that the driver must answer or know.
#[derive(Debug)]
pub enum Event {
    /// CONNECT: answer with [`Server::accept`] or [`Server::reject`], or with [`Server::challenge`] if it names an
    /// Authentication Method. Nothing more is read until then.
    Connect(Box<Connect>),
    /// AUTH, before CONNACK: answer as CONNECT. After it, a step of a re-authentication: answer with
    /// [`Server::challenge`], [`Server::finish_reauthentication`] or [`Server::disconnect`].
    Auth(Box<Auth>),
    /// Message to route. With a token, its acknowledgement waits for [`Server::handle_persisted`].
    Publish(SharedMessage, Option<Token>),
    /// PUBLISH whose offset is not that of a part: it is answered with 0x83. [BQ-99]
    OffsetRefused(StreamKey, OffsetProblem),
    /// PUBREL: an identifier of QoS 2 is free again. Its PUBCOMP waits for [`Server::handle_persisted`].
    Release(Token),
    /// SUBSCRIBE on this stream: answer with [`Server::suback`].
    Subscribe(StreamKey, Box<Subscribe>),
    /// UNSUBSCRIBE on this stream: answer with [`Server::unsuback`].
    Unsubscribe(StreamKey, Box<Unsubscribe>),
    /// Violation by the client on a data stream, which has ended for it.
    StreamViolated(StreamKey, Violation),
    /// End of a data stream: its subscriptions go to the control stream. [BQ-42]
    StreamEnded(StreamKey),
    /// Last acknowledgement of a message to the client: the exchange of this identifier is over.
    Complete(PacketId, ReasonCode),
}

/// Reason why no more bytes of a stream may be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadObstacle {
    /// The driver decides about a CONNECT, or an AUTH before CONNACK; events are held until the handshake of the
    /// transport is confirmed; the connection has ended, or the stream. A data stream is not read before the CONNECT is
    /// accepted. [BQ-13]
    State,
    /// As many acknowledgements are pending as the Receive Maximum allows. [BQ-23]
    Unacknowledged,
    /// Incomplete packets on the data streams are too large. [BQ-45]
    PartialBytes,
}

/// Protocol machine of a server.
///
/// ```text
///            CONNECT            accept                 violation, DISCONNECT, disconnect()
/// Listening ---------> Deciding ------> Established ------------------------------------> Closed
///     |                   | reject                                                          ^
///     +-------------------+-----------------------------------------------------------------+
/// ```
#[derive(Debug)]
pub struct Server {
    options: Arc<ServerOptions>,
    decoder: Decoder,
    state: State,
    timers: Timers,
    events: VecDeque<Event>,
    /// Data streams that were opened before the CONNECT is accepted.
    opened: BTreeMap<StreamKey, UnacceptedStream>,
    /// Input held back until the handshake of the transport is confirmed; `None` afterwards.
    early: Option<Box<EarlyInput>>,
    /// Whether the transport carries datagrams.
    permits_datagrams: bool,
}

/// Input that waits for the confirmation of the transport's handshake.
#[derive(Debug, Default)]
struct EarlyInput {
    /// Events from the first PUBLISH on.
    events: VecDeque<Event>,
    /// DISCONNECT without a held event before it. The session and the Will that it leaves behind count only if the
    /// handshake is confirmed.
    disconnect: Option<Box<Disconnect>>,
    /// Bytes of the control stream behind all that.
    rest: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Waiting for CONNECT.
    Listening,
    /// The driver decides about a CONNECT; bytes behind it are held.
    Deciding(Box<Deciding>),
    Established(Box<Established>),
    /// Only the outbox is still written.
    Closed(Box<Closed>),
}

#[derive(Debug)]
struct Established {
    exchange: Exchange,
    /// Boxed: many clients have none.
    will: Option<Box<Will>>,
    /// 1.5 times the Keep Alive; `None` turns it off.
    keep_alive_timeout: Option<Duration>,
    last_received: Instant,
    wants_problem_information: bool,
    /// Session Expiry Interval of CONNECT, before the server's limit.
    wanted_expiry: SessionExpiry,
    /// Enhanced authentication. Boxed: hardly any client has one.
    authentication: Option<Box<Authentication>>,
    /// `None` without an agreement on datagrams. [BQ-81]
    datagrams: Option<Box<DatagramDecoder>>,
}

impl Server {
    /// Machine for a connection that was accepted at `now`.
    pub fn new(options: Arc<ServerOptions>, now: Instant) -> Self {
        let mut timers = Timers::default();
        timers.set_after(Timer::Handshake, now, options.connect_timeout);
        let mut decoder = Decoder::new(ProtocolVersion::V311, options.connect_maximum_size);
        decoder.set_spool(options.spool.clone());
        Self {
            options,
            decoder,
            state: State::Listening,
            timers,
            events: VecDeque::new(),
            opened: BTreeMap::new(),
            early: None,
            permits_datagrams: false,
        }
    }

    fn exchange(&self) -> Option<&Exchange> {
        if let State::Established(established) = &self.state { Some(&established.exchange) } else { None }
    }

    fn exchange_mut(&mut self) -> Option<&mut Exchange> {
        let State::Established(established) = &mut self.state else { return None };
        Some(&mut established.exchange)
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Whether more bytes of a stream may be handled: there is no [`Server::read_obstacle`].
    pub fn is_reading(&self, stream: StreamKey) -> bool {
        self.read_obstacle(stream).is_none()
    }

    /// Reason why no more bytes of a stream may be handled now.
    pub fn read_obstacle(&self, stream: StreamKey) -> Option<ReadObstacle> {
        let is_reading = match &self.state {
            State::Listening => stream.is_control(), // [BQ-3]
            State::Deciding(deciding) => stream.is_control() && deciding.is_challenged(),
            State::Closed(_) => false,
            State::Established(established) => {
                let Exchange { streams, .. } = &established.exchange;
                if !stream.is_control() && !streams.is_reading(stream) {
                    let is_known = streams.is_known(stream);
                    return Some(if is_known { ReadObstacle::PartialBytes } else { ReadObstacle::State });
                }
                if !established.exchange.is_reading(stream) {
                    return Some(ReadObstacle::Unacknowledged);
                }
                !self.holds_early()
            }
        };
        (!is_reading).then_some(ReadObstacle::State)
    }

    /// Stream for packets that belong to `stream`: itself, or the control stream when it has ended. [BQ-42]
    pub fn resolve(&self, stream: StreamKey) -> StreamKey {
        self.exchange().map_or(StreamKey::CONTROL, |exchange| exchange.streams.resolve(stream))
    }

    /// Whether the connection is closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        self.exchange().map(|exchange| &exchange.session)
    }

    /// Will, while the connection is established.
    pub fn will(&self) -> Option<&Will> {
        if let State::Established(established) = &self.state { established.will.as_deref() } else { None }
    }

    /// Agreed Keep Alive in seconds, while the connection is established; 0 turns it off.
    pub fn keep_alive(&self) -> Option<u16> {
        let State::Established(established) = &self.state else { return None };
        let timeout = established.keep_alive_timeout.unwrap_or_default();
        u16::try_from(timeout.as_millis() / 1500).ok()
    }

    /// Reports of the control stream and of at most `limit` data streams, in the order of their keys, while the
    /// connection is established. Visits every stream.
    pub fn stream_reports(&self, limit: usize) -> Vec<StreamReport> {
        self.exchange().map(|exchange| exchange.streams.reports(limit)).unwrap_or_default()
    }

    /// Number of data streams that have not ended in both directions.
    pub fn data_streams(&self) -> usize {
        self.exchange().map_or(0, |exchange| exchange.streams.data_streams())
    }

    /// Whether events are to be polled.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Events that are to be polled, the next one first.
    pub fn pending_events(&self) -> impl ExactSizeIterator<Item = &Event> {
        self.events.iter()
    }

    /// Protocol version of the client, from its CONNECT on.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.decoder.offered_version()
    }

    /// Bytes in the heap of incomplete packets, on all streams.
    pub fn partial_len(&self) -> usize {
        let data = self.exchange().map_or(0, |exchange| exchange.streams.partial_len());
        self.decoder.partial_len() + data
    }

    // -- Input -------------------------------------------------------------------------------------

    /// Handles bytes of a stream: whole packets, parts of packets, or both.
    pub fn handle_bytes(&mut self, stream: StreamKey, input: &[u8], now: Instant) {
        self.note_bytes(now);
        if stream.is_control() {
            if let Some(exchange) = self.exchange_mut() {
                exchange.streams.note_control_received(input.len());
            }
            self.handle_control(input, now);
        } else {
            self.handle_data(stream, input, now);
        }
        if let Some(exchange) = self.exchange_mut() {
            exchange.handle_persisted(None);
        }
    }

    /// Handles a datagram of the transport: one message of QoS 0.
    ///
    /// # Errors
    /// The datagram has no effect, and the connection goes on. [BQ-85]
    pub fn handle_datagram(&mut self, datagram: &[u8], now: Instant) -> Result<(), Violation> {
        self.note_bytes(now);
        let is_early = self.early.is_some();
        let State::Established(established) = &mut self.state else {
            return Err(Violation::DatagramNotAgreed);
        };
        // Early data may be a replay, and a held message would be late.
        let Some(decoder) = established.datagrams.as_mut().filter(|_| !is_early) else {
            return Err(Violation::DatagramNotAgreed);
        };
        let publish = decoder.decode(established.exchange.streams.agreement(), datagram)?;
        self.handle_packet(StreamKey::CONTROL, Packet::Publish(publish), now)
    }

    /// Notes the arrival of bytes on some stream, read or not. They restart the Keep Alive, so that a packet which
    /// takes longer than it does not end its connection, unless [`ServerOptions::strict_keep_alive`] is set. [BQ-44]
    pub fn note_bytes(&mut self, now: Instant) {
        if !self.options.strict_keep_alive {
            self.reset_keep_alive(now);
        }
    }

    /// Restarts the Keep Alive, also a strict one: the server did not read, by its own choice.
    pub fn reset_keep_alive(&mut self, now: Instant) {
        if let State::Established(established) = &mut self.state {
            established.last_received = now;
        }
    }

    fn handle_control(&mut self, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            if let State::Deciding(deciding) = &mut self.state
                && !deciding.is_challenged()
            {
                deciding.held.extend_from_slice(input);
                return;
            }
            if self.holds_early()
                && let Some(early) = &mut self.early
            {
                early.rest.extend_from_slice(input);
                return;
            }
            if self.is_closed() {
                return; // Bytes behind a DISCONNECT are ignored. [MQTT-3.14.4-1], [MQTT-3.14.4-2]
            }
            let mut none = PartialMessages::default();
            let parts = match &mut self.state {
                State::Established(established) => &mut established.exchange.session.partials,
                _ => &mut none,
            };
            match self.decoder.decode_with(&mut input, parts) {
                Ok(Some(packet)) => {
                    if let Err(violation) = self.handle_packet(StreamKey::CONTROL, packet, now) {
                        self.handle_violation(violation);
                    }
                }
                Ok(None) => break,
                Err(violation) => self.handle_violation(violation),
            }
        }
    }

    /// Handles the instant of [`Server::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.is_due(Timer::Handshake, now) {
            self.timers.set(Timer::Handshake, None);
            self.close(Cause::Violation(Violation::ConnectTimeout));
        }
        if self.timers.is_due(Timer::PartialMemory, now) {
            self.handle_partial_memory_timer(now);
        }
        if self.timers.is_due(Timer::Partial, now) {
            self.handle_partial_idle_timer(now);
        }
        if !self.timers.is_due(Timer::Peer, now) {
            return;
        }
        self.timers.set(Timer::Peer, None);
        if let State::Established(established) = &self.state
            && let Some(keep_alive_timeout) = established.keep_alive_timeout
        {
            // The timer is not moved with every read: its expiry compares with the last one.
            let deadline = established.last_received + keep_alive_timeout;
            if deadline <= now {
                self.handle_violation(Violation::KeepAliveTimeout); // [MQTT-3.1.2-22]
            } else {
                self.timers.set(Timer::Peer, Some(deadline));
            }
        }
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Session, to change its subscriptions. Still available at the end of the connection until [`Server::take_end`]:
    /// packets received before the end have their effect.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Established(established) => Some(&mut established.exchange.session),
            State::Closed(closed) => closed.end.as_mut()?.session.as_mut(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    // -- Output ------------------------------------------------------------------------------------

    /// Next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > 64 {
            self.events = VecDeque::new(); // An idle connection keeps no capacity of a burst.
        }
        event
    }

    /// Puts an event back whose handling goes on later: it is polled next.
    pub fn put_back_event(&mut self, event: Event) {
        self.events.push_front(event);
    }

    /// Next progress of a delivery with a [`Delivery::queue_lsn`], for the store. Progress made before the end of the
    /// connection can be polled after it.
    pub fn poll_progress(&mut self) -> Option<Progress> {
        match &mut self.state {
            State::Established(established) => established.exchange.progress.pop_front(),
            State::Closed(closed) => closed.progress.pop_front(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    /// Next instant for [`Server::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }
}

impl Server {
    fn handle_packet(
        &mut self,
        on: StreamKey,
        packet: BorrowedPacket<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        let established = match &mut self.state {
            State::Established(established) => established,
            State::Listening => return self.handle_first_packet(packet),
            State::Deciding(_) => return self.handle_packet_of_authentication(packet),
            State::Closed(_) => return Ok(()),
        };
        established.last_received = now; // [MQTT-3.1.2-22]
        let exchange = &mut established.exchange;
        match packet {
            Packet::Publish(publish) => {
                if !publish.subscription_ids.is_empty() {
                    return Err(Violation::SubscriptionIdFromClient); // [MQTT-3.3.4-6]
                }
                if let Some(problem) = exchange.session.partials.problem_of(&publish) {
                    let explanation = established.wants_problem_information.then(|| problem.to_string());
                    exchange.refuse_offset(on, publish, explanation)?; // [BQ-99]
                    self.emit(Event::OffsetRefused(on, problem));
                    return Ok(());
                }
                if let Some((message, token)) = exchange.handle_publish(on, publish, now)? {
                    self.emit(Event::Publish(message, token));
                }
            }
            Packet::Ack(ack) => match exchange.handle_ack(on, &ack) {
                Acknowledged::Complete(id, reason) => {
                    self.emit(Event::Complete(id, reason));
                }
                Acknowledged::Released(token) => self.emit(Event::Release(token)),
                Acknowledged::OffsetRefused(_) | Acknowledged::Nothing => {}
            },
            Packet::Subscribe(mut subscribe) => {
                if let Some(mounting) = exchange.mounting() {
                    mounting.mount_subscribe(&mut subscribe);
                }
                exchange.enqueue_ack(on, PendingAck::Unanswered(subscribe.packet_id));
                self.emit(Event::Subscribe(on, subscribe));
            }
            Packet::Unsubscribe(mut unsubscribe) => {
                if let Some(mounting) = exchange.mounting() {
                    mounting.mount_unsubscribe(&mut unsubscribe);
                }
                exchange.enqueue_ack(on, PendingAck::Unanswered(unsubscribe.packet_id));
                self.emit(Event::Unsubscribe(on, unsubscribe));
            }
            Packet::Pingreq => {
                exchange.send_packet(&Packet::Pingresp); // [MQTT-3.12.4-1], [BQ-11]
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(disconnect),
            Packet::Auth(auth) => return self.handle_auth(auth),
            Packet::Connect(_) => return Err(Violation::SecondConnect), // [MQTT-3.1.0-2]
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                return Err(Violation::UnexpectedPacket(packet.packet_type()));
            }
        }
        Ok(())
    }

    /// Declares everything up to and including `token` durable: its acknowledgements are sent.
    pub fn handle_persisted(&mut self, token: Token) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.handle_persisted(Some(token));
        }
    }

    /// Sets the Reason Code of the acknowledgement of a PUBLISH, before its token is durable.
    pub fn set_reason(&mut self, token: Token, reason: ReasonCode) {
        if let Some(exchange) = self.exchange_mut() {
            exchange.set_reason(token, reason);
        } else if token.is_exactly_once
            && reason.is_error()
            && let Some(session) = self.session_mut()
        {
            // The connection has ended in the turn of the PUBLISH. Its repetition must not be taken for a duplicate of
            // a message that was refused. [MQTT-4.3.3-9]
            session.inbound.release(token.stream, token.packet_id);
        }
    }

    /// Answers a SUBSCRIBE with one code for each entry; the SUBACK waits for the token. `None`: the connection has
    /// ended, or no such request is unanswered. Answer events in their order: a token covers all before it.
    pub fn suback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Suback)).collect(); // [MQTT-3.8.4-7], [MQTT-3.9.3-2]
        let suback = Suback { packet_id, codes, reason_string: None, user: UserProperties::new() };
        self.answer(on, packet_id, PendingAck::Suback(Box::new(suback))) // [MQTT-2.2.1-6], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.8.4-6]
    }

    /// Answers an UNSUBSCRIBE with one code for each filter; the UNSUBACK waits for the token. `None` as for
    /// [`Self::suback`].
    pub fn unsuback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Unsuback)).collect(); // [MQTT-3.11.3-2]
        let unsuback = Unsuback { packet_id, codes, reason_string: None, user: UserProperties::new() };
        self.answer(on, packet_id, PendingAck::Unsuback(Box::new(unsuback))) // [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6]
    }

    fn answer(&mut self, on: StreamKey, packet_id: PacketId, answer: PendingAck) -> Option<Token> {
        self.exchange_mut()?.acks.answer(on, packet_id, answer)
    }

    // -- Deliveries --------------------------------------------------------------------------------

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        self.exchange().is_some_and(|exchange| exchange.takes(delivery))
    }

    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        self.exchange().is_some_and(Exchange::has_send_quota)
    }

    /// Sends a message.
    pub fn deliver(&mut self, delivery: Delivery, now: Instant) -> Sent {
        match self.exchange_mut() {
            Some(exchange) => exchange.send(delivery, now),
            None => Sent::Blocked(Box::new(delivery)),
        }
    }

    /// Declares that the transport carries datagrams: a client that asks for them gets its messages of QoS 0 so.
    /// [BQ-81]
    pub fn permit_datagrams(&mut self) {
        self.permits_datagrams = true;
    }

    /// Whether the client and this side have agreed on datagrams.
    pub fn sends_datagrams(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.datagrams.is_some())
    }

    /// Whether a delivery is for a datagram of at most `limit` bytes, as far as its size is known without its
    /// properties. [BQ-83]
    pub fn takes_datagram(&self, delivery: &Delivery, limit: usize) -> bool {
        datagram::fits(delivery, limit)
    }

    /// Packet of a delivery for a datagram of at most `limit` bytes, if both sides have agreed on datagrams. `None`: it
    /// is to be sent by [`Server::deliver`]. [BQ-83]
    pub fn datagram(&self, delivery: &Delivery, limit: usize, now: Instant) -> Option<Bytes> {
        self.exchange().filter(|_| self.sends_datagrams())?.datagram(delivery, limit, now)
    }

    /// Whether retransmissions are pending.
    pub fn is_resending(&self) -> bool {
        self.exchange().is_some_and(Exchange::is_resending)
    }

    /// Continues retransmission, a limited number of bytes at a time; to be called whenever bytes were read or written.
    /// Messages that are not permitted by `may_send` end as if they had been
    /// completed.
    pub fn continue_resend(&mut self, now: Instant, may_send: impl FnMut(&Delivery) -> bool) {
        let State::Established(established) = &mut self.state else { return };
        // Asked in each turn of a connection; nearly always there is nothing.
        if !established.exchange.is_resending() {
            return;
        }
        for (id, reason) in established.exchange.flush_resends(now, may_send) {
            self.events.push_back(Event::Complete(id, reason));
        }
    }
}

impl Server {
    /// Declares all bytes until [`Server::handle_confirmed`] early data (0-RTT), which an attacker may have replayed.
    pub fn set_early(&mut self) {
        self.early = Some(Box::default());
    }

    /// Handles the confirmation of the transport's handshake: held events are emitted, and the input behind them is
    /// handled.
    pub fn handle_confirmed(&mut self, now: Instant) {
        let Some(early) = self.early.take() else { return };
        let EarlyInput { events, disconnect, rest } = *early;
        self.events.extend(events);
        if let Some(disconnect) = disconnect
            && let Err(violation) = self.handle_disconnect(disconnect)
        {
            self.handle_violation(violation);
        }
        self.handle_control(&rest, now);
        if let Some(exchange) = self.exchange_mut() {
            exchange.handle_persisted(None);
        }
    }

    /// Whether input waits for the confirmation; nothing more is read meanwhile.
    fn holds_early(&self) -> bool {
        self.early.as_ref().is_some_and(|early| !early.events.is_empty() || early.disconnect.is_some())
    }

    /// Emits an event, at once or after the confirmation of the handshake. From the first held PUBLISH on, all events
    /// are held: a token covers all before it, so nothing may overtake.
    fn emit(&mut self, event: Event) {
        let Some(early) = &mut self.early else { return self.events.push_back(event) };
        let held = &mut early.events;
        let is_publish = matches!(event, Event::Publish(..));
        if !is_publish && held.is_empty() || self.options.early_publish == EarlyPublish::Accept {
            return self.events.push_back(event);
        }
        let State::Established(established) = &mut self.state else { return held.push_back(event) };
        match event {
            Event::Publish(_, token)
                if self.options.early_publish == EarlyPublish::Reject
                    && established.exchange.version().is_v5() =>
            {
                if let Some(token) = token {
                    established.exchange.set_reason(token, ReasonCode::ImplementationSpecificError);
                    established.exchange.acks.waive(token);
                }
            }
            event => held.push_back(event),
        }
    }
}
