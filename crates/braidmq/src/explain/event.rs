//! What an event of a log says, whichever draft of qlog its writer followed.
//!
//! Names of fields: draft-ietf-quic-qlog-quic-events-12 and, where older files differ, draft-marx-qlog-event-definitions.

use serde_json::Value;

use super::number::{real, whole};
use super::packet::{Packet, Space, StreamFrame};

#[derive(Debug, PartialEq)]
pub(super) enum Event {
    Sent(Packet),
    Received(Packet),
    Lost(LostPacket),
    Metrics(Metrics),
    /// A probe timeout expired, said by an event of its own.
    ProbeTimeout,
    Other,
}

/// The packet that a sender took for lost, as far as the log says which.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LostPacket {
    pub(super) space: Space,
    pub(super) number: u64,
    pub(super) path: Option<u64>,
    pub(super) length: Option<u64>,
}

/// What changed in the sender's recovery state; `None`: said earlier.
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

/// The event of this name, such as `quic:packet_sent`, that happened at this time of the log.
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

/// The first of these places that holds a whole number.
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

/// How the times of a trace are meant.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Milliseconds to one unit of the file.
    unit: f64,
    /// Each time counts from the event before.
    is_delta: bool,
    /// Milliseconds that are time 0, once known.
    origin: Option<f64>,
    now: f64,
}

/// Milliseconds since 1970 are far above this, milliseconds since the start of a connection far below.
const EPOCH_TIMES: f64 = 1e11;

impl Clock {
    /// By the heading of a trace or of the file.
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

    /// Milliseconds of the log: as they stand there, and from the first event on if the file has times of day.
    pub(super) fn read(&mut self, time: &Value) -> f64 {
        // An event without a readable time happened when the one before it did.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
}
