//! Where a number of a run comes from.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A source of a number, as scenarios write it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Value {
    /// `consumer:Topic1:received`: of one topic, summed over the streams on which a program had it.
    Topic(Flow, Field),
    /// `producer:pub`: a program's counter.
    Counter {
        /// The program.
        program: String,
        /// The counter's printed name.
        name: String,
    },
    /// `producer::cpu_seconds`: of the program itself.
    Program {
        /// The program.
        program: String,
        /// Which.
        field: ProgramField,
    },
    /// `producer:stream:2:rate`: bytes a second that a stream carried (`bytes`: all of them), `producer:stream:2+:rate`: it and
    /// those of higher numbers.
    Stream {
        /// The program.
        program: String,
        /// The stream's number.
        number: u64,
        /// Those of higher numbers as well.
        and_above: bool,
        /// All bytes, not those of a second.
        is_total: bool,
    },
    /// `set:limit`: the number that the profile or the variant sets under this name.
    Set(String),
    /// `consumer:Topic1:p99_ms@steady`: of a part of the workload's time.
    In {
        /// Of a topic, a stream or a link.
        value: Box<Value>,
        /// [`Window::name`](super::Window::name).
        window: String,
    },
    /// `link:bad:up:policed_share`: of one direction of a link.
    Link {
        /// The link.
        link: String,
        /// Whether from left to right.
        up: bool,
        /// Which.
        field: LinkField,
    },
}

/// What a value is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    Program(&'a str),
    Link(&'a str),
    /// A number of the profile or the variant.
    Set(&'a str),
}

/// A topic of a program, or a stream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Flow {
    /// The program.
    pub program: String,
    /// The topic, or what the program calls its object.
    pub topic: Option<String>,
    /// The stream's number.
    pub stream: Option<u64>,
}

/// What is known of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Messages sent.
    Sent,
    /// Messages acknowledged.
    Acked,
    /// Messages received.
    Received,
    /// Messages that were due: sent, and those that never were.
    Due,
    /// Payload bytes of what was acknowledged or received.
    Bytes,
    /// A quantile of the latency in milliseconds, in thousandths.
    Quantile(u16),
    /// The largest latency in milliseconds.
    MaxMs,
    /// The mean latency in milliseconds.
    MeanMs,
    /// Messages that took no longer than so many milliseconds.
    Within(u32),
    /// Seconds in which fewer than so many messages came, the first and the last second not counted.
    SecondsBelow(u32),
    /// Of the messages of each second, first and last not counted: a quantile in thousandths.
    RateQuantile(u16),
    /// Messages a second over the whole time.
    Rate,
    /// The last second in which a message came, counted from 1.
    LastSecond,
    /// Of a part of the time: from its beginning until the last message was due that took longer than so many
    /// milliseconds, seconds.
    Settled(u32),
}

/// What is known of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramField {
    /// User and system time.
    CpuSeconds,
    /// The most main memory it had, MB (10^6 bytes).
    PeakMb,
    /// How long it ran.
    Seconds,
    /// Connections established.
    Established,
    /// Half of the connections took no longer, milliseconds.
    ConnectP50Ms,
    /// 99 of 100.
    ConnectP99Ms,
    /// All.
    ConnectMaxMs,
    /// No PINGRESP came later than so many milliseconds after its PINGREQ.
    PingrespMaxMs,
    /// When a connection was lost for the first time, seconds since the workload began.
    FirstLossAt,
    /// The Reason Code of the last DISCONNECT that it got.
    LastReason,
}

/// What is known of one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkField {
    /// The share of all packets that the policer dropped.
    PolicedShare,
    /// The share of all packets that were dropped, whatever the cause.
    DroppedShare,
    /// Packets that passed.
    Packets,
    /// Their bytes.
    Bytes,
    /// Bytes that came.
    OfferedBytes,
    /// The largest packet, bytes.
    Largest,
}

const FIELDS: &str = "sent, acked, received, due, bytes, p50_ms (p90, p95, p99, p999), max_ms, mean_ms, within_250ms, \
                      seconds_below_9, rate, rate_min (p5, p50, max), last_second, settled_250ms";
const PROGRAM_FIELDS: &str = "cpu_seconds, peak_mb, seconds, established, connect_p50_ms (p99, max), pingresp_max_ms, first_loss_at, \
     last_reason";
const LINK_FIELDS: &str = "policed_share, dropped_share, packets, bytes, offered_bytes, largest";

impl FromStr for Value {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((value, window)) = text.rsplit_once('@') {
            let (value, window) = (Box::new(value.parse()?), window.to_owned());
            return Self::In { value, window }.checked();
        }
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["link", link, way @ ("up" | "down"), field] => {
                Ok(Self::Link { link: link.into(), up: way == "up", field: link_field(field)? })
            }
            ["link", ..] => Err(format!("{text:?}: write link:NAME:up:FIELD or link:NAME:down:FIELD")),
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
                Ok(Self::Program { program: program.into(), field: program_field(field)? })
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

fn topic_field(text: &str) -> Result<Field, String> {
    let unknown = || format!("unknown field {text:?} of a topic: one of {FIELDS}");
    Ok(match text {
        "sent" => Field::Sent,
        "acked" => Field::Acked,
        "received" => Field::Received,
        "due" => Field::Due,
        "bytes" => Field::Bytes,
        "p50_ms" => Field::Quantile(500),
        "p90_ms" => Field::Quantile(900),
        "p95_ms" => Field::Quantile(950),
        "p99_ms" => Field::Quantile(990),
        "p999_ms" => Field::Quantile(999),
        "max_ms" => Field::MaxMs,
        "mean_ms" => Field::MeanMs,
        "rate" => Field::Rate,
        "rate_min" => Field::RateQuantile(0),
        "rate_p5" => Field::RateQuantile(50),
        "rate_p50" => Field::RateQuantile(500),
        "rate_max" => Field::RateQuantile(1000),
        "last_second" => Field::LastSecond,
        _ => {
            let number = |text: &str| text.parse::<u32>().ok();
            let settled = text.strip_prefix("settled_").and_then(|text| text.strip_suffix("ms"));
            if let Some(count) = text.strip_prefix("seconds_below_").and_then(number) {
                Field::SecondsBelow(count)
            } else if let Some(ms) = settled.and_then(number) {
                Field::Settled(ms)
            } else {
                let limit = text.strip_prefix("within_").and_then(|text| text.strip_suffix("ms"));
                Field::Within(limit.and_then(number).ok_or_else(unknown)?)
            }
        }
    })
}

fn program_field(text: &str) -> Result<ProgramField, String> {
    Ok(match text {
        "cpu_seconds" => ProgramField::CpuSeconds,
        "peak_mb" => ProgramField::PeakMb,
        "seconds" => ProgramField::Seconds,
        "established" => ProgramField::Established,
        "connect_p50_ms" => ProgramField::ConnectP50Ms,
        "connect_p99_ms" => ProgramField::ConnectP99Ms,
        "connect_max_ms" => ProgramField::ConnectMaxMs,
        "pingresp_max_ms" => ProgramField::PingrespMaxMs,
        "first_loss_at" => ProgramField::FirstLossAt,
        "last_reason" => ProgramField::LastReason,
        _ => return Err(format!("unknown field {text:?} of a program: one of {PROGRAM_FIELDS}")),
    })
}

fn link_field(text: &str) -> Result<LinkField, String> {
    Ok(match text {
        "policed_share" => LinkField::PolicedShare,
        "dropped_share" => LinkField::DroppedShare,
        "packets" => LinkField::Packets,
        "bytes" => LinkField::Bytes,
        "offered_bytes" => LinkField::OfferedBytes,
        "largest" => LinkField::Largest,
        _ => return Err(format!("unknown field {text:?} of a link: one of {LINK_FIELDS}")),
    })
}

impl Value {
    /// What it is about.
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

    /// The part of the time that it is of, if not of all.
    pub(crate) fn window(&self) -> Option<&str> {
        if let Self::In { window, .. } = self { Some(window) } else { None }
    }

    /// Whether it is known of a part of the time.
    fn checked(self) -> Result<Self, String> {
        let Self::In { value, window } = &self else { return Ok(self) };
        match **value {
            Self::Topic(
                _,
                Field::Due
                | Field::Received
                | Field::Quantile(_)
                | Field::MaxMs
                | Field::MeanMs
                | Field::Within(_)
                | Field::Settled(_),
            )
            | Self::Stream { .. }
            | Self::Program { field: ProgramField::PingrespMaxMs, .. }
            | Self::Link { field: LinkField::PolicedShare | LinkField::DroppedShare, .. } => Ok(self),
            _ => Err(format!(
                "only due, received, p50_ms and other quantiles, max_ms, mean_ms, within_250ms, settled_250ms of a topic, the \
                 rate of a stream, pingresp_max_ms of a program, policed_share and dropped_share of a link are known of a part of the time (@{window})"
            )),
        }
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

impl TryFrom<String> for Value {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Flow {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
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
