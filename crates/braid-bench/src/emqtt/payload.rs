use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::time::Duration;

use bytes::Bytes;

use super::{Eterm, Term};

/// Encoding of a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON text.
    #[default]
    Json,
    /// Erlang's external term format: a map with binary keys.
    Eterm,
}

/// The unit of an injected timestamp, which counts from the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampUnit {
    /// `"s"`
    Seconds,
    /// `"ms"` or `true`
    Milliseconds,
    /// `"us"`
    Microseconds,
    /// `"ns"`
    Nanoseconds,
}

impl TimestampUnit {
    /// Unit of this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "s" => Some(Self::Seconds),
            "ms" => Some(Self::Milliseconds),
            "us" => Some(Self::Microseconds),
            "ns" => Some(Self::Nanoseconds),
            _ => None,
        }
    }

    /// The time in whole units.
    #[must_use]
    pub fn count(self, since_epoch: Duration) -> u128 {
        match self {
            Self::Seconds => u128::from(since_epoch.as_secs()),
            Self::Milliseconds => since_epoch.as_millis(),
            Self::Microseconds => since_epoch.as_micros(),
            Self::Nanoseconds => since_epoch.as_nanos(),
        }
    }
}

/// Up to this length in bytes a constant part is copied beside the timestamp, rather than be a segment.
const PART_COPY_LIMIT: usize = 1024;

/// The length of a page of `%pN` in bytes.
const PAGE: usize = 4096;

/// No MQTT packet has room for more pages: its Remaining Length ends at 268,435,455.
pub(crate) const PAGES_MAX: u32 = 65_535;

/// The pages of `%pN`, made once and shared by all who send them.
#[derive(Debug, Default)]
pub struct Pages {
    made: HashMap<(u32, Encoding), Bytes>,
}

impl Pages {
    /// `count` pages of 4096 bytes: the numbers 1, 2, 3.. as 8 bytes big-endian each, or, where the bytes must be
    /// text, as 16 hexadecimal digits each. At most 65,535 pages.
    pub fn of(&mut self, count: u32, encoding: Encoding) -> Bytes {
        let count = count.min(PAGES_MAX);
        let make = || {
            let len = count as usize * PAGE;
            let mut pages = Vec::with_capacity(len);
            for number in 1_u64.. {
                if pages.len() >= len {
                    break;
                }
                match encoding {
                    Encoding::Eterm => pages.extend_from_slice(&number.to_be_bytes()),
                    Encoding::Json => pages.extend_from_slice(format!("{number:016x}").as_bytes()),
                }
            }
            Bytes::from(pages)
        };
        self.made.entry((count, encoding)).or_insert_with(make).clone()
    }
}

/// A field of a payload.
#[derive(Debug)]
pub(crate) enum Field {
    Constant(Term),
    Pages(Bytes),
    Timestamp(TimestampUnit),
}

#[derive(Debug, Clone)]
enum Part {
    Constant(Bytes),
    Timestamp(TimestampUnit),
}

/// The payload of one client's messages to one topic: all of it but the time of sending.
///
/// Large constant parts exist once, however many messages are queued.
#[derive(Debug)]
pub struct PayloadTemplate {
    encoding: Encoding,
    parts: Vec<Part>,
}

impl PayloadTemplate {
    /// A payload of fields, in the order of their names.
    pub(crate) fn new(encoding: Encoding, fields: &BTreeMap<&str, Field>) -> Self {
        let mut parts = Parts::default();
        match encoding {
            Encoding::Json => json(&mut parts, fields),
            Encoding::Eterm => eterm(&mut parts, fields),
        }
        Self { encoding, parts: parts.finish() }
    }

    /// A payload that is the same for every message, as of `-s` and `-m`.
    #[must_use]
    pub fn constant(payload: Bytes) -> Self {
        Self { encoding: Encoding::Eterm, parts: vec![Part::Constant(payload)] }
    }

    /// Whether `--payload-hdrs` apply: they would make JSON unreadable, so it has none.
    #[must_use]
    pub fn takes_headers(&self) -> bool {
        self.encoding == Encoding::Eterm
    }

    /// Whether each message carries its time of sending.
    #[must_use]
    pub fn has_timestamp(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Timestamp(_)))
    }

    /// One message's payload in parts, of which the large ones are not copied; none is empty. `now` is since the Unix
    /// epoch; `headers` are what [`PayloadHeaders::put`](super::PayloadHeaders::put) wrote, or nothing.
    #[must_use]
    pub fn segments(&self, headers: &[u8], now: Duration) -> Vec<Bytes> {
        let mut segments = Vec::with_capacity(self.parts.len());
        let mut open = headers.to_vec();
        for part in &self.parts {
            match part {
                Part::Timestamp(unit) => self.put_timestamp(&mut open, *unit, now),
                Part::Constant(bytes) if bytes.len() <= PART_COPY_LIMIT => open.extend_from_slice(bytes),
                Part::Constant(bytes) => {
                    if !open.is_empty() {
                        segments.push(Bytes::from(mem::take(&mut open)));
                    }
                    segments.push(bytes.clone());
                }
            }
        }
        if !open.is_empty() {
            segments.push(Bytes::from(open));
        }
        segments
    }

    fn put_timestamp(&self, out: &mut Vec<u8>, unit: TimestampUnit, now: Duration) {
        let count = unit.count(now);
        match self.encoding {
            Encoding::Json => out.extend_from_slice(count.to_string().as_bytes()),
            Encoding::Eterm => Eterm::put_integer(out, i128::try_from(count).unwrap_or(i128::MAX)),
        }
    }
}

/// Parts in the making: what is small and constant grows together.
#[derive(Default)]
struct Parts {
    closed: Vec<Part>,
    open: Vec<u8>,
}

impl Parts {
    fn push(&mut self, part: Part) {
        self.close();
        self.closed.push(part);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.closed.push(Part::Constant(Bytes::from(mem::take(&mut self.open))));
        }
    }

    fn finish(mut self) -> Vec<Part> {
        self.close();
        self.closed
    }
}

fn eterm(parts: &mut Parts, fields: &BTreeMap<&str, Field>) {
    parts.open.push(Eterm::VERSION);
    Eterm::put_map_head(&mut parts.open, fields.len());
    for (name, field) in fields {
        Eterm::put_binary(&mut parts.open, name.as_bytes());
        match field {
            Field::Constant(term) => Eterm::put(&mut parts.open, term),
            Field::Timestamp(unit) => parts.push(Part::Timestamp(*unit)),
            Field::Pages(pages) => {
                Eterm::put_binary_head(&mut parts.open, pages.len());
                parts.push(Part::Constant(pages.clone()));
            }
        }
    }
}

fn json(parts: &mut Parts, fields: &BTreeMap<&str, Field>) {
    parts.open.push(b'{');
    for (at, (name, field)) in fields.iter().enumerate() {
        if at > 0 {
            parts.open.push(b',');
        }
        put_json(&mut parts.open, name);
        parts.open.push(b':');
        match field {
            Field::Constant(term) => put_json(&mut parts.open, term),
            Field::Timestamp(unit) => parts.push(Part::Timestamp(*unit)),
            Field::Pages(pages) => {
                parts.open.push(b'"');
                parts.push(Part::Constant(pages.clone()));
                parts.open.push(b'"');
            }
        }
    }
    parts.open.push(b'}');
}

fn put_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Terms have no other keys than texts and a Vec takes every write, so this does not fail.
    if let Ok(text) = serde_json::to_string(value) {
        out.extend_from_slice(text.as_bytes());
    }
}
