//! DISCONNECT and AUTH.

use bytes::{BufMut, Bytes, BytesMut};

use super::ack::read_reason;
use super::properties::{Section, properties};
use super::put_packet;
use super::secret::debug_hiding;
use super::user_properties::UserProperties;
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
                self.encode_section(out);
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let mut disconnect = Self::new(ReasonCode::Success);
        if !version.is_v5() || reader.is_empty() {
            return Ok(disconnect);
        }
        disconnect.reason = read_reason(reader, PacketType::Disconnect)?; // [MQTT-3.14.2-1]
        if !reader.is_empty() {
            disconnect.decode_section(reader)?;
        }
        Ok(disconnect)
    }
}

properties!(Disconnect:
    SESSION_EXPIRY_INTERVAL = session_expiry,
    SERVER_REFERENCE = server_reference,
    REASON_STRING = reason_string,
    USER_PROPERTY = user
);

/// AUTH (MQTT 5, 3.15): a step of enhanced authentication. `Debug` hides the data.
#[derive(Clone, PartialEq, Eq)]
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

debug_hiding!(Auth: reason, method, reason_string, user; authentication_data);

impl Auth {
    pub(super) fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Auth.first_byte(), |out| {
            out.put_u8(self.reason.value());
            self.encode_section(out);
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
        if !reader.is_empty() {
            auth.reason = read_reason(reader, PacketType::Auth)?; // [MQTT-3.15.2-1]
            auth.decode_section(reader)?;
        }
        Ok(auth)
    }
}

properties!(Auth:
    AUTHENTICATION_METHOD = method,
    AUTHENTICATION_DATA = authentication_data,
    REASON_STRING = reason_string,
    USER_PROPERTY = user
);
