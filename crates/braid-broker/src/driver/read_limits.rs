//! Limits on how much a publisher may send: its configured rate, and the memory that the broker has left.
//!
//! Bytes above a limit stay unread, under the flow control of their stream. No publisher is disconnected and no
//! message is dropped for exceeding them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use braid_proto::message::MemoryAccount;
use braid_proto::stream::StreamKey;
use tokio::sync::futures::OwnedNotified;

use crate::config::LimitsConfig;
use crate::limit::Limit;
use crate::memory::Memory;
use crate::statistics::Statistics;
use crate::token_bucket::TokenBucket;

// === PublishRateLimiter ===

/// Lower bound of the read size of a client whose rate is limited, bytes.
const MIN_LIMITED_READ: usize = 1024;

/// Size of a PUBLISH with a minimal topic and payload. A read of this size times the permitted rate overdraws the
/// bucket by at most one second.
const SMALL_PUBLISH: u64 = 8;

/// Token buckets for the PUBLISH packets and the bytes of one client.
///
/// A stream is not read while a bucket is in debt. Of several streams the control stream is read on, for PINGREQ,
/// unless it carried messages itself.
pub(super) struct PublishRateLimiter {
    publishes: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// The control stream was read in this turn.
    has_read_control: bool,
    /// The control stream carried messages that exceed the rate.
    limits_control: bool,
}

impl PublishRateLimiter {
    /// `None` when no rate is configured.
    pub(super) fn new(limits: &LimitsConfig, now: Instant) -> Option<Box<Self>> {
        let publishes = TokenBucket::new(limits.publishes_per_second, now);
        let bytes = TokenBucket::new(limits.publish_bytes_per_second, now);
        let is_limited = publishes.is_some() || bytes.is_some();
        is_limited
            .then(|| Box::new(Self { publishes, bytes, has_read_control: false, limits_control: false }))
    }

    /// Size of the next read, at most `max` bytes.
    pub(super) fn read_size(&self, max: usize) -> usize {
        let publishes = self.publishes.as_ref().map(|bucket| bucket.rate().saturating_mul(SMALL_PUBLISH));
        let bytes = self.bytes.as_ref().map(TokenBucket::rate);
        let per_second = publishes.into_iter().chain(bytes).min().unwrap_or(u64::MAX);
        usize::try_from(per_second).unwrap_or(usize::MAX).max(MIN_LIMITED_READ).min(max)
    }

    /// Ends of the pauses of a stream, for its bytes and for its PUBLISH packets.
    fn pauses(&self, stream: StreamKey, now: Instant) -> [Option<Instant>; 2] {
        let bytes = self.bytes.as_ref().and_then(|bucket| bucket.in_debt_until(now));
        let applies = !stream.is_control() || self.limits_control;
        let publishes = self.publishes.as_ref().filter(|_| applies);
        [bytes, publishes.and_then(|bucket| bucket.in_debt_until(now))]
    }

    /// End of the pause of a stream; `None` when it may be read.
    pub(super) fn paused_until(&self, stream: StreamKey, now: Instant) -> Option<Instant> {
        let [bytes, publishes] = self.pauses(stream, now);
        bytes.max(publishes)
    }

    /// Limit that pauses a stream for longest.
    pub(super) fn exceeded(&self, stream: StreamKey, now: Instant) -> Option<Limit> {
        match self.pauses(stream, now) {
            [None, None] => None,
            [bytes, publishes] if bytes >= publishes => Some(Limit::PublishByteRate),
            _ => Some(Limit::PublishRate),
        }
    }

    pub(super) fn note_bytes(&mut self, stream: StreamKey, bytes: usize, now: Instant) {
        self.has_read_control |= stream.is_control();
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes as u64, now);
        }
    }

    pub(super) fn note_publishes(&mut self, count: usize, now: Instant) {
        if let Some(bucket) = &mut self.publishes {
            bucket.take(count as u64, now);
            self.limits_control |= self.has_read_control;
        }
    }

    /// Ends the turn of reading: the control stream is free again once the bucket of messages is out of debt.
    pub(super) fn end_turn(&mut self, now: Instant) {
        self.has_read_control = false;
        if self.publishes.as_ref().is_some_and(|bucket| bucket.in_debt_until(now).is_none()) {
            self.limits_control = false;
        }
    }
}

// === UrgentAllowance ===

/// Rate up to which the urgent messages of a client are exempt from backpressure: a client that marks everything urgent
/// is slowed like one that marks nothing, and does not fill the queues of others' subscribers.
#[derive(Default)]
pub(super) struct UrgentAllowance(Option<Box<TokenBucket>>);

impl UrgentAllowance {
    /// Takes the bytes of urgent messages. True if they are exempt; `per_second` 0 exempts all of them.
    pub(super) fn take(
        &mut self,
        bytes: usize,
        per_second: u64,
        statistics: &Statistics,
        now: Instant,
    ) -> bool {
        if self.0.is_none() && bytes > 0 {
            self.0 = TokenBucket::new(per_second, now).map(Box::new);
        }
        let Some(bucket) = &mut self.0 else { return true };
        let is_exempt = bucket.in_debt_until(now).is_none();
        bucket.take(bytes as u64, now);
        if is_exempt && bucket.in_debt_until(now).is_some() {
            statistics.reach(Limit::UrgentByteRate);
        }
        is_exempt
    }
}

// === MemoryBackpressure ===

/// Size of a read above the low mark, bytes. A PUBACK has four.
const PRESSED_READ: usize = 1024;

/// Pause between two reads of a publisher just above the low mark.
const MIN_PAUSE: Duration = Duration::from_millis(250);

/// Pause between two reads of a publisher at the high mark and above.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Backpressure on one connection while the broker is above the low mark of its memory.
///
/// Reads are [`PRESSED_READ`] bytes long, and after each read that contained a message the streams with messages pause.
/// Acknowledgements on other streams are read at once, which frees memory; those behind messages, PINGREQ among
/// them, are read slowly, and no publisher is stopped for ever.
#[derive(Default)]
pub(super) struct MemoryBackpressure {
    /// Account that the messages of this connection are charged to.
    account: Option<Arc<dyn MemoryAccount>>,
    /// Bytes of incomplete packets, as charged to [`Memory`].
    partial: usize,
    /// Received bytes that are not read, as charged to [`Memory`].
    unread: usize,
    /// Bytes that were written, and that incomplete packets grew by.
    moved: u64,
    /// Stream of the last read.
    last_read: StreamKey,
    /// Streams that carried messages during this pressure.
    publishing: Vec<StreamKey>,
    /// End of the pause of those streams.
    paused_until: Option<Instant>,
    /// Completes when the pressure ends.
    relief: Option<Pin<Box<OwnedNotified>>>,
}

impl MemoryBackpressure {
    /// End of the pause of a stream; `None` when it may be read.
    pub(super) fn paused_until(&self, memory: &Memory, stream: StreamKey, now: Instant) -> Option<Instant> {
        let until = self.paused_until.filter(|until| *until > now && !self.is_largest_holder(memory))?;
        (memory.is_pressed() && self.publishing.contains(&stream)).then_some(until)
    }

    /// True when incomplete packets of this connection are more than half of all memory in use. They are read on: a
    /// packet may be longer than the mark, and would never be complete.
    fn is_largest_holder(&self, memory: &Memory) -> bool {
        self.partial as u64 > memory.used() / 2
    }

    /// Size of the next read, at most `max` bytes.
    pub(super) fn read_size(&self, memory: &Memory, max: usize) -> usize {
        if memory.is_pressed() && !self.is_largest_holder(memory) { PRESSED_READ.min(max) } else { max }
    }

    /// True from the first pause until the pressure is over.
    pub(super) fn is_active(&self) -> bool {
        self.paused_until.is_some()
    }

    pub(super) fn account(&mut self, memory: &Arc<Memory>) -> Arc<dyn MemoryAccount> {
        self.account.get_or_insert_with(|| memory.account()).clone()
    }

    /// During a pause a new stream pauses too: otherwise each message could come on a stream of its own.
    pub(super) fn handle_stream_opened(&mut self, stream: StreamKey) {
        if self.is_active() {
            self.publishing.push(stream);
        }
    }

    pub(super) fn handle_stream_ended(&mut self, stream: StreamKey) {
        self.publishing.retain(|publishing| *publishing != stream);
    }

    pub(super) fn note_read(&mut self, stream: StreamKey) {
        self.last_read = stream;
    }

    /// Begins a pause after a read that contained messages. Urgent messages cause none below the high mark.
    pub(super) fn note_publishes(&mut self, is_urgent: bool, memory: &Memory, now: Instant) {
        if !memory.is_pressed() {
            self.publishing.clear();
            self.paused_until = None;
        } else if !is_urgent || memory.is_full() {
            if !self.publishing.contains(&self.last_read) {
                self.publishing.push(self.last_read);
            }
            // The less memory is left, the longer.
            let pause = MIN_PAUSE + (MAX_PAUSE - MIN_PAUSE).mul_f64(1.0 - memory.slack());
            self.paused_until = Some(now + pause);
        }
    }

    /// Charges the bytes of incomplete packets. Growth beyond one read is part of a message.
    pub(super) fn note_partial(&mut self, partial: usize, memory: &Memory, now: Instant) {
        let before = std::mem::replace(&mut self.partial, partial);
        if partial < before {
            memory.remove(before - partial);
        } else if partial > before {
            memory.add(partial - before);
            self.moved += (partial - before) as u64;
            if partial >= PRESSED_READ && !self.is_largest_holder(memory) {
                self.note_publishes(false, memory, now);
            }
        }
    }

    pub(super) fn note_written(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// Charges received bytes that are not read.
    pub(super) fn note_unread(&mut self, unread: usize, memory: &Memory) {
        if unread != self.unread {
            memory.note_unread(std::mem::replace(&mut self.unread, unread), unread);
        }
    }

    /// Bytes of incomplete packets and unread ones, and bytes moved since the connection began.
    pub(super) fn holdings(&self) -> (usize, u64) {
        (self.partial + self.unread, self.moved)
    }

    /// True when the pressure is over; otherwise the task is woken at its end.
    pub(super) fn poll_relief(&mut self, memory: &Memory, context: &mut Context<'_>) -> bool {
        if !self.is_active() {
            return false;
        }
        let relief = self.relief.get_or_insert_with(|| Box::pin(memory.relief()));
        let is_over = relief.as_mut().poll(context).is_ready() || !memory.is_pressed();
        if is_over {
            self.relief = None;
            self.paused_until = None;
            self.publishing = Vec::new();
        }
        is_over
    }

    /// Returns the charges: the connection is dropped.
    pub(super) fn release(&mut self, memory: &Memory) {
        self.note_unread(0, memory);
        memory.remove(std::mem::take(&mut self.partial));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTROL: StreamKey = StreamKey::CONTROL;

    fn limiter(publishes: u64, bytes: u64, now: Instant) -> PublishRateLimiter {
        let config = LimitsConfig {
            publishes_per_second: publishes,
            publish_bytes_per_second: bytes,
            ..LimitsConfig::default()
        };
        *PublishRateLimiter::new(&config, now).expect("a rate is configured")
    }

    fn memory() -> Memory {
        Memory::new(&LimitsConfig { memory_low: 1 << 20, memory_high: 2 << 20, ..LimitsConfig::default() })
    }

    #[test]
    fn no_rate_needs_no_limiter() {
        assert!(PublishRateLimiter::new(&LimitsConfig::default(), Instant::now()).is_none());
    }

    #[test]
    fn read_size_follows_the_lower_rate() {
        let now = Instant::now();
        assert_eq!(limiter(1_000, 0, now).read_size(65_536), 8_000);
        assert_eq!(limiter(1_000, 4_000, now).read_size(65_536), 4_000);
        assert_eq!(limiter(1, 0, now).read_size(65_536), MIN_LIMITED_READ);
        assert_eq!(limiter(1_000_000, 0, now).read_size(65_536), 65_536);
    }

    #[test]
    fn publishes_above_the_rate_pause_data_streams_and_not_an_idle_control_stream() {
        let now = Instant::now();
        let (mut limiter, data) = (limiter(10, 0, now), StreamKey::bidi(1));
        limiter.note_bytes(data, 100, now);
        limiter.note_publishes(30, now);
        limiter.end_turn(now);
        let until = limiter.paused_until(data, now).expect("20 messages are one too many for now");
        assert!(until > now && limiter.paused_until(data, until).is_none());
        assert_eq!(limiter.paused_until(CONTROL, now), None, "PINGREQ is read");
        limiter.note_bytes(CONTROL, 100, now);
        limiter.note_publishes(1, now);
        assert!(limiter.paused_until(CONTROL, now).is_some(), "it carries messages itself");
        let later = now + Duration::from_secs(60);
        limiter.end_turn(later);
        limiter.note_bytes(data, 100, later);
        limiter.note_publishes(30, later);
        assert!(
            limiter.paused_until(data, later).is_some() && limiter.paused_until(CONTROL, later).is_none()
        );
    }

    #[test]
    fn bytes_above_the_rate_pause_every_stream() {
        let now = Instant::now();
        let mut limiter = limiter(0, 1_000, now);
        limiter.note_bytes(StreamKey::bidi(1), 5_000, now);
        assert!(limiter.paused_until(CONTROL, now).is_some());
    }

    #[test]
    fn urgent_messages_are_exempt_up_to_their_rate() {
        let (mut now, mut allowance) = (Instant::now(), UrgentAllowance::default());
        let statistics = Statistics::default();
        assert!((0..10).all(|_| allowance.take(1 << 40, 0, &statistics, now)), "no rate");
        for round in 1..=3 {
            assert!(
                allowance.take(600, 1000, &statistics, now) && allowance.take(600, 1000, &statistics, now),
                "a burst of a second"
            );
            assert!(
                !allowance.take(100, 1000, &statistics, now) && !allowance.take(0, 1000, &statistics, now),
                "300 bytes too many"
            );
            now += Duration::from_millis(299);
            assert!(!allowance.take(0, 1000, &statistics, now));
            now += Duration::from_millis(1);
            assert!(allowance.take(0, 1000, &statistics, now));
            now += Duration::from_secs(1);
            assert_eq!(statistics.reached(Limit::UrgentByteRate), round);
        }
    }

    #[test]
    fn messages_pause_their_stream_while_memory_is_short() {
        let (memory, now) = (memory(), Instant::now());
        let (mut pressure, one, other) =
            (MemoryBackpressure::default(), StreamKey::bidi(1), StreamKey::bidi(2));
        pressure.note_read(one);
        pressure.note_publishes(false, &memory, now);
        assert_eq!((pressure.is_active(), pressure.read_size(&memory, 65_536)), (false, 65_536));
        memory.add((1 << 20) + 1);
        assert_eq!(pressure.read_size(&memory, 65_536), PRESSED_READ);
        pressure.note_publishes(true, &memory, now);
        assert!(!pressure.is_active(), "urgent messages pass below the high mark");
        pressure.note_publishes(false, &memory, now);
        let until = pressure.paused_until(&memory, one, now).expect("it pauses");
        assert!((MIN_PAUSE..MIN_PAUSE * 2).contains(&(until - now)));
        assert_eq!(pressure.paused_until(&memory, other, now), None, "it carries acknowledgements");
        assert_eq!(pressure.paused_until(&memory, one, until), None, "a pause ends");
        pressure.handle_stream_opened(other);
        assert!(pressure.paused_until(&memory, other, now).is_some(), "a new stream is no way around");
        pressure.handle_stream_ended(other);
        assert!(pressure.paused_until(&memory, other, now).is_none());
        memory.add(2 << 20);
        pressure.note_publishes(true, &memory, now);
        assert_eq!(pressure.paused_until(&memory, one, now), Some(now + MAX_PAUSE), "the high mark");
    }

    #[test]
    fn the_largest_incomplete_packet_is_read_on() {
        let (memory, now) = (memory(), Instant::now());
        let mut pressure = MemoryBackpressure::default();
        memory.add(1 << 20);
        pressure.note_partial(PRESSED_READ, &memory, now);
        assert!(pressure.paused_until(&memory, CONTROL, now).is_some());
        pressure.note_partial(2 << 20, &memory, now);
        assert_eq!(pressure.paused_until(&memory, CONTROL, now), None);
        assert_eq!((pressure.read_size(&memory, 65_536), pressure.holdings()), (65_536, (2 << 20, 2 << 20)));
        pressure.release(&memory);
        assert_eq!(memory.used(), 1 << 20);
    }

    #[test]
    fn relief_ends_the_pause_and_wakes_the_task() {
        let (memory, now) = (memory(), Instant::now());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut pressure = MemoryBackpressure::default();
        assert!(!pressure.poll_relief(&memory, &mut context), "there is no pressure");
        memory.add((1 << 20) + 1);
        pressure.note_publishes(false, &memory, now);
        assert!(!pressure.poll_relief(&memory, &mut context));
        memory.remove(1 << 20);
        memory.settle();
        assert!(pressure.poll_relief(&memory, &mut context));
        assert!(!pressure.is_active() && pressure.paused_until(&memory, CONTROL, now).is_none());
    }
}
