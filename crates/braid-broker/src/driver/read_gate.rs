//! The decision whether a stream may be read.
//!
//! Reasons against it: unanswered events, a full outbox, a receiver of its messages that cannot keep up, the publish
//! rate, the memory of the broker. A stream that is not read stays under its flow control.

use std::time::{Duration, Instant};

use braid_proto::connection::Server;
use braid_proto::stream::StreamKey;

use super::ack_pipeline::AckPipeline;
use super::read_limits::{MemoryBackpressure, PublishRateLimiter};
use crate::config::LimitsConfig;
use crate::limit::Limit;
use crate::memory::Memory;
use crate::statistics::Statistics;
use crate::time_slice::{BusyConnections, TimeSlice};

/// Upper bound of small packets in the outbox of a stream, bytes: a client that does not take its acknowledgements
/// is not read. Large payloads do not count: its PINGREQ must be read behind them.
const OUTBOX_LIMIT: usize = 256 * 1024;

/// Upper bound of small packets in the outbox of the control stream while data streams are read: PINGREQ of a data
/// stream is answered there [BQ-11]. The answers to its own packets do not reach it.
const CONTROL_LIMIT: usize = 2 * OUTBOX_LIMIT;

/// Interval of [`KeepAliveProbe`]. A silent client whose streams are paused is noticed at most this much later than one
/// and a half Keep Alives, and never sooner. Unread bytes are charged as often.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// State of the connection that [`ReadGate`] decides on.
#[derive(Clone, Copy)]
pub(super) struct ReadInput<'a> {
    pub(super) server: &'a Server,
    pub(super) acks: &'a AckPipeline,
    pub(super) pressure: &'a MemoryBackpressure,
    pub(super) memory: &'a Memory,
    /// Events of an earlier turn are not answered yet.
    pub(super) has_events: bool,
    pub(super) now: Instant,
}

/// Gate between the link and the protocol machine.
pub(super) struct ReadGate {
    refused: RefusedStreams,
    probe: Option<KeepAliveProbe>,
    rate: Option<Box<PublishRateLimiter>>,
    slice: TimeSlice,
}

/// Streams that are not read, in the order of their keys: those that the last call of [`ReadGate::filter`] refused, and
/// those that were refused for a limit before and have not been read since. Each is counted once per limit.
#[derive(Default)]
struct RefusedStreams(Vec<RefusedStream>);

struct RefusedStream {
    stream: StreamKey,
    /// Last limit that was counted for it.
    limit: Option<Limit>,
    /// The last call refused it.
    is_current: bool,
}

/// Watches for bytes on streams that are not read.
///
/// Keep Alive runs from the last byte on any stream [BQ-44]. A stream that is read shows its bytes; a paused stream
/// wakes no task. While there is one, the number of received STREAM frames is compared from time to time.
struct KeepAliveProbe {
    frames: u64,
    next: Instant,
}

impl ReadInput<'_> {
    /// End of the pause of a stream by the rate of the client or the memory.
    fn paused_until(&self, rate: Option<&PublishRateLimiter>, stream: StreamKey) -> [Option<Instant>; 2] {
        let rate = rate.and_then(|rate| rate.paused_until(stream, self.now));
        [rate, self.pressure.paused_until(self.memory, stream, self.now)]
    }

    fn allows(&self, rate: Option<&PublishRateLimiter>, stream: StreamKey) -> bool {
        self.check(rate, stream).is_ok()
    }

    /// Checks that a stream may be read.
    ///
    /// # Errors
    /// The limit that forbids it; `None` for a reason that is no limit.
    fn check(&self, rate: Option<&PublishRateLimiter>, stream: StreamKey) -> Result<(), Option<Limit>> {
        if self.has_events {
            return Err(None);
        }
        if let Some(obstacle) = self.server.read_obstacle(stream) {
            return Err(Limit::of_obstacle(obstacle));
        }
        if self.server.unwritten_packets_on(stream) > OUTBOX_LIMIT {
            return Err(Some(Limit::Unwritten));
        }
        if !stream.is_control() && self.server.unwritten_packets_on(StreamKey::CONTROL) > CONTROL_LIMIT {
            return Err(Some(Limit::ControlUnwritten));
        }
        if self.acks.is_paused(stream) {
            return Err(None);
        }
        if let Some(limit) = rate.and_then(|rate| rate.exceeded(stream, self.now)) {
            return Err(Some(limit));
        }
        let pause = self.pressure.paused_until(self.memory, stream, self.now);
        pause.map_or(Ok(()), |_| Err(Some(Limit::MemoryLow)))
    }
}

impl RefusedStreams {
    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |refused| refused.stream)
    }

    fn begin_call(&mut self) {
        self.0.retain_mut(|refused| {
            refused.is_current = false;
            refused.limit.is_some()
        });
    }

    /// Notes a refusal, and counts its limit unless that has refused the stream since it was read last.
    fn note(&mut self, stream: StreamKey, limit: Option<Limit>, statistics: &Statistics) {
        let at = self.find(stream).unwrap_or_else(|at| {
            self.0.insert(at, RefusedStream { stream, limit: None, is_current: true });
            at
        });
        let Some(refused) = self.0.get_mut(at) else { return };
        refused.is_current = true;
        if let Some(limit) = limit.filter(|_| limit != refused.limit) {
            refused.limit = Some(limit);
            statistics.reach(limit);
        }
    }

    fn forget(&mut self, stream: StreamKey) {
        if !self.0.is_empty()
            && let Ok(at) = self.find(stream)
        {
            self.0.remove(at);
        }
    }

    /// Streams that the last call refused.
    fn current(&self) -> impl Iterator<Item = StreamKey> {
        self.0.iter().filter(|refused| refused.is_current).map(|refused| refused.stream)
    }

    /// Whether a stream that the last call refused has not been read since this limit forbade it.
    fn has(&self, limit: Limit) -> bool {
        self.0.iter().any(|refused| refused.is_current && refused.limit == Some(limit))
    }

    fn is_empty(&self) -> bool {
        self.current().next().is_none()
    }
}

impl ReadGate {
    pub(super) fn new(limits: &LimitsConfig, now: Instant) -> Self {
        Self {
            refused: RefusedStreams::default(),
            probe: None,
            rate: PublishRateLimiter::new(limits, now),
            slice: TimeSlice::new(),
        }
    }

    // -- Decision ----------------------------------------------------------------------------------

    /// Filter for one [`Link::poll_read`](braid_transport::Link::poll_read). Remembers the streams that it refuses, and
    /// counts the limits for which it does.
    pub(super) fn filter<'a>(
        &'a mut self,
        input: ReadInput<'a>,
        statistics: &'a Statistics,
    ) -> impl FnMut(StreamKey) -> bool + 'a {
        let Self { refused, rate, .. } = self;
        refused.begin_call();
        move |stream| match input.check(rate.as_deref(), stream) {
            Ok(()) => {
                refused.forget(stream);
                true
            }
            Err(limit) => {
                refused.note(stream, limit, statistics);
                false
            }
        }
    }

    /// Forgets a stream that has ended.
    pub(super) fn forget(&mut self, stream: StreamKey) {
        self.refused.forget(stream);
    }

    /// Whether the last read refused a stream with something to read.
    pub(super) fn refuses(&self, stream: StreamKey) -> bool {
        self.refused.current().any(|refused| refused == stream)
    }

    /// True when a stream that was refused may be read by now. No waker tells of that: the reason may have gone in the
    /// same turn.
    pub(super) fn has_reopened(&self, input: &ReadInput<'_>) -> bool {
        self.refused.current().any(|stream| input.allows(self.rate.as_deref(), stream))
    }

    /// True when each read must be counted before the next one.
    pub(super) fn is_limited(&self, memory: &Memory) -> bool {
        self.rate.is_some() || memory.is_pressed()
    }

    /// Size of the next read, at most `max` bytes.
    pub(super) fn read_size(&self, max: usize) -> usize {
        let max = max.min(self.slice.read_size());
        self.rate.as_ref().map_or(max, |rate| rate.read_size(max))
    }

    /// True when the turn has read as much as fits into its slice.
    pub(super) fn has_read_enough(&self) -> bool {
        self.slice.read_size() == 0
    }

    // -- Time slice --------------------------------------------------------------------------------

    pub(super) fn begin_turn(&mut self) {
        self.slice.begin_turn();
    }

    /// Adapts the bytes of later turns to the time that this one took.
    pub(super) fn note_turn(&mut self, took: Duration, slice: Duration) {
        self.slice.end_turn(took, slice);
    }

    /// Ends a poll; `is_busy`: the connection has more to do.
    pub(super) fn set_busy(&mut self, is_busy: bool, busy: &BusyConnections) {
        self.slice.end(is_busy, busy);
    }

    // -- Events ------------------------------------------------------------------------------------

    pub(super) fn note_read(&mut self, stream: StreamKey, bytes: usize, now: Instant) {
        self.slice.note_read(bytes);
        if let Some(rate) = &mut self.rate {
            rate.note_bytes(stream, bytes, now);
        }
    }

    /// PUBLISH packets were decoded.
    pub(super) fn note_publishes(&mut self, count: usize, now: Instant) {
        if let Some(rate) = &mut self.rate {
            rate.note_publishes(count, now);
        }
    }

    /// All that was read is decoded.
    pub(super) fn end_turn(&mut self, server: &Server, now: Instant) {
        if let Some(rate) = self.rate.as_mut().filter(|_| !server.has_events()) {
            rate.end_turn(now);
        }
    }

    /// Tests whether streams are refused, whose unread bytes are to be charged.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    // -- Waiting -----------------------------------------------------------------------------------

    /// Begins or ends to watch paused streams, before the task waits. `frames`: see
    /// [`Link::stream_frames`](braid_transport::Link::stream_frames). True when bytes came on one: a sign of life.
    pub(super) fn begin_probe(&mut self, frames: impl FnOnce() -> Option<u64>, now: Instant) -> bool {
        if self.refused.is_empty() {
            self.probe = None;
        }
        !self.refused.is_empty() && self.probe.is_none() && self.look(frames, now)
    }

    /// True when bytes came on paused streams since the last call; to be asked before Keep Alive is.
    pub(super) fn probe(&mut self, frames: impl FnOnce() -> Option<u64>, now: Instant) -> bool {
        self.probe.is_some() && self.look(frames, now)
    }

    fn look(&mut self, frames: impl FnOnce() -> Option<u64>, now: Instant) -> bool {
        let Some(frames) = frames() else { return false };
        // A stream is paused because something came on it: the first look is a sign of life as well.
        let is_alive = self.probe.as_ref().is_none_or(|probe| probe.frames != frames);
        self.probe = Some(KeepAliveProbe { frames, next: now + PROBE_INTERVAL });
        is_alive
    }

    /// True while the broker pauses the client, or has not acknowledged what it sent: its PINGREQ may be in the bytes
    /// that are not read, and Keep Alive must not end the connection for that.
    pub(super) fn suspends_keep_alive(&self, pressure: &MemoryBackpressure) -> bool {
        !self.refused.is_empty()
            && (self.rate.is_some() || pressure.is_active() || self.refused.has(Limit::Unacknowledged))
    }

    /// Time of the next probe, or when a refused stream may be read again.
    pub(super) fn next_timeout(&self, input: &ReadInput<'_>) -> Option<Instant> {
        let paused = |stream| input.paused_until(self.rate.as_deref(), stream);
        let resumes = self.refused.current().flat_map(paused);
        let probe = self.probe.as_ref().map(|probe| probe.next);
        resumes.chain([probe]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use braid_proto::connection::{Acceptance, Event, ServerOptions};
    use braid_proto::session::Session;

    use super::*;

    const CONTROL: StreamKey = StreamKey::CONTROL;

    struct Fixture {
        gate: ReadGate,
        pressure: MemoryBackpressure,
        server: Server,
        acks: AckPipeline,
        memory: Memory,
        statistics: Statistics,
        now: Instant,
    }

    impl Fixture {
        /// A connection whose CONNECT was accepted.
        fn new(limits: &LimitsConfig) -> Self {
            let now = Instant::now();
            let mut server = Server::new(Arc::new(ServerOptions::default()), now);
            server.handle_bytes(CONTROL, b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a", now);
            assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
            let acceptance = Acceptance::default();
            server.accept(Session::default(), &acceptance, now, |_| true);
            let (gate, acks) = (ReadGate::new(limits, now), AckPipeline::default());
            let (pressure, memory) = (MemoryBackpressure::default(), Memory::new(limits));
            Self { gate, pressure, server, acks, memory, statistics: Statistics::default(), now }
        }

        fn input(&self) -> ReadInput<'_> {
            let Self { pressure, server, acks, memory, now, .. } = self;
            ReadInput { server, acks, pressure, memory, has_events: server.has_events(), now: *now }
        }

        /// A read of the link that has something on this stream: whether the gate lets it pass.
        fn read(&mut self, stream: StreamKey) -> bool {
            let Self { gate, pressure, server, acks, memory, statistics, now } = self;
            let has_events = server.has_events();
            gate.filter(ReadInput { server, acks, pressure, memory, has_events, now: *now }, statistics)(
                stream,
            )
        }

        /// The end of a turn, at which `unread` bytes wait on all streams.
        fn charge_unread(&mut self, unread: usize) {
            self.pressure.note_unread(if self.gate.has_refused() { unread } else { 0 }, &self.memory);
        }
    }

    #[test]
    fn a_stream_is_refused_until_its_outbox_is_written() {
        let mut fixture = Fixture::new(&LimitsConfig::default());
        assert!(fixture.read(CONTROL) && !fixture.gate.has_reopened(&fixture.input()));
        let pings = [0xc0, 0x00].repeat(OUTBOX_LIMIT / 2 + 1);
        fixture.server.handle_bytes(CONTROL, &pings, fixture.now);
        assert!(!fixture.read(CONTROL) && !fixture.gate.has_reopened(&fixture.input()));
        let unwritten = fixture.server.unwritten_on(CONTROL);
        bytes::Buf::advance(fixture.server.outbox(CONTROL).expect("it is open"), unwritten);
        assert!(fixture.gate.has_reopened(&fixture.input()), "no waker tells of it");
        assert!(fixture.read(CONTROL) && !fixture.gate.has_reopened(&fixture.input()));
    }

    #[test]
    fn nothing_is_read_before_events_are_answered() {
        let mut fixture = Fixture::new(&LimitsConfig::default());
        fixture.server.handle_bytes(CONTROL, b"\x30\x04\x00\x01t\x00", fixture.now);
        assert!(!fixture.read(CONTROL) && !fixture.gate.has_reopened(&fixture.input()));
        assert!(matches!(fixture.server.poll_event(), Some(Event::Publish(..))));
        assert!(fixture.gate.has_reopened(&fixture.input()));
    }

    #[test]
    fn a_rate_limit_pauses_reads_and_keep_alive_until_it_is_paid() {
        let mut fixture =
            Fixture::new(&LimitsConfig { publish_bytes_per_second: 2000, ..LimitsConfig::default() });
        let now = fixture.now;
        assert!(fixture.gate.is_limited(&fixture.memory));
        assert_eq!(fixture.gate.read_size(65_536), 2000);
        fixture.gate.note_read(CONTROL, 8000, now);
        assert!(!fixture.gate.suspends_keep_alive(&fixture.pressure) && !fixture.read(CONTROL));
        assert!(fixture.gate.suspends_keep_alive(&fixture.pressure));
        let at = fixture.gate.next_timeout(&fixture.input()).expect("the debt is paid then");
        assert!(at > now);
        fixture.now = at;
        assert!(fixture.gate.has_reopened(&fixture.input()) && fixture.read(CONTROL));
        assert_eq!(fixture.gate.next_timeout(&fixture.input()), None);
    }

    /// [BQ-44]
    #[test]
    fn bytes_on_refused_streams_are_signs_of_life() {
        let limits = LimitsConfig { publish_bytes_per_second: 1, ..LimitsConfig::default() };
        let (mut fixture, data) = (Fixture::new(&limits), StreamKey::bidi(1));
        let now = fixture.now;
        assert!(!fixture.gate.begin_probe(|| Some(5), now), "nothing is refused");
        fixture.gate.note_read(CONTROL, 8000, now);
        assert!(!fixture.read(data));
        assert!(fixture.gate.begin_probe(|| Some(5), now), "bytes came on the refused stream");
        assert!(!fixture.gate.begin_probe(|| Some(6), now), "the probe has begun");
        assert_eq!(fixture.gate.next_timeout(&fixture.input()), Some(now + PROBE_INTERVAL));
        assert!(!fixture.gate.probe(|| Some(5), now) && fixture.gate.probe(|| Some(6), now));
        assert!(!fixture.gate.probe(|| None, now), "a link of one stream has no frames");
    }

    #[test]
    fn bytes_of_refused_streams_are_charged_while_they_are_unread() {
        let limits = LimitsConfig { publish_bytes_per_second: 1, ..LimitsConfig::default() };
        let mut fixture = Fixture::new(&limits);
        let (now, data) = (fixture.now, StreamKey::bidi(1));
        fixture.charge_unread(5000);
        assert_eq!(fixture.memory.held(), 0, "no stream is refused");
        fixture.gate.note_read(CONTROL, 8000, now);
        assert!(!fixture.read(data));
        fixture.charge_unread(5000);
        fixture.charge_unread(6000);
        assert_eq!((fixture.memory.held(), fixture.pressure.holdings().0), (6000, 6000));
        fixture.pressure.release(&fixture.memory);
        assert_eq!((fixture.memory.held(), fixture.pressure.holdings().0), (0, 0));
    }

    #[test]
    fn short_memory_limits_reads() {
        let limits = LimitsConfig { memory_low: 1000, memory_high: 2000, ..LimitsConfig::default() };
        let mut fixture = Fixture::new(&limits);
        let now = fixture.now;
        fixture.memory.add(1500);
        assert!(fixture.gate.is_limited(&fixture.memory) && fixture.read(CONTROL));
        fixture.pressure.note_read(CONTROL);
        fixture.pressure.note_publishes(false, &fixture.memory, now);
        assert!(!fixture.read(CONTROL) && fixture.gate.suspends_keep_alive(&fixture.pressure));
        let mut context = Context::from_waker(Waker::noop());
        assert!(!fixture.pressure.poll_relief(&fixture.memory, &mut context));
        fixture.memory.remove(1500);
        assert!(fixture.pressure.poll_relief(&fixture.memory, &mut context));
        assert!(fixture.gate.has_reopened(&fixture.input()));
        assert!(!fixture.gate.suspends_keep_alive(&fixture.pressure));
    }
}
