use bytes::{BufMut, BytesMut};

use super::ack::{put_reason_and_user, read_reason};
use super::properties::{UserProperties, id, put_properties, read_properties};
use super::{PacketType, ProtocolVersion, put_packet};
use crate::decoder::wire::Reader;
use crate::error::Violation;
use crate::reason::ReasonCode;

/// DISCONNECT (MQTT 3.14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Always success (normal disconnection) before MQTT 5.
    pub reason: ReasonCode,
    /// A new Session Expiry Interval in seconds, from a client only.
    pub session_expiry: Option<u32>,
    /// For people, not for programs.
    pub reason_string: Option<Box<str>>,
    /// Another server to use, from a server only.
    pub server_reference: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

impl Disconnect {
    /// A DISCONNECT that says nothing but its reason.
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
        let allowed =
            [id::SESSION_EXPIRY_INTERVAL, id::REASON_STRING, id::SERVER_REFERENCE, id::USER_PROPERTY];
        read_properties(reader, &allowed, |_, id, value| {
            match id {
                id::SESSION_EXPIRY_INTERVAL => disconnect.session_expiry = Some(value.number()),
                id::REASON_STRING => disconnect.reason_string = Some(value.text().into()),
                id::SERVER_REFERENCE => disconnect.server_reference = Some(value.text().into()),
                _ => disconnect.user.push(value.pair()),
            }
            Ok(())
        })?;
        Ok(disconnect)
    }
}
