//! The client's end of a Network Connection.

mod grants;
#[cfg(test)]
mod pair;
mod resends;
mod streams;

use std::collections::VecDeque;
use std::mem;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Cause;
use super::acks::Token;
use super::exchange::{Acknowledged, Agreement, Exchange, Sent};
use super::outbox::Outbox;
use super::timer::{Timer, Timers};
use crate::codec::Decoder;
use crate::error::Violation;
use crate::message::{Delivery, Message};
use crate::packet::{
    Auth, ClientId, Connack, ConnackProperties, Connect, Disconnect, Packet, PacketId, PacketType,
    ProtocolVersion, Publish, Suback, Subscribe, SubscribeEntry, Unsuback, Unsubscribe, UserProperties,
};
use crate::reason::ReasonCode;
use crate::session::{Phase, Session, SessionExpiry};
use crate::stream::StreamKey;
use crate::topic::TopicFilter;

use grants::Grants;
pub use grants::Unsendable;

/// What a client decides for itself; everything that is agreed with the server is in its [`Connect`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long the server may take to answer CONNECT.
    pub handshake_timeout: Duration,
    /// How long after a PINGREQ something must have arrived.
    pub ping_timeout: Duration,
    /// The most QoS 1 and 2 messages that are on their way to a server which sets no lower limit.
    pub maximum_inflight: u16,
    /// The most Topic Aliases that the client defines for a server which accepts as many.
    pub outbound_topic_aliases: u16,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            maximum_inflight: 100,
            outbound_topic_aliases: 64,
        }
    }
}

/// What the shell must know or answer.
#[derive(Debug)]
pub enum ClientEvent {
    /// The server accepted the CONNECT.
    Connected(Box<Connected>),
    /// The server refused the CONNECT; the connection is closed. [MQTT-3.2.2-7]
    Refused(Box<Connack>),
    /// A message for the application.
    Message(Incoming),
    /// A message of ours is completely acknowledged: the exchange of this identifier is over.
    Published(PacketId, ReasonCode),
    /// The answer to [`Client::subscribe`].
    Subscribed(Box<Suback>),
    /// The answer to [`Client::unsubscribe`]; without codes before MQTT 5.
    Unsubscribed(Box<Unsuback>),
    /// A step of enhanced authentication: answer with [`Client::authenticate`] if it continues.
    Auth(Box<Auth>),
    /// The server's DISCONNECT; the connection is closed.
    Disconnected(Box<Disconnect>),
    /// The server broke the specification on a data stream, which is ended for it.
    StreamViolated(StreamKey, Violation),
    /// A data stream has ended. Its messages that were not acknowledged go on on the control stream, or where the
    /// shell places them ([`Client::take_resends`]); these requests of it have no answer and must be asked anew.
    StreamEnded(StreamKey, Vec<PacketId>),
}

/// What a CONNACK of success brought.
#[derive(Debug)]
pub struct Connected {
    /// The server goes on with the session: subscriptions are still there.
    pub session_present: bool,
    /// The server's properties; empty before MQTT 5.
    pub properties: ConnackProperties,
    /// What the session had inflight when the server had no session any more, in the order of sending; `None`
    /// for a QoS 2 message whose PUBREC had come, which means that the server has it. [MQTT-3.2.2-5]
    pub lost: Vec<(PacketId, Option<Delivery>)>,
}

/// A message that arrived.
#[derive(Debug)]
pub struct Incoming {
    /// The message with the QoS and RETAIN of this PUBLISH.
    pub message: Arc<Message>,
    /// The server sent it before, or believes so.
    pub dup: bool,
    /// The identifier of its PUBLISH; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// The Topic Alias that stood for its topic or was defined with it.
    pub topic_alias: Option<u16>,
    /// The Subscription Identifiers that it matched.
    pub subscription_ids: Vec<NonZeroU32>,
    /// With QoS 1 and 2: give it to [`Client::acknowledge`] once the message is taken.
    pub token: Option<Token>,
}

/// The client's protocol machine.
///
/// ```text
///            CONNACK of success                 violation, DISCONNECT, disconnect()
/// Connecting ------------------> Established --------------------------------------> Closed
///     |                                                                                ^
///     +--------------------------------------------------------------------------------+
///            CONNACK of refusal, violation, disconnect()
/// ```
#[derive(Debug)]
pub struct Client {
    options: Arc<ClientOptions>,
    decoder: Decoder,
    state: State,
    timers: Timers,
    events: VecDeque<ClientEvent>,
}

#[derive(Debug)]
enum State {
    /// CONNECT is sent or in the outbox.
    Connecting(Box<Connecting>),
    Established(Box<Established>),
    /// Only what is in the outbox is still to be sent.
    Closed(Box<Closed>),
}

#[derive(Debug)]
struct Connecting {
    outbox: Outbox,
    /// The Session State on this side, if there is any.
    session: Option<Session>,
    /// Clean Start: the state is not offered to the server, only told as lost.
    clean_start: bool,
    /// What of the CONNECT counts after it was sent.
    version: ProtocolVersion,
    client_id: ClientId,
    keep_alive: u16,
    session_expiry: SessionExpiry,
    receive_maximum: u16,
    maximum_packet_size: usize,
    inbound_aliases: u16,
    authenticates: bool,
    /// The shell places what is sent again.
    places_resends: bool,
}

#[derive(Debug)]
struct Established {
    exchange: Exchange,
    grants: Grants,
    /// `None` turns it off.
    keep_alive: Option<Duration>,
    last_sent: Instant,
    last_received: Instant,
    /// The PINGREQ that waits for its answer.
    pinged: Option<Instant>,
    /// The application takes no more messages, so nothing is read, not even a PINGRESP.
    paused: bool,
    authenticates: bool,
    session_expires_with_connection: bool,
}

#[derive(Debug)]
struct Closed {
    outbox: Outbox,
    cause: Cause,
    session: Option<Session>,
}

impl Client {
    /// A connection whose link came up at `now`. `session` is that of the connection before, from
    /// [`Client::into_end`], or an empty one to go on with what the server may have kept; `None` when there is
    /// none. With Clean Start it ends here, and what it has inflight comes back as [`Connected::lost`].
    pub fn new(
        options: Arc<ClientOptions>,
        connect: Connect,
        session: Option<Session>,
        now: Instant,
    ) -> Self {
        let mut timers = Timers::default();
        timers.set(Timer::Handshake, Some(now + options.handshake_timeout));
        let properties = &connect.properties;
        let maximum_packet_size = properties.maximum_packet_size.map_or(usize::MAX, |size| size as usize);
        let connecting = Connecting {
            outbox: Outbox::default(),
            session,
            clean_start: connect.clean_start,
            version: connect.version,
            client_id: connect.client_id.clone(),
            keep_alive: connect.keep_alive,
            session_expiry: super::server::wanted_expiry(&connect),
            receive_maximum: match connect.version.is_v5() {
                true => properties.receive_maximum.unwrap_or(u16::MAX),
                false => u16::MAX, // MQTT 3 has no way to tell the server.
            },
            maximum_packet_size,
            inbound_aliases: properties.topic_alias_maximum.unwrap_or(0),
            authenticates: properties.authentication_method.is_some(),
            places_resends: false,
        };
        let decoder = Decoder::new(connect.version, maximum_packet_size); // [MQTT-3.1.2-24]
        let mut client = Self {
            options,
            decoder,
            state: State::Connecting(Box::new(connecting)),
            timers,
            events: VecDeque::new(),
        };
        if let State::Connecting(connecting) = &mut client.state {
            let version = connect.version;
            // [MQTT-3.1.0-1]
            Packet::Connect(Box::new(connect)).encode(version, connecting.outbox.open());
        }
        client
    }

    // -- Getters -----------------------------------------------------------------------------------

    /// Whether CONNACK has come and nothing has ended the connection.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established(_))
    }

    /// Whether the connection is to be closed as soon as the outbox is written.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Why the connection is closed.
    pub fn cause(&self) -> Option<Cause> {
        if let State::Closed(closed) = &self.state { Some(closed.cause) } else { None }
    }

    /// The session, while the connection is established.
    pub fn session(&self) -> Option<&Session> {
        if let State::Established(established) = &self.state {
            Some(&established.exchange.session)
        } else {
            None
        }
    }

    /// Whether QoS 1 and 2 messages can be sent now.
    pub fn has_send_quota(&self) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.has_send_quota())
    }

    /// How many received messages have no acknowledgement in the outbox yet.
    pub fn unacknowledged(&self) -> usize {
        if let State::Established(established) = &self.state { established.exchange.waiting.len() } else { 0 }
    }

    /// Whether this message can be sent now.
    pub fn takes(&self, delivery: &Delivery) -> bool {
        matches!(&self.state, State::Established(established) if established.exchange.takes(delivery))
    }

    // -- Input -------------------------------------------------------------------------------------

    /// Handles bytes of a stream: whole packets, parts of packets, or both.
    pub fn handle_bytes(&mut self, stream: StreamKey, input: &[u8], now: Instant) {
        if let State::Established(established) = &mut self.state {
            established.last_received = now; // [BQ-44]
        }
        let unsent = self.unwritten();
        if stream.is_control() {
            self.handle_control(input, now);
        } else {
            self.handle_data(stream, input, now);
        }
        if let State::Established(established) = &mut self.state {
            established.exchange.handle_persisted(None);
            if established.exchange.streams.unwritten() > unsent {
                established.last_sent = now;
            }
        }
    }

    fn handle_control(&mut self, mut input: &[u8], now: Instant) {
        while !input.is_empty() && !self.is_closed() {
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

    /// Handles the time that [`Client::poll_timeout`] named.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.timers.is_due(Timer::Handshake, now) {
            self.close(Cause::Violation(Violation::ConnackTimeout));
        }
        if self.timers.is_due(Timer::Peer, now) {
            self.handle_peer_timer(now);
        }
        if self.timers.is_due(Timer::Ping, now) {
            self.handle_ping_timer(now);
        }
    }

    fn handle_peer_timer(&mut self, now: Instant) {
        self.timers.set(Timer::Peer, None);
        let State::Established(established) = &mut self.state else { return };
        let Some(pinged) = established.pinged else { return };
        if established.paused || established.last_received > pinged {
            // A large packet may be what keeps the PINGRESP from arriving.
            established.pinged = Some(now);
            self.timers.set(Timer::Peer, Some(now + self.options.ping_timeout));
        } else {
            self.close(Cause::Violation(Violation::PingrespTimeout));
        }
    }

    fn handle_ping_timer(&mut self, now: Instant) {
        self.timers.set(Timer::Ping, None);
        let State::Established(established) = &mut self.state else { return };
        let Some(keep_alive) = established.keep_alive else { return };
        // Silence of the server is no reason of the standard's, but the only way to notice that it is gone
        // while we send nothing which it acknowledges.
        let idle_since = if established.paused {
            established.last_sent
        } else {
            established.last_sent.min(established.last_received)
        };
        if idle_since + keep_alive > now {
            self.timers.set(Timer::Ping, Some(idle_since + keep_alive));
            return;
        }
        established.exchange.send_packet(&Packet::Pingreq); // [MQTT-3.1.2-20]
        established.last_sent = now;
        if established.pinged.is_none() {
            established.pinged = Some(now);
            self.timers.set(Timer::Peer, Some(now + self.options.ping_timeout));
        }
        self.timers.set(Timer::Ping, Some(now + keep_alive));
    }

    fn handle_packet(&mut self, on: StreamKey, packet: Packet, now: Instant) -> Result<(), Violation> {
        let established = match &mut self.state {
            State::Established(established) => established,
            State::Connecting(_) => return self.handle_first_packet(packet, now),
            State::Closed(_) => return Ok(()),
        };
        let exchange = &mut established.exchange;
        match packet {
            Packet::Publish(publish) => return self.handle_publish(on, publish, now),
            Packet::Ack(ack) => match exchange.handle_ack(on, &ack) {
                Acknowledged::Complete(id, reason) => {
                    for id in exchange.flush_resend(now) {
                        self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
                    }
                    // Only PUBCOMP says so, when the PUBCOMP before it was lost with its connection: the server
                    // has the message. "This is not an error during recovery" (MQTT 5, table 3-13).
                    let is_done = reason == ReasonCode::PacketIdentifierNotFound;
                    let reason = if is_done { ReasonCode::Success } else { reason };
                    self.events.push_back(ClientEvent::Published(id, reason));
                }
                // Forgetting the identifier is in memory and done: PUBCOMP only waits for its turn.
                Acknowledged::Released(token) => exchange.waiting.waive(token),
                Acknowledged::Nothing => {}
            },
            Packet::Suback(suback) => {
                if exchange.session.outbound.handle_control(suback.packet_id) {
                    self.events.push_back(ClientEvent::Subscribed(suback));
                }
            }
            Packet::Unsuback(unsuback) => {
                if exchange.session.outbound.handle_control(unsuback.packet_id) {
                    self.events.push_back(ClientEvent::Unsubscribed(unsuback));
                }
            }
            Packet::Pingresp => {
                established.pinged = None;
                self.timers.set(Timer::Peer, None);
            }
            Packet::Disconnect(disconnect) => return self.handle_disconnect(disconnect),
            Packet::Auth(auth) if established.authenticates => {
                self.events.push_back(ClientEvent::Auth(auth));
            }
            Packet::Auth(_) => return Err(Violation::AuthNotNegotiated), // [MQTT-4.12.0-6]
            Packet::Connect(_)
            | Packet::Connack(_)
            | Packet::Subscribe(_)
            | Packet::Unsubscribe(_)
            | Packet::Pingreq => return Err(Violation::UnexpectedPacket(packet.packet_type())),
        }
        Ok(())
    }

    fn handle_publish(&mut self, on: StreamKey, mut publish: Publish, now: Instant) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else { return Ok(()) };
        let Publish { dup, packet_id, topic_alias, .. } = publish;
        let subscription_ids = mem::take(&mut publish.subscription_ids);
        if let Some(received) = established.exchange.handle_publish(on, publish, now)? {
            let (message, token) = (received.message, received.token);
            let incoming = Incoming { message, dup, packet_id, topic_alias, subscription_ids, token };
            self.events.push_back(ClientEvent::Message(incoming));
        }
        Ok(())
    }

    fn handle_first_packet(&mut self, packet: Packet, now: Instant) -> Result<(), Violation> {
        let State::Connecting(connecting) = &self.state else { return Ok(()) };
        match packet {
            Packet::Connack(connack) if connack.reason.is_error() => {
                let reason = connack.reason;
                self.events.push_back(ClientEvent::Refused(connack));
                self.close(Cause::Refused(reason));
                Ok(())
            }
            Packet::Connack(connack) => self.handle_connack(*connack, now),
            Packet::Auth(auth) if connecting.authenticates => {
                self.timers.set(Timer::Handshake, Some(now + self.options.handshake_timeout));
                self.events.push_back(ClientEvent::Auth(auth));
                Ok(())
            }
            Packet::Auth(_) => Err(Violation::AuthNotNegotiated), // [MQTT-4.12.0-6]
            other => Err(Violation::UnexpectedPacket(other.packet_type())), // [MQTT-3.2.0-1]
        }
    }

    fn handle_connack(&mut self, connack: Connack, now: Instant) -> Result<(), Violation> {
        let State::Connecting(connecting) = &mut self.state else { return Ok(()) };
        let Connack { session_present, properties, .. } = connack;
        if session_present && (connecting.session.is_none() || connecting.clean_start) {
            return Err(Violation::SessionPresentWithoutSession); // [MQTT-3.2.2-4]
        }
        let version = connecting.version;
        let mut lost = Vec::new();
        let mut session = connecting.session.take().unwrap_or_default();
        // MQTT 3.1 does not say whether the session is present: there it is believed to be.
        let believed_present = version == ProtocolVersion::V31 && !connecting.clean_start;
        if !session_present && !believed_present {
            lost = inflight_of(&mut session);
            session = Session::default(); // [MQTT-3.2.2-5]
        }
        session.client_id =
            properties.assigned_client_id.clone().unwrap_or_else(|| connecting.client_id.clone());
        session.expiry =
            properties.session_expiry.map_or(connecting.session_expiry, SessionExpiry::from_secs);
        let agreement = Agreement {
            version,
            receive_maximum: connecting.receive_maximum,
            peer_receive_maximum: properties
                .receive_maximum
                .unwrap_or(u16::MAX)
                .min(self.options.maximum_inflight.max(1)),
            // [MQTT-3.2.2-15]
            peer_maximum_packet_size: properties.maximum_packet_size.map_or(usize::MAX, |size| size as usize),
            maximum_inflight_bytes: usize::MAX,
            inbound_aliases: connecting.inbound_aliases,
            outbound_aliases: properties
                .topic_alias_maximum
                .unwrap_or(0)
                .min(self.options.outbound_topic_aliases), // [MQTT-3.2.2-17], [MQTT-3.2.2-18]
            maximum_packet_size: connecting.maximum_packet_size,
            // The server is trusted with what the application asked it for.
            maximum_partial_bytes: usize::MAX,
            is_client: true,
        };
        let mut exchange = Exchange::new(session, agreement);
        if connecting.places_resends {
            exchange.place_resends();
        }
        exchange.streams.control.outbox = mem::take(&mut connecting.outbox);
        let too_large = exchange.flush_resend(now); // [MQTT-4.4.0-1]
        let keep_alive = properties.server_keep_alive.unwrap_or(connecting.keep_alive); // [MQTT-3.1.2-21], [MQTT-3.2.2-21]
        let keep_alive = (keep_alive > 0).then(|| Duration::from_secs(keep_alive.into()));
        self.timers = Timers::default();
        self.timers.set(Timer::Ping, keep_alive.map(|keep_alive| now + keep_alive));
        self.state = State::Established(Box::new(Established {
            exchange,
            grants: Grants::of(&properties),
            keep_alive,
            last_sent: now,
            last_received: now,
            pinged: None,
            paused: false,
            authenticates: connecting.authenticates,
            session_expires_with_connection: !connecting.session_expiry.outlives_connection(),
        }));
        let connected = Connected { session_present, properties, lost };
        self.events.push_back(ClientEvent::Connected(Box::new(connected)));
        let over = too_large.into_iter().map(|id| ClientEvent::Published(id, ReasonCode::PacketTooLarge));
        self.events.extend(over);
        Ok(())
    }

    fn handle_disconnect(&mut self, disconnect: Box<Disconnect>) -> Result<(), Violation> {
        let State::Established(established) = &self.state else { return Ok(()) };
        if !established.exchange.version().is_v5() {
            return Err(Violation::UnexpectedPacket(PacketType::Disconnect));
        }
        if disconnect.session_expiry.is_some() {
            // [MQTT-3.14.2-2]
            return Err(Violation::PropertyNotAllowed(
                crate::packet::properties::id::SESSION_EXPIRY_INTERVAL,
            ));
        }
        let reason = disconnect.reason;
        self.events.push_back(ClientEvent::Disconnected(disconnect));
        self.close(Cause::Disconnected(reason)); // [MQTT-3.14.4-1]
        Ok(())
    }

    fn handle_violation(&mut self, violation: Violation) {
        let reason = violation.reason();
        if reason.is_allowed_in(PacketType::Disconnect) {
            self.send_disconnect(&Disconnect::new(reason)); // [MQTT-4.13.1-1]
        }
        self.close(Cause::Violation(violation)); // [MQTT3-4.8.0-1]
    }

    // -- Commands ----------------------------------------------------------------------------------

    /// Sends a message. [`Sent::Blocked`] also before the connection is established [MQTT-3.1.2-30] and after its
    /// end.
    ///
    /// # Errors
    /// What the server said in CONNACK that it does not take.
    pub fn publish(&mut self, delivery: Delivery, now: Instant) -> Result<Sent, Unsendable> {
        let State::Established(established) = &mut self.state else {
            return Ok(Sent::Blocked(Box::new(delivery)));
        };
        established.grants.check_publish(&delivery)?;
        let sent = established.exchange.send(delivery, now);
        if matches!(sent, Sent::Out(_)) {
            established.last_sent = now;
        }
        Ok(sent)
    }

    /// Goes on with what must be sent again, which goes out a little at a time: after every write.
    pub fn continue_resend(&mut self, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        for id in established.exchange.flush_resend(now) {
            self.events.push_back(ClientEvent::Published(id, ReasonCode::PacketTooLarge));
        }
    }

    /// Asks for messages on a stream, which carries them then [BQ-15]; [`ClientEvent::Subscribed`] answers under the
    /// same identifier.
    ///
    /// # Errors
    /// What the server said in CONNACK that it does not take, or nothing can be sent now.
    pub fn subscribe(
        &mut self,
        on: StreamKey,
        entries: Vec<SubscribeEntry>,
        id: Option<NonZeroU32>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, Unsendable> {
        let State::Established(established) = &mut self.state else { return Err(Unsendable::NotConnected) };
        established.grants.check_subscribe(&entries, id)?;
        established.request(on, now, |packet_id| {
            Packet::Subscribe(Box::new(Subscribe { packet_id, id, user, entries }))
        })
    }

    /// Ends subscriptions, on whatever stream they are [BQ-17]; [`ClientEvent::Unsubscribed`] answers under the same identifier.
    ///
    /// # Errors
    /// Nothing can be sent now.
    pub fn unsubscribe(
        &mut self,
        on: StreamKey,
        filters: Vec<TopicFilter>,
        user: UserProperties,
        now: Instant,
    ) -> Result<PacketId, Unsendable> {
        let State::Established(established) = &mut self.state else { return Err(Unsendable::NotConnected) };
        established.request(on, now, |packet_id| {
            let filters = filters.into_iter().map(Ok).collect();
            Packet::Unsubscribe(Box::new(Unsubscribe { packet_id, user, filters }))
        })
    }

    /// The application took this message and every one before it: their acknowledgements go out.
    pub fn acknowledge(&mut self, token: Token, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        established.exchange.handle_persisted(Some(token));
        established.last_sent = now;
    }

    /// Says that nothing is read from the link, because the application takes no more messages, or that it is
    /// read again. The server cannot be blamed for silence meanwhile.
    pub fn pause(&mut self, paused: bool, now: Instant) {
        let State::Established(established) = &mut self.state else { return };
        if established.paused && !paused {
            established.last_received = now;
        }
        established.paused = paused;
    }

    /// Sends AUTH: the next step of enhanced authentication, or the first of a new one (`ReAuthenticate`).
    pub fn authenticate(&mut self, auth: Auth) {
        let packet = Packet::Auth(Box::new(auth));
        match &mut self.state {
            // [MQTT-4.12.0-3]
            State::Connecting(connecting) if connecting.authenticates => {
                packet.encode(connecting.version, connecting.outbox.open());
            }
            State::Established(established) if established.authenticates => {
                established.exchange.send_packet(&packet); // [MQTT-4.12.1-1]
            }
            _ => {}
        }
    }

    /// Closes the connection: the server discards the Will if `disconnect` is of success.
    pub fn disconnect(&mut self, mut disconnect: Disconnect) {
        if let State::Established(established) = &self.state
            && established.session_expires_with_connection
        {
            disconnect.session_expiry = None; // A protocol error unless CONNECT had one.
        }
        self.send_disconnect(&disconnect);
        self.close(Cause::Closed(disconnect.reason)); // [MQTT-3.14.4-1], [MQTT-3.14.4-2]
    }

    fn send_disconnect(&mut self, disconnect: &Disconnect) {
        let State::Established(established) = &mut self.state else { return };
        // Before MQTT 5 a DISCONNECT says that all is well: what ends badly just closes.
        if established.exchange.version().is_v5() || !disconnect.reason.is_error() {
            established.exchange.send_packet(&Packet::Disconnect(Box::new(disconnect.clone())));
        }
    }

    fn close(&mut self, cause: Cause) {
        let closed = match &mut self.state {
            State::Closed(_) => return,
            State::Established(established) => Closed {
                outbox: mem::take(&mut established.exchange.streams.control.outbox),
                cause,
                session: Some(mem::take(&mut established.exchange.session)),
            },
            State::Connecting(connecting) => Closed {
                outbox: mem::take(&mut connecting.outbox),
                cause,
                session: connecting.session.take(),
            },
        };
        self.timers = Timers::default();
        self.state = State::Closed(Box::new(closed));
    }

    // -- Output ------------------------------------------------------------------------------------

    /// The next thing to answer or know.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// When to call [`Client::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The bytes to send on a stream; `None` when it has ended.
    pub fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
        let control = match &mut self.state {
            State::Connecting(connecting) => &mut connecting.outbox,
            State::Established(established) => {
                return established.exchange.streams.writer(stream).map(|stream| &mut stream.outbox);
            }
            State::Closed(closed) => &mut closed.outbox,
        };
        stream.is_control().then_some(control)
    }

    /// Appends to `streams` those that have bytes to send, the control stream first.
    pub fn streams_to_write(&self, streams: &mut Vec<StreamKey>) {
        match &self.state {
            State::Established(established) => streams.extend(established.exchange.streams.to_write()),
            _ if self.unwritten() > 0 => streams.push(StreamKey::CONTROL),
            _ => {}
        }
    }

    /// Bytes to send on all streams.
    pub fn unwritten(&self) -> usize {
        match &self.state {
            State::Connecting(connecting) => connecting.outbox.len(),
            State::Established(established) => established.exchange.streams.unwritten(),
            State::Closed(closed) => closed.outbox.len(),
        }
    }

    /// Ends the connection for good: the session for the next one. `None`: there was none yet.
    pub fn take_session(&mut self) -> Option<Session> {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state { closed.session.take() } else { None }
    }

    /// Ends the connection for good: why, and the session for the next one.
    pub fn into_end(mut self) -> (Cause, Option<Session>) {
        let session = self.take_session();
        (self.cause().unwrap_or(Cause::Lost), session)
    }
}

impl Established {
    /// Sends a packet that is answered under its own identifier.
    fn request(
        &mut self,
        on: StreamKey,
        now: Instant,
        packet: impl FnOnce(PacketId) -> Packet,
    ) -> Result<PacketId, Unsendable> {
        let on = self.exchange.streams.resolve(on);
        let outbound = &mut self.exchange.session.outbound;
        let id = outbound.send_control(on).ok_or(Unsendable::NoPacketId)?; // [MQTT-2.2.1-3]
        if !self.exchange.send_packet_on(on, &packet(id)) {
            self.exchange.session.outbound.handle_control(id);
            return Err(Unsendable::TooLarge); // [MQTT-3.2.2-15]
        }
        self.last_sent = now;
        Ok(id)
    }
}

/// What a session has inflight, in the order of sending.
fn inflight_of(session: &mut Session) -> Vec<(PacketId, Option<Delivery>)> {
    let order = session.outbound.resume();
    let delivery = |id: PacketId| match session.outbound.get(id) {
        Some(Phase::Sent(delivery)) => Some(delivery.clone()),
        _ => None,
    };
    order.into_iter().map(|id| (id, delivery(id))).collect()
}
