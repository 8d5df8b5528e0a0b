//! Messages and Wills.

use braid_proto::packet::{MessageProperties, UserProperties, Will};
use braid_proto::topic::TopicName;
use bytes::Bytes;

use super::bytes::{Malformed, Reader, flag, put_bytes, put_time, put_varint, qos, topic};
use crate::ids::{Lsn, SessionId};
use crate::message::StoredMessage;

const RETAIN: u8 = 1 << 2;
const PROPERTIES: u8 = 1 << 3;
const EXPIRES: u8 = 1 << 4;
const CHUNKED: u8 = 1 << 5;
const PUBLISHER: u8 = 1 << 6;

const FORMAT_KNOWN: u8 = 1 << 0;
const FORMAT_IS_TEXT: u8 = 1 << 1;
const EXPIRY: u8 = 1 << 2;
const CONTENT_TYPE: u8 = 1 << 3;
const RESPONSE_TOPIC: u8 = 1 << 4;
const CORRELATION: u8 = 1 << 5;
const USER: u8 = 1 << 6;

pub(crate) const fn message_key(message: Lsn) -> [u8; 8] {
    message.value().to_be_bytes()
}

pub(crate) fn decode_message_key(key: &[u8; 8]) -> Lsn {
    Lsn::new(u64::from_be_bytes(*key))
}

/// Encodes the message; a payload of more than `inline_max` bytes only by its length.
pub(crate) fn encode_message_up_to(out: &mut Vec<u8>, message: &StoredMessage, inline_max: usize) {
    let (topic, payload) = (message.topic().as_str(), message.payload());
    let is_chunked = payload.len() > inline_max;
    out.reserve(topic.len() + if is_chunked { 0 } else { payload.len() } + 16);
    out.push(
        message.qos().bits()
            | flag(RETAIN, message.retain())
            | flag(PROPERTIES, message.properties().is_some())
            | flag(EXPIRES, message.expires_at().is_some())
            | flag(CHUNKED, is_chunked)
            | flag(PUBLISHER, message.publisher().is_some()),
    );
    if let Some(at) = message.expires_at() {
        put_time(out, at);
    }
    put_bytes(out, topic.as_bytes());
    if let Some(publisher) = message.publisher() {
        put_bytes(out, publisher.as_bytes());
    }
    if let Some(properties) = message.properties() {
        encode_properties(out, properties);
    }
    if is_chunked {
        out.extend_from_slice(&(payload.len() as u64).to_be_bytes());
    } else {
        out.extend_from_slice(payload);
    }
}

/// Decodes a message with an inline payload.
pub(super) fn decode_message(value: &[u8]) -> Result<StoredMessage, Malformed> {
    let (head, payload) = split_message(value)?;
    Ok(head.with_copy(payload.inline()?, None))
}

/// Number of a message, length of its payload, and whether that is chunked.
pub(crate) fn message_len_row(key: &[u8; 8], value: &[u8]) -> Result<(Lsn, usize, bool), Malformed> {
    let (_, payload) = split_message(value)?;
    Ok((decode_message_key(key), payload.len(), is_chunked(value)))
}

/// The message without its payload, and the payload.
pub(crate) fn split_message(value: &[u8]) -> Result<(StoredMessage, Payload<'_>), Malformed> {
    split(&mut Reader::new(value))
}

fn split<'a>(reader: &mut Reader<'a>) -> Result<(StoredMessage, Payload<'a>), Malformed> {
    let flags = reader.u8()?;
    let qos = qos(flags)?;
    let expires_at = if flags & EXPIRES != 0 { Some(reader.time()?) } else { None };
    let topic = topic(reader.text()?)?;
    let publisher = if flags & PUBLISHER != 0 { Some(reader.text()?.into()) } else { None };
    let properties = if flags & PROPERTIES != 0 { Some(decode_properties(reader)?) } else { None };
    let payload = if flags & CHUNKED == 0 {
        Payload::Inline(reader.rest())
    } else {
        let length = usize::try_from(reader.u64()?).map_err(|_| Malformed("a length"))?;
        reader.end()?;
        Payload::Chunked(length)
    };
    let retain = flags & RETAIN != 0;
    let head = StoredMessage::from_parts(topic, Bytes::new(), qos, retain, properties, expires_at);
    Ok((head.with_publisher(publisher), payload))
}

/// True when the message's payload is stored in chunks.
pub(crate) fn is_chunked(value: &[u8]) -> bool {
    value.first().is_some_and(|flags| flags & CHUNKED != 0)
}

/// Bytes of a message with its payload, inline or chunked.
pub(crate) fn stored_len(value: &[u8]) -> usize {
    let chunked = if is_chunked(value) { value.split_last_chunk() } else { None };
    let Some((head, length)) = chunked else { return value.len() };
    head.len().saturating_add(usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX))
}

/// Location of a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// In the row of its message.
    Inline(&'a [u8]),
    /// In the table of chunks, with its length in bytes.
    Chunked(usize),
}

impl<'a> Payload<'a> {
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Inline(payload) => payload.len(),
            Self::Chunked(length) => length,
        }
    }

    const fn inline(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Inline(payload) => Ok(payload),
            Self::Chunked(_) => Err(Malformed("a payload")),
        }
    }
}

pub(crate) fn encode_will(out: &mut Vec<u8>, will: &Will) {
    out.extend_from_slice(&will.delay.to_be_bytes());
    encode_message_up_to(out, &StoredMessage::of_will(will), usize::MAX);
}

pub(crate) fn will_row(key: &[u8; 8], value: &[u8]) -> Result<(SessionId, Will), Malformed> {
    Ok((SessionId::new(u64::from_be_bytes(*key)), decode_will(value)?))
}

pub(super) fn decode_will(value: &[u8]) -> Result<Will, Malformed> {
    let mut reader = Reader::new(value);
    let delay = reader.u32()?;
    let (head, payload) = split(&mut reader)?;
    Ok(head.with_copy(payload.inline()?, None).to_will(delay))
}

fn encode_properties(out: &mut Vec<u8>, properties: &MessageProperties) {
    let MessageProperties {
        payload_format,
        message_expiry,
        content_type,
        response_topic,
        correlation_data,
        user,
    } = properties;
    out.push(
        flag(FORMAT_KNOWN, payload_format.is_some())
            | flag(FORMAT_IS_TEXT, *payload_format == Some(true))
            | flag(EXPIRY, message_expiry.is_some())
            | flag(CONTENT_TYPE, content_type.is_some())
            | flag(RESPONSE_TOPIC, response_topic.is_some())
            | flag(CORRELATION, correlation_data.is_some())
            | flag(USER, !user.is_empty()),
    );
    if let Some(seconds) = message_expiry {
        out.extend_from_slice(&seconds.to_be_bytes());
    }
    let texts = [content_type.as_deref(), response_topic.as_ref().map(TopicName::as_str)];
    for text in texts.into_iter().flatten() {
        put_bytes(out, text.as_bytes());
    }
    if let Some(data) = correlation_data {
        put_bytes(out, data);
    }
    if !user.is_empty() {
        put_varint(out, user.iter().count());
        for text in user.iter().flat_map(|(name, value)| [name, value]) {
            put_bytes(out, text.as_bytes());
        }
    }
}

fn decode_properties(reader: &mut Reader<'_>) -> Result<Box<MessageProperties>, Malformed> {
    let flags = reader.u8()?;
    let has = |bit| flags & bit != 0;
    let mut properties = MessageProperties {
        payload_format: has(FORMAT_KNOWN).then_some(has(FORMAT_IS_TEXT)),
        message_expiry: if has(EXPIRY) { Some(reader.u32()?) } else { None },
        content_type: if has(CONTENT_TYPE) { Some(reader.text()?.into()) } else { None },
        response_topic: if has(RESPONSE_TOPIC) { Some(topic(reader.text()?)?) } else { None },
        correlation_data: if has(CORRELATION) { Some(Bytes::copy_from_slice(reader.bytes()?)) } else { None },
        user: UserProperties::new(),
    };
    if has(USER) {
        for _ in 0..reader.varint()? {
            properties.user.push(reader.text()?, reader.text()?);
        }
    }
    Ok(Box::new(properties))
}
