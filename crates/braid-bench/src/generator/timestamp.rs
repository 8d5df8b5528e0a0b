//! Timestamp in a field of a payload, read without decoding the rest.

mod eterm;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::emqtt::{Eterm, TimestampUnit};

/// `--timestamp-field NAME=UNIT`: the top-level field of each payload with its time of sending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampField {
    name: String,
    unit: TimestampUnit,
}

impl FromStr for TimestampField {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let parts = given.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let field = parts.and_then(|(name, unit)| {
            Some(Self { name: name.to_owned(), unit: TimestampUnit::from_name(unit)? })
        });
        field.ok_or_else(|| {
            format!(
                "{given:?} names no field and unit: write --timestamp-field timestamp=us; the units are s, ms, us and ns"
            )
        })
    }
}

impl TimestampField {
    /// Time since the Unix epoch in this field of a payload, an integer or its text. `None` if the payload is
    /// neither a map of the external term format nor a JSON object, or has no such number at its top level.
    ///
    /// Bytes before the field are skipped and those behind it are not read: megabytes cost next to
    /// nothing in the term format, where a length says how far to skip, and one pass in JSON.
    #[must_use]
    pub fn read(&self, payload: &[u8]) -> Option<Duration> {
        let count = match payload.split_first()? {
            (&Eterm::VERSION, term) => eterm::field(term, self.name.as_bytes())?,
            _ => JsonField::find(payload, &self.name)?,
        };
        Some(match self.unit {
            TimestampUnit::Seconds => Duration::from_secs(count),
            TimestampUnit::Milliseconds => Duration::from_millis(count),
            TimestampUnit::Microseconds => Duration::from_micros(count),
            TimestampUnit::Nanoseconds => Duration::from_nanos(count),
        })
    }
}

/// Digits of a number that is not negative.
fn digits(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if is_number { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// Search for the number in a field of a JSON object. Values before it are stepped over, and nothing behind it is read.
struct JsonField<'n> {
    name: &'n str,
    found: Option<u64>,
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'n> JsonField<'n> {
    fn find(json: &[u8], name: &'n str) -> Option<u64> {
        let mut field = Self { name, found: None };
        // Fails behind the field, where the object is not read to its end.
        let _ = serde_json::Deserializer::from_slice(json).deserialize_map(&mut field);
        field.found
    }
}

impl<'de> Visitor<'de> for &mut JsonField<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            let value = map.next_value::<&RawValue>()?.get();
            if name == self.name {
                let text = value.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(value);
                // Without anything behind it the number may be cut off.
                map.next_key::<Name<'_>>()?;
                self.found = digits(text.as_bytes());
                break;
            }
        }
        Ok(())
    }
}
