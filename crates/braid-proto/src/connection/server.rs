//! The server's end of a Network Connection.

mod early;
mod streams;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cause;
use super::acks::{Token, Waiting};
use super::exchange::{Acknowledged, Agreement, Exchange, Progress, Sent};
use super::outbox::Outbox;
use super::timer::{Timer, Timers};
use crate::codec::Decoder;
use crate::codec::wire::{PACKET_SIZE_MAX, VARIABLE_BYTE_INTEGER_MAX};
use crate::error::Violation;
use crate::message::{Delivery, Message};
use crate::packet::{
    Connack, ConnackProperties, Connect, Disconnect, Packet, PacketId, PacketType, ProtocolVersion, Suback,
    Subscribe, Unsuback, Unsubscribe, Will,
};
use crate::reason::ReasonCode;
use crate::session::{Session, SessionExpiry};
use crate::stream::StreamKey;

use early::Early;
pub use early::EarlyPublish;
use streams::Opened;

/// What a server grants its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long a stranger may take to send CONNECT.
    pub connect_timeout: Duration,
    /// The most bytes that a CONNECT may have.
    pub connect_maximum_size: usize,
    /// Receive Maximum of the server. MQTT 3 has no such limit but the number of packet identifiers.
    pub receive_maximum: u16,
    /// The most QoS 1 and 2 messages that are on their way to a client which sets no lower limit.
    pub maximum_inflight: u16,
    /// The most payload bytes that are kept until a client acknowledges them; a single message may have more.
    pub maximum_inflight_bytes: usize,
    /// Maximum Packet Size of the server, bytes with the fixed header.
    pub maximum_packet_size: usize,
    /// Topic Alias Maximum: how many a client may define.
    pub topic_alias_maximum: u16,
    /// The most aliases that the server defines for a client which accepts as many.
    pub outbound_topic_aliases: u16,
    /// The longest Keep Alive in seconds; 0 leaves the choice to the client.
    pub maximum_keep_alive: u16,
    /// The longest Session Expiry Interval.
    pub maximum_session_expiry: SessionExpiry,
    /// Response Information for clients that ask for it.
    pub response_information: Option<Box<str>>,
    /// The most bytes of incomplete packets on all data streams of a connection; one packet may exceed it. [BQ-45]
    pub maximum_partial_bytes: usize,
    /// How long that packet may stand still.
    pub partial_timeout: Duration,
    /// What becomes of a PUBLISH in early data.
    pub early_publish: EarlyPublish,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            connect_maximum_size: 64 * 1024,
            receive_maximum: 1024,
            maximum_inflight: 1024,
            maximum_inflight_bytes: 32 * 1024 * 1024,
            maximum_packet_size: PACKET_SIZE_MAX,
            topic_alias_maximum: 64,
            outbound_topic_aliases: 64,
            maximum_keep_alive: 0,
            maximum_session_expiry: SessionExpiry::NEVER,
            response_information: None,
            maximum_partial_bytes: 64 * 1024 * 1024,
            partial_timeout: Duration::from_secs(30),
            early_publish: EarlyPublish::default(),
        }
    }
}

/// What the shell must answer or know.
#[derive(Debug)]
pub enum Event {
    /// A CONNECT: answer with [`Server::accept`] or [`Server::reject`]. Nothing more is read until then.
    Connect(Box<Connect>),
    /// A message to route. With a token its acknowledgement waits for [`Server::handle_persisted`].
    Publish(Arc<Message>, Option<Token>),
    /// PUBREL: an identifier of QoS 2 is free again. Its PUBCOMP waits for [`Server::handle_persisted`].
    Release(Token),
    /// A SUBSCRIBE on this stream: answer with [`Server::suback`].
    Subscribe(StreamKey, Box<Subscribe>),
    /// An UNSUBSCRIBE on this stream: answer with [`Server::unsuback`].
    Unsubscribe(StreamKey, Box<Unsubscribe>),
    /// The client broke the specification on a data stream, which is ended for it.
    StreamViolated(StreamKey, Violation),
    /// A data stream has ended: its subscriptions go to the control stream. [BQ-42]
    StreamEnded(StreamKey),
    /// A message of ours is completely acknowledged: the exchange of this identifier is over.
    Complete(PacketId, ReasonCode),
}

/// What the shell adds to the CONNACK of success.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    /// The session existed before.
    pub session_present: bool,
    /// The client left the choice of its Client Identifier to the server. [MQTT-3.2.2-16]
    pub assigned_client_id: bool,
}

/// What is left when a connection has ended.
#[derive(Debug)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// The session, if the connection came so far.
    pub session: Option<Session>,
    /// The Will, unless it was deleted by a normal DISCONNECT. [MQTT-3.1.2-8], [MQTT-3.1.2-10]
    pub will: Option<Will>,
}

/// The server's protocol machine.
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
    opened: Vec<Opened>,
    /// Until the handshake is confirmed, if anything comes before.
    early: Option<Box<Early>>,
}

#[derive(Debug)]
enum State {
    /// Waiting for CONNECT.
    Listening,
    /// CONNECT is with the shell; what came behind it is held.
    Deciding(Box<Deciding>),
    Established(Box<Established>),
    /// Only what is in the outbox is still to be sent.
    Closed(Box<Closed>),
}

#[derive(Debug)]
struct Deciding {
    /// The CONNECT without what the shell got to see.
    version: ProtocolVersion,
    keep_alive: u16,
    will: Option<Will>,
    peer_receive_maximum: u16,
    peer_maximum_packet_size: usize,
    peer_topic_aliases: u16,
    wants_response_information: bool,
    wants_problem_information: bool,
    session_expiry: SessionExpiry,
    /// Bytes that followed the CONNECT in the same read.
    held: Vec<u8>,
}

#[derive(Debug)]
struct Established {
    exchange: Exchange,
    will: Option<Will>,
    /// One and a half times the Keep Alive; `None` turns it off.
    patience: Option<Duration>,
    last_received: Instant,
    wants_problem_information: bool,
    /// What CONNECT asked for, whatever was granted.
    wanted_expiry: SessionExpiry,
}

#[derive(Debug)]
struct Closed {
    outbox: Outbox,
    /// Until it is taken.
    end: Option<End>,
    /// What the shell has not heard yet.
    progress: VecDeque<Progress>,
}

impl Server {
    /// A connection that was accepted at `now`.
    pub fn new(options: Arc<ServerOptions>, now: Instant) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, now.checked_add(options.connect_timeout));
        let decoder = Decoder::new(ProtocolVersion::V311, options.connect_maximum_size);
        Self {
            options,
            decoder,
            state: State::Listening,
            timers,
            events: VecDeque::new(),
            opened: Vec::new(),
            early: None,
        }
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Whether more bytes of a stream may be handled. False while the shell decides about a CONNECT, while as many
    /// acknowledgements wait as the Receive Maximum allows [BQ-23], and at the end; on a data stream also before the
    /// CONNECT is accepted [BQ-13] and while incomplete packets are too large [BQ-45].
    pub fn is_reading(&self, stream: StreamKey) -> bool {
        match &self.state {
            State::Listening => stream.is_control(), // [BQ-3]
            State::Deciding(_) | State::Closed(_) => false,
            State::Established(established) => {
                let exchange = &established.exchange;
                exchange.is_reading(stream)
                    && !self.holds_early()
                    && (stream.is_control() || exchange.streams.is_reading(stream))
            }
        }
    }

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.takes(delivery))
    }

    /// Where something for this stream goes: there, or on the control stream when it has ended. [BQ-42]
    pub fn resolve(&self, stream: StreamKey) -> StreamKey {
        if let State::Established(established) = &self.state {
            established.exchange.streams.resolve(stream)
        } else {
            StreamKey::CONTROL
        }
    }

    /// Whether the connection is to be closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// The session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        if let State::Established(established) = &self.state {
            Some(&established.exchange.session)
        } else {
            None
        }
    }

    /// How long the session will outlive the connection if the CONNECT with the shell is accepted, and the Will
    /// that the connection will have.
    pub fn offer(&self) -> Option<(SessionExpiry, Option<&Will>)> {
        let State::Deciding(deciding) = &self.state else { return None };
        let expiry = deciding.session_expiry.min(self.options.maximum_session_expiry);
        Some((expiry, deciding.will.as_ref()))
    }

    /// Whether events wait to be answered.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The Will of a CONNECT that waits for a decision.
    pub fn offered_will(&self) -> Option<&Will> {
        if let State::Deciding(deciding) = &self.state { deciding.will.as_ref() } else { None }
    }

    /// The version that the client speaks, once it is known.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.decoder.offered_version()
    }

    /// Bytes of a packet which has not ended yet.
    pub fn partial_len(&self) -> usize {
        self.decoder.partial_len()
    }

    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.has_send_quota())
    }

    // -- Input -------------------------------------------------------------------------------------

    /// Handles bytes of a stream: whole packets, parts of packets, or both.
    pub fn handle_bytes(&mut self, stream: StreamKey, input: &[u8], now: Instant) {
        if let State::Established(established) = &mut self.state {
            // Every byte is a sign of life, so that a packet which takes longer than the Keep Alive to arrive
            // does not end its connection. [BQ-44]
            established.last_received = now;
        }
        if stream.is_control() {
            self.handle_control(input, now);
        } else {
            self.handle_data(stream, input, now);
        }
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(None);
        }
    }

    fn handle_control(&mut self, mut input: &[u8], now: Instant) {
        while !input.is_empty() {
            if let State::Deciding(deciding) = &mut self.state {
                deciding.held.extend_from_slice(input);
                return;
            }
            if self.is_closed() {
                return; // What follows a DISCONNECT is not for us. [MQTT-3.14.4-1], [MQTT-3.14.4-2]
            }
            match self.decoder.decode(&mut input) {
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

    /// Handles the end of the link: nothing can be sent any more.
    pub fn handle_link_closed(&mut self) {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state {
            closed.outbox.clear();
        }
    }

    /// Handles the time that [`Server::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.is_due(Timer::Handshake, now) {
            self.timers.set(Timer::Handshake, None);
            self.close(Cause::Violation(Violation::ConnectTimeout));
        }
        if self.timers.is_due(Timer::Hoarder, now) {
            self.handle_hoarder_timer(now);
        }
        if !self.timers.is_due(Timer::Peer, now) {
            return;
        }
        self.timers.set(Timer::Peer, None);
        if let State::Established(established) = &self.state
            && let Some(patience) = established.patience
        {
            // The timer is not moved with every read: it looks back instead.
            let deadline = established.last_received + patience;
            if deadline <= now {
                self.handle_violation(Violation::KeepAliveTimeout); // [MQTT-3.1.2-22]
            } else {
                self.timers.set(Timer::Peer, Some(deadline));
            }
        }
    }

    /// Everything up to and including `token` is durable: its acknowledgements go out.
    pub fn handle_persisted(&mut self, token: Token) {
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(Some(token));
        }
    }

    fn handle_packet(&mut self, on: StreamKey, packet: Packet, now: Instant) -> Result<(), Violation> {
        let established = match &mut self.state {
            State::Established(established) => established,
            State::Listening => return self.handle_first_packet(packet),
            State::Deciding(_) | State::Closed(_) => return Ok(()),
        };
        let exchange = &mut established.exchange;
        match packet {
            Packet::Publish(publish) => {
                if !publish.subscription_ids.is_empty() {
                    return Err(Violation::SubscriptionIdFromClient); // [MQTT-3.3.4-6]
                }
                if let Some(received) = exchange.handle_publish(on, publish, now)? {
                    self.emit(Event::Publish(received.message, received.token));
                }
            }
            Packet::Ack(ack) => match exchange.handle_ack(on, &ack) {
                Acknowledged::Complete(id, reason) => {
                    self.emit(Event::Complete(id, reason));
                    self.flush_resend(now);
                }
                Acknowledged::Released(token) => self.emit(Event::Release(token)),
                Acknowledged::Nothing => {}
            },
            Packet::Subscribe(subscribe) => {
                exchange.owe(on, Waiting::Unanswered(subscribe.packet_id));
                self.emit(Event::Subscribe(on, subscribe));
            }
            Packet::Unsubscribe(unsubscribe) => {
                exchange.owe(on, Waiting::Unanswered(unsubscribe.packet_id));
                self.emit(Event::Unsubscribe(on, unsubscribe));
            }
            Packet::Pingreq => {
                exchange.send_packet(&Packet::Pingresp); // [MQTT-3.12.4-1], [BQ-11]
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(&disconnect),
            // Whoever named an Authentication Method was refused. [MQTT-4.12.0-7]
            Packet::Auth(_) => return Err(Violation::AuthNotNegotiated),
            Packet::Connect(_) => return Err(Violation::SecondConnect), // [MQTT-3.1.0-2]
            Packet::Connack(_) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Pingresp => {
                return Err(Violation::UnexpectedPacket(packet.packet_type()));
            }
        }
        Ok(())
    }

    fn handle_first_packet(&mut self, packet: Packet) -> Result<(), Violation> {
        let Packet::Connect(mut connect) = packet else {
            return Err(Violation::FirstPacketNotConnect(packet.packet_type())); // [MQTT-3.1.0-1]
        };
        check_client_id(&connect)?;
        if connect.properties.authentication_method.is_some() {
            self.refuse(ReasonCode::BadAuthenticationMethod, connect.version); // [MQTT-4.12.0-1], [MQTT-4.12.0-4]
            return Ok(());
        }
        let properties = &connect.properties;
        let size = properties.maximum_packet_size.map_or(usize::MAX, |size| size as usize);
        let deciding = Deciding {
            version: connect.version,
            keep_alive: connect.keep_alive,
            will: connect.will.take(), // [MQTT-3.1.2-7], [MQTT3-3.1.2-12]
            peer_receive_maximum: properties.receive_maximum.unwrap_or(u16::MAX),
            peer_maximum_packet_size: size,
            peer_topic_aliases: properties.topic_alias_maximum.unwrap_or(0),
            wants_response_information: properties.request_response_information.unwrap_or(false), // [MQTT-3.1.2-28]
            wants_problem_information: properties.request_problem_information.unwrap_or(true),
            session_expiry: wanted_expiry(&connect),
            held: Vec::new(),
        };
        self.timers.set(Timer::Handshake, None);
        self.decoder.configure(connect.version, self.options.maximum_packet_size);
        self.state = State::Deciding(Box::new(deciding));
        self.events.push_back(Event::Connect(connect));
        Ok(())
    }

    fn handle_disconnect(&mut self, disconnect: &Disconnect) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else { return Ok(()) };
        if !disconnect_reason_is_of_client(disconnect.reason) {
            return Err(Violation::UnknownReasonCode(PacketType::Disconnect, disconnect.reason.value()));
        }
        if disconnect.server_reference.is_some() {
            return Err(Violation::PropertyNotAllowed(crate::packet::properties::id::SERVER_REFERENCE));
        }
        let session = &mut established.exchange.session;
        if let Some(seconds) = disconnect.session_expiry {
            if seconds > 0 && !established.wanted_expiry.outlives_connection() {
                return Err(Violation::SessionExpiryRaised);
            }
            session.expiry = SessionExpiry::from_secs(seconds).min(self.options.maximum_session_expiry);
        }
        if disconnect.reason == ReasonCode::Success {
            established.will = None; // [MQTT-3.1.2-10], [MQTT-3.14.4-3]
        }
        self.close(Cause::Disconnected(disconnect.reason));
        Ok(())
    }

    fn handle_violation(&mut self, violation: Violation) {
        let refusal = match &self.state {
            State::Listening => self.refusal_of(violation),
            State::Established(_) => {
                self.send_disconnect(violation.reason(), Some(violation)); // [MQTT-4.13.1-1]
                None
            }
            State::Deciding(_) | State::Closed(_) => None,
        };
        self.close(Cause::Violation(violation)); // [MQTT-3.1.4-1], [MQTT-4.13.2-1], [MQTT3-4.8.0-1]
        if let Some((version, reason)) = refusal {
            self.send_refusal(reason, version);
        }
    }

    /// The CONNACK for a CONNECT that is none, if its sender is known to understand one.
    fn refusal_of(&self, violation: Violation) -> Option<(ProtocolVersion, ReasonCode)> {
        let reason = violation.reason();
        match (violation, self.decoder.offered_version()) {
            // [MQTT-3.1.2-2], [MQTT3-3.1.2-2]: in the words of the version nearest to the one that was asked for.
            (Violation::UnsupportedVersion(level), _) if level > 5 => Some((ProtocolVersion::V5, reason)),
            (Violation::UnsupportedVersion(_), _) => Some((ProtocolVersion::V311, reason)),
            // [MQTT-3.1.3-8], [MQTT3-3.1.3-8]
            (Violation::ClientIdNotValid, Some(version)) => Some((version, reason)),
            (_, Some(ProtocolVersion::V5)) => Some((ProtocolVersion::V5, reason)),
            _ => None, // [MQTT3-3.1.4-1]
        }
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Answers a CONNECT with success and goes on with `session`, whose expiry is set to what was agreed. If the
    /// connection has ended meanwhile, the session comes back with [`Server::take_end`].
    pub fn accept(&mut self, mut session: Session, acceptance: &Acceptance, now: Instant) {
        if let State::Closed(closed) = &mut self.state {
            if let Some(end) = &mut closed.end {
                end.session.get_or_insert(session);
            }
            return;
        }
        if !matches!(self.state, State::Deciding(_)) {
            return; // [MQTT-3.2.0-2]
        }
        let State::Deciding(deciding) = mem::replace(&mut self.state, State::Listening) else { return };
        let Deciding { version, keep_alive, will, held, .. } = *deciding;
        let options = self.options.clone();
        session.expiry = deciding.session_expiry.min(options.maximum_session_expiry);
        let keep_alive_limit = options.maximum_keep_alive;
        let agreed_keep_alive = match keep_alive_limit {
            0 => keep_alive,
            limit if keep_alive == 0 || keep_alive > limit => limit,
            _ => keep_alive,
        };
        // MQTT 3 has no way to say so: there the client's own value holds.
        let keep_alive = if version.is_v5() { agreed_keep_alive } else { keep_alive }; // [MQTT-3.2.2-22]
        let properties = ConnackProperties {
            session_expiry: (session.expiry != deciding.session_expiry).then(|| session.expiry.as_secs()),
            receive_maximum: Some(options.receive_maximum),
            // The protocol's own limit needs no words, and some clients refuse to hear them.
            maximum_packet_size: u32::try_from(options.maximum_packet_size)
                .ok()
                .filter(|_| options.maximum_packet_size < VARIABLE_BYTE_INTEGER_MAX),
            assigned_client_id: acceptance.assigned_client_id.then(|| session.client_id.clone()),
            topic_alias_maximum: Some(options.topic_alias_maximum),
            server_keep_alive: (keep_alive != deciding.keep_alive).then_some(keep_alive),
            response_information: options
                .response_information
                .clone()
                .filter(|_| deciding.wants_response_information),
            ..ConnackProperties::default()
        };
        let agreement = Agreement {
            version,
            receive_maximum: if version.is_v5() { options.receive_maximum } else { u16::MAX },
            peer_receive_maximum: deciding.peer_receive_maximum.min(options.maximum_inflight),
            peer_maximum_packet_size: deciding.peer_maximum_packet_size,
            maximum_inflight_bytes: options.maximum_inflight_bytes,
            inbound_aliases: options.topic_alias_maximum,
            outbound_aliases: deciding.peer_topic_aliases.min(options.outbound_topic_aliases),
            maximum_packet_size: options.maximum_packet_size,
            maximum_partial_bytes: options.maximum_partial_bytes,
            is_client: false,
        };
        let mut exchange = Exchange::new(session, agreement);
        Self::begin_streams(mem::take(&mut self.opened), &mut exchange.streams);
        let session_present = acceptance.session_present; // [MQTT-3.2.2-2], [MQTT-3.2.2-3]
        let connack = Connack { session_present, reason: ReasonCode::Success, properties };
        let is_answered = exchange.send_packet(&Packet::Connack(Box::new(connack))); // [MQTT-3.1.4-5], [MQTT-3.2.0-1]
        let patience = (keep_alive > 0).then(|| Duration::from_millis(u64::from(keep_alive) * 1500));
        self.timers.set(Timer::Peer, patience.map(|patience| now + patience));
        self.state = State::Established(Box::new(Established {
            exchange,
            will: will.filter(|_| is_answered),
            patience,
            last_received: now,
            wants_problem_information: deciding.wants_problem_information,
            wanted_expiry: deciding.session_expiry,
        }));
        if !is_answered {
            // Without CONNACK nothing else may be sent. [MQTT-3.1.2-24], [MQTT-3.2.0-1]
            self.close(Cause::Closed(ReasonCode::PacketTooLarge));
            return;
        }
        self.flush_resend(now);
        self.handle_bytes(StreamKey::CONTROL, &held, now);
    }

    /// Whether something must be sent again.
    pub fn is_resending(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.is_resending())
    }

    /// Goes on with what must be sent again, which goes out a little at a time: after every write.
    pub fn continue_resend(&mut self, now: Instant) {
        self.flush_resend(now);
    }

    fn flush_resend(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        for id in established.exchange.flush_resend(now) {
            self.events.push_back(Event::Complete(id, ReasonCode::PacketTooLarge));
        }
    }

    /// Answers a CONNECT with a refusal and closes. [MQTT-3.2.2-7]
    pub fn reject(&mut self, reason: ReasonCode) {
        let State::Deciding(deciding) = &self.state else { return };
        self.refuse(reason, deciding.version); // [MQTT-3.1.4-2], [MQTT3-3.1.3-9]
    }

    fn refuse(&mut self, reason: ReasonCode, version: ProtocolVersion) {
        let reason = if reason.is_error() { reason } else { ReasonCode::UnspecifiedError };
        let reason = reason.allowed_in(PacketType::Connack); // [MQTT-3.2.2-8]
        self.close(Cause::Closed(reason));
        self.send_refusal(reason, version);
    }

    fn send_refusal(&mut self, reason: ReasonCode, version: ProtocolVersion) {
        let State::Closed(closed) = &mut self.state else { return };
        if !version.is_v5() && reason.connack_v3().is_none() {
            return; // [MQTT3-3.2.2-6]
        }
        // [MQTT-3.2.2-6]
        let connack = Connack { session_present: false, reason, properties: ConnackProperties::default() };
        Packet::Connack(Box::new(connack)).encode(version, closed.outbox.open());
    }

    /// Sends a message.
    pub fn deliver(&mut self, delivery: Delivery, now: Instant) -> Sent {
        match &mut self.state {
            State::Established(established) => established.exchange.send(delivery, now),
            _ => Sent::Blocked(Box::new(delivery)),
        }
    }

    /// Sets the Reason Code for the acknowledgement of a PUBLISH before its token is persisted.
    pub fn set_reason(&mut self, token: Token, reason: ReasonCode) {
        if let State::Established(established) = &mut self.state {
            established.exchange.set_reason(token, reason);
        }
    }

    /// Answers a SUBSCRIBE, one code per entry; it waits for the token. `None` when the connection has ended or
    /// nothing is to be answered. Answer events in their order: a token stands for all before it.
    pub fn suback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Suback)).collect(); // [MQTT-3.8.4-7], [MQTT-3.9.3-2]
        let suback = Suback { packet_id, codes, reason_string: None, user: Vec::new() };
        self.answer(on, packet_id, Waiting::Suback(Box::new(suback))) // [MQTT-2.2.1-6], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.8.4-6]
    }

    /// Answers an UNSUBSCRIBE, one code per filter; it waits for the token. `None` when the connection has ended.
    pub fn unsuback(&mut self, on: StreamKey, packet_id: PacketId, codes: Vec<ReasonCode>) -> Option<Token> {
        let codes = codes.into_iter().map(|code| code.allowed_in(PacketType::Unsuback)).collect(); // [MQTT-3.11.3-2]
        let unsuback = Unsuback { packet_id, codes, reason_string: None, user: Vec::new() };
        self.answer(on, packet_id, Waiting::Unsuback(Box::new(unsuback))) // [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6]
    }

    fn answer(&mut self, on: StreamKey, packet_id: PacketId, answer: Waiting) -> Option<Token> {
        let State::Established(established) = &mut self.state else { return None };
        established.exchange.waiting.answer(on, packet_id, answer)
    }

    /// The session, to keep its subscriptions. Also when the connection has ended, until [`Server::take_end`]: what
    /// was received before its end counts, however the bytes were cut.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Established(established) => Some(&mut established.exchange.session),
            State::Closed(closed) => closed.end.as_mut()?.session.as_mut(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    /// Closes the connection; the client learns why if it speaks MQTT 5.
    pub fn disconnect(&mut self, reason: ReasonCode) {
        if matches!(self.state, State::Deciding(_)) {
            let allowed = reason.is_error() && reason.is_allowed_in(PacketType::Connack);
            self.reject(if allowed { reason } else { ReasonCode::ServerUnavailable });
            return;
        }
        let reason = match reason {
            ReasonCode::DisconnectWithWill => ReasonCode::Success, // A client's word.
            reason => reason.allowed_in(PacketType::Disconnect),   // [MQTT-3.14.2-1]
        };
        self.send_disconnect(reason, None);
        self.close(Cause::Closed(reason));
    }

    fn send_disconnect(&mut self, reason: ReasonCode, violation: Option<Violation>) {
        let State::Established(established) = &mut self.state else { return }; // [MQTT-3.14.0-1]
        let exchange = &mut established.exchange;
        if !exchange.version().is_v5() {
            return; // MQTT 3 has no DISCONNECT from the server.
        }
        let mut disconnect = Disconnect::new(reason);
        if established.wants_problem_information {
            // [MQTT-3.1.2-29] allows it here in any case, but whoever wants none gets none.
            disconnect.reason_string = violation.map(|violation| violation.to_string().into());
        }
        exchange.send_packet(&Packet::Disconnect(Box::new(disconnect)));
    }

    fn close(&mut self, cause: Cause) {
        let (outbox, session, will, progress) = match mem::replace(&mut self.state, State::Listening) {
            State::Closed(closed) => {
                self.state = State::Closed(closed);
                return;
            }
            State::Established(established) => {
                let Established { exchange, will, .. } = *established;
                // Only the control stream has a last word.
                (exchange.streams.control.outbox, Some(exchange.session), will, exchange.progress)
            }
            // What was held behind a refused CONNECT goes with it. [MQTT-3.1.4-6]
            State::Deciding(_) | State::Listening => (Outbox::default(), None, None, VecDeque::new()),
        };
        self.timers = Timers::default();
        self.state =
            State::Closed(Box::new(Closed { outbox, end: Some(End { cause, session, will }), progress }));
    }

    // -- Output ------------------------------------------------------------------------------------

    /// The next thing to answer.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > 64 {
            self.events = VecDeque::new(); // Ten thousand idle connections must not keep a burst's memory.
        }
        event
    }

    /// The next thing that a store must know of deliveries that have a place in one ([`Delivery::stored`]). What
    /// came before the end of the connection is told after it, too.
    pub fn poll_progress(&mut self) -> Option<Progress> {
        match &mut self.state {
            State::Established(established) => established.exchange.progress.pop_front(),
            State::Closed(closed) => closed.progress.pop_front(),
            State::Listening | State::Deciding(_) => None,
        }
    }

    /// When to call [`Server::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// What is left of the connection, once it is closed; the outbox may still have bytes to write.
    pub fn take_end(&mut self) -> Option<End> {
        let State::Closed(closed) = &mut self.state else { return None };
        closed.end.take()
    }
}

fn check_client_id(connect: &Connect) -> Result<(), Violation> {
    let id = connect.client_id.as_str();
    // [MQTT3-3.1.3-7], [MQTT3-3.1.3-8]: without a Client Identifier MQTT 3.1.1 allows no session that outlives the
    // connection.
    let needs_one = match connect.version {
        ProtocolVersion::V31 => true,
        ProtocolVersion::V311 => !connect.clean_start,
        ProtocolVersion::V5 => false, // [MQTT-3.1.3-6]
    };
    if id.is_empty() && needs_one { Err(Violation::ClientIdNotValid) } else { Ok(()) }
}

pub(super) fn wanted_expiry(connect: &Connect) -> SessionExpiry {
    match (connect.version.is_v5(), connect.clean_start) {
        (true, _) => SessionExpiry::from_secs(connect.properties.session_expiry.unwrap_or(0)),
        (false, true) => SessionExpiry::WITH_CONNECTION, // [MQTT3-3.1.2-6]
        (false, false) => SessionExpiry::NEVER,          // [MQTT3-3.1.2-4]
    }
}

/// The Reason Codes that a client may send (MQTT 5, table 3-10).
fn disconnect_reason_is_of_client(reason: ReasonCode) -> bool {
    use ReasonCode as R;
    matches!(
        reason,
        R::Success
            | R::DisconnectWithWill
            | R::UnspecifiedError
            | R::MalformedPacket
            | R::ProtocolError
            | R::ImplementationSpecificError
            | R::TopicNameInvalid
            | R::ReceiveMaximumExceeded
            | R::TopicAliasInvalid
            | R::PacketTooLarge
            | R::MessageRateTooHigh
            | R::QuotaExceeded
            | R::AdministrativeAction
            | R::PayloadFormatInvalid
    )
}
