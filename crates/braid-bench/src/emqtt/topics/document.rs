//! From the text of a topics file to its specs. A wrong value is refused while it is read, so that the error has
//! the value's line.

use std::fmt;

use braid_proto::packet::QoS;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

use super::value::{Seed, Value};
use super::{Encoding, TopicSpec, TopicsFile, fields};

/// The error is the line, from 1, and what is wrong.
pub(super) fn parse(content: &str) -> Result<TopicsFile, (usize, String)> {
    let content = content.strip_prefix('\u{feff}').unwrap_or(content);
    let file: FileDocument = json5::from_str(content).map_err(|error| {
        let text = error.to_string();
        match error.position() {
            Some(at) => (at.line + 1, text.strip_suffix(&format!(" at {at}")).unwrap_or(&text).to_owned()),
            None => (1, text),
        }
    })?;
    Ok(file.0)
}

struct FileDocument(TopicsFile);

impl<'de> de::Deserialize<'de> for FileDocument {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FileVisitor)
    }
}

struct FileVisitor;

impl<'de> Visitor<'de> for FileVisitor {
    type Value = FileDocument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the list \"topics\", such as {\"topics\": [{\"name\": \"a\", ..}]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileDocument, A::Error> {
        let (mut topics, mut ignored) = (None, Vec::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "topics" {
                topics = Some(map.next_value_seed(Seed(Topics { ignored: &mut ignored }))?);
            } else {
                map.next_value_seed(Value::any())?;
                ignored.push(name);
            }
        }
        let topics = topics.ok_or_else(|| de::Error::custom("the list \"topics\" is missing"))?;
        Ok(FileDocument(TopicsFile { topics, ignored }))
    }
}

struct Topics<'i> {
    ignored: &'i mut Vec<String>,
}

impl<'de> Visitor<'de> for Topics<'_> {
    type Value = Vec<TopicSpec>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of topics: \"topics\": [{\"name\": \"a\", ..}]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut topics: Vec<TopicSpec> = Vec::new();
        while let Some(topic) = list.next_element_seed(Seed(Topic { ignored: &mut *self.ignored }))? {
            match topics.iter_mut().find(|other| other.name == topic.name) {
                Some(other) => *other = topic,
                None => topics.push(topic),
            }
        }
        Ok(topics)
    }
}

struct Topic<'i> {
    ignored: &'i mut Vec<String>,
}

impl<'de> Visitor<'de> for Topic<'_> {
    type Value = TopicSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a topic, such as {\"name\": \"a\", \"interval_ms\": \"100\", \"QoS\": 1, \"payload\": {\"b\": 1}}",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TopicSpec, A::Error> {
        let (mut name, mut interval, mut payload, mut render) = (None, None, None, None);
        let (mut timestamp, mut qos, mut retain) = (None, QoS::AtMostOnce, false);
        let mut encoding = Encoding::default();
        let (mut stream, mut stream_priority, mut unknown) = (0, None, Vec::new());
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "name" => name = Some(map.next_value_seed(Value::of(fields::topic_name))?),
                "interval_ms" => interval = Some(map.next_value_seed(Value::of(fields::milliseconds))?),
                "inject_timestamp" => timestamp = map.next_value_seed(Value::of(fields::timestamp_unit))?,
                "QoS" => qos = map.next_value_seed(Value::of(fields::qos_level))?,
                "retain" => retain = map.next_value_seed(Value::of(fields::retain_flag))?,
                "payload_encoding" => encoding = map.next_value_seed(Value::of(fields::payload_encoding))?,
                "payload" => payload = Some(map.next_value_seed(Value::of(fields::payload_fields))?),
                "render" => render = Some(map.next_value_seed(Value::of(fields::render_field))?),
                "stream" => stream = map.next_value_seed(Value::of(fields::stream_number))?,
                "stream_priority" => {
                    stream_priority = Some(map.next_value_seed(Value::of(fields::priority))?)
                }
                _ => {
                    map.next_value_seed(Value::any())?;
                    unknown.push(field);
                }
            }
        }
        let name: String = name.ok_or_else(|| missing("name", "\"name\": \"sensors/%i\""))?;
        let interval = interval.ok_or_else(|| missing("interval_ms", "\"interval_ms\": \"1000\""))?;
        let payload = payload.ok_or_else(|| missing("payload", "\"payload\": {\"a\": \"b\"}"))?;
        if let Some(field) = &render {
            fields::check_render(field, &payload).map_err(de::Error::custom)?;
        }
        self.ignored.extend(unknown.into_iter().map(|field| format!("{name}: {field}")));
        Ok(TopicSpec {
            name,
            interval,
            timestamp,
            qos,
            retain,
            encoding,
            payload,
            render,
            stream,
            stream_priority,
        })
    }
}

fn missing<E: de::Error>(field: &str, example: &str) -> E {
    E::custom(format!("a topic without {field}: write {example}"))
}
