//! From the mailbox to the link: deliveries into outboxes, outboxes into streams.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use braid_proto::connection::{Sent, StreamAction};
use braid_proto::message::Delivery;
use braid_proto::stream::{Priority, StreamKey};
use bytes::Buf;

use super::{Driver, now};

/// Deliveries are encoded only up to here: what waits longer waits as a message, where its order and its cap are.
pub(super) const OUTBOX_TARGET: usize = 64 * 1024;

/// The same where deliveries of several lanes wait: what is encoded cannot be overtaken any more. [BQ-53]
const MIXED_TARGET: usize = 16 * 1024;

/// The same for all streams of a connection; one that has nothing encoded may always have one delivery. [BQ-56]
const CONNECTION_TARGET: usize = 1024 * 1024;

/// Slices of one vectored write.
const SLICES: usize = 16;

/// What a connection with data streams keeps for them.
pub(super) struct Streams {
    /// The priority that each stream has in the transport.
    priorities: Vec<(StreamKey, Priority)>,
    /// Opened faster than is allowed: they wait for their turn. [BQ-45]
    waiting: VecDeque<StreamKey>,
    /// How many may be opened at once.
    allowance: u32,
    /// When the allowance was last filled.
    filled_at: Instant,
    /// Used again by every write.
    to_write: Vec<StreamKey>,
}

impl Streams {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            priorities: Vec::new(),
            waiting: VecDeque::new(),
            allowance: u32::MAX, // Until the first look at the clock.
            filled_at: now,
            to_write: Vec::new(),
        }
    }
}

impl Driver {
    // -- Streams -----------------------------------------------------------------------------------

    /// Lets a stream begin, unless too many did in this second. [BQ-45]
    pub(super) fn open_stream(&mut self, stream: StreamKey, now: Instant) {
        let limit = self.hub.config.limits.streams_per_second;
        let Some(streams) = &mut self.streams else { return };
        if now.saturating_duration_since(streams.filled_at) >= Duration::from_secs(1)
            || streams.allowance > limit
        {
            streams.allowance = limit;
            streams.filled_at = now;
        }
        if streams.allowance == 0 {
            return streams.waiting.push_back(stream);
        }
        streams.allowance -= 1;
        // Until deliveries say how urgent they are it carries acknowledgements.
        self.link.set_priority(stream, Priority::HIGHEST);
        self.server.handle_stream_opened(stream);
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
        waiting.into_iter().flatten().for_each(|stream| self.open_stream(stream, now));
    }

    /// A stream is no more.
    pub(super) fn forget_stream(&mut self, stream: StreamKey) {
        if let Some(streams) = &mut self.streams {
            streams.priorities.retain(|(key, _)| *key != stream);
            streams.waiting.retain(|key| *key != stream);
        }
        if let Some(progress) = &mut self.progress {
            progress.forget(stream);
        }
    }

    /// Tells the transport how urgent what waits on a stream is: as its most urgent delivery. [BQ-50]
    fn raise(&mut self, stream: StreamKey, priority: Priority) {
        let Some(streams) = &mut self.streams else { return };
        if stream.is_control() {
            return; // Above all, always.
        }
        let is_empty = self.server.unwritten_on(stream) == 0;
        match streams.priorities.iter_mut().find(|(key, _)| *key == stream) {
            Some((_, current)) if *current == priority || *current > priority && !is_empty => return,
            Some((_, current)) => *current = priority,
            None => streams.priorities.push((stream, priority)),
        }
        self.link.set_priority(stream, priority);
    }

    // -- Deliveries --------------------------------------------------------------------------------

    /// Moves deliveries into the outboxes as far as these, the peer and the inbox go: the most urgent first, and past
    /// streams that are stuck. [BQ-53], [BQ-55]
    pub(super) fn deliver(&mut self) {
        if self.inbox.is_empty() {
            return;
        }
        let now = now();
        self.inbox.note_begin(now);
        let (mut sent, mut dropped) = (0, 0);
        let mut unwritten = self.server.unwritten();
        while let Some(next) = self.next_delivery(unwritten) {
            let (stored, qos) = (next.stored, next.qos);
            let stream = self.server.resolve(next.stream);
            self.raise(stream, next.priority);
            let before = self.server.unwritten_on(stream);
            match self.server.deliver(next, now) {
                Sent::Out(packet_id) => {
                    sent += 1;
                    self.inbox.note_progress(stream, now);
                    unwritten += self.server.unwritten_on(stream) - before;
                    if let (Some(place), Some(packet_id)) = (stored, packet_id) {
                        self.note_sent(place, qos, packet_id);
                    }
                }
                Sent::Expired | Sent::TooLarge => {
                    dropped += 1;
                    self.note_dropped(stored);
                }
                Sent::Blocked(delivery) => {
                    self.inbox.put_back(*delivery);
                    break;
                }
            }
        }
        if sent > 0 {
            self.progress_at = Some(now);
        }
        self.hub.statistics.sent(sent);
        self.hub.statistics.dropped(dropped);
    }

    fn next_delivery(&mut self, unwritten: usize) -> Option<Delivery> {
        let target = if self.inbox.is_mixed() { MIXED_TARGET } else { OUTBOX_TARGET };
        let is_crowded = unwritten >= CONNECTION_TARGET;
        let server = &self.server;
        self.inbox.pop(|lane, delivery| {
            let own = server.unwritten_on(server.resolve(lane.stream));
            own < target && (own == 0 || !is_crowded) && server.takes(delivery)
        })
    }

    // -- Bytes -------------------------------------------------------------------------------------

    /// Writes until the link takes no more; true when it took something.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>) -> bool {
        let mut written = self.write_stream(StreamKey::CONTROL, context);
        if let Some(mut streams) = self.streams.as_mut().map(|streams| std::mem::take(&mut streams.to_write))
        {
            self.server.streams_to_write(&mut streams);
            for stream in streams.drain(..).filter(|stream| !stream.is_control()) {
                written += self.write_stream(stream, context);
            }
            if let Some(own) = &mut self.streams {
                own.to_write = streams;
            }
            self.end_streams();
        }
        if !self.link_ended
            && let Poll::Ready(Err(error)) = self.link.poll_flush(context)
        {
            self.end_link(Some(error));
        }
        self.hub.statistics.written(written as u64);
        written > 0
    }

    /// Writes one stream until it takes no more; how many bytes it took.
    fn write_stream(&mut self, stream: StreamKey, context: &mut Context<'_>) -> usize {
        let mut written = 0;
        let writable = self.progress.as_ref().and_then(|progress| progress.writable(stream));
        while let Some(outbox) = self.server.outbox(stream)
            && outbox.has_remaining()
        {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = match writable {
                None => outbox.chunks_vectored(&mut slices),
                Some(writable) if writable > written => {
                    let chunk = outbox.chunk();
                    slices[0] = IoSlice::new(&chunk[..chunk.len().min(writable - written)]);
                    1
                }
                Some(_) => break,
            };
            match self.link.poll_write(context, stream, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(taken)) if taken > 0 => {
                    written += taken;
                    outbox.advance(taken);
                }
                // The stream has ended, which a read is about to tell.
                Poll::Ready(Err(error))
                    if !stream.is_control() && error.kind() == io::ErrorKind::NotConnected =>
                {
                    break;
                }
                Poll::Ready(outcome) => {
                    self.end_link(outcome.err());
                    break;
                }
            }
        }
        if let Some(progress) = &mut self.progress
            && written > 0
        {
            progress.note_written(stream, written);
        }
        written
    }

    /// Ends the streams that have nothing more to say, or nothing more to hear.
    fn end_streams(&mut self) {
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
}
