//! The decision whether a stream may be read.
//!
//! Reasons against it: unanswered events, a full outbox, a receiver of its messages that cannot keep up, the publish
//! rate, the memory of the broker. A stream that is not read stays under its flow control.

use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use braid_proto::connection::Server;
use braid_proto::message::MemoryAccount;
use braid_proto::stream::StreamKey;

use super::ack_pipeline::AckPipeline;
use super::read_limits::{MemoryBackpressure, PublishRateLimiter};
use crate::config::LimitsConfig;
use crate::memory::Memory;

/// Upper bound of small packets in the outbox of a stream, bytes: a client that does not take its acknowledgements
/// is not read. Large payloads do not count: its PINGREQ must be read behind them.
const OUTBOX_LIMIT: usize = 256 * 1024;

/// Interval of [`KeepAliveProbe`]. A silent client whose streams are paused is noticed at most this much later than one
/// and a half Keep Alives, and never sooner. Unread bytes are charged as often.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// State of the connection that [`ReadGate`] decides on.
#[derive(Clone, Copy)]
pub(super) struct ReadInput<'a> {
    pub(super) server: &'a Server,
    pub(super) acks: &'a AckPipeline,
    pub(super) memory: &'a Memory,
    /// Events of an earlier turn are not answered yet.
    pub(super) has_events: bool,
    pub(super) now: Instant,
}

/// Gate between the link and the protocol machine.
pub(super) struct ReadGate {
    /// Streams with something to read that the last call of [`ReadGate::filter`] refused.
    refused: Vec<StreamKey>,
    probe: Option<KeepAliveProbe>,
    limits: Limits,
}

struct Limits {
    rate: Option<Box<PublishRateLimiter>>,
    memory: MemoryBackpressure,
}

/// Watches for bytes on streams that are not read.
///
/// Keep Alive runs from the last byte on any stream [BQ-44]. A stream that is read shows its bytes; a paused stream
/// wakes no task. While there is one, the number of received STREAM frames is compared from time to time.
struct KeepAliveProbe {
    frames: u64,
    next: Instant,
}

impl Limits {
    /// End of the pause of a stream by its rate or the memory.
    fn paused_until(&self, memory: &Memory, stream: StreamKey, now: Instant) -> [Option<Instant>; 2] {
        let rate = self.rate.as_ref().and_then(|rate| rate.paused_until(stream, now));
        [rate, self.memory.paused_until(memory, stream, now)]
    }

    fn allow(&self, input: &ReadInput<'_>, stream: StreamKey) -> bool {
        let &ReadInput { server, acks, memory, has_events, now } = input;
        !has_events
            && server.is_reading(stream)
            && server.unwritten_packets_on(stream) <= OUTBOX_LIMIT
            && !acks.is_paused(stream)
            && self.paused_until(memory, stream, now) == [None; 2]
    }
}

impl ReadGate {
    pub(super) fn new(limits: &LimitsConfig, now: Instant) -> Self {
        let limits =
            Limits { rate: PublishRateLimiter::new(limits, now), memory: MemoryBackpressure::default() };
        Self { refused: Vec::new(), probe: None, limits }
    }

    // -- Decision ----------------------------------------------------------------------------------

    /// Filter for one [`Link::poll_read`](braid_transport::Link::poll_read). Remembers the streams that it refuses.
    pub(super) fn filter<'a>(&'a mut self, input: ReadInput<'a>) -> impl FnMut(StreamKey) -> bool + 'a {
        let Self { refused, limits, .. } = self;
        refused.clear();
        move |stream| {
            let is_allowed = limits.allow(&input, stream);
            if !is_allowed {
                refused.push(stream);
            }
            is_allowed
        }
    }

    /// True when a stream that was refused may be read by now. No waker tells of that: the reason may have gone in the same
    /// turn.
    pub(super) fn has_reopened(&self, input: &ReadInput<'_>) -> bool {
        self.refused.iter().any(|stream| self.limits.allow(input, *stream))
    }

    /// True when each read must be counted before the next one.
    pub(super) fn is_limited(&self, memory: &Memory) -> bool {
        self.limits.rate.is_some() || memory.is_pressed()
    }

    /// Size of the next read, at most `max` bytes.
    pub(super) fn read_size(&self, memory: &Memory, max: usize) -> usize {
        let max = self.limits.rate.as_ref().map_or(max, |rate| rate.read_size(max));
        self.limits.memory.read_size(memory, max)
    }

    // -- Events ------------------------------------------------------------------------------------

    pub(super) fn note_read(&mut self, stream: StreamKey, bytes: usize, now: Instant) {
        if let Some(rate) = &mut self.limits.rate {
            rate.note_bytes(stream, bytes, now);
        }
        self.limits.memory.note_read(stream);
    }

    /// PUBLISH packets were decoded.
    pub(super) fn note_publishes(&mut self, count: usize, now: Instant) {
        if let Some(rate) = &mut self.limits.rate {
            rate.note_publishes(count, now);
        }
    }

    /// Their messages are in the queues of subscribers, and count as memory.
    pub(super) fn note_dispatched(&mut self, is_urgent: bool, memory: &Memory, now: Instant) {
        self.limits.memory.note_publishes(is_urgent, memory, now);
    }

    /// All that was read is decoded; what of it stands in incomplete packets is charged.
    pub(super) fn end_turn(&mut self, server: &Server, memory: &Memory, now: Instant) {
        if let Some(rate) = self.limits.rate.as_mut().filter(|_| !server.has_events()) {
            rate.end_turn(now);
        }
        self.limits.memory.note_partial(server.partial_len(), memory, now);
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        self.limits.memory.note_written(bytes);
    }

    pub(super) fn handle_stream_opened(&mut self, stream: StreamKey) {
        self.limits.memory.handle_stream_opened(stream);
    }

    pub(super) fn handle_stream_ended(&mut self, stream: StreamKey) {
        self.limits.memory.handle_stream_ended(stream);
    }

    // -- Memory ------------------------------------------------------------------------------------

    /// Account that the messages of this connection are charged to.
    pub(super) fn account(&mut self, memory: &Arc<Memory>) -> Arc<dyn MemoryAccount> {
        self.limits.memory.account(memory)
    }

    /// Bytes of incomplete packets and unread ones, and bytes moved since the connection began.
    pub(super) fn holdings(&self) -> (usize, u64) {
        self.limits.memory.holdings()
    }

    /// Charges the bytes of refused streams; `unread`: see [`Link::unread_bytes`](braid_transport::Link::unread_bytes).
    pub(super) fn charge_unread(&mut self, unread: impl FnOnce() -> usize, memory: &Memory) {
        self.limits.memory.note_unread(if self.refused.is_empty() { 0 } else { unread() }, memory);
    }

    pub(super) fn release(&mut self, memory: &Memory) {
        self.limits.memory.release(memory);
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

    /// True while the broker pauses the client: its PINGREQ may be among the bytes that are not read, and Keep Alive must
    /// not end the connection for that.
    pub(super) fn suspends_keep_alive(&self) -> bool {
        !self.refused.is_empty() && (self.limits.rate.is_some() || self.limits.memory.is_active())
    }

    /// True when the pressure of memory is over; otherwise the task is woken at its end.
    pub(super) fn poll_relief(&mut self, memory: &Memory, context: &mut Context<'_>) -> bool {
        self.limits.memory.poll_relief(memory, context)
    }

    /// Time of the next probe, or when a refused stream may be read again.
    pub(super) fn next_timeout(&self, memory: &Memory, now: Instant) -> Option<Instant> {
        let paused = |stream: &StreamKey| self.limits.paused_until(memory, *stream, now);
        let resumes = self.refused.iter().flat_map(paused);
        let probe = self.probe.as_ref().map(|probe| probe.next);
        resumes.chain([probe]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use braid_proto::connection::{Acceptance, Event, ServerOptions};
    use braid_proto::session::Session;

    use super::*;

    const CONTROL: StreamKey = StreamKey::CONTROL;

    struct Fixture {
        gate: ReadGate,
        server: Server,
        acks: AckPipeline,
        memory: Memory,
        now: Instant,
    }

    impl Fixture {
        /// A connection whose CONNECT was accepted.
        fn new(limits: &LimitsConfig) -> Self {
            let now = Instant::now();
            let mut server = Server::new(Arc::new(ServerOptions::default()), now);
            server.handle_bytes(CONTROL, b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a", now);
            assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
            let acceptance = Acceptance { session_present: false, assigned_client_id: false };
            server.accept(Session::default(), &acceptance, now, |_| true);
            let (gate, acks) = (ReadGate::new(limits, now), AckPipeline::default());
            Self { gate, server, acks, memory: Memory::new(limits), now }
        }

        fn input(&self) -> ReadInput<'_> {
            let Self { server, acks, memory, now, .. } = self;
            ReadInput { server, acks, memory, has_events: server.has_events(), now: *now }
        }

        /// A read of the link that has something on this stream: whether the gate lets it pass.
        fn read(&mut self, stream: StreamKey) -> bool {
            let Self { gate, server, acks, memory, now } = self;
            let has_events = server.has_events();
            gate.filter(ReadInput { server, acks, memory, has_events, now: *now })(stream)
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
        assert_eq!(fixture.gate.read_size(&fixture.memory, 65_536), 2000);
        fixture.gate.note_read(CONTROL, 8000, now);
        assert!(!fixture.gate.suspends_keep_alive() && !fixture.read(CONTROL));
        assert!(fixture.gate.suspends_keep_alive());
        let at = fixture.gate.next_timeout(&fixture.memory, now).expect("the debt is paid then");
        assert!(at > now);
        fixture.now = at;
        assert!(fixture.gate.has_reopened(&fixture.input()) && fixture.read(CONTROL));
        assert_eq!(fixture.gate.next_timeout(&fixture.memory, at), None);
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
        assert_eq!(fixture.gate.next_timeout(&fixture.memory, now), Some(now + PROBE_INTERVAL));
        assert!(!fixture.gate.probe(|| Some(5), now) && fixture.gate.probe(|| Some(6), now));
        assert!(!fixture.gate.probe(|| None, now), "a link of one stream has no frames");
    }

    #[test]
    fn bytes_of_refused_streams_are_charged_while_they_are_unread() {
        let limits = LimitsConfig { publish_bytes_per_second: 1, ..LimitsConfig::default() };
        let mut fixture = Fixture::new(&limits);
        let (now, data) = (fixture.now, StreamKey::bidi(1));
        fixture.gate.charge_unread(|| 5000, &fixture.memory);
        assert_eq!(fixture.memory.held(), 0, "no stream is refused");
        fixture.gate.note_read(CONTROL, 8000, now);
        assert!(!fixture.read(data));
        fixture.gate.charge_unread(|| 5000, &fixture.memory);
        fixture.gate.charge_unread(|| 6000, &fixture.memory);
        assert_eq!((fixture.memory.held(), fixture.gate.holdings().0), (6000, 6000));
        fixture.gate.release(&fixture.memory);
        assert_eq!((fixture.memory.held(), fixture.gate.holdings().0), (0, 0));
    }

    #[test]
    fn short_memory_limits_reads() {
        let limits = LimitsConfig { memory_low: 1000, memory_high: 2000, ..LimitsConfig::default() };
        let mut fixture = Fixture::new(&limits);
        let now = fixture.now;
        fixture.memory.add(1500);
        assert!(fixture.gate.is_limited(&fixture.memory) && fixture.read(CONTROL));
        fixture.gate.note_read(CONTROL, 100, now);
        fixture.gate.note_dispatched(false, &fixture.memory, now);
        assert!(!fixture.read(CONTROL) && fixture.gate.suspends_keep_alive());
        let mut context = Context::from_waker(Waker::noop());
        assert!(!fixture.gate.poll_relief(&fixture.memory, &mut context));
        fixture.memory.remove(1500);
        assert!(fixture.gate.poll_relief(&fixture.memory, &mut context));
        assert!(fixture.gate.has_reopened(&fixture.input()) && !fixture.gate.suspends_keep_alive());
    }
}
