//! Holding publishers back while the broker holds too much.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use braid_proto::message::Account;
use braid_proto::stream::StreamKey;
use tokio::sync::futures::OwnedNotified;

use super::{Driver, now};
use crate::memory::Memory;

/// Bytes of a read under pressure. An acknowledgement has four.
const READ: usize = 1024;

/// Between two reads of a publisher, just above the low mark.
const SHORTEST: Duration = Duration::from_millis(250);

/// The same at the high mark and above.
const LONGEST: Duration = Duration::from_secs(10);

/// How much a connection brings while the broker holds too much: a read of [`READ`] bytes at a time, and after each
/// that had a message in it a pause on the streams that bring messages. So acknowledgements come as fast as they are
/// sent, which makes room; those behind messages, PINGREQ among them, come slowly, and nobody waits for ever.
#[derive(Default)]
pub(super) struct Pressure {
    /// What the messages of this connection count for.
    account: Option<Arc<dyn Account>>,
    /// Bytes of packets in parts, as they are counted.
    partial: usize,
    /// Bytes that were written, and that packets in parts grew by.
    moved: u64,
    /// The stream that was read last.
    reading: StreamKey,
    /// Those that brought messages under this pressure.
    publishing: Vec<StreamKey>,
    /// Until then they are not read.
    until: Option<Instant>,
    /// Tells when the pressure ends.
    relief: Option<Pin<Box<OwnedNotified>>>,
}

impl Pressure {
    /// Until when this stream is not read.
    fn stops_until(&self, memory: &Memory, stream: StreamKey, now: Instant) -> Option<Instant> {
        let until = self.until.filter(|until| *until > now && !self.is_most_of(memory))?;
        (memory.is_pressed() && self.publishing.contains(&stream)).then_some(until)
    }

    /// A packet that is more than half of all that is held goes on: it may be longer than the mark, and would never
    /// arrive.
    fn is_most_of(&self, memory: &Memory) -> bool {
        self.partial as u64 > memory.used() / 2
    }

    /// How many bytes may be read at a time, of `most`.
    pub(super) fn read_size(&self, memory: &Memory, most: usize) -> usize {
        if memory.is_pressed() && !self.is_most_of(memory) { READ.min(most) } else { most }
    }

    /// Whether this stream is not read because the broker holds too much.
    pub(super) fn stops(&self, memory: &Memory, stream: StreamKey) -> bool {
        self.until.is_some() && self.stops_until(memory, stream, now()).is_some()
    }
}

/// The longer, the less there is left.
fn pause(memory: &Memory) -> Duration {
    SHORTEST + (LONGEST - SHORTEST).mul_f64(1.0 - memory.slack())
}

impl Driver {
    /// What messages of this connection are charged to.
    pub(super) fn account(&mut self) -> Arc<dyn Account> {
        let memory = &self.core.memory;
        self.pressure.account.get_or_insert_with(|| memory.account()).clone()
    }

    /// A stream begins. While others wait it waits as well: each message could come on one of its own.
    pub(super) fn begin_under_pressure(&mut self, stream: StreamKey) {
        if self.pressure.until.is_some() {
            self.pressure.publishing.push(stream);
        }
    }

    /// A stream is no more.
    pub(super) fn end_under_pressure(&mut self, stream: StreamKey) {
        self.pressure.publishing.retain(|publishing| *publishing != stream);
    }

    /// A stream is read.
    pub(super) fn note_reading(&mut self, stream: StreamKey) {
        self.pressure.reading = stream;
    }

    /// There were messages in what was read. What is urgent passes, as long as there is room for it.
    pub(super) fn note_published(&mut self, is_urgent: bool) {
        let memory = &self.core.memory;
        if !memory.is_pressed() {
            self.pressure.publishing.clear();
            self.pressure.until = None;
        } else if !is_urgent || memory.is_full() {
            let stream = self.pressure.reading;
            if !self.pressure.publishing.contains(&stream) {
                self.pressure.publishing.push(stream);
            }
            self.pressure.until = Some(now() + pause(memory));
        }
    }

    /// Counts what came of packets that have not ended. What is more than a read has brought a part of a message.
    pub(super) fn count_partial(&mut self) {
        let (partial, memory) = (self.server.partial_len(), &self.core.memory);
        let before = std::mem::replace(&mut self.pressure.partial, partial);
        if partial == before {
            return;
        }
        match partial.checked_sub(before) {
            None => memory.remove(before - partial),
            Some(more) => {
                memory.add(more);
                self.pressure.moved += more as u64;
                if partial >= READ && !self.pressure.is_most_of(memory) {
                    self.note_published(false);
                }
            }
        }
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        self.pressure.moved += bytes as u64;
    }

    /// Tells others what this connection holds beside its mailbox.
    pub(super) fn note_holdings(&mut self) {
        let Some(entry) = &self.entry else { return };
        let inflight = self.server.session().map_or(0, |session| session.outbound.heap_bytes());
        entry.set_holdings(inflight + self.pressure.partial, self.pressure.moved);
    }

    /// Whether the pressure that keeps streams from being read is over; if not, the task is woken then.
    pub(super) fn poll_relief(&mut self, context: &mut Context<'_>) -> bool {
        let pressure = &mut self.pressure;
        if pressure.until.is_none() {
            return false;
        }
        let memory = &self.core.memory;
        let relief = pressure.relief.get_or_insert_with(|| Box::pin(memory.relief()));
        let is_over = relief.as_mut().poll(context).is_ready() || !memory.is_pressed();
        if is_over {
            pressure.relief = None;
            pressure.until = None;
            pressure.publishing = Vec::new();
        }
        is_over
    }

    /// When a stream that is not read under pressure may be read again.
    pub(super) fn pause_ends(&self) -> Option<Instant> {
        let (now, memory) = (now(), &self.core.memory);
        let stops = |stream: &StreamKey| self.pressure.stops_until(memory, *stream, now);
        self.refused.iter().filter_map(stops).min()
    }

    /// Whether something is not read because of the pressure.
    pub(super) fn is_held_back(&self) -> bool {
        self.pressure.until.is_some() && !self.refused.is_empty()
    }

    /// The connection holds nothing any more.
    pub(super) fn forget_partial(&mut self) {
        self.core.memory.remove(std::mem::take(&mut self.pressure.partial));
    }
}
