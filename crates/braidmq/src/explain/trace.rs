//! Trace of one connection, as one endpoint logged it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::Side;
use super::qlog::{Clock, Event, Loss, LostPacket, Metrics, Packet, Space, event};

/// Packets of one side in the order of the log, and the recovery metrics of the sender.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Endpoint that wrote the log: `client`, `server`, or `None` if unknown.
    pub(super) vantage: Option<String>,
    pub(super) packets: Vec<Packet>,
    /// Bytes in flight in the order of the log; empty without metrics.
    pub(super) flights: Vec<Flight>,
    /// Times of probe timeouts, in milliseconds of the log; `None` if the log does not record them.
    pub(super) probe_timeouts: Option<Vec<f64>>,
    /// Whether the last record is incomplete.
    pub(super) is_cut_off: bool,
    /// Number of other connections with stream bytes in the file.
    pub(super) others: usize,
}

/// Bytes in flight over all paths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flight {
    /// Time in milliseconds of the log.
    pub(super) time: f64,
    /// Bytes; 0 until the log has a value.
    pub(super) congestion_window: u64,
    /// Bytes.
    pub(super) bytes_in_flight: u64,
}

/// Missing content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Everything,
    /// `other_side`: packets of the other side have some.
    StreamFrames {
        other_side: bool,
    },
}

/// Reads the records of a file one by one.
pub(super) struct Reading {
    side: Side,
    heading: Option<Value>,
    /// Traces by event group; almost every file has one.
    traces: Vec<(Option<String>, TraceBuilder)>,
}

impl Reading {
    pub(super) fn new(side: Side) -> Self {
        Self { side, heading: None, traces: Vec::new() }
    }

    /// Handles a record: the header of the file, then events. A file that is one document is all header.
    ///
    /// # Errors
    /// The reason that the file is not qlog.
    pub(super) fn handle_record(&mut self, mut record: Value) -> Result<(), &'static str> {
        let Some(heading) = &self.heading else {
            let marks = ["qlog_version", "qlog_format", "file_schema", "traces", "trace"];
            if !marks.iter().any(|mark| record.get(mark).is_some()) {
                return Err("it does not begin with the heading of a qlog file");
            }
            if let Some(Value::Array(traces)) = record.get_mut("traces").map(Value::take) {
                traces.into_iter().for_each(|trace| self.handle_trace(trace));
            }
            let trace = record.get_mut("trace").map(Value::take);
            self.heading = Some(trace.unwrap_or(record));
            return Ok(());
        };
        let group = record.get("group_id").or_else(|| record.get("ODCID")).map(Value::to_string);
        let found = self.traces.iter().position(|(known, _)| *known == group);
        let index = found.unwrap_or_else(|| {
            self.traces.push((group, TraceBuilder::new(self.side, heading)));
            self.traces.len() - 1
        });
        self.traces[index].1.handle_event(&record, &[]);
        Ok(())
    }

    fn handle_trace(&mut self, mut trace: Value) {
        let events = trace.get_mut("events").map(Value::take);
        let mut builder = TraceBuilder::new(self.side, &trace);
        let fields = trace.get("event_fields").and_then(Value::as_array);
        let fields: Vec<String> = fields
            .into_iter()
            .flatten()
            .map(|field| field.as_str().unwrap_or("").to_ascii_lowercase())
            .collect();
        for event in events.as_ref().and_then(Value::as_array).into_iter().flatten() {
            builder.handle_event(event, &fields);
        }
        self.traces.push((None, builder));
    }

    /// First connection with stream bytes on this side.
    pub(super) fn finish(self, is_cut_off: bool) -> Result<Trace, Missing> {
        if self.traces.is_empty() {
            return Err(Missing::Everything);
        }
        let other_side = self.traces.iter().any(|(_, builder)| builder.other_side);
        let mut with_frames = self
            .traces
            .into_iter()
            .map(|(_, builder)| builder.trace)
            .filter(|trace| trace.packets.iter().any(|packet| !packet.frames.is_empty()));
        let first = with_frames.next().ok_or(Missing::StreamFrames { other_side })?;
        Ok(Trace { is_cut_off, others: with_frames.count(), ..first })
    }
}

/// Trace under construction.
struct TraceBuilder {
    side: Side,
    clock: Clock,
    trace: Trace,
    /// Offsets of each stream that were sent so far.
    carried: HashMap<u64, Coverage>,
    /// Indices of packets by number; several paths may repeat a number.
    numbered: HashMap<(Space, u64), Vec<usize>>,
    paths: BTreeMap<u64, Metrics>,
    other_side: bool,
}

impl TraceBuilder {
    fn new(side: Side, heading: &Value) -> Self {
        let vantage = heading.pointer("/vantage_point/type").and_then(Value::as_str);
        let trace = Trace { vantage: vantage.map(str::to_ascii_lowercase), ..Trace::default() };
        Self {
            side,
            clock: Clock::of(heading),
            trace,
            carried: HashMap::new(),
            numbered: HashMap::new(),
            paths: BTreeMap::new(),
            other_side: false,
        }
    }

    /// Handles an event: an object, or in the first drafts an array whose fields the header names.
    fn handle_event(&mut self, record: &Value, fields: &[String]) {
        let field = |names: &[&str]| match record {
            Value::Array(values) => {
                let place = fields.iter().position(|field| names.contains(&field.as_str()));
                place.and_then(|place| values.get(place))
            }
            _ => names.iter().find_map(|name| record.get(name)),
        };
        let time = self.clock.read(field(&["time", "relative_time", "delta_time"]).unwrap_or(&Value::Null));
        let Some(name) = field(&["name", "event", "event_type"]).and_then(Value::as_str) else { return };
        let event = event(name, time, field(&["data"]).unwrap_or(&Value::Null));
        match (event, self.side) {
            (Event::Sent(packet), Side::Sent) | (Event::Received(packet), Side::Received) => {
                self.push(packet)
            }
            (Event::Sent(packet) | Event::Received(packet), _) => {
                self.other_side |= !packet.frames.is_empty()
            }
            (Event::Lost(lost), Side::Sent) => self.mark_lost(&lost, time),
            (Event::Metrics(metrics), Side::Sent) => self.update(metrics, time),
            (Event::ProbeTimeout, Side::Sent) => self.trace.probe_timeouts.get_or_insert_default().push(time),
            (Event::Lost(_) | Event::Metrics(_) | Event::ProbeTimeout, Side::Received)
            | (Event::Other, _) => {}
        }
    }

    fn push(&mut self, mut packet: Packet) {
        for frame in &mut packet.frames {
            frame.again = self.carried.entry(frame.stream).or_default().insert(frame.offset, frame.end());
        }
        if let Some(number) = packet.number {
            self.numbered.entry((packet.space, number)).or_default().push(self.trace.packets.len());
        }
        self.trace.packets.push(packet);
    }

    /// Finds a lost packet. Numbers repeat on several paths, and if the log does not name the path, the length decides.
    fn mark_lost(&mut self, lost: &LostPacket, time: f64) {
        let before = self.trace.packets.len();
        let packets = &mut self.trace.packets;
        let places = self.numbered.get(&(lost.space, lost.number)).map_or(&[][..], Vec::as_slice);
        let unlost = || places.iter().copied().filter(|place| packets[*place].lost.is_none());
        let fits = |place: &usize| {
            let packet = &packets[*place];
            let same = |said: Option<u64>, known: Option<u64>| said.is_none() || said == known;
            same(lost.path, packet.path) && same(lost.length, packet.logged_length)
        };
        if let Some(place) = unlost().find(fits).or_else(|| unlost().next()) {
            packets[place].lost = Some(Loss { time, before });
        }
    }

    fn update(&mut self, metrics: Metrics, time: f64) {
        let path = self.paths.entry(metrics.path).or_default();
        if let Some(count) = metrics.pto_count {
            let expired = self.trace.probe_timeouts.get_or_insert_default();
            if count > path.pto_count.unwrap_or(0) {
                expired.push(time);
            }
        }
        path.congestion_window = metrics.congestion_window.or(path.congestion_window);
        path.bytes_in_flight = metrics.bytes_in_flight.or(path.bytes_in_flight);
        path.pto_count = metrics.pto_count.or(path.pto_count);
        let sum =
            |of: fn(&Metrics) -> Option<u64>| self.paths.values().filter_map(of).fold(0, u64::saturating_add);
        self.trace.flights.push(Flight {
            time,
            congestion_window: sum(|path| path.congestion_window),
            bytes_in_flight: sum(|path| path.bytes_in_flight),
        });
    }
}

/// Disjoint ranges of offsets: start to end (exclusive).
#[derive(Debug, Default)]
pub(super) struct Coverage(BTreeMap<u64, u64>);

impl Coverage {
    /// Adds the bytes from `start` to `end` and returns how many were known.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut first, mut last, mut known) = (start, end, 0);
        // Touching ranges merge, so that a stream sent in order stays one range.
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            known += to.min(end).saturating_sub(from.max(start));
            first = first.min(from);
            last = last.max(to);
            self.0.remove(&from);
        }
        self.0.insert(first, last);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bytes_count_as_known_once_they_were_there() {
        let mut sent = Coverage::default();
        assert_eq!(sent.insert(0, 100), 0);
        assert_eq!(sent.insert(100, 200), 0);
        assert_eq!(sent.insert(300, 400), 0);
        assert_eq!(sent.insert(50, 350), 200);
        assert_eq!(sent.0, BTreeMap::from([(0, 400)]));
        assert_eq!(sent.insert(10, 20), 10);
        assert_eq!(sent.insert(5, 5), 0);
        assert_eq!(sent.insert(390, u64::MAX), 10);
    }

    #[test]
    fn coverage_agrees_with_a_set_of_bytes() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut sent, mut model) = (Coverage::default(), std::collections::BTreeSet::new());
        for _ in 0..2_000 {
            let start = random.u64(..500);
            let end = start + random.u64(..20);
            let known = (start..end).filter(|offset| !model.insert(*offset)).count();
            assert_eq!(sent.insert(start, end), known as u64);
        }
    }

    fn trace(records: impl IntoIterator<Item = Value>) -> Trace {
        let mut reading = Reading::new(Side::Sent);
        records.into_iter().for_each(|record| reading.handle_record(record).unwrap());
        reading.finish(false).unwrap()
    }

    fn heading() -> Value {
        json!({"qlog_version": "0.3", "trace": {}})
    }

    fn sent(path: u64, number: u64, length: u64) -> Value {
        let frame = json!({"frame_type": "stream", "stream_id": 0, "offset": 0, "length": 1});
        let header = json!({"packet_number": number, "path_id": path, "length": length});
        json!({"time": 1, "name": "quic:packet_sent", "data": {"header": header, "frames": [frame]}})
    }

    fn lost(header: &Value) -> Value {
        json!({"time": 2, "name": "quic:packet_lost", "data": {"header": header}})
    }

    #[test]
    fn a_loss_finds_its_packet_by_path_or_length_when_numbers_repeat() {
        let which = |header: Value| {
            let records = [heading(), sent(0, 7, 1200), sent(1, 7, 55), sent(2, 7, 90), lost(&header)];
            trace(records).packets.iter().position(|packet| packet.lost.is_some())
        };
        assert_eq!(which(json!({"packet_number": 7})), Some(0));
        assert_eq!(which(json!({"packet_number": 7, "path_id": 1})), Some(1));
        assert_eq!(which(json!({"packet_number": 7, "length": 90})), Some(2));
        assert_eq!(which(json!({"packet_number": 8})), None);
        assert_eq!(which(json!({"packet_number": 7, "packet_type": "initial"})), None);
    }

    #[test]
    fn a_probe_timeout_is_a_count_that_grows_on_its_path() {
        let counts = |counts: &[(u64, u64)]| {
            let metrics = counts.iter().map(|(path, count)| {
                json!({"time": 3, "name": "quic:recovery_metrics_updated", "data": {"path_id": path, "pto_count": count}})
            });
            let timeouts = trace([heading(), sent(0, 0, 99)].into_iter().chain(metrics)).probe_timeouts;
            timeouts.map(|times| times.len())
        };
        assert_eq!(counts(&[]), None);
        assert_eq!(counts(&[(0, 0)]), Some(0));
        assert_eq!(counts(&[(0, 1), (0, 1), (0, 2), (0, 0), (0, 1)]), Some(3));
        assert_eq!(counts(&[(0, 1), (1, 1)]), Some(2));
    }

    #[test]
    fn bytes_in_flight_are_the_sum_over_paths() {
        let metrics = |path: u64, details: Value| {
            let mut details = details;
            details["path_id"] = path.into();
            json!({"time": 3, "name": "quic:recovery_metrics_updated", "data": details})
        };
        let records = [
            heading(),
            sent(0, 0, 99),
            metrics(0, json!({"congestion_window": 100, "bytes_in_flight": 10})),
            metrics(1, json!({"congestion_window": 50})),
            metrics(0, json!({"bytes_in_flight": 20})),
        ];
        let flights = trace(records).flights;
        let flights: Vec<_> =
            flights.iter().map(|flight| (flight.congestion_window, flight.bytes_in_flight)).collect();
        assert_eq!(flights, [(100, 10), (150, 10), (150, 20)]);
    }

    #[test]
    fn events_of_the_first_drafts_are_arrays() {
        let frame = json!({"frame_type": "stream", "id": 4, "offset": 0, "length": 16, "fin": true});
        let details = json!({"packet_type": "1rtt", "header": {"packet_number": "3", "packet_size": 1200}, "frames": [frame]});
        let document = json!({"qlog_version": "draft-00", "traces": [{
            "vantage_point": {"type": "CLIENT"},
            "configuration": {"time_units": "us"},
            "event_fields": ["relative_time", "path_id", "CATEGORY", "EVENT_TYPE", "DATA"],
            "events": [["2500", 0, "TRANSPORT", "PACKET_SENT", details], [], "odd"]}]});
        let trace = trace([document]);
        assert_eq!(trace.vantage.as_deref(), Some("client"));
        let [packet] = trace.packets.as_slice() else { panic!("{:?}", trace.packets) };
        assert_eq!((packet.time, packet.number, packet.stream_bytes()), (2.5, Some(3), 16));
    }

    #[test]
    fn events_of_several_groups_are_several_connections() {
        let of = |group: &str, mut event: Value| {
            event["group_id"] = group.into();
            event
        };
        let records = [heading(), of("a", sent(0, 0, 60)), of("b", sent(0, 0, 70)), of("a", sent(0, 1, 80))];
        let trace = trace(records);
        assert_eq!((trace.packets.len(), trace.others), (2, 1));
        assert_eq!(trace.packets[1].frames[0].again, 1);
    }

    #[test]
    fn missing_fields_are_reported() {
        let missing = |records: Vec<Value>| {
            let mut reading = Reading::new(Side::Received);
            records.into_iter().for_each(|record| reading.handle_record(record).unwrap());
            reading.finish(false).map(|trace| trace.packets).unwrap_err()
        };
        assert_eq!(missing(vec![]), Missing::Everything);
        assert_eq!(missing(vec![heading(), sent(0, 0, 9)]), Missing::StreamFrames { other_side: true });
        assert_eq!(missing(vec![heading(), json!({})]), Missing::StreamFrames { other_side: false });
        assert!(Reading::new(Side::Sent).handle_record(json!({"time": 1})).is_err());
    }
}
