//! Values of each field of a topic. The errors name the field, the value found and the values allowed.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_proto::packet::QoS;

use super::{Encoding, TimestampUnit, page_count};
use crate::emqtt::Term;
use crate::emqtt::payload::PAGES_MAX;

pub(super) fn topic_name(value: &Term) -> Result<String, String> {
    let name = value.text().ok_or_else(|| wrong("name", value, "a text, such as \"sensors/%i\""))?;
    if name.is_empty() || name.contains(['+', '#', '\0']) {
        return Err(format!(
            "name {name:?} is not a Topic Name: write one or more characters, none of them + or #"
        ));
    }
    Ok(name.to_owned())
}

pub(super) fn milliseconds(value: &Term) -> Result<Duration, String> {
    let count = value.text().map_or_else(|| value.integer::<u32>(), |text| text.parse().ok());
    let right = "milliseconds from 0 to 4294967295 as a text, such as \"100\"";
    let count = count.ok_or_else(|| wrong("interval_ms", value, right))?;
    Ok(Duration::from_millis(count.into()))
}

pub(super) fn timestamp_unit(value: &Term) -> Result<Option<TimestampUnit>, String> {
    let unit = match value {
        Term::Bool(false) => return Ok(None),
        Term::Bool(true) => Some(TimestampUnit::Milliseconds),
        other => other.text().and_then(TimestampUnit::from_name),
    };
    let right = "true, false, \"s\", \"ms\", \"us\" or \"ns\"";
    unit.map(Some).ok_or_else(|| wrong("inject_timestamp", value, right))
}

pub(super) fn qos_level(value: &Term) -> Result<QoS, String> {
    value.integer().and_then(QoS::from_bits).ok_or_else(|| wrong("QoS", value, "0, 1 or 2"))
}

pub(super) fn retain_flag(value: &Term) -> Result<bool, String> {
    match value {
        Term::Bool(flag) => Ok(*flag),
        other => Err(wrong("retain", other, "true or false")),
    }
}

pub(super) fn payload_encoding(value: &Term) -> Result<Encoding, String> {
    match value.text() {
        Some("json") => Ok(Encoding::Json),
        Some("eterm") => Ok(Encoding::Eterm),
        _ => Err(wrong("payload_encoding", value, "\"json\" or \"eterm\"")),
    }
}

pub(super) fn payload_fields(value: &Term) -> Result<BTreeMap<String, Term>, String> {
    match value {
        Term::Object(fields) => Ok(fields.clone()),
        other => Err(wrong("payload", other, "an object, such as {\"a\": \"b\"}")),
    }
}

pub(super) fn render_field(value: &Term) -> Result<String, String> {
    let right = "the name of one field of the payload, such as \"Data\"";
    value.text().map(str::to_owned).ok_or_else(|| wrong("render", value, right))
}

pub(super) fn stream_number(value: &Term) -> Result<u32, String> {
    let right = "0 for the control stream, or the number of a stream from 1";
    value.integer().ok_or_else(|| wrong("stream", value, right))
}

pub(super) fn priority(value: &Term) -> Result<u16, String> {
    let right = "a number from 0 to 65535, higher is sooner";
    value.integer().ok_or_else(|| wrong("stream_priority", value, right))
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
