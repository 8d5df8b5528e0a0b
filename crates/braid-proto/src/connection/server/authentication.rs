//! Enhanced authentication: AUTH packets before CONNACK, and re-authentication after it (MQTT 5, 4.12).

use std::time::Instant;

use bytes::Bytes;

use super::{Event, Server, State};
use crate::connection::Timer;
use crate::packet::{Auth, BorrowedPacket, Packet, UserProperties};
use crate::types::{ReasonCode, Violation};

/// Enhanced authentication of a connection.
#[derive(Debug)]
pub(super) struct Authentication {
    /// Authentication Method of CONNECT.
    pub(super) method: Box<str>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The driver decides about the data of the client.
    Deciding,
    /// The client has to answer an AUTH.
    Challenged,
    /// The client is authenticated and may begin again.
    Finished,
}

impl Authentication {
    pub(super) const fn new(method: Box<str>) -> Self {
        Self { method, phase: Phase::Deciding }
    }

    pub(super) fn finished(self) -> Self {
        Self { phase: Phase::Finished, ..self }
    }

    pub(super) fn is_challenged(&self) -> bool {
        self.phase == Phase::Challenged
    }

    /// Checks an AUTH of the client, about which the driver has to decide then.
    fn receive(&mut self, auth: &Auth) -> Result<(), Violation> {
        if auth.method.as_ref() != Some(&self.method) {
            return Err(Violation::AuthenticationMethodChanged); // [MQTT-4.12.0-5], [MQTT-4.12.1-1]
        }
        let is_expected = match self.phase {
            Phase::Deciding => false,
            Phase::Challenged => auth.reason == ReasonCode::ContinueAuthentication, // [MQTT-4.12.0-3]
            Phase::Finished => auth.reason == ReasonCode::ReAuthenticate,
        };
        if !is_expected {
            return Err(Violation::UnexpectedAuth(auth.reason.value()));
        }
        self.phase = Phase::Deciding;
        Ok(())
    }

    fn packet(&self, reason: ReasonCode, data: Option<Bytes>) -> Packet {
        let method = Some(self.method.clone()); // [MQTT-4.12.0-5]
        let auth = Auth {
            reason,
            method,
            authentication_data: data,
            reason_string: None,
            user: UserProperties::new(),
        };
        Packet::Auth(Box::new(auth))
    }
}

impl Server {
    /// Authentication Method of CONNECT, if it named one.
    pub fn authentication_method(&self) -> Option<&str> {
        let authentication = match &self.state {
            State::Deciding(deciding) => deciding.authentication.as_ref(),
            State::Established(established) => established.authentication.as_deref(),
            State::Listening | State::Closed(_) => None,
        };
        authentication.map(|authentication| &*authentication.method)
    }

    /// Asks the client for another step of the authentication that it began by CONNECT or AUTH. Its answer is an
    /// [`Event::Auth`], or before CONNACK the end of the connection if it takes longer than a CONNECT may.
    pub fn challenge(&mut self, data: Bytes, now: Instant) {
        match &mut self.state {
            State::Deciding(deciding) => {
                let Some(authentication) = &mut deciding.authentication else { return };
                authentication.phase = Phase::Challenged;
                // [MQTT-4.12.0-2]
                let packet = authentication.packet(ReasonCode::ContinueAuthentication, Some(data));
                packet.encode(deciding.version(), deciding.outbox.open());
                self.timers.set_after(Timer::Handshake, now, self.options.connect_timeout);
                let held = std::mem::take(&mut deciding.held);
                self.handle_control(&held, now);
            }
            State::Established(established) => {
                let Some(authentication) = &mut established.authentication else { return };
                if authentication.phase == Phase::Deciding {
                    authentication.phase = Phase::Challenged;
                    // [MQTT-4.12.0-2]
                    let packet = authentication.packet(ReasonCode::ContinueAuthentication, Some(data));
                    established.exchange.send_packet(&packet);
                }
            }
            State::Listening | State::Closed(_) => {}
        }
    }

    /// Ends a re-authentication with success. One that fails ends with [`Server::disconnect`]. [MQTT-4.12.1-2]
    pub fn finish_reauthentication(&mut self, data: Option<Bytes>) {
        let State::Established(established) = &mut self.state else { return };
        let Some(authentication) = &mut established.authentication else { return };
        if authentication.phase == Phase::Deciding {
            authentication.phase = Phase::Finished;
            let packet = authentication.packet(ReasonCode::Success, data);
            established.exchange.send_packet(&packet);
        }
    }

    /// Handles AUTH, before CONNACK or after it.
    pub(super) fn handle_auth(&mut self, auth: Box<Auth>) -> Result<(), Violation> {
        let authentication = match &mut self.state {
            State::Deciding(deciding) => deciding.authentication.as_mut(),
            State::Established(established) => established.authentication.as_deref_mut(),
            State::Listening | State::Closed(_) => None,
        };
        authentication.ok_or(Violation::AuthNotNegotiated)?.receive(&auth)?; // [MQTT-4.12.0-7]
        if matches!(self.state, State::Deciding(_)) {
            self.timers.set(Timer::Handshake, None);
        }
        self.emit(Event::Auth(auth));
        Ok(())
    }

    /// Handles a packet between CONNECT and CONNACK. [MQTT-3.1.2-30]
    pub(super) fn handle_packet_of_authentication(
        &mut self,
        packet: BorrowedPacket<'_>,
    ) -> Result<(), Violation> {
        match packet {
            Packet::Auth(auth) => self.handle_auth(auth),
            Packet::Disconnect(disconnect) => {
                self.close(crate::connection::Cause::Disconnected(disconnect.reason));
                Ok(())
            }
            other => Err(Violation::UnexpectedPacket(other.packet_type())),
        }
    }
}
