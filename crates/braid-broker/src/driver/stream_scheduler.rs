//! Scheduler of the streams of a connection: when they open, and in which order they are written.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use braid_proto::connection::Server;
use braid_proto::stream::{Lane, Priority, StreamKey};

use super::counted_load::CountedLoad;
use super::datagrams::DatagramTraffic;

/// Least priority of a stream with acknowledgements: bulk of other streams must not starve the publishers on this
/// one, and bulk of this one must not rise above everything because of them.
const ACKNOWLEDGEMENTS: Priority = Priority::DEFAULT;

/// Age from which written bytes count as sent. The transport does not report it.
const SENT_AFTER: Duration = Duration::from_secs(1);

/// Bytes that are written after others from which on those count as sent: more than the transport takes ahead of a slow
/// path, and on a fast one nothing waits.
const SENT_WINDOW: u64 = 2 << 20;

/// Period of the limit on opened streams.
const OPENING_PERIOD: Duration = Duration::from_secs(1);

/// Data streams of one connection.
pub(super) struct StreamScheduler {
    /// Open streams, in the order of their keys. The control stream is not among them: it is above all.
    states: Vec<(StreamKey, StreamPriorityState)>,
    /// Streams opened faster than is allowed. [BQ-45]
    waiting: VecDeque<OpenedStream>,
    /// Streams that may still open in this period.
    allowance: u32,
    /// Start of the period.
    filled_at: Instant,
    /// Lanes with a delivery that its outbox has no room for. Empty between two rounds of sending.
    refused: Vec<Lane>,
    /// Buffer of [`StreamScheduler::take_write_order`], kept for its capacity.
    write_order: Vec<StreamKey>,
    /// The first streams came in 0-RTT data.
    began_early: bool,
    /// Datagrams beside the streams.
    pub(super) datagrams: DatagramTraffic,
    /// Work of the connection, as far as it is counted.
    pub(super) load: CountedLoad,
}

/// Stream of the client that begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenedStream {
    pub(super) stream: StreamKey,
    /// STOP_SENDING came before its turn. [BQ-33]
    pub(super) is_stopped: bool,
}

/// Priority of a stream in the transport: that of the most urgent delivery on its way there.
///
/// The priority rises at once. It falls when something less urgent comes, and not while what needed it may still wait
/// behind a congested path. [BQ-50]
#[derive(Debug)]
struct StreamPriorityState {
    priority: Priority,
    /// End on the stream of the last delivery that needed `priority`.
    end: u64,
    /// Time at which that delivery was written; until then, at which it came.
    at: Instant,
    /// The stream has carried acknowledgements only.
    is_fresh: bool,
    /// Bytes that the transport has taken.
    written: u64,
    /// End of the outbox at the last call.
    seen: u64,
}

// === impl StreamScheduler ===

impl StreamScheduler {
    pub(super) fn new(now: Instant, began_early: bool) -> Self {
        Self {
            states: Vec::new(),
            waiting: VecDeque::new(),
            allowance: u32::MAX, // Until the first stream.
            filled_at: now,
            refused: Vec::new(),
            write_order: Vec::new(),
            began_early,
            datagrams: DatagramTraffic::default(),
            load: CountedLoad::default(),
        }
    }

    /// Priority of a stream in the transport.
    pub(super) fn priority_of(&self, stream: StreamKey) -> Priority {
        self.find(stream).map_or(Priority::HIGHEST, |at| self.states[at].1.priority)
    }

    /// Whether the first streams came in 0-RTT data.
    pub(super) fn began_early(&self) -> bool {
        self.began_early
    }

    /// Number of streams that wait for their turn to begin.
    pub(super) fn opening(&self) -> usize {
        self.waiting.len()
    }

    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.states.binary_search_by_key(&stream, |(key, _)| *key)
    }

    // -- Opening -----------------------------------------------------------------------------------

    /// True when a stream may begin now. Otherwise [`StreamScheduler::poll_opening`] returns it in its turn: at most
    /// `limit` streams begin in a second. [BQ-45]
    pub(super) fn open(&mut self, stream: StreamKey, limit: u32, now: Instant) -> bool {
        self.admit(OpenedStream { stream, is_stopped: false }, limit, now).is_some()
    }

    fn admit(&mut self, opened: OpenedStream, limit: u32, now: Instant) -> Option<OpenedStream> {
        if now.saturating_duration_since(self.filled_at) >= OPENING_PERIOD || self.allowance > limit {
            self.allowance = limit;
            self.filled_at = now;
        }
        if self.allowance == 0 {
            self.waiting.push_back(opened);
            return None;
        }
        self.allowance -= 1;
        if let Err(at) = self.find(opened.stream) {
            let state = StreamPriorityState::new(now);
            self.states.insert(at, (opened.stream, state));
        }
        Some(opened)
    }

    /// STOP_SENDING for a stream that has not begun: true if it is one.
    pub(super) fn stop_waiting(&mut self, stream: StreamKey) -> bool {
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.stream == stream);
        waiting.map(|waiting| waiting.is_stopped = true).is_some()
    }

    /// Time from which the next stream may begin.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.filled_at + OPENING_PERIOD)
    }

    /// The next stream whose turn has come.
    pub(super) fn poll_opening(&mut self, limit: u32, now: Instant) -> Option<OpenedStream> {
        let is_due = self.allowance > 0 || self.next_opening().is_some_and(|at| at <= now);
        let next = if is_due { self.waiting.pop_front() } else { None };
        next.and_then(|opened| self.admit(opened, limit, now))
    }

    /// Removes a stream that has ended.
    pub(super) fn forget(&mut self, stream: StreamKey) {
        if let Ok(at) = self.find(stream) {
            self.states.remove(at);
        }
        self.waiting.retain(|waiting| waiting.stream != stream);
    }

    // -- Priorities --------------------------------------------------------------------------------

    /// Notes a delivery that is in the outbox of a stream, from `before` to `after` bytes. Like all of these methods
    /// returns the priority of the stream if it has changed, for the transport. [BQ-50]
    pub(super) fn note_delivery(
        &mut self,
        stream: StreamKey,
        priority: Priority,
        (before, after): (usize, usize),
        now: Instant,
    ) -> Option<Priority> {
        self.change(stream, |state| state.note_delivery(priority, before, after, now))
    }

    /// Notes a lane with a delivery that its outbox has no room for.
    pub(super) fn note_refused(&mut self, lane: Lane) {
        self.refused.push(lane);
    }

    /// Raises the priority of the streams of refused lanes: what is in their outboxes is in the way.
    pub(super) fn note_waiting(
        &mut self,
        server: &Server,
        now: Instant,
        mut changed: impl FnMut(StreamKey, Priority),
    ) {
        let mut refused = std::mem::take(&mut self.refused);
        for lane in refused.drain(..) {
            let stream = server.resolve(lane.stream);
            let unwritten = server.unwritten_on(stream);
            if let Some(to) = self.change(stream, |state| state.note_waiting(lane.priority, unwritten, now)) {
                changed(stream, to);
            }
        }
        self.refused = refused;
    }

    /// Notes bytes that the transport has taken.
    pub(super) fn note_written(&mut self, stream: StreamKey, bytes: usize, now: Instant) -> Option<Priority> {
        self.change(stream, |state| state.note_written(bytes, now))
    }

    fn change(
        &mut self,
        stream: StreamKey,
        change: impl FnOnce(&mut StreamPriorityState),
    ) -> Option<Priority> {
        let at = self.find(stream).ok()?;
        let state = &mut self.states[at].1;
        let before = state.priority;
        change(state);
        (state.priority != before).then_some(state.priority)
    }

    // -- Order of writes ---------------------------------------------------------------------------

    /// Data streams with something to write, the most urgent first: the transport's own task may begin to send before
    /// it has all. Give the vector back with [`StreamScheduler::keep_write_order`]. [BQ-50]
    pub(super) fn take_write_order(
        &mut self,
        server: &Server,
        now: Instant,
        mut changed: impl FnMut(StreamKey, Priority),
    ) -> Vec<StreamKey> {
        let mut streams = std::mem::take(&mut self.write_order);
        server.streams_to_write(&mut streams);
        streams.retain(|stream| !stream.is_control());
        if !streams.is_empty() {
            for stream in &streams {
                let unwritten = server.unwritten_on(*stream);
                if let Some(to) = self.change(*stream, |state| state.note_outbox(unwritten, now)) {
                    changed(*stream, to);
                }
            }
            self.sort(&mut streams);
        }
        streams
    }

    pub(super) fn keep_write_order(&mut self, mut streams: Vec<StreamKey>) {
        streams.clear();
        self.write_order = streams;
    }

    fn sort(&self, streams: &mut [StreamKey]) {
        streams.sort_unstable_by_key(|stream| (Reverse(self.priority_of(*stream)), *stream));
    }
}

// === impl StreamPriorityState ===

impl StreamPriorityState {
    /// State of a stream before its first delivery: it carries acknowledgements, which come first.
    fn new(now: Instant) -> Self {
        Self { priority: Priority::HIGHEST, end: 0, at: now, is_fresh: true, written: 0, seen: 0 }
    }

    /// A delivery is in the outbox, from `before` to `after` bytes in it.
    fn note_delivery(&mut self, priority: Priority, before: usize, after: usize, now: Instant) {
        self.note_outbox(before, now);
        self.seen = self.written + after as u64;
        if std::mem::take(&mut self.is_fresh) {
            let needed = if self.is_sent(now) { Priority::new(0) } else { ACKNOWLEDGEMENTS };
            self.priority = needed.max(priority);
            if priority < needed {
                return;
            }
        }
        self.need(priority, now);
    }

    /// A delivery waits until the `unwritten` bytes in the outbox are written: these are as urgent as the delivery.
    fn note_waiting(&mut self, priority: Priority, unwritten: usize, now: Instant) {
        self.note_outbox(unwritten, now);
        if priority > self.priority {
            self.need(priority, now);
        }
    }

    /// The outbox holds `unwritten` bytes. New bytes that are no delivery are an acknowledgement.
    fn note_outbox(&mut self, unwritten: usize, now: Instant) {
        let end = self.written + unwritten as u64;
        if end <= self.seen {
            return;
        }
        self.seen = end;
        let needed = if self.is_fresh { self.priority } else { ACKNOWLEDGEMENTS };
        if needed >= self.priority {
            self.need(needed, now);
        }
    }

    /// The transport has taken `bytes`.
    fn note_written(&mut self, bytes: usize, now: Instant) {
        let was_unwritten = self.written < self.end;
        self.written += bytes as u64;
        if was_unwritten && self.written >= self.end {
            self.at = now;
        }
    }

    /// Bytes up to `seen` need this priority.
    fn need(&mut self, priority: Priority, now: Instant) {
        if priority >= self.priority || self.is_sent(now) {
            (self.priority, self.end, self.at) = (priority, self.seen, now);
        }
    }

    /// True when the bytes that needed the present priority count as sent.
    fn is_sent(&self, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.at) >= SENT_AFTER;
        self.end == 0 || self.written >= self.end && (is_old || self.written - self.end >= SENT_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALARM: Priority = Priority::new(200);
    const BULK: Priority = Priority::new(8);
    fn write_all(state: &mut StreamPriorityState, now: Instant) {
        let bytes = usize::try_from(state.seen - state.written).expect("small");
        state.note_written(bytes, now);
    }

    /// [BQ-50]: bulk behind an alarm does not lower the priority of the stream, also when the outbox is empty.
    #[test]
    fn priority_does_not_fall_while_an_alarm_may_be_unsent() {
        let start = Instant::now();
        let mut state = StreamPriorityState::new(start);
        state.note_delivery(ALARM, 0, 100, start);
        assert_eq!(state.priority, ALARM);
        // For as long as it waits for the transport, and a while from then on.
        let mut now = start + 10 * SENT_AFTER;
        state.note_delivery(BULK, 100, 300, now);
        assert_eq!(state.priority, ALARM);
        write_all(&mut state, now);
        now += SENT_AFTER / 2;
        state.note_delivery(BULK, 0, 100, now);
        assert_eq!(state.priority, ALARM, "written is not sent");
        write_all(&mut state, now);
        state.note_delivery(BULK, 0, 100, now + SENT_AFTER / 2);
        assert_eq!(state.priority, BULK);
    }

    #[test]
    fn priority_does_not_fall_while_the_second_of_two_alarms_may_be_unsent() {
        let now = Instant::now();
        let mut state = StreamPriorityState::new(now);
        state.note_delivery(ALARM, 0, 100, now);
        state.note_delivery(ALARM, 100, 200, now);
        state.note_written(100, now);
        let later = now + 2 * SENT_AFTER;
        state.note_delivery(BULK, 100, 300, later);
        assert_eq!(state.priority, ALARM, "100 bytes of the second are not written");
    }

    #[test]
    fn priority_falls_once_a_window_has_followed_the_alarm() {
        let now = Instant::now();
        let mut state = StreamPriorityState::new(now);
        state.note_delivery(ALARM, 0, 100, now);
        write_all(&mut state, now);
        for _ in 0..32 {
            state.note_delivery(BULK, 0, 64 * 1024, now);
            assert_eq!(state.priority, ALARM, "{} bytes may all be unsent", state.written);
            write_all(&mut state, now);
        }
        state.note_delivery(BULK, 0, 100, now);
        assert_eq!(state.priority, BULK);
        state.note_delivery(ALARM, 100, 200, now);
        assert_eq!(state.priority, ALARM, "it rises at once");
    }

    /// [BQ-50]: acknowledgements on a stream of bulk are not behind the bulk of others, and do not raise the bulk of
    /// their stream above alarms.
    #[test]
    fn acknowledgements_on_a_stream_of_bulk_have_the_default_priority() {
        let mut now = Instant::now();
        let mut state = StreamPriorityState::new(now);
        state.note_outbox(4, now);
        assert_eq!(state.priority, Priority::HIGHEST, "there is nothing else");
        write_all(&mut state, now);
        state.note_delivery(BULK, 0, 1000, now);
        assert_eq!(state.priority, Priority::DEFAULT, "SUBACK may be unsent");
        write_all(&mut state, now);
        now += SENT_AFTER;
        state.note_delivery(BULK, 0, 1000, now);
        assert_eq!(state.priority, BULK);
        // A PUBACK between two deliveries, and one behind them.
        state.note_delivery(BULK, 1004, 2000, now);
        assert_eq!(state.priority, Priority::DEFAULT);
        write_all(&mut state, now);
        now += SENT_AFTER;
        state.note_delivery(BULK, 0, 1000, now);
        assert_eq!(state.priority, BULK);
        state.note_outbox(1004, now);
        assert_eq!(state.priority, Priority::DEFAULT);
        state.note_delivery(ALARM, 1004, 1100, now);
        state.note_outbox(1104, now);
        assert_eq!(state.priority, ALARM, "they lower nothing");
    }

    /// [BQ-50]: bulk that an alarm has to wait for is as urgent as the alarm.
    #[test]
    fn bulk_in_front_of_an_alarm_rises_with_it() {
        let now = Instant::now();
        let mut state = StreamPriorityState::new(now);
        state.note_delivery(BULK, 0, 1000, now);
        state.note_waiting(BULK, 1000, now);
        assert_eq!(state.priority, BULK);
        state.note_waiting(ALARM, 1000, now);
        assert_eq!(state.priority, ALARM);
        state.note_waiting(BULK, 1000, now);
        state.note_delivery(BULK, 1000, 2000, now + 10 * SENT_AFTER);
        assert_eq!(state.priority, ALARM, "it is still in the way");
    }

    #[test]
    fn a_stream_that_begins_with_bulk_has_its_priority_at_once() {
        let now = Instant::now();
        let mut state = StreamPriorityState::new(now);
        state.note_delivery(BULK, 0, 1000, now);
        assert_eq!(state.priority, BULK);
    }

    const LIMIT: u32 = 2;

    fn open(scheduler: &mut StreamScheduler, number: u32, now: Instant) -> bool {
        scheduler.open(StreamKey::bidi(number), LIMIT, now)
    }

    /// [BQ-50], [BQ-56]
    #[test]
    fn the_most_urgent_stream_is_written_first() {
        let now = Instant::now();
        let mut scheduler = StreamScheduler::new(now, false);
        for (number, priority) in [(1, 8), (2, 100), (3, 200), (4, 100), (5, 200)] {
            let stream = StreamKey::bidi(number);
            assert!(scheduler.open(stream, u32::MAX, now));
            scheduler.note_delivery(stream, Priority::new(priority), (0, 1), now);
        }
        assert!(scheduler.open(StreamKey::bidi(6), u32::MAX, now));
        let mut order: Vec<StreamKey> = (1..=6).map(StreamKey::bidi).collect();
        scheduler.sort(&mut order);
        assert_eq!(order, [6, 3, 5, 2, 4, 1].map(StreamKey::bidi), "acknowledgements alone come first");
    }

    #[test]
    fn a_change_of_priority_is_returned_once() {
        let now = Instant::now();
        let (mut scheduler, stream) = (StreamScheduler::new(now, false), StreamKey::bidi(1));
        assert!(scheduler.open(stream, LIMIT, now));
        assert_eq!(scheduler.note_delivery(stream, BULK, (0, 100), now), Some(BULK));
        assert_eq!(scheduler.note_delivery(stream, BULK, (100, 200), now), None);
        assert_eq!(scheduler.note_delivery(stream, ALARM, (200, 300), now), Some(ALARM));
        assert_eq!(scheduler.note_written(stream, 300, now), None);
        assert_eq!(scheduler.note_delivery(StreamKey::CONTROL, BULK, (0, 1), now), None, "it is above all");
        scheduler.forget(stream);
        assert_eq!(scheduler.note_delivery(stream, BULK, (0, 1), now), None);
    }

    /// [BQ-45]
    #[test]
    fn streams_above_the_limit_open_in_order_in_the_next_second() {
        let start = Instant::now();
        let mut scheduler = StreamScheduler::new(start, false);
        let opened: Vec<bool> = (1..=5).map(|number| open(&mut scheduler, number, start)).collect();
        assert_eq!(opened, [true, true, false, false, false]);
        assert_eq!(scheduler.poll_opening(LIMIT, start), None);
        assert_eq!(scheduler.next_opening(), Some(start + OPENING_PERIOD));
        let mut poll = |now| {
            let next = || scheduler.poll_opening(LIMIT, now).map(|opened| opened.stream);
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(poll(start + OPENING_PERIOD), [StreamKey::bidi(3), StreamKey::bidi(4)]);
        assert_eq!(poll(start + 2 * OPENING_PERIOD), [StreamKey::bidi(5)]);
        assert_eq!(scheduler.next_opening(), None);
    }

    /// [BQ-33], [BQ-45]
    #[test]
    fn a_waiting_stream_remembers_stop_sending_and_can_be_reset() {
        let start = Instant::now();
        let mut scheduler = StreamScheduler::new(start, false);
        let opened = (1..=4).filter(|number| open(&mut scheduler, *number, start)).count();
        assert_eq!(opened, 2);
        assert!(!scheduler.stop_waiting(StreamKey::bidi(1)), "it has begun");
        assert!(scheduler.stop_waiting(StreamKey::bidi(4)));
        scheduler.forget(StreamKey::bidi(3));
        let opened = OpenedStream { stream: StreamKey::bidi(4), is_stopped: true };
        assert_eq!(scheduler.poll_opening(LIMIT, start + OPENING_PERIOD), Some(opened));
    }
}
