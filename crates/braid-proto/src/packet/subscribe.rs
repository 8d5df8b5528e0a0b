//! SUBSCRIBE and UNSUBSCRIBE with their answers, SUBACK and UNSUBACK.

use std::num::NonZeroU32;

use bytes::{BufMut, BytesMut};

use super::ack::read_reason;
use super::properties::{Section, properties};
use super::put_packet;
use super::user_properties::UserProperties;
use crate::types::{
    PacketId, PacketType, ProtocolVersion, QoS, ReasonCode, RetainHandling, TopicError, TopicFilter,
    Violation,
};
use crate::wire::{Reader, put_string};

/// SUBSCRIBE (MQTT 3.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Packet Identifier, repeated in SUBACK.
    pub packet_id: PacketId,
    /// Subscription Identifier for all filters of this packet.
    pub id: Option<NonZeroU32>,
    /// User Properties.
    pub user: UserProperties,
    /// At least one. [MQTT-3.8.3-2]
    pub entries: Vec<SubscribeEntry>,
}

/// One Topic Filter of a SUBSCRIBE with its Subscription Options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeEntry {
    /// An invalid filter gets its own code in SUBACK; the other entries are not affected.
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
    /// Packet Identifier, repeated in UNSUBACK.
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
                self.encode_section(out);
            }
            for entry in &self.entries {
                put_string(out, text_of(&entry.filter));
                out.put_u8(if version.is_v5() { entry.options() } else { entry.qos.bits() });
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = reader.packet_id()?; // [MQTT-2.2.1-3]
        let mut subscribe = Self { packet_id, id: None, user: UserProperties::new(), entries: Vec::new() };
        if version.is_v5() {
            subscribe.decode_section(reader)?;
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

properties!(Subscribe: SUBSCRIPTION_IDENTIFIER = id, USER_PROPERTY = user);
properties!(Unsubscribe: USER_PROPERTY = user);

impl SubscribeEntry {
    /// Entry with the options that MQTT 3 has.
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
            // Protocol Error in MQTT 5, malformed before. [MQTT3-3.8.3-4]
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
                self.encode_section(out);
            }
            for filter in &self.filters {
                put_string(out, text_of(filter));
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = reader.packet_id()?; // [MQTT-2.2.1-3]
        let mut unsubscribe = Self { packet_id, user: UserProperties::new(), filters: Vec::new() };
        if version.is_v5() {
            unsubscribe.decode_section(reader)?;
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

/// Text of a filter. An invalid one is never sent: its empty text keeps the encoder total.
fn text_of(filter: &Result<TopicFilter, TopicError>) -> &str {
    filter.as_ref().map_or("", TopicFilter::as_str)
}

/// SUBACK (MQTT 3.9): one code per Topic Filter, in their order. [MQTT-3.9.3-1]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suback {
    /// Packet Identifier of the SUBSCRIBE. [MQTT-3.8.4-2]
    pub packet_id: PacketId,
    /// Granted QoS, or the reason of the refusal.
    pub codes: Vec<ReasonCode>,
    /// Diagnostics for humans.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

/// UNSUBACK (MQTT 3.11): one code per Topic Filter in MQTT 5, none before. [MQTT-3.11.3-1]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsuback {
    /// Packet Identifier of the UNSUBSCRIBE. [MQTT-3.10.4-5]
    pub packet_id: PacketId,
    /// Success, No subscription existed, or the reason of the failure.
    pub codes: Vec<ReasonCode>,
    /// Diagnostics for humans.
    pub reason_string: Option<Box<str>>,
    /// User Properties.
    pub user: UserProperties,
}

properties!(Suback: REASON_STRING = reason_string, USER_PROPERTY = user);
properties!(Unsuback: REASON_STRING = reason_string, USER_PROPERTY = user);

impl Suback {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Suback.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                self.encode_section(out);
            }
            for code in &self.codes {
                out.put_u8(if version.is_v5() { code.value() } else { code.suback_v3() });
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = reader.packet_id()?;
        let mut suback =
            Self { packet_id, codes: Vec::new(), reason_string: None, user: UserProperties::new() };
        if version.is_v5() {
            suback.decode_section(reader)?;
        }
        while !reader.is_empty() {
            let code = read_reason(reader, PacketType::Suback)?; // [MQTT-3.9.3-2]
            if !version.is_v5() && code.suback_v3() != code.value() {
                return Err(Violation::UnknownReasonCode(PacketType::Suback, code.value())); // [MQTT3-3.9.3-2]
            }
            suback.codes.push(code);
        }
        Ok(suback)
    }
}

impl Unsuback {
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        put_packet(out, PacketType::Unsuback.first_byte(), |out| {
            out.put_u16(self.packet_id.value());
            if version.is_v5() {
                self.encode_section(out);
                out.extend(self.codes.iter().map(|code| code.value()));
            }
        });
    }

    pub(super) fn decode(reader: &mut Reader<'_>, version: ProtocolVersion) -> Result<Self, Violation> {
        let packet_id = reader.packet_id()?;
        let mut unsuback =
            Self { packet_id, codes: Vec::new(), reason_string: None, user: UserProperties::new() };
        if version.is_v5() {
            unsuback.decode_section(reader)?;
            while !reader.is_empty() {
                unsuback.codes.push(read_reason(reader, PacketType::Unsuback)?); // [MQTT-3.11.3-2]
            }
        }
        Ok(unsuback)
    }
}
