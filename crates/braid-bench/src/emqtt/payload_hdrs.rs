use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const WIDTH: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    Counter,
    Timestamp,
}

/// The headers of `--payload-hdrs`, in the order given: 8 bytes each, big-endian, before the payload.
///
/// `cnt64` is a counter of the publisher for each topic from 0, `ts` the time of sending in milliseconds since the Unix
/// epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadHeaders {
    headers: Vec<Header>,
}

/// A payload is shorter than the headers that it should begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a payload of {found} bytes cannot begin with {needed} bytes of headers: give the publisher the same --payload-hdrs"
)]
pub struct TruncatedHeaders {
    found: usize,
    needed: usize,
}

/// Headers of one payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderValues<'a> {
    /// `cnt64`.
    pub counter: Option<u64>,
    /// `ts`: since the Unix epoch, in whole milliseconds.
    pub sent: Option<Duration>,
    /// The payload behind the headers.
    pub body: &'a [u8],
}

impl Header {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "cnt64",
            Self::Timestamp => "ts",
        }
    }
}

impl FromStr for PayloadHeaders {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let header = |name: &str| {
            let known = [Header::Counter, Header::Timestamp].into_iter().find(|header| header.name() == name);
            known.ok_or_else(|| {
                format!(
                    "unknown payload header {name:?}: the headers are cnt64 and ts, such as --payload-hdrs cnt64,ts"
                )
            })
        };
        let names = list.split(',').filter(|name| !name.is_empty());
        Ok(Self { headers: names.map(header).collect::<Result<_, _>>()? })
    }
}

/// As `--payload-hdrs` has them.
impl fmt::Display for PayloadHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|header| header.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl PayloadHeaders {
    /// Whether there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// The length of the headers in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.headers.len() * WIDTH
    }

    /// Appends the headers. `counter` is the number of this message of this publisher and topic, from 0; `now` the time
    /// since the Unix epoch.
    pub fn put(&self, out: &mut Vec<u8>, counter: u64, now: Duration) {
        for header in &self.headers {
            let value = match header {
                Header::Counter => counter,
                Header::Timestamp => u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            };
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// Reads the headers off a payload. Of a header given twice the last counts.
    ///
    /// # Errors
    /// The payload is shorter than the headers.
    pub fn read<'a>(&self, payload: &'a [u8]) -> Result<HeaderValues<'a>, TruncatedHeaders> {
        let truncated = TruncatedHeaders { found: payload.len(), needed: self.len() };
        let mut values = HeaderValues { counter: None, sent: None, body: payload };
        for header in &self.headers {
            let (value, rest) = values.body.split_first_chunk().ok_or(truncated)?;
            let value = u64::from_be_bytes(*value);
            match header {
                Header::Counter => values.counter = Some(value),
                Header::Timestamp => values.sent = Some(Duration::from_millis(value)),
            }
            values.body = rest;
        }
        Ok(values)
    }
}

/// Relation of a counter to the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterOrder {
    /// The first one seen: nothing to compare with.
    First,
    /// One more than the one before.
    Next,
    /// Number of skipped counters: lost, or still on their way.
    Skipped(u64),
    /// Sequence number not above the one before: a duplicate, a late one, or another publisher's.
    NotAbove,
}

/// The `cnt64` headers of one publisher, as one subscriber sees them.
#[derive(Debug, Clone, Copy, Default)]
pub struct CounterTrack {
    last: Option<u64>,
}

impl CounterTrack {
    /// Takes the next counter.
    pub fn observe(&mut self, counter: u64) -> CounterOrder {
        let order = match self.last {
            None => CounterOrder::First,
            Some(last) => match counter.checked_sub(last) {
                None | Some(0) => CounterOrder::NotAbove,
                Some(1) => CounterOrder::Next,
                Some(step) => CounterOrder::Skipped(step - 1),
            },
        };
        self.last = Some(self.last.map_or(counter, |last| last.max(counter)));
        order
    }
}
