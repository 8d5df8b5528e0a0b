//! Messages of MQTT as messages of NATS: the payload is the payload, and one header has the rest.

use std::time::{Duration, SystemTime};

use async_nats::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use braid_proto::packet::{MessageProperties, Payload, QoS};
use braid_proto::topic::TopicName;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Header with everything but topic, RETAIN and payload, as JSON.
pub const HEADER: &str = "Braidmq";

/// Longest head in a header, in bytes: all headers together have at most 65,535.
const HEADER_MAX: usize = 32 << 10;

/// Beginning of a header that has the length of the head, which is in the payload.
const LENGTH_MARK: char = '@';

/// Message of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedMessage {
    /// QoS of the PUBLISH.
    pub qos: QoS,
    /// Client Identifier of the publisher, for No Local; empty for messages of the broker itself.
    pub publisher: String,
    /// Identity of the publisher of a retained message, in the broker's encoding.
    pub identity: Option<String>,
    /// Subscribers do not get it. With RETAIN it only changes what is retained; without, only queues that refer to its
    /// number have it.
    pub is_withheld: bool,
    /// End of the Message Expiry Interval.
    pub expires_at: Option<SystemTime>,
    /// Properties of the PUBLISH.
    pub properties: Option<Box<MessageProperties>>,
    /// Application payload.
    pub payload: Payload,
}

/// Message of NATS that is none of a cluster.
#[derive(Debug, Error)]
#[error("a message of the log cannot be read: {0}")]
pub struct Unreadable(String);

#[derive(Serialize, Deserialize)]
struct Head {
    #[serde(rename = "q", default, skip_serializing_if = "is_zero")]
    qos: u8,
    #[serde(rename = "c", default, skip_serializing_if = "String::is_empty")]
    publisher: String,
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    #[serde(rename = "w", default, skip_serializing_if = "is_false")]
    is_withheld: bool,
    /// Milliseconds since 1970.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    properties: Option<Properties>,
}

/// Properties of a PUBLISH or a Will, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Properties {
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    payload_format: Option<bool>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    message_expiry: Option<u32>,
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    content_type: Option<Box<str>>,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    response_topic: Option<String>,
    /// Base64.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    correlation_data: Option<String>,
    #[serde(rename = "u", default, skip_serializing_if = "Vec::is_empty")]
    user: Vec<(String, String)>,
}

fn is_zero(value: &u8) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl LoggedMessage {
    /// Message of NATS: headers and payload. A head that is too long for a header is the first part of the payload,
    /// whose length the header has.
    #[must_use]
    pub fn write(&self) -> (HeaderMap, Bytes) {
        let head = self.head();
        let mut headers = HeaderMap::new();
        if head.len() <= HEADER_MAX {
            headers.insert(HEADER, head);
            return (headers, self.payload.to_bytes());
        }
        headers.insert(HEADER, format!("{LENGTH_MARK}{}", head.len()));
        let payload = [head.as_bytes(), &self.payload].concat();
        (headers, payload.into())
    }

    /// Tests whether its Message Expiry Interval has ended at `now`.
    pub(crate) fn has_expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Everything but topic, RETAIN and payload, as JSON.
    pub(crate) fn head(&self) -> String {
        let millis = |at: SystemTime| {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        };
        let head = Head {
            qos: self.qos as u8,
            publisher: self.publisher.clone(),
            identity: self.identity.clone(),
            is_withheld: self.is_withheld,
            expires_at: self.expires_at.map(millis),
            properties: self.properties.as_deref().map(Properties::of),
        };
        // Strings and numbers are always JSON, in which line feeds are escaped.
        serde_json::to_string(&head).unwrap_or_default()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The header is missing or malformed.
    pub fn read(headers: Option<&HeaderMap>, payload: Bytes) -> Result<Self, Unreadable> {
        let missing = || Unreadable(format!("it has no header {HEADER}"));
        let head = headers.and_then(|headers| headers.get(HEADER)).ok_or_else(missing)?;
        let (head, payload) = split(head.as_str(), payload)?;
        Self::of_head(&head, payload)
    }

    /// The message with a head, as [`head`](Self::head) has written it.
    pub(crate) fn of_head(head: &[u8], payload: impl Into<Payload>) -> Result<Self, Unreadable> {
        let head: Head = serde_json::from_slice(head).map_err(|error| Unreadable(error.to_string()))?;
        let qos = QoS::from_bits(head.qos).ok_or_else(|| Unreadable(format!("QoS {}", head.qos)))?;
        let expires_at = head
            .expires_at
            .and_then(|millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
        let properties = head.properties.map(Properties::read).transpose()?.map(Box::new);
        let Head { publisher, identity, is_withheld, .. } = head;
        Ok(Self { qos, publisher, identity, is_withheld, expires_at, properties, payload: payload.into() })
    }
}

/// Upper bound of the bytes of properties in a head: JSON takes six for a control character.
pub(crate) fn largest_head(properties: &MessageProperties) -> usize {
    let MessageProperties { content_type, response_topic, correlation_data, user, .. } = properties;
    let texts = content_type.as_deref().map_or(0, str::len)
        + response_topic.as_ref().map_or(0, |topic| topic.as_str().len())
        + user.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    6 * texts + 2 * correlation_data.as_ref().map_or(0, Bytes::len)
}

/// Bytes before the payload of MQTT in that of NATS, by the headers of a message; `None`: it is none of a cluster.
pub(crate) fn payload_at(headers: &HeaderMap) -> Option<usize> {
    match headers.get(HEADER)?.as_str().strip_prefix(LENGTH_MARK) {
        Some(length) => length.parse().ok(),
        None => Some(0),
    }
}

/// Head and payload of a message of NATS.
fn split(header: &str, mut payload: Bytes) -> Result<(Bytes, Bytes), Unreadable> {
    let Some(length) = header.strip_prefix(LENGTH_MARK) else {
        return Ok((Bytes::copy_from_slice(header.as_bytes()), payload));
    };
    let length = length.parse().ok().filter(|length| *length <= payload.len());
    let length = length.ok_or_else(|| Unreadable(format!("its head has a length of {header}")))?;
    let head = payload.split_to(length);
    Ok((head, payload))
}

impl Properties {
    pub(crate) fn of(properties: &MessageProperties) -> Self {
        Self {
            payload_format: properties.payload_format,
            message_expiry: properties.message_expiry,
            content_type: properties.content_type.clone(),
            response_topic: properties.response_topic.as_ref().map(|topic| topic.as_str().to_owned()),
            correlation_data: properties.correlation_data.as_ref().map(|data| STANDARD_NO_PAD.encode(data)),
            user: properties.user.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    pub(crate) fn read(self) -> Result<MessageProperties, Unreadable> {
        let response_topic = self.response_topic.map(|topic| TopicName::parse(&topic)).transpose();
        let correlation_data = self.correlation_data.map(|data| STANDARD_NO_PAD.decode(data)).transpose();
        Ok(MessageProperties {
            payload_format: self.payload_format,
            message_expiry: self.message_expiry,
            content_type: self.content_type,
            response_topic: response_topic.map_err(|error| Unreadable(error.to_string()))?,
            correlation_data: correlation_data
                .map_err(|error| Unreadable(error.to_string()))?
                .map(Bytes::from),
            user: self.user.iter().map(|(name, value)| (&**name, &**value)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(header: &str) -> Result<LoggedMessage, Unreadable> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, header);
        LoggedMessage::read(Some(&headers), Bytes::new())
    }

    #[test]
    fn a_plain_message_has_a_short_header() {
        let message = LoggedMessage {
            qos: QoS::AtLeastOnce,
            publisher: "truck-1".into(),
            identity: None,
            is_withheld: false,
            expires_at: None,
            properties: None,
            payload: "x".into(),
        };
        assert_eq!(message.write().0.get(HEADER).unwrap().as_str(), r#"{"q":1,"c":"truck-1"}"#);
    }

    #[test]
    fn foreign_messages_cannot_be_read() {
        assert!(LoggedMessage::read(None, Bytes::new()).is_err());
        for header in
            ["", "1", r#"{"q":3}"#, r#"{"p":{"r":"a/#"}}"#, r#"{"p":{"d":"*"}}"#, r#"{"q":-1}"#, "@", "@1"]
        {
            assert!(read(header).is_err(), "{header}");
        }
        // A later version may add fields.
        assert!(read(r#"{"q":2,"new":1}"#).is_ok());
    }

    fn text() -> impl Strategy<Value = String> {
        "[^\u{0}]{0,5}"
    }

    proptest! {
        #[test]
        fn a_message_comes_back(
            qos in 0..3_u8,
            (publisher, identity) in (text(), proptest::option::of(text())),
            expires in proptest::option::of(0..1_u64 << 41),
            (format, expiry) in (proptest::option::of(any::<bool>()), proptest::option::of(any::<u32>())),
            content_type in proptest::option::of(text()),
            data in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..9)),
            (user, long) in (proptest::collection::vec((text(), text()), 0..3), 0..2_usize),
            is_withheld in any::<bool>(),
        ) {
            let properties = MessageProperties {
                payload_format: format,
                message_expiry: expiry,
                content_type: content_type.map(Into::into),
                response_topic: TopicName::parse("r/\r\n").ok(),
                correlation_data: data.map(Bytes::from),
                user: user.iter().map(|(name, value)| (&**name, &**value)).chain([("long", &*"x".repeat(40_000 * long))]).collect(),
            };
            let message = LoggedMessage {
                qos: QoS::from_bits(qos).unwrap(),
                publisher,
                identity,
                is_withheld,
                expires_at: expires.map(|at| SystemTime::UNIX_EPOCH + Duration::from_millis(at)),
                properties: Some(Box::new(properties)),
                payload: "\r\n\0".into(),
            };
            let (headers, payload) = message.write();
            let properties = message.properties.as_deref().unwrap();
            let head = serde_json::to_string(&Properties::of(properties)).unwrap();
            prop_assert!(head.len() <= largest_head(properties) + 100, "{}", head);
            prop_assert!(!headers.get(HEADER).unwrap().as_str().contains(['\r', '\n']));
            prop_assert_eq!(LoggedMessage::read(Some(&headers), payload).unwrap(), message);
        }
    }
}
