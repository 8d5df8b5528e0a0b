//! Sources of the numbers of a run.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IntoDeserializer;

use super::field::{Span, from_text};

from_text!(Value, Flow);

/// Source of a number, in the syntax of scenarios.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Value {
    /// `consumer:Topic1:received`: field of a topic of a program, summed over its streams. The topics `(connected)`,
    /// `(subscribed)`, `(reconnected)` and `(resubscribed)` are the steps of its clients.
    Topic(Flow, Field),
    /// `producer:pub`: counter of a program.
    Counter {
        /// Name of the program.
        program: String,
        /// Name of the counter, as the program prints it.
        name: String,
    },
    /// `producer::cpu_seconds`: field of the process.
    Program {
        /// Name of the program.
        program: String,
        /// Field.
        field: ProgramField,
    },
    /// `producer:stream:2:rate`: bytes per second of a stream (`bytes`: the total); `producer:stream:2+:rate` includes
    /// streams of higher numbers.
    Stream {
        /// Name of the program.
        program: String,
        /// Number of the stream.
        number: u64,
        /// Whether streams of higher numbers are included.
        and_above: bool,
        /// Whether the value is the total instead of the rate.
        is_total: bool,
    },
    /// `set:limit`: number that the profile or the variant sets under this name.
    Set(String),
    /// `consumer:Topic1:p99_ms@steady`: value restricted to a window.
    In {
        /// Value of a topic, a stream, a program or a link.
        value: Box<Value>,
        /// [`Window::name`](super::Window::name).
        window: String,
    },
    /// `link:bad:up:policed_share`: field of one direction of a link; `link:bad:both:bytes` is the sum of both, for
    /// counts.
    Link {
        /// Name of the link.
        link: String,
        /// Directions.
        way: Way,
        /// Field.
        field: LinkField,
    },
}

/// Directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From left to right.
    Up,
    /// From right to left.
    Down,
    /// Sum of both.
    Both,
}

impl Way {
    /// Directions, `true` for up.
    pub(crate) fn directions(self) -> &'static [bool] {
        match self {
            Self::Up => &[true],
            Self::Down => &[false],
            Self::Both => &[true, false],
        }
    }
}

/// Subject of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    Program(&'a str),
    Link(&'a str),
    /// Setting of the profile or the variant.
    Set(&'a str),
}

/// Topic or stream of a program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Flow {
    /// Name of the program.
    pub program: String,
    /// Name of the topic or object; `None` for all.
    pub topic: Option<String>,
    /// Number of the stream; `None` for a topic.
    pub stream: Option<u64>,
}

/// Field of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Messages sent.
    Sent,
    /// Messages acknowledged.
    Acked,
    /// Messages received.
    Received,
    /// Messages that were due, sent or not.
    Offered,
    /// Payload bytes of acknowledged or received messages.
    Bytes,
    /// Latency quantile in milliseconds; the quantile in thousandths.
    Quantile(u16),
    /// Largest latency in milliseconds.
    MaxMs,
    /// Mean latency in milliseconds.
    MeanMs,
    /// Messages with at most this latency in milliseconds.
    Within(u32),
    /// Seconds with fewer messages than this, without the first and the last second.
    SecondsBelow(u32),
    /// Quantile (thousandths) of the messages per second, without the first and the last second.
    RateQuantile(u16),
    /// Messages per second over the whole time.
    Rate,
    /// Last second in which a message came, from 1.
    LastSecond,
    /// Longest time between two messages of one topic to one subscriber, milliseconds.
    LongestGapMs,
    /// Convergence time in seconds: from the beginning of a window to the due time of its last message with a latency
    /// above this many milliseconds.
    Settled(u32),
}

/// Field of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramField {
    /// User and system time in seconds.
    CpuSeconds,
    /// Peak resident memory in MB (10^6 bytes).
    PeakMb,
    /// Run time in seconds.
    Seconds,
    /// Connections established.
    Established,
    /// Median time to connect, milliseconds.
    ConnectP50Ms,
    /// p99 of the time to connect, milliseconds.
    ConnectP99Ms,
    /// Longest time to connect, milliseconds.
    ConnectMaxMs,
    /// Longest time from PINGREQ to PINGRESP, milliseconds.
    PingrespMaxMs,
    /// Time of the first lost connection, seconds since the workload began.
    FirstLossAt,
    /// Reason Code of the last DISCONNECT that it received.
    LastReason,
    /// Received messages whose counter (`cnt64`) did not rise: repeated, or overtaken.
    NotAbove,
    /// Counters that were skipped: lost, or overtaken.
    Skipped,
}

/// Field of one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkField {
    /// Share of all packets that the policer dropped.
    PolicedShare,
    /// Share of all packets that were dropped, for any cause.
    DroppedShare,
    /// Packets that passed.
    Packets,
    /// Bytes that passed.
    Bytes,
    /// Bytes that arrived at the link.
    OfferedBytes,
    /// Copies that the link made: duplicates and replays.
    Duplicated,
    /// Largest packet, bytes.
    Largest,
}

impl LinkField {
    /// Whether the field counts, so that directions can be added.
    fn is_count(self) -> bool {
        matches!(self, Self::Packets | Self::Bytes | Self::OfferedBytes | Self::Duplicated)
    }
}

const FIELDS: &str = "sent, acked, received, due, bytes, p50_ms (p90, p95, p99, p999), max_ms, mean_ms, within_250ms, \
                      seconds_below_9, rate, rate_min (p5, p50, max), last_second, longest_gap_ms, settled_250ms";

impl FromStr for Value {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((value, window)) = text.rsplit_once('@') {
            let (value, window) = (Box::new(value.parse()?), window.to_owned());
            return Self::In { value, window }.checked();
        }
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["link", link, way @ ("up" | "down" | "both"), field] => {
                let field: LinkField = field_of("link", field)?;
                let way = match way {
                    "up" => Way::Up,
                    "down" => Way::Down,
                    _ if field.is_count() => Way::Both,
                    _ => return Err(format!("{text:?}: only counts have a sum: write up or down")),
                };
                Ok(Self::Link { link: link.into(), way, field })
            }
            ["link", ..] => Err(format!("{text:?}: write link:NAME:up:FIELD, with up, down or both")),
            ["set", name] => Ok(Self::Set(name.into())),
            [program, "stream", number, field @ ("rate" | "bytes")] => {
                let plain = number.strip_suffix('+');
                let of = plain.unwrap_or(number).parse();
                let number = of.map_err(|_| format!("{text:?}: write PROGRAM:stream:NUMBER:{field}"))?;
                Ok(Self::Stream {
                    program: program.into(),
                    number,
                    and_above: plain.is_some(),
                    is_total: field == "bytes",
                })
            }
            [program, "", field] => {
                Ok(Self::Program { program: program.into(), field: field_of("program", field)? })
            }
            [program, counter] if !program.is_empty() && !counter.is_empty() => {
                Ok(Self::Counter { program: program.into(), name: counter.into() })
            }
            [program, topic, field] if !program.is_empty() => {
                let flow = Flow {
                    program: program.into(),
                    topic: Some(topic.into()).filter(|t| t != "*"),
                    stream: None,
                };
                Ok(Self::Topic(flow, topic_field(field)?))
            }
            _ => Err(format!(
                "{text:?}: write PROGRAM:TOPIC:FIELD, PROGRAM:COUNTER, PROGRAM::FIELD or link:NAME:up:FIELD"
            )),
        }
    }
}

/// Fields of a topic without a number in their names.
const PLAIN_FIELDS: [(&str, Field); 19] = [
    ("sent", Field::Sent),
    ("acked", Field::Acked),
    ("received", Field::Received),
    ("due", Field::Offered),
    ("bytes", Field::Bytes),
    ("p50_ms", Field::Quantile(500)),
    ("p90_ms", Field::Quantile(900)),
    ("p95_ms", Field::Quantile(950)),
    ("p99_ms", Field::Quantile(990)),
    ("p999_ms", Field::Quantile(999)),
    ("max_ms", Field::MaxMs),
    ("mean_ms", Field::MeanMs),
    ("rate", Field::Rate),
    ("rate_min", Field::RateQuantile(0)),
    ("rate_p5", Field::RateQuantile(50)),
    ("rate_p50", Field::RateQuantile(500)),
    ("rate_max", Field::RateQuantile(1000)),
    ("last_second", Field::LastSecond),
    ("longest_gap_ms", Field::LongestGapMs),
];

fn topic_field(text: &str) -> Result<Field, String> {
    let plain = PLAIN_FIELDS.iter().find(|(name, _)| *name == text).map(|(_, field)| *field);
    let number =
        |before: &str, after: &str| text.strip_prefix(before)?.strip_suffix(after)?.parse::<u32>().ok();
    plain
        .or_else(|| number("seconds_below_", "").map(Field::SecondsBelow))
        .or_else(|| number("settled_", "ms").map(Field::Settled))
        .or_else(|| number("within_", "ms").map(Field::Within))
        .ok_or_else(|| format!("unknown field {text:?} of a topic: one of {FIELDS}"))
}

/// Parses a field by its name; the error lists all names.
fn field_of<'de, F: Deserialize<'de>>(subject: &str, text: &'de str) -> Result<F, String> {
    let name = text.into_deserializer();
    F::deserialize(name)
        .map_err(|error: serde::de::value::Error| format!("unknown field of a {subject}: {error}"))
}

impl Value {
    /// Subject of the value.
    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Self::Topic(flow, _) => Source::Program(&flow.program),
            Self::Counter { program, .. } | Self::Program { program, .. } | Self::Stream { program, .. } => {
                Source::Program(program)
            }
            Self::Link { link, .. } => Source::Link(link),
            Self::Set(name) => Source::Set(name),
            Self::In { value, .. } => value.source(),
        }
    }

    /// Quantile, from 0 to 1, of a latency quantile, also of one in a window.
    pub(crate) fn quantile(&self) -> Option<f64> {
        match self {
            Self::Topic(_, Field::Quantile(thousandths)) => Some(f64::from(*thousandths) / 1000.0),
            Self::In { value, .. } => value.quantile(),
            _ => None,
        }
    }

    /// Whether it is a time until messages arrived, or until connections were made.
    pub(crate) fn is_latency(&self) -> bool {
        match self {
            Self::Topic(_, field) => {
                matches!(field, Field::Quantile(_) | Field::MaxMs | Field::MeanMs | Field::Settled(_))
            }
            Self::Program { field, .. } => matches!(
                field,
                ProgramField::ConnectP50Ms | ProgramField::ConnectP99Ms | ProgramField::ConnectMaxMs
            ),
            Self::In { value, .. } => value.is_latency(),
            Self::Counter { .. } | Self::Stream { .. } | Self::Set(_) | Self::Link { .. } => false,
        }
    }

    /// Window of the value, if any.
    pub(crate) fn window(&self) -> Option<&str> {
        if let Self::In { window, .. } = self { Some(window) } else { None }
    }

    /// Checks that the value exists for windows.
    fn checked(self) -> Result<Self, String> {
        let Self::In { value, window } = &self else { return Ok(self) };
        let exists = match &**value {
            Self::Topic(_, field) => match field {
                Field::Offered
                | Field::Received
                | Field::Quantile(_)
                | Field::MaxMs
                | Field::MeanMs
                | Field::Within(_)
                | Field::Settled(_) => true,
                Field::Sent
                | Field::Acked
                | Field::Bytes
                | Field::SecondsBelow(_)
                | Field::RateQuantile(_)
                | Field::Rate
                | Field::LongestGapMs
                | Field::LastSecond => false,
            },
            Self::Stream { .. } => true,
            Self::Program { field, .. } => {
                matches!(field, ProgramField::PingrespMaxMs | ProgramField::CpuSeconds)
            }
            Self::Link { field, .. } => *field != LinkField::Largest,
            Self::Counter { .. } | Self::Set(_) | Self::In { .. } => false,
        };
        if exists {
            return Ok(self);
        }
        Err(format!(
            "only due, received, p50_ms and other quantiles, max_ms, mean_ms, within_250ms, settled_250ms of a topic, the \
             rate of a stream, pingresp_max_ms and cpu_seconds of a program, and all fields of a link but the largest exist for \
             a window (@{window})"
        ))
    }
}

impl FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: write PROGRAM:TOPIC or PROGRAM:stream:NUMBER");
        let (program, rest) = text.split_once(':').ok_or_else(wrong)?;
        if program.is_empty() || rest.is_empty() {
            return Err(wrong());
        }
        let stream =
            rest.strip_prefix("stream:").map(|number| number.parse().map_err(|_| wrong())).transpose()?;
        let topic = stream.is_none().then(|| rest.to_owned()).filter(|topic| topic != "*");
        Ok(Self { program: program.into(), topic, stream })
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.topic, self.stream) {
            (_, Some(stream)) => write!(f, "{}:stream:{stream}", self.program),
            (Some(topic), None) => write!(f, "{}:{topic}", self.program),
            (None, None) => write!(f, "{}:*", self.program),
        }
    }
}

/// Window of the workload's time. A value `...@NAME` covers messages and pings that were due in the window, and bytes
/// and packets that came in it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Name in values.
    pub name: String,
    /// Start, since the workload began.
    pub from: Span,
    /// End (exclusive), since the workload began.
    pub until: Span,
}

impl Window {
    /// Start and end, seconds since the workload began.
    pub(crate) fn seconds(&self) -> (f64, f64) {
        (self.from.0.as_secs_f64(), self.until.0.as_secs_f64())
    }
}
