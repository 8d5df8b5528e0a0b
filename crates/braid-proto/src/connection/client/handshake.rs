//! Begin and end of a connection: CONNECT, CONNACK, DISCONNECT and violations.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::authentication::Authentication;
use super::commands::{EarlyRequests, Grants};
use super::{BytesBeforePing, Client, ClientEvent, Connected, Established, State};
use crate::connection::datagram::{self, DatagramDecoder};
use crate::connection::exchange::Exchange;
use crate::connection::stream::Outbox;
use crate::connection::{Agreement, Cause, Timer, Timers};
use crate::decoder::Decoder;
use crate::message::Delivery;
use crate::packet::{BorrowedPacket, Connack, Connect, Disconnect, Packet, RESUME_PROPERTY, id};
use crate::session::{Phase, Session, SessionExpiry};
use crate::types::{ClientId, PacketId, PacketType, ProtocolVersion, Violation};

/// Local limits of a client; everything that is agreed with the server is in its [`Connect`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Maximum time from CONNECT to CONNACK.
    pub handshake_timeout: Duration,
    /// Maximum time from a PINGREQ to any byte of the server.
    pub ping_timeout: Duration,
    /// Maximum number of inflight QoS 1 and 2 messages to a server which sets no lower limit.
    pub maximum_inflight: u16,
    /// Maximum number of Topic Aliases that the client defines for a server.
    pub outbound_topic_aliases: u16,
    /// Whether large messages of a session that outlives the connection are continued on the next one. [BQ-95]
    pub resume_large: bool,
    /// Whether a message of QoS 2 that is not acknowledged when the connection ends was not received: the server's
    /// repetition is a message then, for an application that has to store it first.
    pub forgets_unacknowledged: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            maximum_inflight: 100,
            outbound_topic_aliases: 64,
            resume_large: false,
            forgets_unacknowledged: false,
        }
    }
}

/// State until CONNACK.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) outbox: Outbox,
    /// Session State of the client, if there is any.
    pub(super) session: Option<Session>,
    /// Clean Start: the Session State ends, and is reported as lost.
    pub(super) clean_start: bool,
    pub(super) version: ProtocolVersion,
    /// Whether CONNECT says that large messages are continued. [BQ-95]
    pub(super) resumes: bool,
    pub(super) client_id: ClientId,
    pub(super) keep_alive: u16,
    pub(super) session_expiry: SessionExpiry,
    pub(super) receive_maximum: u16,
    pub(super) maximum_packet_size: usize,
    pub(super) inbound_aliases: u16,
    /// Enhanced authentication, if CONNECT names a method.
    pub(super) authentication: Option<Authentication>,
    /// Whether the driver chooses the streams of retransmissions.
    pub(super) places_resends: bool,
    /// Whether CONNECT asks for datagrams. [BQ-81]
    pub(super) wants_datagrams: bool,
    pub(super) early: EarlyRequests,
}

impl Client {
    /// Machine for a link that came up at `now`. `session` is that of the previous connection, from
    /// [`Client::into_end`], or an empty one to resume what the server may have kept; `None` when there is none. With
    /// Clean Start it ends here, and its inflight messages come back as [`Connected::lost`].
    pub fn new(
        options: Arc<ClientOptions>,
        mut connect: Connect,
        session: Option<Session>,
        now: Instant,
    ) -> Self {
        if options.resume_large && connect.may_resume_messages() {
            connect.properties.user.push(RESUME_PROPERTY, "1");
        }
        let mut timers = Timers::default();
        timers.set_after(Timer::Handshake, now, options.handshake_timeout);
        let properties = &connect.properties;
        let maximum_packet_size = properties.maximum_packet_size.map_or(usize::MAX, |size| size as usize);
        let mut connecting = Connecting {
            outbox: Outbox::default(),
            session,
            clean_start: connect.clean_start,
            version: connect.version,
            resumes: connect.resumes_messages(),
            client_id: connect.client_id.clone(),
            keep_alive: connect.keep_alive,
            session_expiry: SessionExpiry::requested_by(&connect),
            receive_maximum: match connect.version.is_v5() {
                true => properties.receive_maximum.unwrap_or(u16::MAX),
                false => u16::MAX, // MQTT 3 has no Receive Maximum.
            },
            maximum_packet_size,
            inbound_aliases: properties.topic_alias_maximum.unwrap_or(0),
            authentication: properties.authentication_method.clone().map(Authentication::new),
            places_resends: false,
            wants_datagrams: datagram::is_agreed(&properties.user),
            early: EarlyRequests::default(),
        };
        let decoder = Decoder::new(connect.version, maximum_packet_size); // [MQTT-3.1.2-24]
        let version = connect.version;
        Packet::Connect(Box::new(connect)).encode(version, connecting.outbox.open()); // [MQTT-3.1.0-1]
        let state = State::Connecting(Box::new(connecting));
        Self { options, decoder, state, timers, events: VecDeque::new() }
    }

    pub(super) fn handle_first_packet(
        &mut self,
        packet: BorrowedPacket<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        match packet {
            Packet::Connack(connack) if connack.reason.is_error() => {
                let reason = connack.reason;
                self.events.push_back(ClientEvent::Refused(connack));
                self.close(Cause::Refused(reason));
                Ok(())
            }
            Packet::Connack(connack) => self.handle_connack(*connack, now),
            Packet::Auth(auth) => {
                self.timers.set_after(Timer::Handshake, now, self.options.handshake_timeout);
                self.handle_auth(auth)
            }
            other => Err(Violation::UnexpectedPacket(other.packet_type())), // [MQTT-3.2.0-1]
        }
    }

    fn handle_connack(&mut self, connack: Connack, now: Instant) -> Result<(), Violation> {
        let State::Connecting(connecting) = &mut self.state else { return Ok(()) };
        let Connack { session_present, properties, .. } = connack;
        if session_present && (connecting.session.is_none() || connecting.clean_start) {
            return Err(Violation::SessionPresentWithoutSession); // [MQTT-3.2.2-4]
        }
        match &mut connecting.authentication {
            Some(authentication) => authentication.receive_connack(&properties)?,
            None if properties.authentication_method.is_some() => {
                return Err(Violation::AuthNotNegotiated); // [MQTT-4.12.0-6]
            }
            None => {}
        }
        let version = connecting.version;
        let mut lost = Vec::new();
        let mut session = connecting.session.take().unwrap_or_default();
        // MQTT 3.1 has no Session Present flag: the session is assumed to be present.
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
            // The application asked the server for these messages.
            maximum_partial_bytes: usize::MAX,
            is_client: true,
        };
        let mut exchange = Exchange::new(session, agreement);
        let continued = match connecting.resumes && session_present {
            true => exchange.note_partials(&properties.user),
            false => Vec::new(),
        };
        if connecting.places_resends {
            exchange.place_resends();
        }
        exchange.streams.set_control_outbox(mem::take(&mut connecting.outbox));
        mem::take(&mut connecting.early).restore_into(&mut exchange);
        let keep_alive = properties.server_keep_alive.unwrap_or(connecting.keep_alive); // [MQTT-3.1.2-21], [MQTT-3.2.2-21]
        let keep_alive = (keep_alive > 0).then(|| Duration::from_secs(keep_alive.into()));
        self.timers = Timers::default();
        self.timers.set(Timer::Ping, keep_alive.map(|keep_alive| now + keep_alive));
        let may_send = datagram::is_agreed(&properties.user);
        let datagrams = connecting.wants_datagrams.then(|| DatagramDecoder::new(&agreement, may_send));
        self.state = State::Established(Box::new(Established {
            exchange,
            grants: Grants::of(&properties),
            keep_alive,
            last_sent: now,
            last_received: now,
            pingresp_wait_start: None,
            first_ping_at: None,
            round_trip: None,
            bytes_before: BytesBeforePing::default(),
            paused: false,
            authentication: connecting.authentication.take().map(Box::new),
            session_expires_with_connection: !connecting.session_expiry.outlives_connection(),
            datagrams,
        }));
        let connected = Connected { session_present, properties, lost };
        self.events.push_back(ClientEvent::Connected(Box::new(connected)));
        self.events.extend(continued.into_iter().map(ClientEvent::Continued));
        self.continue_resend(now); // [MQTT-4.4.0-1]
        Ok(())
    }
}

/// Inflight messages of a session, in the order of sending.
fn inflight_of(session: &mut Session) -> Vec<(PacketId, Option<Delivery>)> {
    let order = session.outbound.resume();
    let delivery = |id: PacketId| match session.outbound.get(id) {
        Some(Phase::Sent(delivery)) => Some(delivery.clone()),
        _ => None,
    };
    order.into_iter().map(|id| (id, delivery(id))).collect()
}

/// State of a closed connection.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) outbox: Outbox,
    pub(super) cause: Cause,
    pub(super) session: Option<Session>,
}

impl Client {
    /// Handles the end of the link: nothing can be written any more.
    pub fn handle_link_closed(&mut self) {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state {
            closed.outbox.clear();
        }
    }

    pub(super) fn handle_disconnect(&mut self, disconnect: Box<Disconnect>) -> Result<(), Violation> {
        let State::Established(established) = &self.state else { return Ok(()) };
        if !established.exchange.version().is_v5() {
            return Err(Violation::UnexpectedPacket(PacketType::Disconnect));
        }
        if disconnect.session_expiry.is_some() {
            // [MQTT-3.14.2-2]
            return Err(Violation::PropertyNotAllowed(id::SESSION_EXPIRY_INTERVAL));
        }
        let reason = disconnect.reason;
        self.events.push_back(ClientEvent::Disconnected(disconnect));
        self.close(Cause::Disconnected(reason)); // [MQTT-3.14.4-1]
        Ok(())
    }

    pub(super) fn handle_violation(&mut self, violation: Violation) {
        let reason = violation.reason();
        if reason.is_allowed_in(PacketType::Disconnect) {
            self.send_disconnect(&Disconnect::new(reason)); // [MQTT-4.13.1-1]
        }
        self.close(Cause::Violation(violation)); // [MQTT3-4.8.0-1]
    }

    /// Closes the connection. The server discards the Will if the reason is success.
    pub fn disconnect(&mut self, mut disconnect: Disconnect) {
        if let State::Established(established) = &self.state
            && established.session_expires_with_connection
        {
            disconnect.session_expiry = None; // A protocol error if CONNECT had no session expiry.
        }
        self.send_disconnect(&disconnect);
        self.close(Cause::Closed(disconnect.reason)); // [MQTT-3.14.4-1], [MQTT-3.14.4-2]
    }

    fn send_disconnect(&mut self, disconnect: &Disconnect) {
        let State::Established(established) = &mut self.state else { return };
        // Before MQTT 5 a DISCONNECT means success: after a failure the connection just closes.
        if established.exchange.version().is_v5() || !disconnect.reason.is_error() {
            established.exchange.send_packet(&Packet::Disconnect(Box::new(disconnect.clone())));
        }
    }

    pub(super) fn close(&mut self, cause: Cause) {
        let closed = match &mut self.state {
            State::Closed(_) => return,
            State::Established(established) => {
                let exchange = &mut established.exchange;
                if self.options.forgets_unacknowledged {
                    exchange.forget_unacknowledged();
                }
                Closed {
                    outbox: exchange.streams.take_control_outbox(),
                    cause,
                    session: Some(mem::take(&mut exchange.session)),
                }
            }
            State::Connecting(connecting) => Closed {
                outbox: mem::take(&mut connecting.outbox),
                cause,
                session: connecting.session.take(),
            },
        };
        self.timers = Timers::default();
        self.state = State::Closed(Box::new(closed));
    }

    /// Ends the connection for good and takes the session for the next one. `None`: there was none yet.
    pub fn take_session(&mut self) -> Option<Session> {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state { closed.session.take() } else { None }
    }

    /// Ends the connection for good: its cause, and the session for the next one.
    pub fn into_end(mut self) -> (Cause, Option<Session>) {
        let session = self.take_session();
        (self.cause().unwrap_or(Cause::Lost), session)
    }
}
