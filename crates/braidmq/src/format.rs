//! Output formats of `sub`: the `-F` language of `mosquitto_sub`.

mod json;
mod parse;

use std::borrow::Cow;
use std::io::{self, Write};

use braid_client::Received;
use jiff::Zoned;
use jiff::fmt::strtime;

use json::Json;
pub(crate) use parse::FormatError;

/// A parsed format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    /// A parameter of the message.
    Field(Field, Layout),
    /// `%I`, a date and time of ISO 8601.
    Iso(Layout),
    /// `%U`, seconds and nanoseconds since 1970.
    Unix,
    /// `@X`, a conversion of strftime.
    Time(char),
    /// `@N`, the nanoseconds of the second.
    Nanoseconds,
    /// `%j` with the payload as a string, `%J` with the payload as JSON.
    Json {
        parsed: bool,
    },
}

/// Parameter of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    TopicAlias,
    ContentType,
    CorrelationData,
    MessageExpiry,
    PayloadFormat,
    PayloadLength,
    PacketId,
    UserProperties,
    Payload,
    QoS,
    ResponseTopic,
    Retain,
    SubscriptionIds,
    Topic,
    HexLower,
    HexUpper,
}

/// Padding and truncation of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Layout {
    zero: bool,
    left: bool,
    /// Minimum number of characters.
    width: usize,
    /// Maximum number of characters, for text.
    most: Option<usize>,
}

impl Format {
    /// Parses a format string.
    ///
    /// # Errors
    /// An unknown or unfinished sequence.
    pub(crate) fn parse(text: &str) -> Result<Self, FormatError> {
        parse::parse(text).map(Self)
    }

    /// The payload as it is.
    pub(crate) fn payload() -> Self {
        Self(vec![Piece::Field(Field::Payload, Layout::default())])
    }

    /// Writes a message that arrived at `now`. False, with nothing written: `%J` is in the format, and the payload is not
    /// JSON.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write(&self, message: &Received, now: &Zoned, out: &mut impl Write) -> io::Result<bool> {
        let mut line = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(bytes) => line.extend_from_slice(bytes),
                Piece::Field(field, layout) => layout.put(&field.of(message), field.is_text(), &mut line),
                Piece::Iso(layout) => {
                    layout.put(time("%Y-%m-%dT%H:%M:%S%z", now).as_bytes(), true, &mut line)
                }
                Piece::Unix => {
                    let at = now.timestamp();
                    write!(line, "{}.{:09}", at.as_second(), at.subsec_nanosecond())?;
                }
                Piece::Time(conversion) => {
                    line.extend_from_slice(time(&format!("%{conversion}"), now).as_bytes())
                }
                Piece::Nanoseconds => write!(line, "{:09}", now.subsec_nanosecond())?,
                Piece::Json { parsed } => match Json::of(message, now, *parsed) {
                    Some(json) => serde_json::to_writer(&mut line, &json)?,
                    None => return Ok(false),
                },
            }
        }
        out.write_all(&line)?;
        Ok(true)
    }
}

/// Formats `now` with strftime; an unknown conversion is left unchanged.
fn time(format: &str, now: &Zoned) -> String {
    strtime::format(format, now).unwrap_or_else(|_| format.to_owned())
}

impl Field {
    fn is_text(self) -> bool {
        matches!(self, Self::ContentType | Self::ResponseTopic | Self::Topic)
    }

    /// The value, empty if the message has none.
    fn of(self, message: &Received) -> Cow<'_, [u8]> {
        let properties = message.properties.as_deref();
        match self {
            Self::TopicAlias => number(message.topic_alias),
            Self::ContentType => text(properties.and_then(|own| own.content_type.as_deref())),
            Self::CorrelationData => {
                properties.and_then(|own| own.correlation_data.as_deref()).unwrap_or_default().into()
            }
            Self::MessageExpiry => number(properties.and_then(|own| own.message_expiry)),
            Self::PayloadFormat => number(properties.and_then(|own| own.payload_format).map(u8::from)),
            Self::PayloadLength => number(Some(message.payload.len())),
            Self::PacketId => number(Some(message.packet_id.map_or(0, braid_client::PacketId::value))),
            Self::UserProperties => {
                let pairs = properties.map(|own| &own.user[..]).unwrap_or_default().iter();
                let pairs = pairs.map(|(name, value)| format!("{name}:{value}"));
                pairs.collect::<Vec<_>>().join(" ").into_bytes().into()
            }
            Self::Payload => Cow::Borrowed(&message.payload),
            Self::QoS => number(Some(message.qos)),
            Self::ResponseTopic => {
                text(properties.and_then(|own| own.response_topic.as_ref()).map(|topic| topic.as_str()))
            }
            Self::Retain => number(Some(u8::from(message.retain))),
            Self::SubscriptionIds => {
                let ids: Vec<_> = message.subscription_ids.iter().map(ToString::to_string).collect();
                ids.join(",").into_bytes().into()
            }
            Self::Topic => text(Some(message.topic.as_str())),
            Self::HexLower => {
                message.payload.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
            }
            Self::HexUpper => {
                message.payload.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect()
            }
        }
    }
}

fn number(value: Option<impl std::fmt::Display>) -> Cow<'static, [u8]> {
    value.map(|value| value.to_string().into_bytes()).unwrap_or_default().into()
}

fn text(value: Option<&str>) -> Cow<'_, [u8]> {
    value.unwrap_or_default().as_bytes().into()
}

impl Layout {
    fn put(self, value: &[u8], is_text: bool, line: &mut Vec<u8>) {
        let value = match (self.most, std::str::from_utf8(value)) {
            (Some(most), Ok(text)) if is_text => {
                let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
                &value[..end]
            }
            _ => value,
        };
        let len = std::str::from_utf8(value).map_or(value.len(), |text| text.chars().count());
        let missing = self.width.saturating_sub(len);
        let fill = if self.zero && !self.left && !is_text { b'0' } else { b' ' };
        if !self.left {
            line.resize(line.len() + missing, fill);
        }
        line.extend_from_slice(value);
        if self.left {
            line.resize(line.len() + missing, fill);
        }
    }
}

#[cfg(test)]
mod tests;
