//! Properties (MQTT 5, 2.2.2): their identifiers, reader and writer.

use std::num::NonZeroU32;

use bytes::{BufMut, BytesMut};

use crate::types::Violation;
use crate::wire::{Reader, put_binary, put_measured, put_string, put_variable};

/// User Properties: name and value, in order, names may repeat. [MQTT-3.1.3-10]
pub type UserProperties = Vec<(Box<str>, Box<str>)>;

/// Property Identifiers of MQTT 5, table 2-4.
pub(crate) mod id {
    pub(crate) const PAYLOAD_FORMAT_INDICATOR: u8 = 0x01;
    pub(crate) const MESSAGE_EXPIRY_INTERVAL: u8 = 0x02;
    pub(crate) const CONTENT_TYPE: u8 = 0x03;
    pub(crate) const RESPONSE_TOPIC: u8 = 0x08;
    pub(crate) const CORRELATION_DATA: u8 = 0x09;
    pub(crate) const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub(crate) const SESSION_EXPIRY_INTERVAL: u8 = 0x11;
    pub(crate) const ASSIGNED_CLIENT_IDENTIFIER: u8 = 0x12;
    pub(crate) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(crate) const AUTHENTICATION_METHOD: u8 = 0x15;
    pub(crate) const AUTHENTICATION_DATA: u8 = 0x16;
    pub(crate) const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub(crate) const WILL_DELAY_INTERVAL: u8 = 0x18;
    pub(crate) const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub(crate) const RESPONSE_INFORMATION: u8 = 0x1A;
    pub(crate) const SERVER_REFERENCE: u8 = 0x1C;
    pub(crate) const REASON_STRING: u8 = 0x1F;
    pub(crate) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(crate) const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub(crate) const TOPIC_ALIAS: u8 = 0x23;
    pub(crate) const MAXIMUM_QOS: u8 = 0x24;
    pub(crate) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(crate) const USER_PROPERTY: u8 = 0x26;
    pub(crate) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub(crate) const WILDCARD_SUBSCRIPTION_AVAILABLE: u8 = 0x28;
    pub(crate) const SUBSCRIPTION_IDENTIFIER_AVAILABLE: u8 = 0x29;
    pub(crate) const SHARED_SUBSCRIPTION_AVAILABLE: u8 = 0x2A;
}

/// Reads a Property Length, and calls `read` for each property behind it with the reader at its value and its
/// identifier.
///
/// # Errors
/// [`Violation::DuplicateProperty`] and those of `read`, which answers [`Violation::PropertyNotAllowed`] to an
/// identifier that the packet does not have. User Property may repeat; so may Subscription Identifier in a PUBLISH, and
/// `read` refuses its repetition elsewhere.
pub(super) fn read_properties<'a>(
    reader: &mut Reader<'a>,
    mut read: impl FnMut(&mut Reader<'a>, u8) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let len = reader.variable()?;
    let mut part = reader.part(len)?;
    let mut seen = 0_u64;
    while !part.is_empty() {
        let id = part.variable()?;
        let id = u8::try_from(id).map_err(|_| Violation::PropertyNotAllowed(u8::MAX))?;
        let bit = 1_u64.checked_shl(id.into()).ok_or(Violation::PropertyNotAllowed(id))?;
        if seen & bit != 0 && !matches!(id, id::USER_PROPERTY | id::SUBSCRIPTION_IDENTIFIER) {
            return Err(Violation::DuplicateProperty(id));
        }
        seen |= bit;
        read(&mut part, id)?;
    }
    Ok(())
}

/// Reads a property of one byte that is 0 or 1.
pub(super) fn read_flag(part: &mut Reader<'_>, id: u8) -> Result<bool, Violation> {
    match part.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Violation::PropertyValue(id)),
    }
}

/// Checks the value of a property whose range begins with 1.
pub(super) fn not_zero<T: Default + PartialEq>(id: u8, value: T) -> Result<T, Violation> {
    if value == T::default() { Err(Violation::PropertyValue(id)) } else { Ok(value) }
}

pub(super) fn read_subscription_id(part: &mut Reader<'_>) -> Result<NonZeroU32, Violation> {
    let number = u32::try_from(part.variable()?).map_err(|_| Violation::VariableByteInteger)?;
    NonZeroU32::new(number).ok_or(Violation::PropertyValue(id::SUBSCRIPTION_IDENTIFIER))
}

/// Reads name and value of a User Property. [MQTT-1.5.7-1]
pub(super) fn read_user(part: &mut Reader<'_>) -> Result<(Box<str>, Box<str>), Violation> {
    Ok((part.string()?.into(), part.string()?.into())) // [MQTT-1.5.7-1]
}

/// Writes the Property Length and the properties that `write` puts.
pub(super) fn put_properties(out: &mut BytesMut, write: impl FnOnce(&mut PropertyWriter<'_>)) {
    // An empty section has its length too. [MQTT-2.2.2-1]
    put_measured(out, |out| write(&mut PropertyWriter(out)));
}

/// Writer of single properties; absent ones are skipped.
pub(super) struct PropertyWriter<'a>(&'a mut BytesMut);

impl PropertyWriter<'_> {
    pub(super) fn flag(&mut self, id: u8, value: Option<bool>) {
        if let Some(value) = value {
            self.0.put_slice(&[id, value.into()]);
        }
    }

    pub(super) fn short(&mut self, id: u8, value: Option<u16>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            self.0.put_u16(value);
        }
    }

    pub(super) fn number(&mut self, id: u8, value: Option<u32>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            self.0.put_u32(value);
        }
    }

    pub(super) fn variable(&mut self, id: u8, value: u32) {
        self.0.put_u8(id);
        put_variable(self.0, value as usize);
    }

    pub(super) fn text(&mut self, id: u8, value: Option<&str>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            put_string(self.0, value);
        }
    }

    pub(super) fn binary(&mut self, id: u8, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            put_binary(self.0, value);
        }
    }

    pub(super) fn user(&mut self, properties: &UserProperties) {
        for (name, value) in properties {
            self.0.put_u8(id::USER_PROPERTY);
            put_string(self.0, name);
            put_string(self.0, value);
        }
    }
}
