//! What a session may have waiting, and what becomes of the rest.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::Priority;
use braid_store::Now;

use crate::config::{LimitsConfig, QueueOverflow};
use crate::memory::Memory;
use crate::queue::usage::QueueLimits;

/// What decides on how long something waits, whether it is in memory or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) qos: QoS,
    /// As [`Delivery::waits_since`].
    pub(crate) waits_since: Option<NonZeroU32>,
    /// When the Message Expiry Interval has passed.
    pub(crate) expires_at: Option<Instant>,
}

impl Terms {
    pub(crate) fn of(delivery: &Delivery) -> Self {
        let Delivery { ref message, qos, waits_since, .. } = *delivery;
        Self { qos, waits_since, expires_at: message.expires_at }
    }
}

/// The rules of every session's queue.
#[derive(Debug)]
pub(crate) struct QueuePolicy {
    pub(crate) capacity: QueueLimits,
    /// What gives way when something of QoS 1 or 2 does not fit.
    pub(crate) overflow: QueueOverflow,
    /// Whether QoS 0 waits for a client that is away.
    pub(crate) keeps_qos0: bool,
    /// How long something may wait.
    age: Option<Duration>,
    /// When the broker started.
    epoch: Instant,
    /// What [`Delivery::waits_since`] is of what began to wait then: there are numbers below for what is too old by then.
    first: u32,
    /// Knows what the queues of all clients that are away have together.
    memory: Arc<Memory>,
    /// Something that waits may expire. While nothing does nobody looks for it.
    may_expire: AtomicBool,
    /// The clock of the world is behind: what it says is not written down.
    is_clock_behind: AtomicBool,
}

impl QueuePolicy {
    pub(crate) fn new(limits: &LimitsConfig, epoch: Instant, memory: Arc<Memory>) -> Self {
        // Number 1 is too old.
        let first = limits.queued_secs.saturating_add(2);
        Self {
            capacity: QueueLimits { messages: limits.queued_messages, bytes: limits.queued_bytes },
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

    /// Whether the queues of clients that are away have too much together for one more.
    pub(crate) fn is_crowded(&self, bytes: usize, priority: Priority) -> bool {
        self.memory.is_crowded(bytes, priority)
    }

    /// Whether anything is ever too old.
    pub(crate) fn has_age(&self) -> bool {
        self.age.is_some()
    }

    /// A delivery begins to wait, unless it did before: its age goes on when its connection ends.
    pub(crate) fn begin_wait(&self, delivery: &mut Delivery, now: Instant) {
        if delivery.message.expires_at.is_some() {
            self.note_expiring();
        }
        if delivery.waits_since.is_none() {
            delivery.waits_since = self.waits_since(now);
        }
    }

    /// What [`Delivery::waits_since`] is of what begins to wait now.
    pub(crate) fn waits_since(&self, now: Instant) -> Option<NonZeroU32> {
        self.age.and_then(|_| NonZeroU32::new(self.number(now)))
    }

    /// The same by the clock of the world, for a store: of what begins to wait now, and of what waited elsewhere before.
    pub(crate) fn stored_since(&self, delivery: &Delivery, now: impl FnOnce() -> Now) -> Option<SystemTime> {
        self.age?;
        // Relaxed: the flag guards nothing.
        if self.is_clock_behind.load(Ordering::Relaxed) {
            return None;
        }
        let now = now();
        let waited = delivery.waits_since.map_or(0, |since| self.waited(since, now.instant));
        // Whole seconds on both ends: never before it began.
        let waited = Duration::from_secs(waited.saturating_sub(1).into());
        Some(now.system.checked_sub(waited).unwrap_or(now.system))
    }

    /// The clock of the world is behind what it said once: what is queued in this life has no time in the store, or it would
    /// be too old at the next start if the clock is right by then.
    pub(crate) fn distrust_clock(&self) {
        self.is_clock_behind.store(true, Ordering::Relaxed);
    }

    /// Whether what has waited since then has done so for longer than it may.
    pub(crate) fn is_too_old(&self, waits_since: Option<NonZeroU32>, now: Instant) -> bool {
        let (Some(age), Some(since)) = (self.age, waits_since) else { return false };
        // Whole seconds on both ends: never sooner than it says.
        Duration::from_secs(self.waited(since, now).into()) > age
    }

    /// Something waits that is going to expire.
    pub(crate) fn note_expiring(&self) {
        // Relaxed: the flag guards nothing. Read first: everybody who pushes would want to have it.
        if !self.may_expire.load(Ordering::Relaxed) {
            self.may_expire.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something that waits may have expired; from here on nothing does, unless it is noted again.
    pub(crate) fn take_expiring(&self) -> bool {
        self.may_expire.swap(false, Ordering::Relaxed)
    }

    /// Seconds, or up to one more.
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
    use braid_proto::message::Message;
    use braid_proto::topic::TopicName;

    use super::*;

    fn policy(queued_secs: u64, epoch: Instant) -> QueuePolicy {
        let limits = LimitsConfig { queued_secs, ..LimitsConfig::default() };
        QueuePolicy::new(&limits, epoch, Arc::new(Memory::new(&limits)))
    }

    fn delivery() -> Delivery {
        let topic = TopicName::parse("t").unwrap();
        Delivery::of(Arc::new(Message::new(topic, bytes::Bytes::new(), QoS::AtLeastOnce, false)))
    }

    /// Nothing is dropped sooner for having been counted in whole seconds.
    #[test]
    fn the_store_is_told_of_no_wait_that_is_longer_than_it_was() {
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
    fn what_begins_to_wait_does_so_now() {
        let (epoch, system) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let now = || Now { instant: epoch + Duration::from_secs(5), system };
        assert_eq!(policy(60, epoch).stored_since(&delivery(), now), Some(system));
        assert_eq!(policy(0, epoch).stored_since(&delivery(), || unreachable!("nobody asks")), None);
        let distrusting = policy(60, epoch);
        distrusting.distrust_clock();
        assert_eq!(distrusting.stored_since(&delivery(), now), None);
    }

    /// The longest cap that a configuration may have.
    #[test]
    fn a_cap_of_a_hundred_years_drops_nothing() {
        let epoch = Instant::now();
        for queued_secs in [u32::MAX - 1000, u32::MAX] {
            let policy = policy(queued_secs.into(), epoch);
            for waits_since in [policy.waits_since(epoch), Some(NonZeroU32::MAX), None] {
                assert!(!policy.is_too_old(waits_since, epoch + Duration::from_secs(100_000_000)));
            }
        }
    }
}
