//! Events and packets of qlog files, in all drafts of the format.
//!
//! Names of fields: draft-ietf-quic-qlog-quic-events-12 and, where older files differ,
//! draft-marx-qlog-event-definitions.

use serde_json::{Deserializer, Value};

// === Records ===

const RECORD_SEPARATOR: u8 = 0x1E;

/// Record that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadRecord {
    /// `line` is from 1.
    NotJson { line: usize, problem: String },
    /// The last of several records is incomplete, as after a crash of the writer.
    CutOff,
}

/// Records in order; ends after the first error.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Value, BadRecord>> {
    let mut line = 0;
    let mut texts = bytes.split(|byte| *byte == RECORD_SEPARATOR).peekable();
    let sequence = std::iter::from_fn(move || {
        let text = texts.next()?;
        let first_line = line;
        line += text.iter().filter(|byte| **byte == b'\n').count();
        Some((text, first_line, texts.peek().is_none()))
    });
    let mut some = false;
    let mut failed = false;
    sequence
        .flat_map(|(text, first_line, last)| {
            Deserializer::from_slice(text).into_iter().map(move |value| (value, first_line, last))
        })
        .map_while(move |(value, first_line, last)| {
            if failed {
                return None;
            }
            let record = value.map_err(|error| {
                failed = true;
                if error.is_eof() && last && some {
                    return BadRecord::CutOff;
                }
                let position = format!(" at line {} column {}", error.line(), error.column());
                let problem = error.to_string().replace(&position, "");
                BadRecord::NotJson { line: first_line + error.line().max(1), problem }
            });
            some = true;
            Some(record)
        })
}

// === Events ===

#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Sent(Packet),
    Received(Packet),
    Lost(LostPacket),
    Metrics(Metrics),
    /// A probe timeout expired, as an event of its own.
    ProbeTimeout,
    Other,
}

/// Packet that was declared lost, as far as the log identifies it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LostPacket {
    pub(super) space: Space,
    pub(super) number: u64,
    pub(super) path: Option<u64>,
    pub(super) length: Option<u64>,
}

/// Changes of the recovery metrics; `None` if unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metrics {
    pub(super) path: u64,
    /// Bytes.
    pub(super) congestion_window: Option<u64>,
    /// Bytes.
    pub(super) bytes_in_flight: Option<u64>,
    /// Probe timeouts since the last acknowledgement.
    pub(super) pto_count: Option<u64>,
}

/// Parses the event of this name, such as `quic:packet_sent`, at this time of the log.
pub(super) fn event(name: &str, time: f64, details: &Value) -> Event {
    let plain = name.rsplit(':').next().unwrap_or(name);
    match plain.to_ascii_lowercase().as_str() {
        "packet_sent" => Event::Sent(packet(time, details)),
        "packet_received" => Event::Received(packet(time, details)),
        "packet_lost" => lost(details).map_or(Event::Other, Event::Lost),
        "recovery_metrics_updated" | "metrics_updated" | "metric_update" => Event::Metrics(metrics(details)),
        "loss_timer_updated" | "timer_updated" | "loss_timer_expired" => {
            let says = |field: &str, word| details.get(field).and_then(Value::as_str) == Some(word);
            let expired = plain.eq_ignore_ascii_case("loss_timer_expired") || says("event_type", "expired");
            if expired && says("timer_type", "pto") { Event::ProbeTimeout } else { Event::Other }
        }
        _ => Event::Other,
    }
}

/// First of these JSON pointers that has a whole number.
fn first(details: &Value, places: &[&str]) -> Option<u64> {
    places.iter().find_map(|place| details.pointer(place).and_then(whole))
}

const NUMBER: &[&str] = &["/header/packet_number", "/packet_number", "/header/sequence"];
const LENGTH: &[&str] =
    &["/header/length", "/raw/length", "/header/packet_size", "/packet_size", "/raw_length"];
const PATH: &[&str] = &["/header/path_id", "/path_id"];

fn packet(time: f64, details: &Value) -> Packet {
    let frames = details.get("frames").and_then(Value::as_array);
    Packet {
        time,
        space: space(details),
        number: first(details, NUMBER),
        path: first(details, PATH),
        logged_length: first(details, LENGTH),
        frames: frames.into_iter().flatten().filter_map(stream_frame).collect(),
        lost: None,
    }
}

fn space(details: &Value) -> Space {
    let places = ["/header/packet_type", "/packet_type", "/type"];
    let kind = places.iter().find_map(|place| details.pointer(place).and_then(Value::as_str)).unwrap_or("");
    match kind.to_ascii_lowercase().as_str() {
        "initial" => Space::Initial,
        "handshake" => Space::Handshake,
        _ => Space::Application,
    }
}

fn stream_frame(frame: &Value) -> Option<StreamFrame> {
    let kind = frame.get("frame_type").and_then(Value::as_str)?;
    if !kind.eq_ignore_ascii_case("stream") {
        return None;
    }
    Some(StreamFrame {
        stream: first(frame, &["/stream_id", "/id"])?,
        // A frame without the field begins its stream: RFC 9000, section 19.8.
        offset: first(frame, &["/offset"]).unwrap_or(0),
        length: first(frame, &["/length", "/raw/length", "/raw/payload_length", "/payload_length"])
            .unwrap_or(0),
        again: 0,
        fin: frame.get("fin").and_then(Value::as_bool).unwrap_or(false),
    })
}

fn lost(details: &Value) -> Option<LostPacket> {
    Some(LostPacket {
        space: space(details),
        number: first(details, NUMBER)?,
        path: first(details, PATH),
        length: first(details, LENGTH),
    })
}

fn metrics(details: &Value) -> Metrics {
    Metrics {
        path: first(details, &["/path_id"]).unwrap_or(0),
        congestion_window: first(details, &["/congestion_window", "/cwnd"]),
        bytes_in_flight: first(details, &["/bytes_in_flight"]),
        pto_count: first(details, &["/pto_count"]),
    }
}

/// Time format of a trace.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Milliseconds per unit of the file.
    unit: f64,
    /// Whether times are relative to the previous event.
    is_delta: bool,
    /// Time 0 in milliseconds, once known.
    origin: Option<f64>,
    now: f64,
}

/// Limit between milliseconds since the start of a connection and milliseconds since 1970.
const EPOCH_TIMES: f64 = 1e11;

impl Clock {
    /// Format by the header of a trace or of the file.
    pub(super) fn of(heading: &Value) -> Self {
        let text = |places: &[&str]| {
            let found = places.iter().find_map(|place| heading.pointer(place).and_then(Value::as_str));
            found.unwrap_or("").to_ascii_lowercase()
        };
        let format = text(&["/common_fields/time_format", "/time_format"]);
        let unit = text(&["/configuration/time_units", "/common_fields/time_units", "/time_units"]);
        Self {
            unit: if unit == "us" { 0.001 } else { 1.0 },
            is_delta: matches!(format.as_str(), "delta" | "relative_to_previous_event"),
            origin: None,
            now: 0.0,
        }
    }

    /// Milliseconds of the log: unchanged, or since the first event if the file has absolute times.
    pub(super) fn read(&mut self, time: &Value) -> f64 {
        // An event without a readable time has that of the previous one.
        let Some(time) = real(time).map(|time| time * self.unit) else { return self.now };
        let now = if self.is_delta {
            self.now + time
        } else {
            time - *self.origin.get_or_insert(if time > EPOCH_TIMES { time } else { 0.0 })
        };
        if now.is_finite() {
            self.now = now;
        }
        self.now
    }
}

// === Packets ===

/// Packet number space, RFC 9000, section 12.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Initial,
    Handshake,
    #[default]
    Application,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Packet {
    /// Time of sending or receipt, in milliseconds of the log.
    pub(super) time: f64,
    pub(super) space: Space,
    pub(super) number: Option<u64>,
    /// Path of a multipath connection, if logged.
    pub(super) path: Option<u64>,
    /// Bytes with header and authentication tag, if logged.
    pub(super) logged_length: Option<u64>,
    /// STREAM frames in the order of the packet.
    pub(super) frames: Vec<StreamFrame>,
    pub(super) lost: Option<Loss>,
}

/// STREAM frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamFrame {
    pub(super) stream: u64,
    pub(super) offset: u64,
    /// Bytes of the stream.
    pub(super) length: u64,
    /// Retransmitted bytes among them.
    pub(super) again: u64,
    pub(super) fin: bool,
}

/// Detection of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loss {
    /// In milliseconds of the log.
    pub(super) time: f64,
    /// Number of packets sent before: the index of the next.
    pub(super) before: usize,
}

impl Packet {
    /// Bytes of streams.
    pub(super) fn stream_bytes(&self) -> u64 {
        self.frames.iter().fold(0, |sum, frame| sum.saturating_add(frame.length))
    }

    /// Bytes of the packet: at least those of its streams.
    pub(super) fn length(&self) -> u64 {
        self.logged_length.unwrap_or(0).max(self.stream_bytes())
    }

    pub(super) fn bytes_of(&self, mut wanted: impl FnMut(u64) -> bool) -> u64 {
        let frames = self.frames.iter().filter(|frame| wanted(frame.stream));
        frames.fold(0, |sum, frame| sum.saturating_add(frame.length))
    }
}

impl StreamFrame {
    /// Offset after its last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// Bytes that are not retransmitted.
    pub(super) fn fresh(&self) -> u64 {
        self.length.saturating_sub(self.again)
    }
}

// === Numbers ===

/// Whole number from a JSON number or, as in older drafts, a string.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be whole and in range"
            )]
            (float.fract() == 0.0 && (0.0..9.0e15).contains(&float)).then_some(float as u64)
        }),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// Finite number from a JSON number or a string.
pub(super) fn real(value: &Value) -> Option<f64> {
    let float = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    float.is_finite().then_some(float)
}

/// Count as a float, for ratios and coordinates.
#[expect(clippy::cast_precision_loss, reason = "the 53rd bit of a ratio is invisible")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

/// Milliseconds rounded to microseconds, the resolution of logs.
pub(super) fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Vec<Result<Value, BadRecord>> {
        records(text.as_bytes()).collect()
    }

    #[test]
    fn a_sequence_lines_and_one_document_are_the_same() {
        let both = vec![Ok(json!({"a": 1})), Ok(json!({"b": [2]}))];
        assert_eq!(read("\u{1e}{\"a\":1}\n\u{1e}{\"b\":[2]}\n"), both);
        assert_eq!(read("\u{1e}{\"a\":\n1}\u{1e}\u{1e}{\"b\":[2]}"), both);
        assert_eq!(read("{\"a\":1}\n{\"b\":[2]}\n"), both);
        assert_eq!(read("{\n \"a\": 1\n}\n"), both[..1]);
        assert_eq!(read(" \n"), []);
    }

    #[test]
    fn the_line_that_is_not_json_is_named_and_the_last() {
        let bad = |line| vec![Err(BadRecord::NotJson { line, problem: "expected ident".into() })];
        assert_eq!(read("nonsense"), bad(1));
        assert_eq!(read("\u{1e}{}\n\u{1e}{}\n\u{1e}nonsense\n\u{1e}{}\n")[2..], bad(3));
        assert_eq!(read("{}\n{}\n\nnonsense\n{}\n")[2..], bad(4));
    }

    #[test]
    fn a_last_record_that_is_cut_off_is_told_from_a_bad_one() {
        assert_eq!(read("\u{1e}{}\n\u{1e}{\"time\":1")[1..], [Err(BadRecord::CutOff)]);
        assert_eq!(read("{}\n{\"time\":")[1..], [Err(BadRecord::CutOff)]);
        assert!(matches!(read("{\"time\":")[..], [Err(BadRecord::NotJson { line: 1, .. })]));
        assert!(matches!(read("\u{1e}{}\n\u{1e}{\"a\"\u{1e}{}")[1], Err(BadRecord::NotJson { line: 2, .. })));
    }

    fn frame(stream: u64, offset: u64, length: u64, fin: bool) -> StreamFrame {
        StreamFrame { stream, offset, length, fin, again: 0 }
    }

    #[test]
    fn a_packet_is_the_same_in_every_dialect() {
        let expected = Packet {
            time: 5.0,
            number: Some(7),
            logged_length: Some(1200),
            frames: vec![frame(4, 10, 20, true)],
            ..Packet::default()
        };
        for (name, details) in [
            // noq, and the newest draft
            (
                "quic:packet_sent",
                json!({"header": {"packet_type": "1RTT", "packet_number": 7, "length": 1200}, "frames": [
                    {"frame_type": "ack", "acked_ranges": [[0, 1]]},
                    {"frame_type": "stream", "stream_id": 4, "offset": 10, "fin": true, "raw": {"length": 20}}]}),
            ),
            // quic-go, quiche, aioquic
            (
                "transport:packet_sent",
                json!({"header": {"packet_type": "1RTT", "packet_number": 7}, "raw": {"length": 1200}, "frames": [
                    {"frame_type": "stream", "stream_id": 4, "offset": 10, "length": 20, "fin": true}]}),
            ),
            // picoquic, and the first drafts
            (
                "PACKET_SENT",
                json!({"packet_type": "1rtt", "header": {"packet_number": "7", "packet_size": 1200}, "frames": [
                    {"frame_type": "padding"},
                    {"frame_type": "STREAM", "id": "4", "offset": "10", "length": "20", "fin": true}]}),
            ),
        ] {
            assert_eq!(event(name, 5.0, &details), Event::Sent(expected.clone()), "{name}");
        }
    }

    #[test]
    fn losses_metrics_and_probe_timeouts() {
        let details = json!({"header": {"packet_type": "initial", "packet_number": 3, "length": 55}});
        let lost = LostPacket { space: Space::Initial, number: 3, path: None, length: Some(55) };
        assert_eq!(event("recovery:packet_lost", 0.0, &details), Event::Lost(lost));
        assert_eq!(event("quic:packet_lost", 0.0, &json!({})), Event::Other);
        let details = json!({"cwnd": 12000, "bytes_in_flight": 5, "pto_count": 1, "path_id": 2});
        let metrics =
            Metrics { path: 2, congestion_window: Some(12000), bytes_in_flight: Some(5), pto_count: Some(1) };
        assert_eq!(event("recovery:metrics_updated", 0.0, &details), Event::Metrics(metrics));
        let timer = |kind| json!({"timer_type": kind, "event_type": "expired"});
        assert_eq!(event("recovery:loss_timer_updated", 0.0, &timer("pto")), Event::ProbeTimeout);
        assert_eq!(event("recovery:loss_timer_updated", 0.0, &timer("ack")), Event::Other);
    }

    #[test]
    fn times_are_relative_absolute_or_since_the_event_before() {
        let read = |heading: Value, times: &[Value]| {
            let mut clock = Clock::of(&heading);
            times.iter().map(|time| clock.read(time)).collect::<Vec<_>>()
        };
        assert_eq!(read(json!({}), &[json!(2.5), json!("4"), json!(null)]), [2.5, 4.0, 4.0]);
        assert_eq!(read(json!({}), &[json!(1.7e12), json!(1.7e12 + 8.0)]), [0.0, 8.0]);
        let heading = json!({"common_fields": {"time_format": "relative_to_previous_event"}});
        assert_eq!(read(heading.clone(), &[json!(1), json!(2), json!(3)]), [1.0, 3.0, 6.0]);
        assert_eq!(read(heading, &[json!(1e308), json!(1e308)]), [1e308; 2]);
        let heading = json!({"configuration": {"time_units": "us"}});
        assert_eq!(read(heading, &[json!(1500)]), [1.5]);
    }

    #[test]
    fn numbers_and_strings_are_numbers() {
        for value in [json!(12), json!(12.0), json!("12")] {
            assert_eq!(whole(&value), Some(12), "{value}");
            assert_eq!(real(&value), Some(12.0), "{value}");
        }
        for value in [json!(-1), json!(1.5), json!(1e300), json!("x"), json!(null), json!([1])] {
            assert_eq!(whole(&value), None, "{value}");
        }
        assert_eq!(whole(&json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(real(&json!("inf")), None);
        assert_eq!(real(&json!("-0.5")), Some(-0.5));
    }
}
