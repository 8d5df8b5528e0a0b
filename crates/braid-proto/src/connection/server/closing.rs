//! The end of a connection, whoever brings it about.

use std::collections::VecDeque;
use std::mem;

use super::{Established, Server, State};
use crate::connection::Cause;
use crate::connection::exchange::Progress;
use crate::connection::outbox::Outbox;
use crate::connection::timer::Timers;
use crate::error::Violation;
use crate::packet::{Disconnect, Packet, PacketType, Will};
use crate::reason::ReasonCode;
use crate::session::{Session, SessionExpiry};

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

/// A connection on which nothing more is said.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) outbox: Outbox,
    /// Until it is taken.
    pub(super) end: Option<End>,
    /// What the shell has not heard yet.
    pub(super) progress: VecDeque<Progress>,
}

impl Server {
    /// Handles the end of the link: nothing can be sent any more.
    pub fn handle_link_closed(&mut self) {
        self.close(Cause::Lost);
        if let State::Closed(closed) = &mut self.state {
            closed.outbox.clear();
        }
    }

    pub(super) fn handle_disconnect(&mut self, disconnect: &Disconnect) -> Result<(), Violation> {
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

    pub(super) fn handle_violation(&mut self, violation: Violation) {
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

    pub(super) fn close(&mut self, cause: Cause) {
        let (outbox, session, will, progress) = match mem::replace(&mut self.state, State::Listening) {
            State::Closed(closed) => {
                self.state = State::Closed(closed);
                return;
            }
            State::Established(established) => {
                let Established { mut exchange, will, .. } = *established;
                // Only the control stream has a last word.
                (exchange.streams.take_control_outbox(), Some(exchange.session), will, exchange.progress)
            }
            // What was held behind a refused CONNECT goes with it. [MQTT-3.1.4-6]
            State::Deciding(_) | State::Listening => (Outbox::default(), None, None, VecDeque::new()),
        };
        self.timers = Timers::default();
        self.state =
            State::Closed(Box::new(Closed { outbox, end: Some(End { cause, session, will }), progress }));
    }

    /// What is left of the connection, once it is closed; the outbox may still have bytes to write.
    pub fn take_end(&mut self) -> Option<End> {
        let State::Closed(closed) = &mut self.state else { return None };
        closed.end.take()
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
