use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};

use super::properties::{PropertyWriter, UserProperties, Value, id, put_properties, read_properties};
use super::{PacketId, PacketType, ProtocolVersion, QoS};
use crate::decoder::topics::TopicCache;
use crate::decoder::wire::{PACKET_SIZE_MAX, Reader, put_string, variable_bytes, variable_len};
use crate::error::Violation;
use crate::topic::TopicName;

/// PUBLISH (MQTT 3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Sent before.
    pub dup: bool,
    /// Quality of Service.
    pub qos: QoS,
    /// Retain.
    pub retain: bool,
    /// `None` only where a Topic Alias names it.
    pub topic: Option<TopicName>,
    /// Present with QoS 1 and 2 and only there. [MQTT-2.2.1-2]
    pub packet_id: Option<PacketId>,
    /// Topic Alias.
    pub topic_alias: Option<u16>,
    /// Subscription Identifiers, from a server only.
    pub subscription_ids: Vec<NonZeroU32>,
    /// The message's own properties; `None` when it has none.
    pub properties: Option<Box<MessageProperties>>,
    /// The Application Message.
    pub payload: Bytes,
    /// The payload was received into a [`Spool`](crate::decoder::Spool) and is not in the heap. Nothing of the packet.
    pub spooled: bool,
}

/// The properties that belong to a message and travel with it (MQTT 5, 3.3.2.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageProperties {
    /// The payload is UTF-8 text.
    pub payload_format: Option<bool>,
    /// Seconds of life.
    pub message_expiry: Option<u32>,
    /// Content Type.
    pub content_type: Option<Box<str>>,
    /// Response Topic, never with wildcards. [MQTT-3.3.2-14]
    pub response_topic: Option<TopicName>,
    /// Correlation Data.
    pub correlation_data: Option<Bytes>,
    /// User Properties, in order. [MQTT-3.3.2-18]
    pub user: UserProperties,
}

const DUP: u8 = 0x08;
const RETAIN: u8 = 0x01;

impl Publish {
    /// Decodes the body; `topics` spares an allocation for names seen before on the connection.
    pub(crate) fn decode(
        first: u8,
        reader: &mut Reader<'_>,
        version: ProtocolVersion,
        topics: Option<&mut TopicCache>,
    ) -> Result<Self, Violation> {
        let qos = QoS::from_bits(first >> 1 & 0x03).ok_or(Violation::Qos3)?; // [MQTT-3.3.1-4]
        let dup = first & DUP != 0;
        if dup && qos == QoS::AtMostOnce {
            return Err(Violation::DupOnQos0); // [MQTT-3.3.1-2]
        }
        let name = reader.binary()?;
        let topic = if name.is_empty() && version.is_v5() {
            None
        } else {
            Some(match topics {
                Some(topics) => topics.parse(name)?,
                None => TopicCache::default().parse(name)?,
            })
        };
        let packet_id = if qos == QoS::AtMostOnce { None } else { Some(PacketId::parse(reader.u16()?)?) }; // [MQTT-2.2.1-3]
        let mut publish = Self {
            dup,
            qos,
            retain: first & RETAIN != 0,
            topic,
            packet_id,
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: None,
            payload: Bytes::new(),
            spooled: false,
        };
        if version.is_v5() {
            publish.decode_properties(reader)?;
        }
        let payload = reader.rest();
        publish.payload = reader.own(payload);
        Ok(publish)
    }

    fn decode_properties(&mut self, reader: &mut Reader<'_>) -> Result<(), Violation> {
        const ALLOWED: [u8; 8] = [
            id::PAYLOAD_FORMAT_INDICATOR,
            id::MESSAGE_EXPIRY_INTERVAL,
            id::TOPIC_ALIAS,
            id::RESPONSE_TOPIC,
            id::CORRELATION_DATA,
            id::USER_PROPERTY,
            id::SUBSCRIPTION_IDENTIFIER,
            id::CONTENT_TYPE,
        ];
        let mut properties = MessageProperties::default();
        read_properties(reader, &ALLOWED, |reader, id, value| match id {
            id::TOPIC_ALIAS => {
                self.topic_alias = Some(value.short());
                Ok(())
            }
            id::SUBSCRIPTION_IDENTIFIER => {
                self.subscription_ids.extend(NonZeroU32::new(value.number()));
                Ok(())
            }
            _ => read_message_property(&mut properties, reader, id, value),
        })?;
        self.properties = properties.boxed();
        Ok(())
    }

    /// The plain encoder, for everything that is not the hot path. Writes nothing when no packet is that large.
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        let head = PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.topic.as_ref().map_or("", TopicName::as_str),
            packet_id: self.packet_id,
            topic_alias: self.topic_alias,
            subscription_ids: &self.subscription_ids,
            properties: self.properties.as_deref(),
            message_expiry: self.properties.as_ref().and_then(|properties| properties.message_expiry),
        };
        if put_publish_head(out, version, &head, self.payload.len(), PACKET_SIZE_MAX).is_some() {
            out.put_slice(&self.payload);
        }
    }
}

/// All of a PUBLISH but its payload.
pub(crate) struct PublishHead<'a> {
    pub(crate) dup: bool,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Empty where an alias stands for it.
    pub(crate) topic: &'a str,
    pub(crate) packet_id: Option<PacketId>,
    pub(crate) topic_alias: Option<u16>,
    pub(crate) subscription_ids: &'a [NonZeroU32],
    pub(crate) properties: Option<&'a MessageProperties>,
    /// What is left of the Message Expiry Interval, seconds.
    pub(crate) message_expiry: Option<u32>,
}

impl PublishHead<'_> {
    fn first_byte(&self) -> u8 {
        let mut first = PacketType::Publish.first_byte() | self.qos.bits() << 1;
        if self.dup {
            first |= DUP;
        }
        if self.retain {
            first |= RETAIN;
        }
        first
    }

    fn has_properties(&self) -> bool {
        self.topic_alias.is_some() || !self.subscription_ids.is_empty() || self.properties.is_some()
    }
}

/// Writes the packet up to its payload and returns the length of the whole packet in bytes. `None`, with nothing
/// written: it would exceed `maximum_packet_size`, which is at most [`PACKET_SIZE_MAX`].
pub(crate) fn put_publish_head(
    out: &mut BytesMut,
    version: ProtocolVersion,
    head: &PublishHead<'_>,
    payload_len: usize,
    maximum_packet_size: usize,
) -> Option<usize> {
    let mut properties = BytesMut::new();
    if version.is_v5() && head.has_properties() {
        put_properties(&mut properties, |to| {
            to.short(id::TOPIC_ALIAS, head.topic_alias);
            for number in head.subscription_ids {
                to.variable(id::SUBSCRIPTION_IDENTIFIER, number.get());
            }
            if let Some(message) = head.properties {
                message.put(to, head.message_expiry);
            }
        });
    }
    let properties: &[u8] = match version.is_v5() {
        true if properties.is_empty() => &[0],
        true => &properties,
        false => &[],
    };
    let id_len = if head.packet_id.is_some() { 2 } else { 0 };
    let remaining = 2 + head.topic.len() + id_len + properties.len() + payload_len;
    let packet_len = 1 + variable_len(remaining) + remaining;
    if packet_len > maximum_packet_size {
        return None;
    }
    let (length, width) = variable_bytes(remaining);
    out.reserve(packet_len - payload_len);
    out.put_u8(head.first_byte());
    out.put_slice(&length[..width]);
    put_string(out, head.topic);
    if let Some(packet_id) = head.packet_id {
        out.put_u16(packet_id.value());
    }
    out.put_slice(properties);
    Some(packet_len)
}

impl MessageProperties {
    /// `None` when there is nothing to keep: most messages have no properties.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }

    pub(super) fn put(&self, to: &mut PropertyWriter<'_>, message_expiry: Option<u32>) {
        to.flag(id::PAYLOAD_FORMAT_INDICATOR, self.payload_format); // [MQTT-3.3.2-4]
        to.number(id::MESSAGE_EXPIRY_INTERVAL, message_expiry);
        to.text(id::CONTENT_TYPE, self.content_type.as_deref()); // [MQTT-3.3.2-20]
        to.text(id::RESPONSE_TOPIC, self.response_topic.as_ref().map(TopicName::as_str)); // [MQTT-3.3.2-15]
        to.binary(id::CORRELATION_DATA, self.correlation_data.as_deref()); // [MQTT-3.3.2-16]
        to.user(&self.user); // [MQTT-3.3.2-17], [MQTT-3.3.2-18]
    }
}

/// One property of a message, the same in PUBLISH and in the Will Properties of CONNECT.
pub(super) fn read_message_property(
    properties: &mut MessageProperties,
    reader: &Reader<'_>,
    id: u8,
    value: Value<'_>,
) -> Result<(), Violation> {
    match id {
        id::PAYLOAD_FORMAT_INDICATOR => properties.payload_format = Some(value.flag()),
        id::MESSAGE_EXPIRY_INTERVAL => properties.message_expiry = Some(value.number()),
        id::CONTENT_TYPE => properties.content_type = Some(value.text().into()), // [MQTT-3.3.2-19]
        id::RESPONSE_TOPIC => {
            // [MQTT-3.3.2-13], [MQTT-3.3.2-14]
            properties.response_topic = Some(TopicName::parse(value.text()).map_err(Violation::TopicName)?);
        }
        id::CORRELATION_DATA => properties.correlation_data = Some(reader.own(value.binary())),
        _ => properties.user.push(value.pair()),
    }
    Ok(())
}
