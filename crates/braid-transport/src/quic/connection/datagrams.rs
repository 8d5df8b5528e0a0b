//! Datagrams of a link (RFC 9221): a bounded queue by priority, and the meter that lets them leave.
//!
//! The library sends DATAGRAM frames before all streams. So datagrams wait here, and are given to it for one packet at
//! a time: only while a packet may leave, and while no stream of a higher priority has something to send. With a stream
//! of their own priority they take turns, packet by packet.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use bytes::Bytes;
use tokio::time::Instant;

use super::write_scheduler::WriteScheduler;
use crate::quic::congestion::controller::SharedGate;
use crate::quic::io::{DatagramSource, NextPacket, SentPackets};

/// Datagrams that wait to be sent at most.
pub(super) const MAX_WAITING: usize = 256;

/// Bytes of datagrams that wait to be sent at most.
pub(super) const MAX_WAITING_BYTES: usize = 64 << 10;

/// Bytes of a packet that are no payload of its frames: headers of packet and frame, authentication tag.
const PACKET_OVERHEAD: u64 = 36;

/// Time for which lost packets may have held what a stream wrote.
const LOSS_MEMORY: Duration = Duration::from_secs(3);

/// Time for which a priority counts as used.
const RECENT: Duration = Duration::from_secs(30);

/// Streams of which is known what they have to send at most; the least urgent are forgotten.
const MAX_STREAMS: usize = 1024;

/// Interval at which datagrams behind a stream that waits for its receiver are looked at again.
const RETRY: Duration = Duration::from_millis(50);

/// Time without a packet after which no stream has anything to send, where the congestion controller does not tell.
const SILENCE: Duration = Duration::from_millis(200);

/// Counts of a link's datagrams since its handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Datagrams that have left.
    pub sent: u64,
    /// Datagrams that have come.
    pub received: u64,
    /// Datagrams that were dropped unsent, because later ones or more urgent ones needed their room, or because the
    /// path takes no packet of their size any more.
    pub dropped_unsent: u64,
    /// Datagrams that were dropped unread, because later ones needed their room.
    pub dropped_unread: u64,
}

impl DatagramCounts {
    /// Growth since earlier counts of the same link.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            dropped_unsent: self.dropped_unsent - before.dropped_unsent,
            dropped_unread: self.dropped_unread - before.dropped_unread,
        }
    }
}

// === Queue ===

/// Queue of datagrams by priority. The oldest of the lowest priority is dropped if another needs its room.
#[derive(Default)]
struct DatagramSendQueue {
    by_priority: BTreeMap<i32, VecDeque<Bytes>>,
    count: usize,
    bytes: usize,
}

impl DatagramSendQueue {
    /// Adds a datagram. Calls `dropped` with the priority of each one that is dropped for it, or of itself.
    fn push(&mut self, priority: i32, datagram: Bytes, mut dropped: impl FnMut(i32)) {
        self.count += 1;
        self.bytes += datagram.len();
        self.by_priority.entry(priority).or_default().push_back(datagram);
        while self.count > MAX_WAITING || self.bytes > MAX_WAITING_BYTES {
            let Some(lowest) = self.by_priority.keys().next().copied() else { return };
            self.pop(lowest);
            dropped(lowest);
        }
    }

    /// The highest priority, and the length of the next datagram.
    fn first(&self) -> Option<(i32, usize)> {
        let (priority, datagrams) = self.by_priority.last_key_value()?;
        Some((*priority, datagrams.front()?.len()))
    }

    fn pop(&mut self, priority: i32) -> Option<Bytes> {
        let datagrams = self.by_priority.get_mut(&priority)?;
        let datagram = datagrams.pop_front();
        if datagrams.is_empty() {
            self.by_priority.remove(&priority);
        }
        let datagram = datagram?;
        self.count -= 1;
        self.bytes -= datagram.len();
        Some(datagram)
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

// === Streams ===

/// Estimate of what each stream has in the library and has not sent, which the library does not tell.
///
/// Packets carry the bytes of the most urgent streams first. A packet that is not full shows that nothing is left. What
/// a lost packet held may have to be sent again: it counts for the most urgent streams that wrote lately.
///
/// Bytes of headers are estimated, so that a stream of a higher priority may be a packet late.
#[derive(Default)]
struct StreamsToSend {
    streams: BTreeMap<(i32, StreamKey), ToSend>,
}

#[derive(Clone, Copy)]
struct ToSend {
    /// Bytes to send for the first time.
    unsent: u64,
    /// Bytes that may have to be sent again.
    again: u64,
    /// Bytes that were written since the last pause.
    recent: u64,
    written_at: Instant,
}

impl ToSend {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.written_at) < LOSS_MEMORY
    }
}

impl StreamsToSend {
    fn handle_written(&mut self, key: StreamKey, priority: i32, bytes: u64, now: Instant) {
        let stream = self.streams.entry((priority, key)).or_insert(ToSend {
            unsent: 0,
            again: 0,
            recent: 0,
            written_at: now,
        });
        if !stream.is_recent(now) {
            stream.recent = 0;
        }
        stream.unsent = stream.unsent.saturating_add(bytes);
        stream.recent = stream.recent.saturating_add(bytes);
        stream.written_at = now;
        if self.streams.len() > MAX_STREAMS {
            self.streams.retain(|_, stream| stream.unsent > 0 || stream.is_recent(now));
            while self.streams.len() > MAX_STREAMS {
                self.streams.pop_first();
            }
        }
    }

    fn set_priority(&mut self, key: StreamKey, from: i32, to: i32) {
        if from != to
            && let Some(stream) = self.streams.remove(&(from, key))
        {
            self.streams.insert((to, key), stream);
        }
    }

    /// The stream was reset.
    fn remove(&mut self, key: StreamKey, priority: i32) {
        self.streams.remove(&(priority, key));
    }

    /// Bytes of streams were sent.
    fn handle_sent(&mut self, mut bytes: u64) {
        for stream in self.streams.values_mut().rev() {
            for waiting in [&mut stream.again, &mut stream.unsent] {
                let sent = (*waiting).min(bytes);
                *waiting -= sent;
                bytes -= sent;
            }
            if bytes == 0 {
                return;
            }
        }
    }

    fn handle_lost(&mut self, mut bytes: u64, now: Instant) {
        for stream in self.streams.values_mut().rev().filter(|stream| stream.is_recent(now)) {
            let lost = stream.recent.saturating_sub(stream.again).min(bytes);
            stream.again += lost;
            bytes -= lost;
            if bytes == 0 {
                return;
            }
        }
    }

    /// Nothing is left to send. True: that was not known.
    fn clear(&mut self) -> bool {
        let mut had_any = false;
        for stream in self.streams.values_mut() {
            had_any |= stream.unsent > 0 || stream.again > 0;
            (stream.unsent, stream.again) = (0, 0);
        }
        had_any
    }

    /// Forgets lost bytes: they need not be sent again.
    fn forget_losses(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.again = 0);
    }

    /// Bytes that streams of at least this priority may have to send again.
    fn again(&self, priority: i32) -> u64 {
        let from = (priority, StreamKey::CONTROL);
        self.streams.range(from..).fold(0, |sum, (_, stream)| sum.saturating_add(stream.again))
    }

    fn is_any_above(&self, priority: i32) -> bool {
        let above = (Bound::Excluded((priority, StreamKey::uni(StreamKey::COUNT_MAX - 1))), Bound::Unbounded);
        self.streams.range(above).any(|(_, stream)| stream.unsent > 0)
    }

    fn is_any_equal(&self, priority: i32) -> bool {
        let from = (priority, StreamKey::CONTROL);
        let equals = self.streams.range(from..).take_while(|((other, _), _)| *other == priority);
        equals.into_iter().any(|(_, stream)| stream.unsent > 0)
    }
}

// === Meter ===

/// Datagrams of a link that wait to be sent, and what decides when they are.
#[derive(Default)]
pub(super) struct Datagrams {
    queue: DatagramSendQueue,
    streams: StreamsToSend,
    sent: u64,
    dropped: u64,
    /// The next packet is for streams that take turns with datagrams, since this time if they did not take it.
    yields: bool,
    yields_since: Option<Instant>,
    /// Payload of the datagrams in the packet that is being built.
    filled: u64,
    /// STREAM frames that have left.
    stream_frames: u64,
    /// Bytes of lost packets that were taken into account.
    lost_bytes: u64,
    /// The last packet left then.
    sent_at: Option<Instant>,
    /// Least priority of a datagram lately, and the time of one.
    lowest: Option<(i32, Instant)>,
    /// Time at which datagrams behind other streams are looked at again.
    retry_at: Option<Instant>,
}

impl Datagrams {
    /// Tests whether a datagram of a lower priority was sent lately.
    pub(super) fn is_used_below(&self, priority: i32, now: Instant) -> bool {
        let lowest = self.lowest.filter(|(_, at)| now.saturating_duration_since(*at) < RECENT);
        lowest.is_some_and(|(lowest, _)| lowest < priority)
    }

    /// Notes bytes that the library has taken for a stream.
    pub(super) fn note_written(&mut self, key: StreamKey, priority: i32, bytes: usize) {
        self.streams.handle_written(key, priority, bytes as u64, Instant::now());
    }

    pub(super) fn note_priority(&mut self, key: StreamKey, from: i32, to: i32) {
        self.streams.set_priority(key, from, to);
    }

    pub(super) fn note_reset(&mut self, key: StreamKey, priority: i32) {
        self.streams.remove(key, priority);
    }

    /// Time at which datagrams behind other streams are looked at again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.queue.is_empty())
    }

    /// Takes a retry that is due. True: datagrams are to be looked at.
    pub(super) fn take_retry(&mut self) -> bool {
        self.retry_at.take_if(|at| *at <= Instant::now()).is_some()
    }

    /// Queues a datagram. Calls `dropped` with the priority of each one that is dropped for it, or of itself.
    pub(super) fn push(
        &mut self,
        priority: i32,
        datagram: Bytes,
        now: Instant,
        mut dropped: impl FnMut(i32),
    ) {
        self.note_used(priority, now);
        let count = &mut self.dropped;
        self.queue.push(priority, datagram, |of| {
            *count += 1;
            dropped(of);
        });
    }

    /// Number of datagrams that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.queue.count
    }

    /// Number of datagrams that were sent, and of those that were dropped unsent.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sent, self.dropped)
    }

    fn note_used(&mut self, priority: i32, now: Instant) {
        let lowest = self.lowest.filter(|(_, at)| now.saturating_duration_since(*at) < RECENT);
        self.lowest = Some((lowest.map_or(priority, |(lowest, _)| lowest.min(priority)), now));
    }
}

/// Meter during one flush.
pub(super) struct DatagramMeter<'a> {
    pub(super) datagrams: &'a mut Datagrams,
    pub(super) scheduler: &'a WriteScheduler,
    /// Time after which a stream without room is one that its receiver does not read.
    pub(super) blocked_limit: Duration,
    /// Time for which datagrams wait for the turn of streams that may have nothing to send.
    pub(super) patience: Duration,
    pub(super) gate: Option<&'a SharedGate>,
}

impl DatagramMeter<'_> {
    /// Tests whether a datagram of this priority has to wait for streams.
    fn is_outranked(&self, priority: i32) -> bool {
        self.datagrams.streams.is_any_above(priority)
            || self.scheduler.contention(priority, self.blocked_limit).is_outranked
    }

    fn has_equals(&self, priority: i32) -> bool {
        self.datagrams.streams.is_any_equal(priority)
            || self.scheduler.contention(priority, self.blocked_limit).equals > 0
    }
}

impl DatagramSource for DatagramMeter<'_> {
    fn fill(&mut self, packet: &mut NextPacket<'_>) -> bool {
        self.datagrams.filled = 0;
        let Some((first, bytes)) = self.datagrams.queue.first() else { return false };
        self.datagrams.note_losses(packet.lost_bytes());
        if self.is_outranked(first) {
            self.datagrams.retry_at = Some(Instant::now() + RETRY);
            return true;
        }
        self.datagrams.retry_at = None;
        let again = self.datagrams.streams.again(first);
        let shares = again > 0 || self.has_equals(first);
        if shares && self.datagrams.yields && !self.datagrams.ends_turn(self.patience) {
            return true;
        }
        if !packet.takes(bytes) {
            self.datagrams.drop_first(); // The path has become smaller.
            return self.fill(packet);
        }
        if !packet.may_leave() {
            return true;
        }
        // Repetitions have room in the same packet, if they are few.
        packet.reserve(if packet.fits(bytes + usize::try_from(again).unwrap_or(bytes)) { again } else { 0 });
        while let Some((priority, bytes)) = self.datagrams.queue.first()
            && packet.fits(bytes)
            && (priority == first || !self.is_outranked(priority))
        {
            let Some(datagram) = self.datagrams.queue.pop(priority) else { break };
            if packet.add(datagram) {
                self.datagrams.sent += 1;
                self.datagrams.filled += bytes as u64;
            } else {
                self.datagrams.dropped += 1;
            }
        }
        self.datagrams.yields = shares;
        if !self.datagrams.queue.is_empty()
            && let Some(gate) = self.gate.filter(|gate| !gate.is_passthrough())
        {
            gate.handle_filled();
        }
        true
    }

    fn handle_sent(&mut self, sent: &SentPackets) {
        let datagrams = &mut *self.datagrams;
        datagrams.note_losses(sent.lost_bytes);
        datagrams.sent_at = Some(Instant::now());
        let filled = std::mem::take(&mut datagrams.filled);
        let has_frames =
            std::mem::replace(&mut datagrams.stream_frames, sent.stream_frames) < sent.stream_frames;
        if has_frames && filled == 0 {
            (datagrams.yields, datagrams.yields_since) = (false, None);
        }
        if sent.is_full {
            let overhead = sent.packets * PACKET_OVERHEAD + filled;
            datagrams.streams.handle_sent(sent.bytes.saturating_sub(overhead));
        } else if has_frames || filled > 0 {
            // Otherwise a probe or an acknowledgement, which may be all that the congestion controller permits.
            datagrams.streams.clear();
        }
    }

    fn handle_idle(&mut self, is_certain: bool) -> bool {
        let datagrams = &mut *self.datagrams;
        let is_silent = datagrams.sent_at.is_none_or(|at| at.elapsed() >= SILENCE);
        if !(is_certain || is_silent) {
            return false;
        }
        let had_turn = std::mem::take(&mut datagrams.yields);
        (datagrams.streams.clear() || had_turn) && !datagrams.queue.is_empty()
    }
}

impl Datagrams {
    /// Ends the turn of streams that have not taken it for so long: what was lost were not their bytes, or their
    /// receivers do not read them.
    fn ends_turn(&mut self, patience: Duration) -> bool {
        let now = Instant::now();
        let until = *self.yields_since.get_or_insert(now) + patience;
        if now < until {
            self.retry_at = Some(until);
            return false;
        }
        self.streams.forget_losses();
        (self.yields, self.yields_since) = (false, None);
        true
    }

    fn note_losses(&mut self, lost_bytes: u64) {
        let lost = lost_bytes.saturating_sub(std::mem::replace(&mut self.lost_bytes, lost_bytes));
        if lost > 0 {
            self.streams.handle_lost(lost, Instant::now());
        }
    }

    /// Drops the next datagram.
    fn drop_first(&mut self) {
        if let Some((priority, _)) = self.queue.first()
            && self.queue.pop(priority).is_some()
        {
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALARMS: (i32, StreamKey) = (200, StreamKey::bidi(1));
    const BULK: (i32, StreamKey) = (8, StreamKey::bidi(2));

    fn streams(written: &[((i32, StreamKey), u64)], now: Instant) -> StreamsToSend {
        let mut streams = StreamsToSend::default();
        for ((priority, key), bytes) in written {
            streams.handle_written(*key, *priority, *bytes, now);
        }
        streams
    }

    #[test]
    fn packets_carry_the_most_urgent_bytes_first() {
        let mut streams = streams(&[(BULK, 1000), (ALARMS, 100)], Instant::now());
        assert!(streams.is_any_above(100) && streams.is_any_above(7) && !streams.is_any_above(200));
        assert!(streams.is_any_equal(200) && streams.is_any_equal(8) && !streams.is_any_equal(100));
        streams.handle_sent(100);
        assert!(!streams.is_any_above(100) && streams.is_any_above(7));
        streams.handle_sent(999);
        assert!(streams.is_any_equal(8));
        streams.handle_sent(5);
        assert!(!streams.is_any_equal(8));
    }

    #[test]
    fn bytes_move_with_the_priority_of_their_stream_and_end_with_it() {
        let mut streams = streams(&[(BULK, 1000)], Instant::now());
        streams.set_priority(BULK.1, 8, 200);
        assert!(streams.is_any_above(100));
        streams.remove(BULK.1, 200);
        assert!(!streams.is_any_above(7));
    }

    #[test]
    fn losses_count_for_what_was_written_lately() {
        let now = Instant::now();
        let mut streams = streams(&[(ALARMS, 100), (BULK, 1000)], now);
        assert!(streams.clear() && !streams.clear());
        streams.handle_lost(500, now);
        assert_eq!((streams.again(200), streams.again(8)), (100, 500));
        streams.handle_sent(100);
        assert_eq!((streams.again(200), streams.again(8)), (0, 400));
        streams.forget_losses();
        streams.handle_lost(500, now + LOSS_MEMORY);
        assert_eq!(streams.again(8), 0);
    }

    #[test]
    fn number_of_streams_is_bounded() {
        let now = Instant::now();
        let written: Vec<_> = (0..5000).map(|n| ((1, StreamKey::bidi(n)), 1)).collect();
        assert_eq!(streams(&written, now).streams.len(), MAX_STREAMS);
    }
}
