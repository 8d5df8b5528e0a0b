//! Properties (MQTT 5, 2.2.2): one reader for all packets, which knows what belongs where.

use bytes::{BufMut, BytesMut};

use crate::decoder::wire::{Reader, put_binary, put_measured, put_string, put_variable};
use crate::error::Violation;

/// User Properties: name and value, in order, names may repeat. [MQTT-3.1.3-10]
pub type UserProperties = Vec<(Box<str>, Box<str>)>;

/// The Property Identifiers of MQTT 5, table 2-4.
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

/// The value of one property, still borrowed from the packet.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Flag(bool),
    Number(u32),
    Text(&'a str),
    Binary(&'a [u8]),
    Pair(&'a str, &'a str),
}

impl<'a> Value<'a> {
    // Each identifier has one type, fixed in `read_value`: the fallbacks are never reached.
    pub(crate) fn flag(self) -> bool {
        matches!(self, Self::Flag(true))
    }

    pub(crate) fn number(self) -> u32 {
        if let Self::Number(number) = self { number } else { 0 }
    }

    /// For Two Byte Integers.
    pub(crate) fn short(self) -> u16 {
        u16::try_from(self.number()).unwrap_or(u16::MAX)
    }

    pub(crate) fn text(self) -> &'a str {
        if let Self::Text(text) = self { text } else { "" }
    }

    pub(crate) fn binary(self) -> &'a [u8] {
        if let Self::Binary(bytes) = self { bytes } else { &[] }
    }

    pub(crate) fn pair(self) -> (Box<str>, Box<str>) {
        if let Self::Pair(name, value) = self { (name.into(), value.into()) } else { ("".into(), "".into()) }
    }
}

/// Reads a Property Length and the properties behind it, and shows each that `allowed` lists to `visit`.
///
/// # Errors
/// [`Violation::PropertyNotAllowed`], [`Violation::DuplicateProperty`], and what a value itself breaks. User
/// Property may repeat; Subscription Identifier may in a PUBLISH, so that its repetition is for `visit` to judge.
pub(crate) fn read_properties<'a>(
    reader: &mut Reader<'a>,
    allowed: &[u8],
    mut visit: impl FnMut(&Reader<'a>, u8, Value<'a>) -> Result<(), Violation>,
) -> Result<(), Violation> {
    let len = reader.variable()?;
    if len == 0 {
        return Ok(());
    }
    let mut part = reader.part(len)?;
    let mut seen = 0_u64;
    while !part.is_empty() {
        let id = part.variable()?;
        let id = u8::try_from(id).map_err(|_| Violation::PropertyNotAllowed(u8::MAX))?;
        if !allowed.contains(&id) {
            return Err(Violation::PropertyNotAllowed(id));
        }
        if seen & 1 << id != 0 && !matches!(id, id::USER_PROPERTY | id::SUBSCRIPTION_IDENTIFIER) {
            return Err(Violation::DuplicateProperty(id));
        }
        seen |= 1 << id;
        let value = read_value(&mut part, id)?;
        visit(&part, id, value)?;
    }
    Ok(())
}

fn read_value<'a>(part: &mut Reader<'a>, id: u8) -> Result<Value<'a>, Violation> {
    Ok(match id {
        id::PAYLOAD_FORMAT_INDICATOR
        | id::REQUEST_PROBLEM_INFORMATION
        | id::REQUEST_RESPONSE_INFORMATION
        | id::MAXIMUM_QOS
        | id::RETAIN_AVAILABLE
        | id::WILDCARD_SUBSCRIPTION_AVAILABLE
        | id::SUBSCRIPTION_IDENTIFIER_AVAILABLE
        | id::SHARED_SUBSCRIPTION_AVAILABLE => match part.u8()? {
            0 => Value::Flag(false),
            1 => Value::Flag(true),
            _ => return Err(Violation::PropertyValue(id)),
        },
        id::SERVER_KEEP_ALIVE | id::TOPIC_ALIAS_MAXIMUM | id::TOPIC_ALIAS => {
            Value::Number(part.u16()?.into())
        }
        id::RECEIVE_MAXIMUM => Value::Number(not_zero(id, part.u16()?.into())?),
        id::MAXIMUM_PACKET_SIZE => Value::Number(not_zero(id, part.u32()?)?),
        id::MESSAGE_EXPIRY_INTERVAL | id::SESSION_EXPIRY_INTERVAL | id::WILL_DELAY_INTERVAL => {
            Value::Number(part.u32()?)
        }
        id::SUBSCRIPTION_IDENTIFIER => {
            let number = u32::try_from(part.variable()?).map_err(|_| Violation::VariableByteInteger)?;
            Value::Number(not_zero(id, number)?)
        }
        id::CORRELATION_DATA | id::AUTHENTICATION_DATA => Value::Binary(part.binary()?),
        id::USER_PROPERTY => Value::Pair(part.string()?, part.string()?), // [MQTT-1.5.7-1]
        id::CONTENT_TYPE
        | id::RESPONSE_TOPIC
        | id::ASSIGNED_CLIENT_IDENTIFIER
        | id::AUTHENTICATION_METHOD
        | id::RESPONSE_INFORMATION
        | id::SERVER_REFERENCE
        | id::REASON_STRING => Value::Text(part.string()?),
        _ => return Err(Violation::PropertyNotAllowed(id)),
    })
}

fn not_zero(id: u8, number: u32) -> Result<u32, Violation> {
    if number == 0 { Err(Violation::PropertyValue(id)) } else { Ok(number) }
}

/// Writes the Property Length and the properties that `write` puts.
pub(crate) fn put_properties(out: &mut BytesMut, write: impl FnOnce(&mut PropertyWriter<'_>)) {
    // An empty section still has its length. [MQTT-2.2.2-1]
    put_measured(out, |out| write(&mut PropertyWriter(out)));
}

/// Writes single properties; absent ones are skipped.
pub(crate) struct PropertyWriter<'a>(&'a mut BytesMut);

impl PropertyWriter<'_> {
    pub(crate) fn flag(&mut self, id: u8, value: Option<bool>) {
        if let Some(value) = value {
            self.0.put_slice(&[id, value.into()]);
        }
    }

    pub(crate) fn short(&mut self, id: u8, value: Option<u16>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            self.0.put_u16(value);
        }
    }

    pub(crate) fn number(&mut self, id: u8, value: Option<u32>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            self.0.put_u32(value);
        }
    }

    pub(crate) fn variable(&mut self, id: u8, value: u32) {
        self.0.put_u8(id);
        put_variable(self.0, value as usize);
    }

    pub(crate) fn text(&mut self, id: u8, value: Option<&str>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            put_string(self.0, value);
        }
    }

    pub(crate) fn binary(&mut self, id: u8, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.0.put_u8(id);
            put_binary(self.0, value);
        }
    }

    pub(crate) fn user(&mut self, properties: &UserProperties) {
        for (name, value) in properties {
            self.0.put_u8(id::USER_PROPERTY);
            put_string(self.0, name);
            put_string(self.0, value);
        }
    }
}
