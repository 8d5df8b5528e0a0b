//! Messages as JSON: `%j` and `%J`.

use braid_client::{PacketId, Received};
use jiff::Zoned;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::time;

/// A member's value; `None` if the object has no such member.
type Value = Option<Box<RawValue>>;

/// A message as one JSON object, with the members and the order of `mosquitto_sub`. `None`: the payload should be JSON
/// and is not.
pub(super) fn json(message: &Received, now: &Zoned, is_parsed: bool) -> Value {
    // Bytes that are not UTF-8 are replaced; %x and %p show them.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let payload = match (message.payload.is_empty(), is_parsed) {
        (true, _) => value(Some(())),
        (false, false) => value(Some(text(&message.payload))),
        (false, true) => serde_json::from_slice(&message.payload).ok(),
    };
    let own = message.properties.as_deref();
    let user = own.into_iter().flat_map(|own| own.user.iter());
    let properties = object([
        ("topic-alias", value(message.topic_alias)),
        ("subscription-identifier", value(message.subscription_ids.first().map(|id| id.get()))),
        ("content-type", value(own.and_then(|own| own.content_type.as_deref()))),
        ("payload-format-indicator", value(own.and_then(|own| own.payload_format).map(u8::from))),
        (
            "response-topic",
            value(own.and_then(|own| own.response_topic.as_ref()).map(|topic| topic.as_str())),
        ),
        ("correlation-data", value(own.and_then(|own| own.correlation_data.as_ref()).map(|data| text(data)))),
        ("user-properties", object(user.map(|(name, text)| (name, value(Some(text)))))),
        ("message-expiry-interval", value(own.and_then(|own| own.message_expiry))),
    ]);
    object([
        ("tst", value(Some(time("%Y-%m-%dT%H:%M:%S.%6f%z", now)))),
        ("topic", value(Some(message.topic.as_str()))),
        ("qos", value(Some(message.qos.bits()))),
        ("retain", value(Some(u8::from(message.retain)))),
        ("payloadlen", value(Some(message.payload.len()))),
        ("mid", value(message.packet_id.map(PacketId::value))),
        ("properties", properties),
        ("payload", Some(payload?)),
    ])
}

fn value(value: Option<impl Serialize>) -> Value {
    to_raw_value(&value?).ok()
}

/// Object of the members that have a value, in which a name may repeat; `None` without any.
fn object<'a>(members: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let members = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let members: Vec<(&str, Box<RawValue>)> = members.collect();
    value(Some(Members(members)).filter(|Members(members)| !members.is_empty()))
}

struct Members<'a>(Vec<(&'a str, Box<RawValue>)>);

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
