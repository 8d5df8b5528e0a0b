//! The end of a connection, whoever brings it about.

use std::mem;

use super::{Client, ClientEvent, State};
use crate::connection::Cause;
use crate::connection::outbox::Outbox;
use crate::connection::timer::Timers;
use crate::error::Violation;
use crate::packet::{Disconnect, Packet, PacketType};
use crate::session::Session;

/// A connection on which nothing more is said.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) outbox: Outbox,
    pub(super) cause: Cause,
    pub(super) session: Option<Session>,
}

impl Client {
    /// Handles the end of the link: nothing can be sent any more.
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
            return Err(Violation::PropertyNotAllowed(
                crate::packet::properties::id::SESSION_EXPIRY_INTERVAL,
            ));
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

    pub(super) fn close(&mut self, cause: Cause) {
        let closed = match &mut self.state {
            State::Closed(_) => return,
            State::Established(established) => Closed {
                outbox: established.exchange.streams.take_control_outbox(),
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
