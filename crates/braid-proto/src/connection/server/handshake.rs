//! Begin and end of a connection: CONNECT, CONNACK, DISCONNECT and violations.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::authentication::Authentication;
use super::{EarlyPublish, Established, Event, Server, State};
use crate::connection::datagram::{self, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE, DatagramDecoder};
use crate::connection::exchange::Exchange;
use crate::connection::mounting::{Mounting, mount_will};
use crate::connection::stream::Outbox;
use crate::connection::{Agreement, Cause, Progress, Timer, Timers};
use crate::message::Delivery;
use crate::packet::{
    BorrowedPacket, ClientId, Connack, ConnackProperties, Disconnect, Packet, QuicHint, RESUME_PROPERTY,
    UserProperties, Will, id,
};
use crate::session::{Session, SessionExpiry};
use crate::types::{Mountpoint, PacketType, ProtocolVersion, ReasonCode, StreamKey, TopicError, Violation};
use crate::wire::VARIABLE_BYTE_INTEGER_MAX;

/// Fields of a successful CONNACK that the driver decides.
#[derive(Clone, Debug, Default)]
pub struct Acceptance {
    /// Session Present: whether the server resumes a session of the client.
    pub session_present: bool,
    /// Client Identifier, if the server chose it. [MQTT-3.2.2-16]
    pub assigned_client_id: Option<ClientId>,
    /// Last data of an enhanced authentication.
    pub authentication_data: Option<Bytes>,
}

/// Parts of a CONNECT that are needed after the driver's decision.
#[derive(Debug)]
pub(super) struct Deciding {
    agreement: Agreement,
    /// Keep Alive of the client, seconds.
    keep_alive: u16,
    will: Option<Will>,
    mountpoint: Option<Mountpoint>,
    wants_response_information: bool,
    wants_problem_information: bool,
    /// Whether the client asks for datagrams. [BQ-81]
    wants_datagrams: bool,
    /// Whether the client continues large messages. [BQ-95]
    resumes: bool,
    /// Session Expiry Interval of the client, before the server's limit.
    session_expiry: SessionExpiry,
    /// Enhanced authentication, if CONNECT named a method.
    pub(super) authentication: Option<Authentication>,
    /// AUTH packets to the client.
    pub(super) outbox: Outbox,
    /// Bytes behind the CONNECT or AUTH in the same read.
    pub(super) held: Vec<u8>,
}

impl Deciding {
    pub(super) const fn version(&self) -> ProtocolVersion {
        self.agreement.version
    }

    /// Whether the client has to answer an AUTH.
    pub(super) fn is_challenged(&self) -> bool {
        self.authentication.as_ref().is_some_and(Authentication::is_challenged)
    }
}

impl Server {
    /// Session Expiry Interval and Will of the connection, if the driver accepts the pending CONNECT.
    pub fn offer(&self) -> Option<(SessionExpiry, Option<&Will>)> {
        let State::Deciding(deciding) = &self.state else { return None };
        let expiry = deciding.session_expiry.min(self.options.maximum_session_expiry);
        Some((expiry, deciding.will.as_ref()))
    }

    /// Gives the client of the pending CONNECT a name space of its own, once: topics and filters of its packets have
    /// the mountpoint in front in events and in [`Server::offer`], and deliveries are sent without it. A delivery of a
    /// topic elsewhere is [`Sent::TooLarge`](crate::connection::Sent::TooLarge).
    ///
    /// # Errors
    /// A topic of the Will would be too long, or have too many levels.
    pub fn mount(&mut self, mountpoint: Mountpoint) -> Result<(), TopicError> {
        let State::Deciding(deciding) = &mut self.state else { return Ok(()) };
        if let Some(will) = &mut deciding.will {
            mount_will(&mountpoint, will)?;
        }
        deciding.mountpoint = Some(mountpoint);
        Ok(())
    }

    pub(super) fn handle_first_packet(&mut self, packet: BorrowedPacket<'_>) -> Result<(), Violation> {
        let Packet::Connect(mut connect) = packet else {
            return Err(Violation::FirstPacketNotConnect(packet.packet_type())); // [MQTT-3.1.0-1]
        };
        if connect.client_id.is_empty() && connect.needs_client_id() {
            return Err(Violation::ClientIdNotValid); // [MQTT3-3.1.3-7], [MQTT3-3.1.3-8]
        }
        let (properties, options) = (&connect.properties, &self.options);
        let agreement = Agreement {
            version: connect.version,
            receive_maximum: if connect.version.is_v5() { options.receive_maximum } else { u16::MAX },
            peer_receive_maximum: properties
                .receive_maximum
                .unwrap_or(u16::MAX)
                .min(options.maximum_inflight),
            peer_maximum_packet_size: properties.maximum_packet_size.map_or(usize::MAX, |size| size as usize),
            maximum_inflight_bytes: options.maximum_inflight_bytes,
            inbound_aliases: options.topic_alias_maximum,
            outbound_aliases: properties.topic_alias_maximum.unwrap_or(0).min(options.outbound_topic_aliases),
            maximum_packet_size: options.maximum_packet_size,
            maximum_partial_bytes: options.maximum_partial_bytes,
            is_client: false,
        };
        let deciding = Deciding {
            agreement,
            keep_alive: connect.keep_alive,
            will: connect.will.take(), // [MQTT-3.1.2-7], [MQTT3-3.1.2-12]
            mountpoint: None,
            wants_response_information: properties.request_response_information.unwrap_or(false), // [MQTT-3.1.2-28]
            wants_problem_information: properties.request_problem_information.unwrap_or(true),
            wants_datagrams: datagram::is_agreed(&properties.user),
            resumes: connect.resumes_messages(),
            session_expiry: SessionExpiry::requested_by(&connect),
            authentication: properties.authentication_method.clone().map(Authentication::new),
            outbox: Outbox::default(),
            held: Vec::new(),
        };
        self.timers.set(Timer::Handshake, None);
        // Until the client is known, an AUTH may not be larger than a CONNECT.
        self.decoder.configure(connect.version, self.options.connect_maximum_size);
        self.state = State::Deciding(Box::new(deciding));
        self.events.push_back(Event::Connect(connect));
        Ok(())
    }

    /// Version and reason of the CONNACK that refuses an invalid CONNECT, if its sender understands one.
    pub(super) fn refusal_of(&self, violation: Violation) -> Option<(ProtocolVersion, ReasonCode)> {
        let reason = violation.reason();
        match (violation, self.decoder.offered_version()) {
            // [MQTT-3.1.2-2], [MQTT3-3.1.2-2]: in the supported version nearest to that of the CONNECT.
            (Violation::UnsupportedVersion(level), _) if level > 5 => Some((ProtocolVersion::V5, reason)),
            (Violation::UnsupportedVersion(_), _) => Some((ProtocolVersion::V311, reason)),
            // [MQTT-3.1.3-8], [MQTT3-3.1.3-8]
            (Violation::ClientIdNotValid, Some(version)) => Some((version, reason)),
            (_, Some(ProtocolVersion::V5)) => Some((ProtocolVersion::V5, reason)),
            _ => None, // [MQTT3-3.1.4-1]
        }
    }

    /// Accepts the pending CONNECT with `session`, whose expiry is set to the agreed interval. If the connection has
    /// ended meanwhile, [`Server::take_end`] returns the session.
    pub fn accept(
        &mut self,
        mut session: Session,
        acceptance: &Acceptance,
        now: Instant,
        may_send: impl FnMut(&Delivery) -> bool,
    ) {
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
        let Deciding { agreement, keep_alive, will, mountpoint, authentication, outbox, held, .. } =
            *deciding;
        let options = self.options.clone();
        self.decoder.configure(agreement.version, options.maximum_packet_size);
        session.expiry = deciding.session_expiry.min(options.maximum_session_expiry);
        let keep_alive = match options.maximum_keep_alive {
            // MQTT 3 has no Server Keep Alive: the client's value holds. [MQTT-3.2.2-22]
            0 => keep_alive,
            _ if !agreement.version.is_v5() => keep_alive,
            limit if keep_alive == 0 => limit,
            limit => keep_alive.min(limit),
        };
        let resumes = deciding.resumes && session.expiry.outlives_connection() && options.spool.is_some();
        session.partials.begin(resumes, now);
        let has_datagrams = self.permits_datagrams && deciding.wants_datagrams;
        let mut user: UserProperties =
            options.alt_svc.iter().map(|hint| (QuicHint::PROPERTY, &**hint)).collect();
        if has_datagrams {
            user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE); // [BQ-81]
        }
        // Without Session Present there is none. [BQ-97]
        for (id, received) in session.partials.iter() {
            user.push(RESUME_PROPERTY, &format!("{id}:{received}"));
        }
        let properties = ConnackProperties {
            session_expiry: (session.expiry != deciding.session_expiry).then(|| session.expiry.as_secs()),
            receive_maximum: Some(options.receive_maximum),
            // The limit of the protocol is left out: it says nothing, and some clients refuse it.
            maximum_packet_size: u32::try_from(options.maximum_packet_size)
                .ok()
                .filter(|_| options.maximum_packet_size < VARIABLE_BYTE_INTEGER_MAX),
            assigned_client_id: acceptance.assigned_client_id.clone(),
            topic_alias_maximum: Some(options.topic_alias_maximum),
            server_keep_alive: (keep_alive != deciding.keep_alive).then_some(keep_alive),
            response_information: options
                .response_information
                .clone()
                .filter(|_| deciding.wants_response_information),
            authentication_method: authentication
                .as_ref()
                .map(|authentication| authentication.method.clone()), // [MQTT-4.12.0-5], [MQTT-4.12.0-6]
            authentication_data: acceptance.authentication_data.clone().filter(|_| authentication.is_some()),
            user,
            ..ConnackProperties::default()
        };
        let mut exchange = Exchange::new(session, agreement);
        exchange.set_mounting(mountpoint.map(Mounting::new));
        exchange.streams.set_control_outbox(outbox);
        exchange.streams.set_spool(options.spool.clone());
        Self::begin_streams(mem::take(&mut self.opened), &mut exchange.streams);
        let session_present = acceptance.session_present; // [MQTT-3.2.2-2], [MQTT-3.2.2-3]
        let connack = Connack { session_present, reason: ReasonCode::Success, properties };
        let is_answered = exchange.send_packet(&Packet::Connack(Box::new(connack))); // [MQTT-3.1.4-5], [MQTT-3.2.0-1]
        let keep_alive_timeout =
            (keep_alive > 0).then(|| Duration::from_millis(u64::from(keep_alive) * 1500));
        self.timers.set(Timer::Peer, keep_alive_timeout.map(|timeout| now + timeout));
        self.state = State::Established(Box::new(Established {
            exchange,
            will: will.filter(|_| is_answered).map(Box::new),
            keep_alive_timeout,
            last_received: now,
            wants_problem_information: deciding.wants_problem_information,
            wanted_expiry: deciding.session_expiry,
            authentication: authentication.map(|authentication| Box::new(authentication.finished())),
            datagrams: has_datagrams.then(|| DatagramDecoder::new(&agreement, true)),
        }));
        if !is_answered {
            // No other packet may be sent without CONNACK. [MQTT-3.1.2-24], [MQTT-3.2.0-1]
            self.close(Cause::Closed(ReasonCode::PacketTooLarge));
            return;
        }
        self.continue_resend(now, may_send);
        self.handle_bytes(StreamKey::CONTROL, &held, now);
    }

    /// Refuses the pending CONNECT and closes the connection. [MQTT-3.2.2-7]
    pub fn reject(&mut self, reason: ReasonCode) {
        let State::Deciding(deciding) = &self.state else { return };
        self.refuse(reason, deciding.agreement.version); // [MQTT-3.1.4-2], [MQTT3-3.1.3-9]
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

/// End of a connection: its cause, and the state that outlives it.
#[derive(Debug)]
pub struct End {
    /// Reason of the end.
    pub cause: Cause,
    /// Session, if CONNECT was accepted.
    pub session: Option<Session>,
    /// Will, unless a normal DISCONNECT deleted it. [MQTT-3.1.2-8], [MQTT-3.1.2-10]
    pub will: Option<Will>,
}

/// State of a closed connection.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) outbox: Outbox,
    /// `None` once taken.
    pub(super) end: Option<End>,
    /// Progress that the driver has not polled yet.
    pub(super) progress: VecDeque<Progress>,
}

impl Server {
    /// Handles the end of the link: nothing can be written any more.
    pub fn handle_link_closed(&mut self) {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state {
            closed.outbox.clear();
        }
    }

    pub(super) fn handle_disconnect(&mut self, disconnect: Box<Disconnect>) -> Result<(), Violation> {
        let State::Established(established) = &mut self.state else { return Ok(()) };
        if let Some(early) = &mut self.early
            && self.options.early_publish != EarlyPublish::Accept
        {
            early.disconnect = Some(disconnect); // [BQ-61]
            return Ok(());
        }
        if !disconnect_reason_is_of_client(disconnect.reason) {
            return Err(Violation::UnknownReasonCode(PacketType::Disconnect, disconnect.reason.value()));
        }
        if disconnect.server_reference.is_some() {
            return Err(Violation::PropertyNotAllowed(id::SERVER_REFERENCE));
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

    pub(super) fn handle_violation(&mut self, violation: Violation) {
        let refusal = match &self.state {
            State::Listening => self.refusal_of(violation),
            // A violation by AUTH, which CONNACK answers as well.
            State::Deciding(deciding) => Some((deciding.agreement.version, violation.reason())),
            State::Established(_) => {
                self.send_disconnect(violation.reason(), Some(violation), None); // [MQTT-4.13.1-1]
                None
            }
            State::Closed(_) => None,
        };
        self.close(Cause::Violation(violation)); // [MQTT-3.1.4-1], [MQTT-4.13.2-1], [MQTT3-4.8.0-1]
        if let Some((version, reason)) = refusal {
            self.send_refusal(reason, version);
        }
    }

    /// Closes the connection; a client of MQTT 5 is told that the server has moved, and another address.
    pub fn redirect(&mut self, server_reference: &str) {
        self.end(ReasonCode::ServerMoved, Some(server_reference));
    }

    /// Closes the connection; a client of MQTT 5 gets the reason.
    pub fn disconnect(&mut self, reason: ReasonCode) {
        self.end(reason, None);
    }

    fn end(&mut self, reason: ReasonCode, server_reference: Option<&str>) {
        if matches!(self.state, State::Deciding(_)) {
            let allowed = reason.is_error() && reason.is_allowed_in(PacketType::Connack);
            self.reject(if allowed { reason } else { ReasonCode::ServerUnavailable });
            return;
        }
        let reason = match reason {
            ReasonCode::DisconnectWithWill => ReasonCode::Success, // Reserved for clients.
            reason => reason.allowed_in(PacketType::Disconnect),   // [MQTT-3.14.2-1]
        };
        self.send_disconnect(reason, None, server_reference);
        self.close(Cause::Closed(reason));
    }

    fn send_disconnect(
        &mut self,
        reason: ReasonCode,
        violation: Option<Violation>,
        server_reference: Option<&str>,
    ) {
        let State::Established(established) = &mut self.state else { return }; // [MQTT-3.14.0-1]
        let exchange = &mut established.exchange;
        if !exchange.version().is_v5() {
            return; // MQTT 3 has no DISCONNECT from the server.
        }
        let mut disconnect = Disconnect::new(reason);
        disconnect.server_reference = server_reference.map(Into::into);
        if established.wants_problem_information {
            // [MQTT-3.1.2-29] allows it in DISCONNECT in any case; a client that refused it gets none.
            disconnect.reason_string = violation.map(|violation| violation.to_string().into());
        }
        exchange.send_packet(&Packet::Disconnect(Box::new(disconnect)));
    }

    pub(super) fn close(&mut self, cause: Cause) {
        let (outbox, session, will, progress) = match mem::replace(&mut self.state, State::Listening) {
            State::Closed(closed) => {
                self.state = State::Closed(closed);
                return;
            }
            State::Established(established) => {
                let Established { mut exchange, will, last_received, .. } = *established;
                let Exchange { session, streams, .. } = &mut exchange;
                let parts = self.decoder.take_partial().into_iter().chain(streams.take_partials());
                parts.for_each(|part| session.partials.keep(part, last_received)); // [BQ-96]
                // Only the control stream is still written.
                (
                    exchange.streams.take_control_outbox(),
                    Some(exchange.session),
                    will.map(|will| *will),
                    exchange.progress,
                )
            }
            // Bytes held behind a refused CONNECT are dropped. [MQTT-3.1.4-6]
            State::Deciding(deciding) => (deciding.outbox, None, None, VecDeque::new()),
            State::Listening => (Outbox::default(), None, None, VecDeque::new()),
        };
        self.timers = Timers::default();
        self.state =
            State::Closed(Box::new(Closed { outbox, end: Some(End { cause, session, will }), progress }));
    }

    /// Takes the [`End`] of a closed connection, once; the outbox may still have bytes to write.
    pub fn take_end(&mut self) -> Option<End> {
        let State::Closed(closed) = &mut self.state else { return None };
        closed.end.take()
    }
}

/// Whether a client may send this Reason Code in DISCONNECT (MQTT 5, table 3-10).
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
