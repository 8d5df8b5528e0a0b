//! CONNECT and its answer.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::early::Early;
use super::{Client, ClientEvent, ClientOptions, Connected, Established, Grants, State};
use crate::connection::Cause;
use crate::connection::exchange::{Agreement, Exchange};
use crate::connection::outbox::Outbox;
use crate::connection::server::wanted_expiry;
use crate::connection::timer::{Timer, Timers};
use crate::decoder::Decoder;
use crate::error::Violation;
use crate::message::Delivery;
use crate::packet::{ClientId, Connack, Connect, Packet, PacketId, ProtocolVersion};
use crate::reason::ReasonCode;
use crate::session::{Phase, Session, SessionExpiry};

/// What counts of a CONNECT until it is answered.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) outbox: Outbox,
    /// The Session State on this side, if there is any.
    pub(super) session: Option<Session>,
    /// Clean Start: the state is not offered to the server, only told as lost.
    pub(super) clean_start: bool,
    /// What of the CONNECT counts after it was sent.
    pub(super) version: ProtocolVersion,
    pub(super) client_id: ClientId,
    pub(super) keep_alive: u16,
    pub(super) session_expiry: SessionExpiry,
    pub(super) receive_maximum: u16,
    pub(super) maximum_packet_size: usize,
    pub(super) inbound_aliases: u16,
    pub(super) authenticates: bool,
    /// The shell places what is sent again.
    pub(super) places_resends: bool,
    pub(super) early: Early,
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
            session_expiry: wanted_expiry(&connect),
            receive_maximum: match connect.version.is_v5() {
                true => properties.receive_maximum.unwrap_or(u16::MAX),
                false => u16::MAX, // MQTT 3 has no way to tell the server.
            },
            maximum_packet_size,
            inbound_aliases: properties.topic_alias_maximum.unwrap_or(0),
            authenticates: properties.authentication_method.is_some(),
            places_resends: false,
            early: Early::default(),
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

    pub(super) fn handle_first_packet(&mut self, packet: Packet, now: Instant) -> Result<(), Violation> {
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
        exchange.streams.set_control_outbox(mem::take(&mut connecting.outbox));
        mem::take(&mut connecting.early).go_on(&mut exchange);
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
            asked: None,
            round_trip: None,
            ahead: super::Ahead::default(),
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
