//! Queue policy: the limits of every session's queue, and for how long messages may wait in it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_proto::message::Delivery;
use braid_proto::stream::Priority;
use braid_store::Now;

use super::usage::QueueLimits;
use crate::config::{LimitsConfig, QueueOverflow};
use crate::memory::Memory;

/// Limits on the time that a queued message may wait; of several messages, the strictest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lifetime {
    /// As [`Delivery::enqueued_at`].
    pub(crate) enqueued_at: Option<NonZeroU32>,
    /// End of the Message Expiry Interval.
    pub(crate) expires_at: Option<Instant>,
}

impl Lifetime {
    pub(crate) fn of(delivery: &Delivery) -> Self {
        Self { enqueued_at: delivery.enqueued_at, expires_at: delivery.message.expires_at }
    }

    /// Lowers the limits to those of one more message.
    pub(crate) fn include(&mut self, other: Self) {
        self.enqueued_at = [self.enqueued_at, other.enqueued_at].into_iter().flatten().min();
        self.expires_at = [self.expires_at, other.expires_at].into_iter().flatten().min();
    }
}

/// Rules of every session's queue.
#[derive(Debug)]
pub(crate) struct QueuePolicy {
    pub(crate) limits: QueueLimits,
    pub(crate) overflow: QueueOverflow,
    /// Whether QoS 0 is queued for offline clients.
    pub(crate) keeps_qos0: bool,
    /// Longest time in a queue.
    age: Option<Duration>,
    /// Start of the broker.
    epoch: Instant,
    /// [`Delivery::enqueued_at`] at `epoch`. There are lower numbers for messages that were queued before.
    first: u32,
    /// Sum of the queues of all offline clients.
    memory: Arc<Memory>,
    /// Some queued message has an expiry. Queues are searched for expired ones only then.
    may_expire: AtomicBool,
    /// The wall clock is behind: no enqueue times are stored.
    is_clock_behind: AtomicBool,
}

impl QueuePolicy {
    pub(crate) fn new(limits: &LimitsConfig, epoch: Instant, memory: Arc<Memory>) -> Self {
        // Number 1 is too old.
        let first = limits.queued_secs.saturating_add(2);
        Self {
            limits: QueueLimits { messages: limits.queued_messages, bytes: limits.queued_bytes },
            overflow: limits.queue_overflow,
            keeps_qos0: limits.queue_qos0,
            age: (limits.queued_secs > 0).then(|| Duration::from_secs(limits.queued_secs)),
            epoch,
            first: u32::try_from(first).unwrap_or(u32::MAX),
            memory,
            may_expire: AtomicBool::new(false),
            is_clock_behind: AtomicBool::new(false),
        }
    }

    /// Whether the queues of all offline clients together have no room for one more message of `bytes`.
    pub(crate) fn is_offline_limit_reached(&self, bytes: usize, priority: Priority) -> bool {
        self.memory.is_offline_limit_reached(bytes, priority)
    }

    /// Whether messages can become too old.
    pub(crate) fn has_age(&self) -> bool {
        self.age.is_some()
    }

    /// Sets the enqueue time of a delivery, unless it has one: its age goes on when its connection ends.
    pub(crate) fn begin_wait(&self, delivery: &mut Delivery, now: Instant) {
        if delivery.message.expires_at.is_some() {
            self.note_expiring();
        }
        if delivery.enqueued_at.is_none() {
            delivery.enqueued_at = self.enqueued_at(now);
        }
    }

    /// [`Delivery::enqueued_at`] of a message that is queued now.
    pub(crate) fn enqueued_at(&self, now: Instant) -> Option<NonZeroU32> {
        NonZeroU32::new(self.number(now))
    }

    /// Enqueue time of a delivery by the wall clock, for the store. Time that it was queued elsewhere before counts.
    pub(crate) fn stored_since(&self, delivery: &Delivery, now: impl FnOnce() -> Now) -> Option<SystemTime> {
        self.age?;
        // Relaxed: the flag guards nothing.
        if self.is_clock_behind.load(Ordering::Relaxed) {
            return None;
        }
        let now = now();
        let waited = delivery.enqueued_at.map_or(0, |since| self.waited(since, now.instant));
        // Both ends are whole seconds: one less is never longer than the true time.
        let waited = Duration::from_secs(waited.saturating_sub(1).into());
        Some(now.system.checked_sub(waited).unwrap_or(now.system))
    }

    /// Stores no enqueue times during this run: the wall clock went backwards. Messages would be too old at the next
    /// start if the clock is right by then.
    pub(crate) fn distrust_clock(&self) {
        self.is_clock_behind.store(true, Ordering::Relaxed);
    }

    /// Tests whether a message that was queued at `enqueued_at` has waited for too long.
    pub(crate) fn is_too_old(&self, enqueued_at: Option<NonZeroU32>, now: Instant) -> bool {
        let (Some(age), Some(since)) = (self.age, enqueued_at) else { return false };
        // Both ends are whole seconds: never sooner than configured.
        Duration::from_secs(self.waited(since, now).into()) > age
    }

    /// Time for which a message has waited that was queued at `enqueued_at`, at least: whole seconds.
    pub(crate) fn age(&self, enqueued_at: Option<NonZeroU32>, now: Instant) -> Option<Duration> {
        enqueued_at.map(|since| Duration::from_secs(self.waited(since, now).saturating_sub(1).into()))
    }

    /// Notes that a queued message has an expiry.
    pub(crate) fn note_expiring(&self) {
        // Relaxed: the flag guards nothing. Read first: the cache line stays shared among publishers.
        if !self.may_expire.load(Ordering::Relaxed) {
            self.may_expire.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a queued message may have expired. Resets the flag.
    pub(crate) fn take_expiring(&self) -> bool {
        self.may_expire.swap(false, Ordering::Relaxed)
    }

    /// Seconds since `since`, up to one too many.
    fn waited(&self, since: NonZeroU32, now: Instant) -> u32 {
        self.number(now).saturating_sub(since.get())
    }

    fn number(&self, now: Instant) -> u32 {
        let seconds = now.saturating_duration_since(self.epoch).as_secs();
        self.first.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::message::{Message, SharedMessage};
    use braid_proto::packet::QoS;
    use braid_proto::topic::TopicName;

    use super::*;

    fn policy(queued_secs: u64, epoch: Instant) -> QueuePolicy {
        let limits = LimitsConfig { queued_secs, ..LimitsConfig::default() };
        QueuePolicy::new(&limits, epoch, Arc::new(Memory::new(&limits)))
    }

    fn delivery() -> Delivery {
        let topic = TopicName::parse("t").unwrap();
        Delivery::of(SharedMessage::new(Message::new(topic, bytes::Bytes::new(), QoS::AtLeastOnce, false)))
    }

    /// Whole seconds drop nothing too soon.
    #[test]
    fn stored_enqueue_time_is_never_too_early() {
        let (epoch, system) = (Instant::now(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
        let policy = policy(60, epoch);
        for (begun, stored) in [(0, 0), (0, 999), (999, 1000), (1, 1999), (500, 40_499), (999, 40_000)] {
            let at = |milliseconds| epoch + Duration::from_millis(milliseconds);
            let mut delivery = delivery();
            policy.begin_wait(&mut delivery, at(begun));
            let since = policy.stored_since(&delivery, || Now { instant: at(stored), system });
            let told = system.duration_since(since.unwrap()).unwrap();
            let waited = Duration::from_millis(stored - begun);
            assert!(told <= waited && waited < told + Duration::from_secs(2), "{told:?} of {waited:?}");
        }
    }

    #[test]
    fn new_delivery_is_stored_with_the_present_time() {
        let (epoch, system) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let now = || Now { instant: epoch + Duration::from_secs(5), system };
        assert_eq!(policy(60, epoch).stored_since(&delivery(), now), Some(system));
        assert_eq!(policy(0, epoch).stored_since(&delivery(), || unreachable!("no clock is read")), None);
        let distrusting = policy(60, epoch);
        distrusting.distrust_clock();
        assert_eq!(distrusting.stored_since(&delivery(), now), None);
    }

    #[test]
    fn longest_possible_age_drops_nothing() {
        let epoch = Instant::now();
        for queued_secs in [u32::MAX - 1000, u32::MAX] {
            let policy = policy(queued_secs.into(), epoch);
            for enqueued_at in [policy.enqueued_at(epoch), Some(NonZeroU32::MAX), None] {
                assert!(!policy.is_too_old(enqueued_at, epoch + Duration::from_secs(100_000_000)));
            }
        }
    }
}
