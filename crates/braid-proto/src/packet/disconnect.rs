//! DISCONNECT and AUTH.

use bytes::{BufMut, Bytes, BytesMut};

use super::ack::{put_reason_and_user, read_reason};
use super::properties::{UserProperties, id, put_properties, read_properties, read_user};
use super::put_packet;
use crate::types::{PacketType, ProtocolVersion, ReasonCode, Violation};
use crate::wire::Reader;

/// DISCONNECT (MQTT 3.14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Always success (normal disconnection) before MQTT 5.
    pub reason: ReasonCode,
    /// A new Session Expiry Interval in seconds, from a client only.
    pub session_expiry: Option<u32>,
    /// Diagnostics for humans.
    pub reason_string: Option<Box<str>>,
    /// Another server to use, from a server only.
    pub server_reference: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

impl Disconnect {
    /// DISCONNECT without properties.
    pub const fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            session_expiry: None,
            reason_string: None,
            server_reference: None,
            user: UserProperties::new(),
        }
    }

    fn has_properties(&self) -> bool {
        self.session_expiry.is_some()
            || self.reason_string.is_some()
            || self.server_reference.is_some()
            || !self.user.is_empty()
    }

    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Disconnect.first_byte(), |out| {
            if !version.is_v5() || self.reason == ReasonCode::Success && !self.has_properties() {
                return;
            }
            out.put_u8(self.reason.value());
            if self.has_properties() {
                put_properties(out, |to| {
                    to.number(id::SESSION_EXPIRY_INTERVAL, self.session_expiry);
                    to.text(id::SERVER_REFERENCE, self.server_reference.as_deref());
                    put_reason_and_user(to, self.reason_string.as_deref(), &self.user);
                });
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let mut disconnect = Self::new(ReasonCode::Success);
        if !version.is_v5() || reader.is_empty() {
            return Ok(disconnect);
        }
        disconnect.reason = read_reason(reader, PacketType::Disconnect)?; // [MQTT-3.14.2-1]
        if reader.is_empty() {
            return Ok(disconnect);
        }
        read_properties(reader, |part, id| {
            match id {
                id::SESSION_EXPIRY_INTERVAL => disconnect.session_expiry = Some(part.u32()?),
                id::REASON_STRING => disconnect.reason_string = Some(part.string()?.into()),
                id::SERVER_REFERENCE => disconnect.server_reference = Some(part.string()?.into()),
                id::USER_PROPERTY => disconnect.user.push(read_user(part)?),
                _ => return Err(Violation::PropertyNotAllowed(id)),
            }
            Ok(())
        })?;
        Ok(disconnect)
    }
}

/// AUTH (MQTT 5, 3.15): a step of enhanced authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Success, Continue authentication or Re-authenticate.
    pub reason: ReasonCode,
    /// The Authentication Method, the same as in CONNECT. [MQTT-4.12.0-5]
    pub method: Option<Box<str>>,
    /// Data of the Authentication Method.
    pub authentication_data: Option<Bytes>,
    /// Diagnostics for humans.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

impl Auth {
    pub(super) fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Auth.first_byte(), |out| {
            out.put_u8(self.reason.value());
            put_properties(out, |to| {
                to.text(id::AUTHENTICATION_METHOD, self.method.as_deref());
                to.binary(id::AUTHENTICATION_DATA, self.authentication_data.as_deref());
                put_reason_and_user(to, self.reason_string.as_deref(), &self.user);
            });
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Violation> {
        let mut auth = Self {
            reason: ReasonCode::Success,
            method: None,
            authentication_data: None,
            reason_string: None,
            user: UserProperties::new(),
        };
        if reader.is_empty() {
            return Ok(auth);
        }
        auth.reason = read_reason(reader, PacketType::Auth)?; // [MQTT-3.15.2-1]
        read_properties(reader, |part, id| {
            match id {
                id::AUTHENTICATION_METHOD => auth.method = Some(part.string()?.into()),
                id::AUTHENTICATION_DATA => auth.authentication_data = Some(part.owned_binary()?),
                id::REASON_STRING => auth.reason_string = Some(part.string()?.into()),
                id::USER_PROPERTY => auth.user.push(read_user(part)?),
                _ => return Err(Violation::PropertyNotAllowed(id)),
            }
            Ok(())
        })?;
        Ok(auth)
    }
}
