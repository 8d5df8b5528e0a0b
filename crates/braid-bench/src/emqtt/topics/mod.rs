//! The file of `--topics-payload`: read as its users write it, and refused with file, line and field.

mod document;
mod fields;
mod value;

use std::collections::BTreeMap;
use std::time::Duration;

use braid_proto::packet::QoS;

use super::{Encoding, Identity, Pages, PayloadTemplate, Term, TimestampUnit};
use crate::emqtt::payload::Field;

/// The file of `--topics-payload`: what each publisher publishes.
///
/// Read as JSON5, since emqtt_bench's reader tolerates comments and trailing commas too.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicsFile {
    /// The topics in the order of the file. A later one replaces an earlier one of the same name, in its place.
    pub topics: Vec<TopicSpec>,
    /// Unknown fields, as `Topic1: intervall_ms`: allowed, but worth a line to the user.
    pub ignored: Vec<String>,
}

/// One topic of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicSpec {
    /// The Topic Name, which may have placeholders.
    pub name: String,
    /// The time between two messages; the first one is due one interval after the connection. Zero is as fast as
    /// possible.
    pub interval: Duration,
    /// The unit of the time that each message carries in its field `timestamp`, if it carries one.
    pub timestamp: Option<TimestampUnit>,
    /// QoS.
    pub qos: QoS,
    /// RETAIN.
    pub retain: bool,
    /// Encoding of the payload.
    pub encoding: Encoding,
    /// The fields of the payload, as in the file.
    pub payload: BTreeMap<String, Term>,
    /// The field whose text has placeholders: `%i`, `%c`, or `%pN` alone for N pages.
    pub render: Option<String>,
    /// The logical stream: 0 is the control stream, every other number a stream of its own per client.
    pub stream: u32,
    /// The stream's priority: higher is sooner. `None` leaves it to the client.
    pub stream_priority: Option<u16>,
}

/// A file of `--topics-payload` that cannot be used, as one line: `topics.json:4: interval_ms ...`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {text}")]
pub struct TopicsFileError {
    file: String,
    /// From 1.
    line: usize,
    text: String,
}

impl TopicsFile {
    /// Reads the content of a file. `file` is its name, for errors only.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line and field and what would be right.
    pub fn parse(file: &str, content: &str) -> Result<Self, TopicsFileError> {
        document::parse(content).map_err(|(line, text)| TopicsFileError { file: file.to_owned(), line, text })
    }

    /// Whether a topic wants a stream of its own, which only QUIC has.
    #[must_use]
    pub fn wants_streams(&self) -> bool {
        self.topics.iter().any(|topic| topic.stream != 0)
    }
}

impl TopicSpec {
    /// The payload of one client's messages. Clients given the same `pages` share them.
    #[must_use]
    pub fn payload(&self, identity: Identity<'_>, pages: &mut Pages) -> PayloadTemplate {
        let mut fields = BTreeMap::new();
        for (name, value) in &self.payload {
            let field = match value {
                Term::Text(text) if self.render.as_ref() == Some(name) => match page_count(text) {
                    Some(count) => Field::Pages(pages.of(count, self.encoding)),
                    None => Field::Constant(Term::Text(
                        text.replace("%i", &identity.number.to_string()).replace("%c", identity.client_id),
                    )),
                },
                value => Field::Constant(value.clone()),
            };
            fields.insert(name.as_str(), field);
        }
        if let Some(unit) = self.timestamp {
            fields.insert("timestamp", Field::Timestamp(unit));
        }
        PayloadTemplate::new(self.encoding, &fields)
    }
}

/// N of `%pN`.
fn page_count(text: &str) -> Option<u32> {
    text.strip_prefix("%p")?.parse().ok()
}
