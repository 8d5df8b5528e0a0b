use std::num::NonZeroU32;

use bytes::{BufMut, BytesMut};

use super::properties::{UserProperties, id, put_properties, read_properties};
use super::{PacketId, PacketType, ProtocolVersion, QoS, put_packet};
use crate::decoder::wire::{Reader, put_string};
use crate::error::Violation;
use crate::session::RetainHandling;
use crate::topic::{TopicError, TopicFilter};

/// SUBSCRIBE (MQTT 3.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Answered by the SUBACK with the same.
    pub packet_id: PacketId,
    /// The Subscription Identifier for all filters of this packet.
    pub id: Option<NonZeroU32>,
    /// User Properties.
    pub user: UserProperties,
    /// At least one. [MQTT-3.8.3-2]
    pub entries: Vec<SubscribeEntry>,
}

/// One Topic Filter of a SUBSCRIBE with its Subscription Options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeEntry {
    /// A filter against the rules is answered in its place; the others are not harmed.
    pub filter: Result<TopicFilter, TopicError>,
    /// Maximum QoS.
    pub qos: QoS,
    /// No Local.
    pub no_local: bool,
    /// Retain As Published.
    pub retain_as_published: bool,
    /// Retain Handling.
    pub retain_handling: RetainHandling,
}

/// UNSUBSCRIBE (MQTT 3.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Answered by the UNSUBACK with the same.
    pub packet_id: PacketId,
    /// User Properties.
    pub user: UserProperties,
    /// At least one. [MQTT-3.10.3-2]
    pub filters: Vec<Result<TopicFilter, TopicError>>,
}

impl Subscribe {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Subscribe.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                put_properties(out, |to| {
                    if let Some(number) = self.id {
                        to.variable(id::SUBSCRIPTION_IDENTIFIER, number.get());
                    }
                    to.user(&self.user);
                });
            }
            for entry in &self.entries {
                put_string(out, text_of(&entry.filter));
                out.put_u8(if version.is_v5() { entry.options() } else { entry.qos.bits() });
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = PacketId::parse(reader.u16()?)?; // [MQTT-2.2.1-3]
        let mut subscribe = Self { packet_id, id: None, user: Vec::new(), entries: Vec::new() };
        if version.is_v5() {
            read_properties(reader, &[id::SUBSCRIPTION_IDENTIFIER, id::USER_PROPERTY], |_, id, value| {
                if id == id::SUBSCRIPTION_IDENTIFIER {
                    if subscribe.id.is_some() {
                        return Err(Violation::DuplicateProperty(id));
                    }
                    subscribe.id = NonZeroU32::new(value.number());
                } else {
                    subscribe.user.push(value.pair());
                }
                Ok(())
            })?;
        }
        while !reader.is_empty() {
            subscribe.entries.push(SubscribeEntry::decode(reader, version)?);
        }
        if subscribe.entries.is_empty() {
            return Err(Violation::NoTopicFilter(PacketType::Subscribe)); // [MQTT-3.8.3-2]
        }
        Ok(subscribe)
    }
}

impl SubscribeEntry {
    /// A filter with the options that MQTT 3 knows.
    pub const fn new(filter: TopicFilter, qos: QoS) -> Self {
        Self {
            filter: Ok(filter),
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::SendAlways,
        }
    }

    fn options(&self) -> u8 {
        self.qos.bits()
            | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling as u8) << 4
    }

    fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let filter = TopicFilter::parse(reader.string()?); // [MQTT-3.8.3-1]
        let options = reader.u8()?;
        let reserved = if version.is_v5() { 0xC0 } else { 0xFC };
        if options & reserved != 0 {
            return Err(Violation::SubscriptionOptions); // [MQTT-3.8.3-5], [MQTT3-3.8.3-4]
        }
        let no_local = options & 0x04 != 0;
        if no_local && filter.as_ref().is_ok_and(TopicFilter::is_shared) {
            return Err(Violation::NoLocalOnShared); // [MQTT-3.8.3-4]
        }
        Ok(Self {
            filter,
            // A protocol error in MQTT 5, malformed before. [MQTT3-3.8.3-4]
            qos: QoS::from_bits(options & 0x03).ok_or(Violation::MaximumQos3)?,
            no_local,
            retain_as_published: options & 0x08 != 0,
            retain_handling: match options >> 4 & 0x03 {
                0 => RetainHandling::SendAlways,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return Err(Violation::RetainHandling3),
            },
        })
    }
}

impl Unsubscribe {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Unsubscribe.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                put_properties(out, |to| to.user(&self.user));
            }
            for filter in &self.filters {
                put_string(out, text_of(filter));
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = PacketId::parse(reader.u16()?)?; // [MQTT-2.2.1-3]
        let mut unsubscribe = Self { packet_id, user: Vec::new(), filters: Vec::new() };
        if version.is_v5() {
            read_properties(reader, &[id::USER_PROPERTY], |_, _, value| {
                unsubscribe.user.push(value.pair());
                Ok(())
            })?;
        }
        while !reader.is_empty() {
            unsubscribe.filters.push(TopicFilter::parse(reader.string()?)); // [MQTT-3.10.3-1]
        }
        if unsubscribe.filters.is_empty() {
            return Err(Violation::NoTopicFilter(PacketType::Unsubscribe)); // [MQTT-3.10.3-2]
        }
        Ok(unsubscribe)
    }
}

/// A filter that did not parse is never sent: the empty text keeps the encoder total.
fn text_of(filter: &Result<TopicFilter, TopicError>) -> &str {
    filter.as_ref().map_or("", TopicFilter::as_str)
}
