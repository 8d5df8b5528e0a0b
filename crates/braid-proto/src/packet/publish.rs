//! PUBLISH and the properties of its message.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::{BufMut, Bytes, BytesMut};

use super::properties::{Field, id, put_property, read_properties};
use super::user_properties::UserProperties;
use crate::types::{
    Mountpoint, PacketId, PacketType, Payload, ProtocolVersion, QoS, TopicError, TopicName, Violation,
};
use crate::wire::{PACKET_SIZE_MAX, Reader, put_measured, put_string, variable_bytes, variable_len};

/// PUBLISH (MQTT 3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish<P = Payload> {
    /// DUP flag: a repetition.
    pub dup: bool,
    /// Quality of Service.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Topic Name; `None` only with a Topic Alias.
    pub topic: Option<TopicName>,
    /// Packet Identifier, with QoS 1 and 2 only. [MQTT-2.2.1-2]
    pub packet_id: Option<PacketId>,
    /// Topic Alias, never 0. [MQTT-3.3.2-8]
    pub topic_alias: Option<NonZeroU16>,
    /// Subscription Identifiers, from a server only.
    pub subscription_ids: Vec<NonZeroU32>,
    /// Properties of the message; `None` when it has none.
    pub properties: Option<Box<MessageProperties>>,
    /// Payload of the Application Message.
    pub payload: P,
    /// Whether the payload was received into a [`Spool`](crate::decoder::Spool) and is not in the heap. Not part of the
    /// packet.
    pub spooled: bool,
}

/// Properties of a message, which a server forwards with it (MQTT 5, 3.3.2.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageProperties {
    /// Payload Format Indicator: the payload is UTF-8 text.
    pub payload_format: Option<bool>,
    /// Message Expiry Interval, seconds.
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

/// User Property of a PUBLISH whose payload is only the rest behind this offset. [BQ-98]
pub const OFFSET_PROPERTY: &str = "braid-offset";

// A packet is handed on several times: payloads of 24 bytes, Topic Names and vectors, and no more than these.
const _: () = assert!(size_of::<Result<Option<super::BorrowedPacket<'_>>, Violation>>() <= 88);

const DUP: u8 = 0x08;
const RETAIN: u8 = 0x01;

impl<'a> super::BorrowedPublish<'a> {
    /// Decodes the body. `topics` saves the allocation of a Topic Name that the connection has sent before.
    #[inline]
    pub(super) fn decode(
        first: u8,
        reader: &mut Reader<'a>,
        version: ProtocolVersion,
        topics: &mut TopicCache,
    ) -> Result<Self, Violation> {
        Publish::decode_parts(first, reader, version, topics, Reader::payload)
    }
}

impl Publish<()> {
    /// Decodes the body up to its payload.
    pub(crate) fn decode_head(
        first: u8,
        reader: &mut Reader<'_>,
        version: ProtocolVersion,
        topics: &mut TopicCache,
    ) -> Result<Self, Violation> {
        Self::decode_parts(first, reader, version, topics, |_| ())
    }
}

impl<P> Publish<P> {
    #[inline]
    fn decode_parts<'a>(
        first: u8,
        reader: &mut Reader<'a>,
        version: ProtocolVersion,
        topics: &mut TopicCache,
        payload: impl FnOnce(&mut Reader<'a>) -> P,
    ) -> Result<Self, Violation> {
        let qos = QoS::from_bits(first >> 1 & 0x03).ok_or(Violation::Qos3)?; // [MQTT-3.3.1-4]
        let dup = first & DUP != 0;
        if dup && qos == QoS::AtMostOnce {
            return Err(Violation::DupOnQos0); // [MQTT-3.3.1-2]
        }
        let name = reader.binary()?;
        let topic = if name.is_empty() && version.is_v5() { None } else { Some(topics.parse(name)?) };
        let packet_id = if qos == QoS::AtMostOnce { None } else { Some(reader.packet_id()?) }; // [MQTT-2.2.1-3]
        let (mut topic_alias, mut subscription_ids) = (None, Vec::new());
        let mut properties = None;
        if version.is_v5() && !reader.skip_zero() {
            properties = decode_properties(reader, &mut topic_alias, &mut subscription_ids)?;
        }
        // One expression, without a part of it in memory: reading that at once, the next move would wait for it.
        Ok(Self {
            dup,
            qos,
            retain: first & RETAIN != 0,
            topic,
            packet_id,
            topic_alias,
            subscription_ids,
            properties,
            payload: payload(reader),
            spooled: false,
        })
    }

    /// The packet with another payload.
    pub(crate) fn map_payload<Q>(self, payload: impl FnOnce(P) -> Q) -> Publish<Q> {
        let Self { dup, qos, retain, topic, packet_id, topic_alias, subscription_ids, properties, .. } = self;
        Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id,
            topic_alias,
            subscription_ids,
            properties,
            payload: payload(self.payload),
            spooled: self.spooled,
        }
    }
}

impl Publish {
    /// Encodes a packet that is not a [`Delivery`](crate::message::Delivery). Writes nothing when it would exceed the
    /// largest packet of MQTT.
    pub(super) fn encode(&self, version: ProtocolVersion, out: &mut BytesMut) {
        let head = PublishHead {
            dup: self.dup,
            qos: self.qos,
            retain: self.retain,
            topic: self.topic.as_ref().map_or("", TopicName::as_str),
            packet_id: self.packet_id,
            topic_alias: self.topic_alias.map(NonZeroU16::get),
            subscription_ids: &self.subscription_ids,
            properties: self.properties.as_deref(),
            message_expiry: self.properties.as_ref().and_then(|properties| properties.message_expiry),
            mountpoint: None,
        };
        if put_publish_head(out, version, &head, self.payload.len(), PACKET_SIZE_MAX).is_some() {
            out.put_slice(&self.payload);
        }
    }
}

fn decode_properties(
    reader: &mut Reader<'_>,
    topic_alias: &mut Option<NonZeroU16>,
    subscription_ids: &mut Vec<NonZeroU32>,
) -> Result<Option<Box<MessageProperties>>, Violation> {
    let mut properties = MessageProperties::default();
    read_properties(reader, |part, id| match id {
        id::TOPIC_ALIAS => topic_alias.read(id, part),
        id::SUBSCRIPTION_IDENTIFIER => subscription_ids.read(id, part),
        _ => properties.read(id, part),
    })?;
    Ok(properties.boxed())
}

/// PUBLISH without its payload.
pub(crate) struct PublishHead<'a> {
    pub(crate) dup: bool,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Empty with a Topic Alias that is defined.
    pub(crate) topic: &'a str,
    pub(crate) packet_id: Option<PacketId>,
    pub(crate) topic_alias: Option<u16>,
    pub(crate) subscription_ids: &'a [NonZeroU32],
    pub(crate) properties: Option<&'a MessageProperties>,
    /// Rest of the Message Expiry Interval, seconds.
    pub(crate) message_expiry: Option<u32>,
    /// Mountpoint of the receiver, for the Response Topic.
    pub(crate) mountpoint: Option<&'a Mountpoint>,
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
        put_measured(&mut properties, |out| {
            head.topic_alias.put(id::TOPIC_ALIAS, out);
            for number in head.subscription_ids {
                put_property(out, id::SUBSCRIPTION_IDENTIFIER, number);
            }
            if let Some(message) = head.properties {
                message.put(out, head.message_expiry, head.mountpoint);
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
    /// Value of [`Publish::properties`]: `None` without any property, as for most messages.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }

    /// Writes the properties with the rest of the Message Expiry Interval in seconds, and the Response Topic as the
    /// tenant at `mountpoint` names it. One that it cannot name is left out: it could not answer to it.
    pub(super) fn put(
        &self,
        out: &mut BytesMut,
        message_expiry: Option<u32>,
        mountpoint: Option<&Mountpoint>,
    ) {
        self.payload_format.put(id::PAYLOAD_FORMAT_INDICATOR, out); // [MQTT-3.3.2-4]
        message_expiry.put(id::MESSAGE_EXPIRY_INTERVAL, out);
        self.content_type.put(id::CONTENT_TYPE, out); // [MQTT-3.3.2-20]
        match (&self.response_topic, mountpoint) {
            (Some(topic), Some(mountpoint)) => {
                let own = mountpoint.own_name(topic).and_then(|own| TopicName::parse(own).ok());
                own.put(id::RESPONSE_TOPIC, out);
            }
            (topic, _) => topic.put(id::RESPONSE_TOPIC, out), // [MQTT-3.3.2-15]
        }
        self.correlation_data.put(id::CORRELATION_DATA, out); // [MQTT-3.3.2-16]
        self.user.put(id::USER_PROPERTY, out); // [MQTT-3.3.2-17], [MQTT-3.3.2-18]
    }

    /// Reads one property of a message, in PUBLISH or in the Will Properties of CONNECT.
    pub(super) fn read(&mut self, id: u8, part: &mut Reader<'_>) -> Result<(), Violation> {
        match id {
            id::PAYLOAD_FORMAT_INDICATOR => self.payload_format.read(id, part),
            id::MESSAGE_EXPIRY_INTERVAL => self.message_expiry.read(id, part),
            id::CONTENT_TYPE => self.content_type.read(id, part), // [MQTT-3.3.2-19]
            id::RESPONSE_TOPIC => self.response_topic.read(id, part), // [MQTT-3.3.2-13], [MQTT-3.3.2-14]
            id::CORRELATION_DATA => self.correlation_data.read(id, part),
            id::USER_PROPERTY => self.user.read(id, part),
            _ => Err(Violation::PropertyNotAllowed(id)),
        }
    }
}

/// Maximum number of Topic Names in a [`TopicCache`].
const CACHE_SIZE: usize = 8;

/// Maximum bytes of a Topic Name in the cache: longer ones could take half a megabyte for each connection.
const NAME_MAX: usize = 256;

/// Direct-mapped cache of the last Topic Names of a connection.
///
/// Most publishers repeat their topics. A hit costs a comparison instead of validation and an allocation, and the
/// dispatcher recognises the shared allocation by its address.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopicCache {
    /// Empty until the first PUBLISH: an idle connection has no allocation.
    names: Vec<TopicName>,
}

impl TopicCache {
    /// Topic Name of these bytes of a packet.
    pub(crate) fn parse(&mut self, bytes: &[u8]) -> Result<TopicName, Violation> {
        let index = bytes.len().wrapping_add(usize::from(*bytes.last().unwrap_or(&0))) % CACHE_SIZE;
        if let Some(name) = self.names.get(index)
            && name.as_str().as_bytes() == bytes
        {
            return Ok(name.clone());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Violation::Utf8)?; // [MQTT-3.3.2-1]
        let name = TopicName::parse(text).map_err(|error| match error {
            TopicError::Null => Violation::Utf8Null, // [MQTT-1.5.4-2]
            other => Violation::TopicName(other),
        })?;
        if bytes.len() > NAME_MAX {
            return Ok(name);
        }
        // Unused entries before it share its name, without an allocation.
        if index < self.names.len() {
            self.names[index] = name.clone();
        } else {
            self.names.resize(index + 1, name.clone());
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_seen_before_is_shared_and_a_long_one_is_not_kept() {
        let mut topics = TopicCache::default();
        let first = topics.parse(b"a/b").unwrap();
        assert!(topics.parse(b"a/b").unwrap().same_allocation(&first));
        let long = vec![b'x'; NAME_MAX + 1];
        let name = topics.parse(&long).unwrap();
        assert!(!topics.parse(&long).unwrap().same_allocation(&name));
        assert_eq!(topics.parse(&[0xFF]), Err(Violation::Utf8));
    }
}
