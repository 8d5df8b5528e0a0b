//! CONNECT and its answer.

use std::mem;
use std::time::{Duration, Instant};

use super::{Established, Event, Server, State};
use crate::connection::Cause;
use crate::connection::exchange::{Agreement, Exchange};
use crate::connection::timer::Timer;
use crate::decoder::wire::VARIABLE_BYTE_INTEGER_MAX;
use crate::error::Violation;
use crate::packet::{Connack, ConnackProperties, Connect, Packet, PacketType, ProtocolVersion, Will};
use crate::reason::ReasonCode;
use crate::session::{Session, SessionExpiry};
use crate::stream::StreamKey;

/// What the shell adds to the CONNACK of success.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    /// The session existed before.
    pub session_present: bool,
    /// The client left the choice of its Client Identifier to the server. [MQTT-3.2.2-16]
    pub assigned_client_id: bool,
}

/// What counts of a CONNECT while the shell decides about it.
#[derive(Debug)]
pub(super) struct Deciding {
    /// The CONNECT without what the shell got to see.
    pub(super) version: ProtocolVersion,
    pub(super) keep_alive: u16,
    pub(super) will: Option<Will>,
    pub(super) peer_receive_maximum: u16,
    pub(super) peer_maximum_packet_size: usize,
    pub(super) peer_topic_aliases: u16,
    pub(super) wants_response_information: bool,
    pub(super) wants_problem_information: bool,
    pub(super) session_expiry: SessionExpiry,
    /// Bytes that followed the CONNECT in the same read.
    pub(super) held: Vec<u8>,
}

impl Server {
    /// How long the session will outlive the connection if the CONNECT with the shell is accepted, and the Will
    /// that the connection will have.
    pub fn offer(&self) -> Option<(SessionExpiry, Option<&Will>)> {
        let State::Deciding(deciding) = &self.state else { return None };
        let expiry = deciding.session_expiry.min(self.options.maximum_session_expiry);
        Some((expiry, deciding.will.as_ref()))
    }

    /// The Will of a CONNECT that waits for a decision.
    pub fn offered_will(&self) -> Option<&Will> {
        if let State::Deciding(deciding) = &self.state { deciding.will.as_ref() } else { None }
    }

    pub(super) fn handle_first_packet(&mut self, packet: Packet) -> Result<(), Violation> {
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

    /// The CONNACK for a CONNECT that is none, if its sender is known to understand one.
    pub(super) fn refusal_of(&self, violation: Violation) -> Option<(ProtocolVersion, ReasonCode)> {
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
        exchange.streams.set_spool(options.spool.clone());
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

    pub(super) fn send_refusal(&mut self, reason: ReasonCode, version: ProtocolVersion) {
        let State::Closed(closed) = &mut self.state else { return };
        if !version.is_v5() && reason.connack_v3().is_none() {
            return; // [MQTT3-3.2.2-6]
        }
        // [MQTT-3.2.2-6]
        let connack = Connack { session_present: false, reason, properties: ConnackProperties::default() };
        Packet::Connack(Box::new(connack)).encode(version, closed.outbox.open());
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

pub(in crate::connection) fn wanted_expiry(connect: &Connect) -> SessionExpiry {
    match (connect.version.is_v5(), connect.clean_start) {
        (true, _) => SessionExpiry::from_secs(connect.properties.session_expiry.unwrap_or(0)),
        (false, true) => SessionExpiry::WITH_CONNECTION, // [MQTT3-3.1.2-6]
        (false, false) => SessionExpiry::NEVER,          // [MQTT3-3.1.2-4]
    }
}
