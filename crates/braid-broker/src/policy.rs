//! What a session may have waiting, and what becomes of the rest.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::Priority;

use crate::config::{LimitsConfig, QueueOverflow};
use crate::load::Capacity;
use crate::memory::Memory;

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
    pub(crate) capacity: Capacity,
    /// What gives way when something of QoS 1 or 2 does not fit.
    pub(crate) overflow: QueueOverflow,
    /// Whether QoS 0 waits for a client that is away.
    pub(crate) keeps_qos0: bool,
    /// How long something may wait.
    age: Option<Duration>,
    /// Where the clock of [`Delivery::waits_since`] begins.
    epoch: Instant,
    /// Knows what the queues of all clients that are away have together.
    memory: Arc<Memory>,
    /// Something that waits may expire. While nothing does nobody looks for it.
    may_expire: AtomicBool,
}

impl QueuePolicy {
    pub(crate) fn new(limits: &LimitsConfig, epoch: Instant, memory: Arc<Memory>) -> Self {
        Self {
            capacity: Capacity { messages: limits.queued_messages, bytes: limits.queued_bytes },
            overflow: limits.queue_overflow,
            keeps_qos0: limits.queue_qos0,
            age: (limits.queued_secs > 0).then(|| Duration::from_secs(limits.queued_secs)),
            epoch,
            memory,
            may_expire: AtomicBool::new(false),
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
        self.age.and_then(|_| NonZeroU32::MIN.checked_add(self.seconds(now)))
    }

    /// Whether what has waited since then has done so for longer than it may.
    pub(crate) fn is_too_old(&self, waits_since: Option<NonZeroU32>, now: Instant) -> bool {
        let (Some(age), Some(since)) = (self.age, waits_since) else { return false };
        let waited = self.seconds(now).saturating_sub(since.get() - 1);
        // Whole seconds on both ends: never sooner than it says.
        Duration::from_secs(waited.into()) > age
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

    fn seconds(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.epoch).as_secs()).unwrap_or(u32::MAX)
    }
}
