//! Timestamp in a field of a payload, read without decoding the rest.

mod eterm;
mod json;

use std::str::FromStr;
use std::time::Duration;

use crate::emqtt::{Eterm, TimestampUnit};

/// `--timestamp-field NAME=UNIT`: the top-level field of each payload with its time of sending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampField {
    name: String,
    unit: TimestampUnit,
}

/// A malformed `--timestamp-field`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} names no field and unit: write --timestamp-field timestamp=us; the units are s, ms, us and ns"
)]
pub struct TimestampFieldError {
    given: String,
}

impl FromStr for TimestampField {
    type Err = TimestampFieldError;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let error = || TimestampFieldError { given: given.to_owned() };
        let (name, unit) = given.rsplit_once('=').ok_or_else(error)?;
        let unit = match unit {
            "s" => TimestampUnit::Seconds,
            "ms" => TimestampUnit::Milliseconds,
            "us" => TimestampUnit::Microseconds,
            "ns" => TimestampUnit::Nanoseconds,
            _ => return Err(error()),
        };
        if name.is_empty() { Err(error()) } else { Ok(Self { name: name.to_owned(), unit }) }
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
            _ => json::field(payload, self.name.as_bytes())?,
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
