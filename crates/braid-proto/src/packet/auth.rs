use bytes::{BufMut, Bytes, BytesMut};

use super::ack::{put_reason_and_user, read_reason};
use super::properties::{UserProperties, id, put_properties, read_properties};
use super::{PacketType, put_packet};
use crate::decoder::wire::Reader;
use crate::error::Violation;
use crate::reason::ReasonCode;

/// AUTH (MQTT 5, 3.15): a step of enhanced authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Success, Continue authentication or Re-authenticate.
    pub reason: ReasonCode,
    /// The Authentication Method, the same as in CONNECT. [MQTT-4.12.0-5]
    pub method: Option<Box<str>>,
    /// What the method defines.
    pub authentication_data: Option<Bytes>,
    /// For people, not for programs.
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
        let allowed =
            [id::AUTHENTICATION_METHOD, id::AUTHENTICATION_DATA, id::REASON_STRING, id::USER_PROPERTY];
        read_properties(reader, &allowed, |reader, id, value| {
            match id {
                id::AUTHENTICATION_METHOD => auth.method = Some(value.text().into()),
                id::AUTHENTICATION_DATA => auth.authentication_data = Some(reader.own(value.binary())),
                id::REASON_STRING => auth.reason_string = Some(value.text().into()),
                _ => auth.user.push(value.pair()),
            }
            Ok(())
        })?;
        Ok(auth)
    }
}
