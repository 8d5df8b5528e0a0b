//! Output formats of `sub`: the `-F` language of `mosquitto_sub`.

mod json;
mod parse;

use std::borrow::Cow;
use std::io::{self, Write};

use braid_client::{MessageProperties, PacketId, Received};
use jiff::Zoned;
use jiff::fmt::strtime;

use json::json;
pub(crate) use parse::FormatError;

/// A parsed format string.
#[derive(Clone, Debug)]
pub(crate) struct Format(Vec<Piece>);

#[derive(Clone, Debug)]
enum Piece {
    Literal(char),
    /// Whether it is text, its value and its layout.
    Parameter(bool, Value, Layout),
    /// `%U`, seconds and nanoseconds since 1970.
    Unix,
    /// `@X`, a conversion of strftime.
    Time(char),
    /// `@N`, the nanoseconds of the second.
    Nanoseconds,
    /// `%j` with the payload as a string, `%J` with the payload as JSON.
    Json {
        is_parsed: bool,
    },
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
        Self(Piece::parameter(PAYLOAD, Layout::default()).into_iter().collect())
    }

    /// Writes a message that arrived at `now`. False, with nothing written: `%J` is in the format, and the payload is
    /// not JSON.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write(&self, message: &Received, now: &Zoned, out: &mut impl Write) -> io::Result<bool> {
        let mut line = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(char) => line.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                Piece::Parameter(is_text, value, layout) => {
                    layout.put(&value(message, now), *is_text, &mut line);
                }
                Piece::Unix => {
                    let at = now.timestamp();
                    write!(line, "{}.{:09}", at.as_second(), at.subsec_nanosecond())?;
                }
                Piece::Time(conversion) => {
                    line.extend_from_slice(time(&format!("%{conversion}"), now).as_bytes())
                }
                Piece::Nanoseconds => write!(line, "{:09}", now.subsec_nanosecond())?,
                Piece::Json { is_parsed } => match json(message, now, *is_parsed) {
                    Some(json) => line.extend_from_slice(json.get().as_bytes()),
                    None => return Ok(false),
                },
            }
        }
        out.write_all(&line)?;
        Ok(true)
    }
}

impl Piece {
    /// Parameter of this letter, if there is one.
    fn parameter(letter: char, layout: Layout) -> Option<Self> {
        let found = PARAMETERS.iter().find(|(known, ..)| *known == letter);
        found.map(|(_, is_text, value)| Self::Parameter(*is_text, *value, layout))
    }
}

/// Formats `now` with strftime; an unknown conversion is left unchanged.
fn time(format: &str, now: &Zoned) -> String {
    strtime::format(format, now).unwrap_or_else(|_| format.to_owned())
}

/// Value of a parameter, empty if the message has none.
type Value = for<'a> fn(&'a Received, &Zoned) -> Cow<'a, [u8]>;

/// Parameters of a message: letter after the `%`, whether it is text (truncated, and never filled with zeros), value.
const PARAMETERS: &[(char, bool, Value)] = &[
    ('A', false, |message, _| number(message.topic_alias)),
    ('C', true, |message, _| text(own(message).and_then(|own| own.content_type.as_deref()))),
    ('D', false, |message, _| {
        own(message).and_then(|own| own.correlation_data.as_deref()).unwrap_or_default().into()
    }),
    ('E', false, |message, _| number(own(message).and_then(|own| own.message_expiry))),
    ('F', false, |message, _| number(own(message).and_then(|own| own.payload_format).map(u8::from))),
    ('I', true, |_, now| time("%Y-%m-%dT%H:%M:%S%z", now).into_bytes().into()),
    ('l', false, |message, _| number(Some(message.payload.len()))),
    ('m', false, |message, _| number(Some(message.packet_id.map_or(0, PacketId::value)))),
    ('P', false, |message, _| {
        let pairs = own(message).into_iter().flat_map(|own| own.user.iter());
        joined(pairs.map(|(name, value)| format!("{name}:{value}")), " ")
    }),
    (PAYLOAD, false, |message, _| Cow::Borrowed(&message.payload)),
    ('q', false, |message, _| number(Some(message.qos))),
    ('R', true, |message, _| {
        text(own(message).and_then(|own| own.response_topic.as_ref()).map(|topic| topic.as_str()))
    }),
    ('r', false, |message, _| number(Some(u8::from(message.retain)))),
    ('S', false, |message, _| joined(message.subscription_ids.iter().map(ToString::to_string), ",")),
    ('t', true, |message, _| text(Some(message.topic.as_str()))),
    ('x', false, |message, _| hex(message, |byte| format!("{byte:02x}"))),
    ('X', false, |message, _| hex(message, |byte| format!("{byte:02X}"))),
];
const PAYLOAD: char = 'p';

fn own(message: &Received) -> Option<&MessageProperties> {
    message.properties.as_deref()
}

fn hex(message: &Received, digits: fn(&u8) -> String) -> Cow<'static, [u8]> {
    message.payload.iter().flat_map(|byte| digits(byte).into_bytes()).collect()
}

fn joined(words: impl Iterator<Item = String>, separator: &str) -> Cow<'static, [u8]> {
    words.collect::<Vec<_>>().join(separator).into_bytes().into()
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
