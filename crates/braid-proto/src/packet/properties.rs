//! Properties (MQTT 5, 2.2.2): their identifiers, values and sections.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::{BufMut, Bytes, BytesMut};

use crate::types::{ClientId, QoS, TopicName, Violation};
use crate::wire::{Reader, put_binary, put_measured, put_string, put_variable};

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

/// Value of one property.
pub(super) trait Value: Sized {
    fn put(&self, out: &mut BytesMut);

    /// Reads the value of the property with this identifier.
    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation>;
}

/// Appends a property.
pub(super) fn put_property(out: &mut BytesMut, id: u8, value: &impl Value) {
    out.put_u8(id);
    value.put(out);
}

/// Properties of which the range begins with 1.
const NOT_ZERO: [u8; 2] = [id::RECEIVE_MAXIMUM, id::MAXIMUM_PACKET_SIZE];

impl Value for bool {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8((*self).into());
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        match part.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Violation::PropertyValue(id)),
        }
    }
}

impl Value for u16 {
    fn put(&self, out: &mut BytesMut) {
        out.put_u16(*self);
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        let value = part.u16()?;
        if value == 0 && NOT_ZERO.contains(&id) { Err(Violation::PropertyValue(id)) } else { Ok(value) }
    }
}

impl Value for u32 {
    fn put(&self, out: &mut BytesMut) {
        out.put_u32(*self);
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        let value = part.u32()?;
        if value == 0 && NOT_ZERO.contains(&id) { Err(Violation::PropertyValue(id)) } else { Ok(value) }
    }
}

/// Topic Alias.
impl Value for NonZeroU16 {
    fn put(&self, out: &mut BytesMut) {
        self.get().put(out);
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        Self::new(u16::read(id, part)?).ok_or(Violation::TopicAlias(0)) // [MQTT-3.3.2-8]
    }
}

impl Value for NonZeroU32 {
    fn put(&self, out: &mut BytesMut) {
        put_variable(out, self.get() as usize);
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        let number = u32::try_from(part.variable()?).map_err(|_| Violation::VariableByteInteger)?;
        Self::new(number).ok_or(Violation::PropertyValue(id))
    }
}

impl Value for Box<str> {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, self);
    }

    fn read(_: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        Ok(part.string()?.into())
    }
}

impl Value for Bytes {
    fn put(&self, out: &mut BytesMut) {
        put_binary(out, self);
    }

    fn read(_: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        part.owned_binary()
    }
}

impl Value for ClientId {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, self.as_str());
    }

    fn read(_: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        Ok(part.string()?.into())
    }
}

impl Value for TopicName {
    fn put(&self, out: &mut BytesMut) {
        put_string(out, self.as_str());
    }

    fn read(_: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        Self::parse(part.string()?).map_err(Violation::TopicName)
    }
}

/// Maximum QoS: 0 or 1.
impl Value for QoS {
    fn put(&self, out: &mut BytesMut) {
        (*self != Self::AtMostOnce).put(out);
    }

    fn read(id: u8, part: &mut Reader<'_>) -> Result<Self, Violation> {
        bool::read(id, part).map(|flag| if flag { Self::AtLeastOnce } else { Self::AtMostOnce })
    }
}

/// Field of a packet that holds a property: absent, once, or many times.
pub(super) trait Field {
    fn put(&self, id: u8, out: &mut BytesMut);
    fn read(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation>;
}

impl<T: Value> Field for Option<T> {
    fn put(&self, id: u8, out: &mut BytesMut) {
        if let Some(value) = self {
            put_property(out, id, value);
        }
    }

    fn read(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation> {
        let before = self.replace(T::read(id, part)?);
        before.map_or(Ok(()), |_| Err(Violation::DuplicateProperty(id)))
    }
}

impl<T: Value> Field for Vec<T> {
    fn put(&self, id: u8, out: &mut BytesMut) {
        self.iter().for_each(|value| put_property(out, id, value));
    }

    fn read(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation> {
        self.push(T::read(id, part)?);
        Ok(())
    }
}

/// Section of the properties of a packet.
pub(super) trait Section {
    /// Writes the properties that are present.
    fn put_properties(&self, out: &mut BytesMut);

    fn read_property(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation>;

    fn encode_section(&self, out: &mut BytesMut) {
        // An empty section has its length too. [MQTT-2.2.2-1]
        put_measured(out, |out| self.put_properties(out));
    }

    fn decode_section(&mut self, reader: &mut Reader<'_>) -> Result<(), Violation> {
        read_properties(reader, |part, id| self.read_property(id, part))
    }
}

/// Lists the properties of a packet for both directions: identifier and field, in the order of their encoding.
macro_rules! properties {
    ($packet:ty: $($id:ident = $field:ident),*) => {
        impl $crate::packet::properties::Section for $packet {
            fn put_properties(&self, out: &mut BytesMut) {
                use $crate::packet::properties::{Field, id};
                $(self.$field.put(id::$id, out);)*
            }

            fn read_property(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation> {
                use $crate::packet::properties::{Field, id};
                match id {
                    $(id::$id => self.$field.read(id, part),)*
                    _ => Err(Violation::PropertyNotAllowed(id)),
                }
            }
        }
    };
}
pub(super) use properties;
