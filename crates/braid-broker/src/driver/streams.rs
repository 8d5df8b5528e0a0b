//! What a connection with data streams keeps for them: when they begin, and in which order they are sent.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use braid_proto::connection::StreamAction;
use braid_proto::stream::{Lane, Priority, StreamKey};
use braid_transport::quic::QuicOptions;

use super::rank::Rank;
use super::{Driver, now};

/// What a connection with data streams keeps for them.
pub(super) struct Streams {
    /// Those that have begun, in the order of their keys.
    ranks: Vec<(StreamKey, Rank)>,
    /// Opened faster than is allowed: they wait for their turn. [BQ-45]
    waiting: VecDeque<Waiting>,
    /// How many may be opened at once.
    allowance: u32,
    /// When the allowance was last filled.
    filled_at: Instant,
    /// The client's window for one stream, as far as is known.
    window: u64,
    /// Lanes of which a delivery waits for room in the outbox. Empty between two rounds of sending.
    pub(super) full: Vec<Lane>,
    /// Used again by every write.
    pub(super) to_write: Vec<StreamKey>,
}

struct Waiting {
    stream: StreamKey,
    /// STOP_SENDING came before its turn.
    is_stopped: bool,
}

impl Streams {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ranks: Vec::new(),
            waiting: VecDeque::new(),
            allowance: u32::MAX, // Until the first look at the clock.
            filled_at: now,
            // Nobody tells which one it is. No known client has a larger one than ours.
            window: u64::from(QuicOptions::client().stream_receive_window),
            full: Vec::new(),
            to_write: Vec::new(),
        }
    }

    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.ranks.binary_search_by_key(&stream, |(key, _)| *key)
    }

    fn begin(&mut self, stream: StreamKey, now: Instant) {
        if let Err(at) = self.find(stream) {
            self.ranks.insert(at, (stream, Rank::new(self.window, now)));
        }
    }

    fn priority_of(&self, stream: StreamKey) -> Priority {
        self.find(stream).map_or(Priority::HIGHEST, |at| self.ranks[at].1.priority())
    }

    /// Puts streams into the order in which they are offered to the transport, whose own task may begin to send before
    /// it has all: the most urgent first. [BQ-50]
    pub(super) fn sort(&self, streams: &mut [StreamKey]) {
        streams.sort_unstable_by_key(|stream| (Reverse(self.priority_of(*stream)), *stream));
    }
}

impl Driver {
    /// Lets a stream begin, unless too many did in this second. [BQ-45]
    pub(super) fn open_stream(&mut self, stream: StreamKey, now: Instant) {
        self.admit(Waiting { stream, is_stopped: false }, now);
    }

    fn admit(&mut self, waiting: Waiting, now: Instant) {
        let limit = self.core.config.limits.streams_per_second;
        let Some(streams) = &mut self.streams else { return };
        if now.saturating_duration_since(streams.filled_at) >= Duration::from_secs(1)
            || streams.allowance > limit
        {
            streams.allowance = limit;
            streams.filled_at = now;
        }
        if streams.allowance == 0 {
            return streams.waiting.push_back(waiting);
        }
        streams.allowance -= 1;
        let Waiting { stream, is_stopped } = waiting;
        streams.begin(stream, now);
        self.begin_under_pressure(stream);
        self.link.set_priority(stream, Priority::HIGHEST);
        self.server.handle_stream_opened(stream);
        if is_stopped {
            self.server.handle_stream_stopped(stream, now); // [BQ-33]
        }
    }

    /// STOP_SENDING for a stream whose turn has not come: true if it is one.
    pub(super) fn stop_waiting(&mut self, stream: StreamKey) -> bool {
        let waiting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.waiting.iter_mut().find(|waiting| waiting.stream == stream));
        waiting.map(|waiting| waiting.is_stopped = true).is_some()
    }

    /// When streams that wait may begin.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        let streams = self.streams.as_ref()?;
        (!streams.waiting.is_empty()).then(|| streams.filled_at + Duration::from_secs(1))
    }

    /// Lets streams begin that waited for it.
    pub(super) fn admit_streams(&mut self) {
        let now = now();
        if self.next_opening().is_none_or(|at| at > now) {
            return;
        }
        let waiting = self.streams.as_mut().map(|streams| std::mem::take(&mut streams.waiting));
        waiting.into_iter().flatten().for_each(|waiting| self.admit(waiting, now));
    }

    /// Ends the streams that have nothing more to say, or nothing more to hear.
    pub(super) fn end_streams(&mut self) {
        while let Some(action) = self.server.poll_stream() {
            let stream = match action {
                StreamAction::Finish(stream) => {
                    self.link.finish(stream); // [BQ-30], [BQ-31]
                    stream
                }
                StreamAction::Abort(stream, reason) => {
                    self.link.abort(stream, u64::from(reason.value())); // [BQ-34]
                    stream
                }
            };
            self.forget_stream(stream);
        }
    }

    /// A stream is no more.
    pub(super) fn forget_stream(&mut self, stream: StreamKey) {
        self.end_under_pressure(stream);
        if let Some(streams) = &mut self.streams {
            if let Ok(at) = streams.find(stream) {
                streams.ranks.remove(at);
            }
            streams.waiting.retain(|waiting| waiting.stream != stream);
        }
        if let Some(progress) = &mut self.progress {
            progress.forget(stream);
        }
    }

    // -- Priorities --------------------------------------------------------------------------------

    /// A delivery is in the outbox of a stream, behind so many bytes: tells the transport how urgent the stream is.
    /// [BQ-50]
    pub(super) fn rank_delivery(
        &mut self,
        stream: StreamKey,
        priority: Priority,
        before: usize,
        now: Instant,
    ) {
        let after = self.server.unwritten_on(stream);
        self.rank(stream, |rank| rank.note_delivery(priority, before, after, now));
    }

    /// The same for deliveries that the outboxes of their streams have no room for: their lanes.
    pub(super) fn rank_waiting(&mut self, now: Instant) {
        let Some(mut waiting) = self.streams.as_mut().map(|streams| std::mem::take(&mut streams.full)) else {
            return;
        };
        for lane in waiting.drain(..) {
            let stream = self.server.resolve(lane.stream);
            let unwritten = self.server.unwritten_on(stream);
            self.rank(stream, |rank| rank.note_waiting(lane.priority, unwritten, now));
        }
        if let Some(streams) = &mut self.streams {
            streams.full = waiting;
        }
    }

    /// The same for acknowledgements, if there are any.
    pub(super) fn rank_acknowledgements(&mut self, stream: StreamKey, now: Instant) {
        let unwritten = self.server.unwritten_on(stream);
        self.rank(stream, |rank| rank.note_outbox(unwritten, now));
    }

    /// The transport has taken so many bytes of a stream.
    pub(super) fn rank_written(&mut self, stream: StreamKey, bytes: usize) {
        if self.streams.is_some() && !stream.is_control() {
            let now = now();
            self.rank(stream, |rank| rank.note_written(bytes, now));
        }
    }

    /// The control stream has no rank: it is above all, always.
    fn rank(&mut self, stream: StreamKey, change: impl FnOnce(&mut Rank)) {
        let Some(streams) = &mut self.streams else { return };
        let Ok(at) = streams.find(stream) else { return };
        let rank = &mut streams.ranks[at].1;
        let before = rank.priority();
        change(rank);
        if rank.priority() != before {
            self.link.set_priority(stream, rank.priority());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [BQ-50], [BQ-56]
    #[test]
    fn the_most_urgent_stream_is_offered_first_whatever_its_number() {
        let now = Instant::now();
        let mut streams = Streams::new(now);
        for (number, priority) in [(1, 8), (2, 100), (3, 200), (4, 100), (5, 200)] {
            let stream = StreamKey::bidi(number);
            streams.begin(stream, now);
            let at = streams.find(stream).expect("it has begun");
            streams.ranks[at].1.note_delivery(Priority::new(priority), 0, 1, now);
        }
        streams.begin(StreamKey::bidi(6), now);
        let mut order: Vec<StreamKey> = (1..=6).map(StreamKey::bidi).collect();
        streams.sort(&mut order);
        // What has carried acknowledgements only comes first.
        assert_eq!(order, [6, 3, 5, 2, 4, 1].map(StreamKey::bidi));
    }
}
