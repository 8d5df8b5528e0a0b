use braid_client::Received;
use jiff::Zoned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::time;

/// A message as one JSON object, with the members and the order of `mosquitto_sub`.
#[derive(Serialize)]
pub(super) struct Json<'a> {
    tst: String,
    topic: &'a str,
    qos: u8,
    retain: u8,
    payloadlen: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mid: Option<u16>,
    #[serde(skip_serializing_if = "Properties::is_empty")]
    properties: Properties<'a>,
    payload: Payload,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Payload {
    None,
    /// Text of the payload. Bytes that are not UTF-8 are replaced; %x and %p show them.
    Text(String),
    Parsed(Box<RawValue>),
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Properties<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic_alias: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscription_identifier: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_format_indicator: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_data: Option<String>,
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    user_properties: Pairs<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_expiry_interval: Option<u32>,
}

/// User Properties: an object, in which a name may repeat.
struct Pairs<'a>(&'a [(Box<str>, Box<str>)]);

impl<'a> Json<'a> {
    /// `None`: the payload should be JSON and is not.
    pub(super) fn of(message: &'a Received, now: &Zoned, parsed: bool) -> Option<Self> {
        let text = || String::from_utf8_lossy(&message.payload).into_owned();
        let payload = match (message.payload.is_empty(), parsed) {
            (true, _) => Payload::None,
            (false, false) => Payload::Text(text()),
            (false, true) => Payload::Parsed(serde_json::from_slice(&message.payload).ok()?),
        };
        let own = message.properties.as_deref();
        let properties = Properties {
            topic_alias: message.topic_alias,
            subscription_identifier: message.subscription_ids.first().map(|id| id.get()),
            content_type: own.and_then(|own| own.content_type.as_deref()),
            payload_format_indicator: own.and_then(|own| own.payload_format).map(u8::from),
            response_topic: own.and_then(|own| own.response_topic.as_ref()).map(|topic| topic.as_str()),
            correlation_data: own
                .and_then(|own| own.correlation_data.as_ref())
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
            user_properties: Pairs(own.map(|own| &own.user[..]).unwrap_or_default()),
            message_expiry_interval: own.and_then(|own| own.message_expiry),
        };
        Some(Self {
            tst: time("%Y-%m-%dT%H:%M:%S.%6f%z", now),
            topic: message.topic.as_str(),
            qos: message.qos.bits(),
            retain: message.retain.into(),
            payloadlen: message.payload.len(),
            mid: message.packet_id.map(braid_client::PacketId::value),
            properties,
            payload,
        })
    }
}

impl Properties<'_> {
    fn is_empty(&self) -> bool {
        self.topic_alias.is_none()
            && self.subscription_identifier.is_none()
            && self.content_type.is_none()
            && self.payload_format_indicator.is_none()
            && self.response_topic.is_none()
            && self.correlation_data.is_none()
            && self.user_properties.is_empty()
            && self.message_expiry_interval.is_none()
    }
}

impl Pairs<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
