//! Values of each field of a topic. The errors name the field, the value found and the values allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Encoding, TimestampUnit, page_count};
use crate::emqtt::Term;
use crate::emqtt::payload::PAGES_MAX;

pub(super) fn topic_name(value: &Term) -> Result<String, String> {
    match value {
        Term::Text(name) if name.is_empty() || name.contains(['+', '#', '\0']) => Err(format!(
            "name {name:?} is not a Topic Name: write one or more characters, none of them + or #"
        )),
        Term::Text(name) => Ok(name.clone()),
        other => Err(wrong("name", other, "a text, such as \"sensors/%i\"")),
    }
}

pub(super) fn milliseconds(value: &Term) -> Result<Duration, String> {
    let count = match value {
        Term::Text(text) => text.parse().ok(),
        Term::Integer(count) => u32::try_from(*count).ok(),
        _ => None,
    };
    let right = "milliseconds from 0 to 4294967295 as a text, such as \"100\"";
    count
        .map(|count: u32| Duration::from_millis(count.into()))
        .ok_or_else(|| wrong("interval_ms", value, right))
}

pub(super) fn timestamp_unit(value: &Term) -> Result<Option<TimestampUnit>, String> {
    match value {
        Term::Bool(false) => Ok(None),
        Term::Bool(true) => Ok(Some(TimestampUnit::Milliseconds)),
        Term::Text(unit) => match unit.as_str() {
            "s" => Ok(Some(TimestampUnit::Seconds)),
            "ms" => Ok(Some(TimestampUnit::Milliseconds)),
            "us" => Ok(Some(TimestampUnit::Microseconds)),
            "ns" => Ok(Some(TimestampUnit::Nanoseconds)),
            _ => Err(()),
        },
        _ => Err(()),
    }
    .map_err(|()| wrong("inject_timestamp", value, "true, false, \"s\", \"ms\", \"us\" or \"ns\""))
}

pub(super) fn qos_level(value: &Term) -> Result<u8, String> {
    match value {
        Term::Integer(level @ 0..=2) => u8::try_from(*level).map_err(|_| ()),
        _ => Err(()),
    }
    .map_err(|()| wrong("QoS", value, "0, 1 or 2"))
}

pub(super) fn retain_flag(value: &Term) -> Result<bool, String> {
    match value {
        Term::Bool(flag) => Ok(*flag),
        other => Err(wrong("retain", other, "true or false")),
    }
}

pub(super) fn payload_encoding(value: &Term) -> Result<Encoding, String> {
    match value {
        Term::Text(name) if name == "json" => Ok(Encoding::Json),
        Term::Text(name) if name == "eterm" => Ok(Encoding::Eterm),
        other => Err(wrong("payload_encoding", other, "\"json\" or \"eterm\"")),
    }
}

pub(super) fn payload_fields(value: &Term) -> Result<BTreeMap<String, Term>, String> {
    match value {
        Term::Object(fields) => Ok(fields.clone()),
        other => Err(wrong("payload", other, "an object, such as {\"a\": \"b\"}")),
    }
}

pub(super) fn render_field(value: &Term) -> Result<String, String> {
    match value {
        Term::Text(name) => Ok(name.clone()),
        other => Err(wrong("render", other, "the name of one field of the payload, such as \"Data\"")),
    }
}

pub(super) fn stream_number(value: &Term) -> Result<u32, String> {
    match value {
        Term::Integer(number) => u32::try_from(*number).map_err(|_| ()),
        _ => Err(()),
    }
    .map_err(|()| wrong("stream", value, "0 for the control stream, or the number of a stream from 1"))
}

pub(super) fn priority(value: &Term) -> Result<u16, String> {
    match value {
        Term::Integer(number) => u16::try_from(*number).map_err(|_| ()),
        _ => Err(()),
    }
    .map_err(|()| wrong("stream_priority", value, "a number from 0 to 65535, higher is sooner"))
}

pub(super) fn check_render(field: &str, payload: &BTreeMap<String, Term>) -> Result<(), String> {
    let names = || payload.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match payload.get(field) {
        None => Err(format!(
            "render names {field:?}, which the payload does not have: its fields are {}",
            names()
        )),
        Some(Term::Text(text)) if text.starts_with("%p") => match page_count(text) {
            Some(0..=PAGES_MAX) => Ok(()),
            _ => Err(format!("{field} {text:?} is not %p and a number of pages: write %p1 to %p{PAGES_MAX}")),
        },
        Some(Term::Text(_)) => Ok(()),
        Some(other) => {
            Err(format!("render names {field:?}, which is {}: only a text can be rendered", kind(other)))
        }
    }
}

fn wrong(field: &str, found: &Term, right: &str) -> String {
    let found = match found {
        Term::Text(text) => format!("{text:?}"),
        Term::Integer(number) => number.to_string(),
        Term::Float(number) => number.to_string(),
        Term::Bool(flag) => flag.to_string(),
        other => kind(other).to_owned(),
    };
    format!("{field} is {found}: write {right}")
}

fn kind(term: &Term) -> &'static str {
    match term {
        Term::Null => "null",
        Term::Bool(_) => "true or false",
        Term::Integer(_) | Term::Float(_) => "a number",
        Term::Text(_) => "a text",
        Term::List(_) => "a list",
        Term::Object(_) => "an object",
    }
}
