//! What waits in a mailbox until its owner takes it.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use braid_proto::message::Delivery;
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, Priority, StreamKey};

use crate::queue::egress::EgressQueue;
use crate::queue::evictable::EvictableQueue;
use crate::queue::policy::Terms;
use crate::queue::stored::{StoredEntry, StoredQueue};
use crate::queue::usage::PerStreamUsage;
use crate::queue::usage::{QueueUsage, usage_of};

/// Between two looks for what has expired: a queue that is full is not walked for each message that comes.
const EXPIRY_LOOK: Duration = Duration::from_millis(100);

/// Deliveries in the order of their coming, with what they weigh.
#[derive(Debug, Default)]
pub(crate) struct PendingQueue {
    /// What the store has had since before the start, and is older than all of `pile`; `None` once it was read. While
    /// there is any nobody takes anything, and everything is for the control stream.
    shelf: Option<Box<StoredQueue>>,
    pile: EvictableQueue<Delivery>,
    load: QueueUsage,
    /// The stream of all that waits, while `mixed` is empty.
    stream: StreamKey,
    /// What waits stream by stream, once it is for more than one.
    mixed: PerStreamUsage,
    /// When it is worth a look whether something has expired; `None` while nothing ever does.
    expires_from: Option<Instant>,
}

/// What was taken out of a queue that it did not fit into, or in which it had waited for too long.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) load: QueueUsage,
    /// Their places in the store, of those that have one.
    pub(crate) places: Vec<NonZeroU64>,
}

impl Removed {
    pub(crate) fn add(&mut self, delivery: &Delivery) {
        self.note(usage_of(delivery), delivery.stored);
    }

    pub(crate) fn note(&mut self, load: QueueUsage, place: Option<NonZeroU64>) {
        self.load.add(load);
        self.places.extend(place);
    }
}

impl PendingQueue {
    pub(crate) fn load(&self) -> QueueUsage {
        self.load
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.load.messages == 0
    }

    /// Bytes of memory of what is not shelved.
    pub(crate) fn arrived_bytes(&self) -> usize {
        let shelved = self.shelf.as_deref().map_or(0, |shelf| shelf.load().heap_bytes());
        self.load.heap_bytes().saturating_sub(shelved)
    }

    /// Whether there is something that can be taken.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.shelf.is_none() && !self.is_empty()
    }

    /// Whether everything is for one stream, or nothing is there.
    pub(crate) fn is_of_one_stream(&self) -> bool {
        self.mixed.is_empty()
    }

    /// The part that is for a stream.
    pub(crate) fn usage_of(&self, stream: StreamKey) -> QueueUsage {
        if !self.mixed.is_empty() {
            self.mixed.usage_of(stream)
        } else if self.stream == stream {
            self.load
        } else {
            QueueUsage::default()
        }
    }

    /// Whether something that waits has a time at which it expires.
    pub(crate) fn may_expire(&self) -> bool {
        self.expires_from.is_some()
    }

    pub(crate) fn push_back(&mut self, delivery: Delivery, load: QueueUsage) {
        let stream = delivery.stream;
        self.note_expiry(delivery.message.expires_at);
        if self.is_empty() {
            self.stream = stream;
        }
        if self.mixed.is_empty() && self.stream != stream {
            self.mixed.insert(self.stream, self.load);
        }
        if !self.mixed.is_empty() {
            self.mixed.insert(stream, load);
        }
        self.load.add(load);
        self.pile.push_back(delivery);
    }

    /// Puts back what its owner did not send, before what has come since, and all of it on the control stream: no
    /// stream outlives its connection. [BQ-42]
    pub(crate) fn restore(&mut self, leftover: VecDeque<Delivery>, mut note: impl FnMut(&mut Delivery)) {
        let (shelf, expires_from) = (self.shelf.take(), self.expires_from);
        let later = self.take();
        self.expires_from = expires_from;
        self.load = shelf.as_deref().map(StoredQueue::load).unwrap_or_default();
        self.shelf = shelf;
        for mut delivery in leftover.into_iter().chain(later) {
            delivery.stream = StreamKey::CONTROL;
            note(&mut delivery);
            self.note_expiry(delivery.message.expires_at);
            self.load.add(usage_of(&delivery));
            self.pile.push_back(delivery);
        }
    }

    fn note_expiry(&mut self, at: Option<Instant>) {
        self.expires_from = [self.expires_from, at].into_iter().flatten().min();
    }

    /// Begins with what the store has.
    pub(crate) fn shelve(&mut self, shelf: StoredQueue) {
        if !shelf.is_empty() {
            self.load.add(shelf.load());
            self.note_expiry(shelf.expires_from());
            self.shelf = Some(Box::new(shelf));
        }
    }

    /// What is to be read before anything can be taken.
    pub(crate) fn shelved(&mut self) -> Vec<StoredEntry> {
        self.shelf.as_deref_mut().map(StoredQueue::list).unwrap_or_default()
    }

    /// What was read takes the place of what it was read from, as far as that still waits. Returns the places of what
    /// waits and was not read.
    pub(crate) fn unshelve(&mut self, read: HashMap<NonZeroU64, Delivery>) -> Vec<NonZeroU64> {
        let Some(shelf) = self.shelf.take() else { return Vec::new() };
        let (older, missing) = shelf.into_deliveries(read);
        // What came since waits for the same stream.
        self.restore(older, |_| {});
        missing
    }

    /// Takes out the oldest of the least urgent, which is no more urgent than `limit`, and of `stream` if one is
    /// named: its load, and its place in the store.
    pub(crate) fn displace(
        &mut self,
        limit: Priority,
        stream: Option<StreamKey>,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let accepts =
            |lane: Lane| lane.priority <= limit && stream.is_none_or(|stream| lane.stream == stream);
        let Some((load, place)) = self.displace_shelved(accepts) else { return self.displace_piled(accepts) };
        self.load.subtract(load);
        Some((load, place))
    }

    /// The same of what is not shelved, for any stream: what is shelved takes hardly any memory, and gives none.
    pub(crate) fn displace_arrived(&mut self, limit: Priority) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        self.displace_piled(|lane| lane.priority <= limit)
    }

    fn displace_piled(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let displaced = self.pile.displace(accepts)?;
        let load = usage_of(&displaced);
        self.mixed.remove(displaced.stream, load);
        self.load.subtract(load);
        Some((load, displaced.stored))
    }

    /// The same on the shelf, if it has what is least urgent: that is older.
    fn displace_shelved(
        &mut self,
        accepts: impl Fn(Lane) -> bool + Copy,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let shelf = self.shelf.as_deref_mut()?;
        let least = shelf.least(accepts)?;
        let is_least = self.pile.least(accepts).is_none_or(|lane| least.priority <= lane.priority);
        let displaced = if is_least { shelf.displace(accepts) } else { None };
        self.drop_empty_shelf();
        displaced
    }

    fn drop_empty_shelf(&mut self) {
        if self.shelf.as_deref().is_some_and(StoredQueue::is_empty) {
            self.shelf = None;
        }
    }

    /// Drops all QoS 0; returns how many.
    pub(crate) fn drop_qos0(&mut self) -> u64 {
        if self.load.qos0 == 0 {
            return 0;
        }
        self.remove(|terms| terms.qos == QoS::AtMostOnce).load.messages as u64
    }

    /// Takes out what has expired: nobody gets it any more. [MQTT-3.3.2-5]
    pub(crate) fn expire(&mut self, now: Instant) -> Removed {
        if self.expires_from.is_none_or(|from| now < from) {
            return Removed::default();
        }
        let left = Cell::new(None);
        let removed = self.remove(|terms| {
            let Some(at) = terms.expires_at else { return false };
            if at > now {
                left.set(Some(left.get().map_or(at, |left: Instant| left.min(at))));
            }
            at <= now
        });
        self.expires_from = left.get().map(|left| left.max(now + EXPIRY_LOOK));
        removed
    }

    /// Takes out what `is_over`.
    pub(crate) fn remove(&mut self, is_over: impl Fn(Terms) -> bool) -> Removed {
        let mut removed = Removed::default();
        if let Some(shelf) = &mut self.shelf {
            shelf.remove(&is_over, |load, place| removed.note(load, place));
        }
        self.drop_empty_shelf();
        let mixed = &mut self.mixed;
        self.pile.retain(|delivery| {
            let is_over = is_over(Terms::of(delivery));
            if is_over {
                removed.add(delivery);
                mixed.remove(delivery.stream, usage_of(delivery));
            }
            !is_over
        });
        self.load.subtract(removed.load);
        removed
    }

    /// Moves everything into `inbox`, to be put into its lanes later; returns its lane if it is of one.
    pub(crate) fn move_to(
        &mut self,
        inbox: &mut EgressQueue,
        resolve: impl Fn(StreamKey) -> StreamKey,
    ) -> Option<Lane> {
        inbox.take(self.pile.queue(), std::mem::take(&mut self.load), &self.mixed, resolve);
        if !self.mixed.is_empty() {
            self.mixed.clear();
        }
        self.expires_from = None;
        self.pile.take_lane()
    }

    /// Everything; of what is shelved that which is in memory.
    pub(crate) fn take(&mut self) -> VecDeque<Delivery> {
        let Self { shelf, mut pile, .. } = std::mem::take(self);
        let later = pile.take();
        let Some(shelf) = shelf else { return later };
        shelf.into_present().chain(later).collect()
    }
}
