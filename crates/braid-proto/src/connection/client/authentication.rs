//! Enhanced authentication: AUTH packets before CONNACK, and re-authentication after it (MQTT 5, 4.12).

use std::fmt;

use bytes::Bytes;

use super::{Client, ClientEvent, State};
use crate::packet::{Auth, ConnackProperties, Packet, UserProperties};
use crate::types::{ReasonCode, Violation};

/// Check of the last Authentication Data of the server: whether the server is authenticated. The data are empty where
/// the server sends none.
pub struct ServerProof(Box<Check>);

type Check = dyn FnOnce(&[u8]) -> bool + Send + Sync;

impl ServerProof {
    /// Check by a function.
    pub fn new(check: impl FnOnce(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(check))
    }
}

impl fmt::Debug for ServerProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerProof").finish_non_exhaustive()
    }
}

/// Enhanced authentication of a connection.
#[derive(Debug)]
pub(super) struct Authentication {
    /// Authentication Method of CONNECT.
    method: Box<str>,
    phase: Phase,
    /// Check of the server's last data; `None` before the driver has answered a challenge.
    proof: Option<ServerProof>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The server has to answer the data of the driver.
    Requested,
    /// The driver has to answer an AUTH.
    Challenged,
    /// Both are authenticated; the driver may begin again.
    Finished,
}

impl Authentication {
    pub(super) const fn new(method: Box<str>) -> Self {
        Self { method, phase: Phase::Requested, proof: None }
    }

    /// Checks an AUTH of the server. `is_established`: after CONNACK, where it may be the last one.
    fn receive(&mut self, auth: &Auth, is_established: bool) -> Result<(), Violation> {
        if auth.method.as_ref() != Some(&self.method) {
            return Err(Violation::AuthenticationMethodChanged); // [MQTT-4.12.0-5]
        }
        match (self.phase, auth.reason) {
            (Phase::Requested, ReasonCode::ContinueAuthentication) => self.phase = Phase::Challenged,
            (Phase::Requested, ReasonCode::Success) if is_established => {
                self.finish(auth.authentication_data.as_ref())?; // [MQTT-4.12.1-2]
            }
            _ => return Err(Violation::UnexpectedAuth(auth.reason.value())),
        }
        Ok(())
    }

    /// Checks CONNACK with Success, which ends the exchange. A server that does not prove itself gets no message.
    pub(super) fn receive_connack(&mut self, properties: &ConnackProperties) -> Result<(), Violation> {
        if properties.authentication_method.as_ref() != Some(&self.method) {
            return Err(Violation::AuthenticationMethodChanged); // [MQTT-4.12.0-5]
        }
        self.finish(properties.authentication_data.as_ref())
    }

    fn finish(&mut self, data: Option<&Bytes>) -> Result<(), Violation> {
        self.phase = Phase::Finished;
        let proof = self.proof.take().ok_or(Violation::ServerNotAuthenticated)?;
        let is_proven = (proof.0)(data.map_or(&[], |data| data));
        if is_proven { Ok(()) } else { Err(Violation::ServerNotAuthenticated) }
    }

    fn packet(&self, reason: ReasonCode, data: Bytes) -> Packet {
        let method = Some(self.method.clone()); // [MQTT-4.12.0-5], [MQTT-4.12.1-1]
        let authentication_data = Some(data);
        Packet::Auth(Box::new(Auth {
            reason,
            method,
            authentication_data,
            reason_string: None,
            user: UserProperties::new(),
        }))
    }
}

impl Client {
    /// Answers the [`ClientEvent::Auth`] of a challenge. `proof` checks the last data of the server, in CONNACK or AUTH
    /// with Success; a server that fails is not connected to.
    pub fn answer_challenge(&mut self, data: Bytes, proof: ServerProof) {
        let Some(authentication) = self.authentication_mut() else { return };
        if authentication.phase != Phase::Challenged {
            return;
        }
        authentication.phase = Phase::Requested;
        authentication.proof = Some(proof);
        // [MQTT-4.12.0-3]
        let packet = authentication.packet(ReasonCode::ContinueAuthentication, data);
        match &mut self.state {
            State::Connecting(connecting) => packet.encode(connecting.version, connecting.outbox.open()),
            State::Established(established) => drop(established.exchange.send_packet(&packet)),
            State::Closed(_) => {}
        }
    }

    /// Begins a re-authentication with the method of CONNECT. False: there is no connection, CONNECT named no method
    /// [MQTT-4.12.0-7], an exchange is not over, or the data are too large for the server.
    pub fn reauthenticate(&mut self, data: Bytes) -> bool {
        let State::Established(established) = &mut self.state else { return false };
        let Some(authentication) = &mut established.authentication else { return false };
        let packet = authentication.packet(ReasonCode::ReAuthenticate, data);
        if authentication.phase != Phase::Finished || !established.exchange.send_packet(&packet) {
            return false;
        }
        authentication.phase = Phase::Requested;
        true
    }

    fn authentication_mut(&mut self) -> Option<&mut Authentication> {
        match &mut self.state {
            State::Connecting(connecting) => connecting.authentication.as_mut(),
            State::Established(established) => established.authentication.as_deref_mut(),
            State::Closed(_) => None,
        }
    }

    /// Handles AUTH, before CONNACK or after it.
    pub(super) fn handle_auth(&mut self, auth: Box<Auth>) -> Result<(), Violation> {
        let is_established = self.is_established();
        let authentication = self.authentication_mut().ok_or(Violation::AuthNotNegotiated)?; // [MQTT-4.12.0-6]
        authentication.receive(&auth, is_established)?;
        self.events.push_back(ClientEvent::Auth(auth));
        Ok(())
    }
}
