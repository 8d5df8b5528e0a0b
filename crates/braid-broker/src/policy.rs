//! What a session may have waiting, and what becomes of the rest.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use braid_proto::message::Delivery;

use crate::config::{LimitsConfig, QueueOverflow};
use crate::load::Capacity;

/// The rules of every session's queue.
#[derive(Clone, Copy, Debug)]
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
}

impl QueuePolicy {
    pub(crate) fn new(limits: &LimitsConfig, epoch: Instant) -> Self {
        Self {
            capacity: Capacity { messages: limits.queued_messages, bytes: limits.queued_bytes },
            overflow: limits.queue_overflow,
            keeps_qos0: limits.queue_qos0,
            age: (limits.queued_secs > 0).then(|| Duration::from_secs(limits.queued_secs)),
            epoch,
        }
    }

    /// Whether anything is ever too old.
    pub(crate) fn has_age(&self) -> bool {
        self.age.is_some()
    }

    /// A delivery begins to wait, unless it did before: its age goes on when its connection ends.
    pub(crate) fn begin_wait(&self, delivery: &mut Delivery, now: Instant) {
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

    fn seconds(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.epoch).as_secs()).unwrap_or(u32::MAX)
    }
}
