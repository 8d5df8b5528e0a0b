//! Queue of the messages that a session's connection has not taken yet.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, Priority, StreamKey};

use super::evictable::EvictableQueue;
use super::policy::{Lifetime, QueuePolicy};
use super::stored::{StoredEntry, StoredQueue};
use super::usage::{Evicted, PerStreamUsage, QueueUsage};

/// Shortest time between two searches for expired messages: a full queue is not walked for each message that arrives.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);

/// FIFO queue of a session, with its usage.
#[derive(Debug, Default)]
pub(crate) struct PendingQueue {
    /// Entries from before the start, older than all of `arrived`; `None` once they were read. Until then nothing is
    /// taken, and everything is for the control stream.
    stored: Option<Box<StoredQueue>>,
    arrived: EvictableQueue<Delivery>,
    usage: QueueUsage,
    /// Stream of all messages, while `streams` is empty.
    stream: StreamKey,
    /// Usage of each stream, once there are messages for more than one.
    streams: PerStreamUsage,
    /// Lower bounds: no message expires before, and none was queued before. Not raised when a message leaves.
    earliest: Lifetime,
}

/// All arrived messages of a queue, without the messages themselves.
pub(crate) struct TakenUsage {
    pub(crate) usage: QueueUsage,
    /// Empty if all messages are for one stream.
    pub(crate) streams: PerStreamUsage,
    /// Lane of all messages, unless there are several.
    pub(crate) lane: Option<Lane>,
}

impl PendingQueue {
    pub(crate) fn usage(&self) -> &QueueUsage {
        &self.usage
    }

    /// Heap bytes of messages that are in memory.
    pub(crate) fn arrived_heap_bytes(&self) -> usize {
        let stored = self.stored.as_deref().map_or(0, |stored| stored.usage().heap_bytes());
        self.usage.heap_bytes().saturating_sub(stored)
    }

    /// Whether there are messages that can be taken.
    pub(crate) fn has_arrived(&self) -> bool {
        self.stored.is_none() && !self.usage.is_empty()
    }

    /// Whether all messages are for one stream.
    pub(crate) fn is_one_stream(&self) -> bool {
        self.streams.is_empty()
    }

    pub(crate) fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        if !self.streams.is_empty() {
            self.streams.usage_of(stream)
        } else if self.stream == stream {
            self.usage
        } else {
            QueueUsage::default()
        }
    }

    /// Whether any message may have an expiry.
    pub(crate) fn may_expire(&self) -> bool {
        self.earliest.expires_at.is_some()
    }

    pub(crate) fn push_back(&mut self, delivery: Delivery, usage: &QueueUsage) {
        let stream = delivery.stream;
        self.earliest.include(Lifetime::of(&delivery));
        if self.usage.is_empty() {
            self.stream = stream;
        }
        if self.streams.is_empty() && self.stream != stream {
            self.streams.insert(self.stream, &self.usage);
        }
        if !self.streams.is_empty() {
            self.streams.insert(stream, usage);
        }
        self.usage.add(usage);
        self.arrived.push_back(delivery);
    }

    /// Puts messages that the connection did not send before those that have arrived since. All are for the control
    /// stream then: no stream outlives its connection. [BQ-42]
    pub(crate) fn restore(&mut self, unsent: VecDeque<Delivery>, mut change: impl FnMut(&mut Delivery)) {
        let Self { stored, mut arrived, earliest, .. } = std::mem::take(self);
        *self = Self { earliest, ..Self::default() };
        self.set_stored(stored);
        for mut delivery in unsent.into_iter().chain(arrived.take()) {
            delivery.stream = StreamKey::CONTROL;
            change(&mut delivery);
            let usage = QueueUsage::of(&delivery);
            self.push_back(delivery, &usage);
        }
    }

    /// Begins with the entries that the store has for the session. They follow those that it had before: a session that
    /// comes from another node has some of its own, and the log has the others.
    pub(crate) fn set_stored(&mut self, stored: Option<Box<StoredQueue>>) {
        if let Some(stored) = stored.filter(|stored| !stored.is_empty()) {
            self.usage.add(stored.usage());
            self.earliest.include(stored.lifetime());
            match &mut self.stored {
                Some(before) => before.append(*stored),
                None => self.stored = Some(stored),
            }
        }
    }

    /// Copies of the entries whose messages have to be read before any message can be taken.
    pub(crate) fn stored_entries(&mut self) -> Vec<StoredEntry> {
        self.stored.as_deref_mut().map(StoredQueue::list).unwrap_or_default()
    }

    /// Replaces the stored entries with the deliveries that were read of them. Entries that were removed meanwhile stay
    /// removed. Returns the numbers of those that were not read.
    pub(crate) fn replace_stored(&mut self, read: HashMap<NonZeroU64, Delivery>) -> Vec<NonZeroU64> {
        let Some(stored) = self.stored.take() else { return Vec::new() };
        let (older, missing) = stored.into_deliveries(read);
        self.restore(older, |_| {});
        missing
    }

    /// Evicts the oldest message of the lowest priority, which is at most `limit`, of one stream if one is given.
    /// Returns its size and its number in the store.
    pub(crate) fn evict(
        &mut self,
        limit: Priority,
        stream: Option<StreamKey>,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let accepts =
            |lane: Lane| lane.priority <= limit && stream.is_none_or(|stream| lane.stream == stream);
        let Some((usage, lsn)) = self.evict_stored(accepts) else { return self.evict_lane(accepts) };
        self.usage.subtract(&usage);
        Some((usage, lsn))
    }

    /// Evicts as [`PendingQueue::evict`] does, of the messages in memory and of any stream.
    pub(crate) fn evict_arrived(&mut self, limit: Priority) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        self.evict_lane(|lane| lane.priority <= limit)
    }

    fn evict_lane(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let evicted = self.arrived.evict(accepts)?;
        let usage = QueueUsage::of(&evicted);
        self.streams.remove(evicted.stream, &usage);
        self.usage.subtract(&usage);
        Some((usage, evicted.queue_lsn))
    }

    /// Evicts a stored entry if no arrived message has a lower priority: stored entries are older.
    fn evict_stored(
        &mut self,
        accepts: impl Fn(Lane) -> bool + Copy,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let stored = self.stored.as_deref_mut()?;
        let victim = stored.victim(accepts)?;
        let is_victim = self.arrived.victim(accepts).is_none_or(|lane| victim.priority <= lane.priority);
        let evicted = if is_victim { stored.evict(accepts) } else { None };
        self.drop_empty_stored();
        evicted
    }

    fn drop_empty_stored(&mut self) {
        if self.stored.as_deref().is_some_and(StoredQueue::is_empty) {
            self.stored = None;
        }
    }

    pub(crate) fn remove_qos0(&mut self) -> Evicted {
        if self.usage.has_qos0() { self.remove(|qos, _| qos == QoS::AtMostOnce) } else { Evicted::default() }
    }

    /// Removes messages whose Message Expiry Interval has passed [MQTT-3.3.2-5]. `None` if no message can have expired,
    /// which takes constant time.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Evicted> {
        self.earliest.expires_at.filter(|at| *at <= now)?;
        let next = Cell::new(None);
        let expired = self.remove(|_, lifetime| {
            let Some(at) = lifetime.expires_at else { return false };
            if at > now {
                next.set(Some(next.get().map_or(at, |next: Instant| next.min(at))));
            }
            at <= now
        });
        self.earliest.expires_at = next.get().map(|next| next.max(now + EXPIRY_INTERVAL));
        Some(expired)
    }

    /// Removes messages that have waited for too long. `None` if none can have, which takes constant time.
    pub(crate) fn expire_aged(&mut self, policy: &QueuePolicy, now: Instant) -> Option<Evicted> {
        self.earliest.enqueued_at.filter(|since| policy.is_too_old(Some(*since), now))?;
        let oldest = Cell::new(None);
        let aged = self.remove(|_, lifetime| {
            let is_too_old = policy.is_too_old(lifetime.enqueued_at, now);
            if !is_too_old {
                oldest.set([oldest.get(), lifetime.enqueued_at].into_iter().flatten().min());
            }
            is_too_old
        });
        self.earliest.enqueued_at = oldest.get();
        Some(aged)
    }

    fn remove(&mut self, is_over: impl Fn(QoS, Lifetime) -> bool) -> Evicted {
        let mut removed = Evicted::default();
        if let Some(stored) = &mut self.stored {
            stored.remove(&is_over, &mut removed);
        }
        self.drop_empty_stored();
        let streams = &mut self.streams;
        self.arrived.retain(|delivery| {
            let is_over = is_over(delivery.qos, Lifetime::of(delivery));
            if is_over {
                let usage = QueueUsage::of(delivery);
                removed.note(&usage, delivery.queue_lsn);
                streams.remove(delivery.stream, &usage);
            }
            !is_over
        });
        self.usage.subtract(&removed.usage);
        removed
    }

    /// Swaps all arrived messages with `empty`.
    pub(crate) fn swap_arrived(&mut self, empty: &mut VecDeque<Delivery>) -> TakenUsage {
        std::mem::swap(self.arrived.fifo(), empty);
        self.earliest = Lifetime::default();
        TakenUsage {
            usage: std::mem::take(&mut self.usage),
            streams: std::mem::take(&mut self.streams),
            lane: self.arrived.take_lane(),
        }
    }

    /// Removes all messages. Those in the store alone are left out.
    pub(crate) fn take(&mut self) -> VecDeque<Delivery> {
        let Self { stored, mut arrived, .. } = std::mem::take(self);
        let arrived = arrived.take();
        let Some(stored) = stored else { return arrived };
        let (mut all, _) = stored.into_deliveries(HashMap::new());
        all.extend(arrived);
        all
    }

    /// Counts usage anew from the messages.
    pub(crate) fn recount(&mut self) {
        let (stored, arrived) = (self.stored.take(), self.arrived.take());
        *self = Self::default();
        self.set_stored(stored);
        for delivery in arrived {
            let usage = QueueUsage::of(&delivery);
            self.push_back(delivery, &usage);
        }
    }
}
