//! Entries of a session's queue that were in the store when the broker started, and stay there until the client is
//! back.

use std::collections::{HashMap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use braid_proto::message::{Delivery, OfflineCharge, SharedMessage, SubscriptionIds};
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use braid_store::{Lsn, StoredDelivery};

use super::evictable::{EvictableQueue, Laned};
use super::policy::Lifetime;
use super::usage::{Evicted, QueueUsage};
use crate::memory::Memory;

/// Queue entry that is in the store, in as few bytes as possible: a million of them are in memory at once.
#[derive(Clone, Debug)]
pub(crate) struct StoredEntry {
    /// Number of the entry in the session's queue.
    queue_lsn: Option<NonZeroU64>,
    message: Source,
    /// Seconds from the start to the expiry of a message that is in the store, rounded up, plus 1; `None` if it does
    /// not expire.
    lasts: Option<NonZeroU32>,
    /// Seconds for which the entry was queued before the start.
    waited: u32,
    priority: Priority,
    qos: QoS,
    retain: bool,
    /// Properties that few deliveries have.
    extra: Option<Box<Extra>>,
}

/// Location of a message.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Store {
        lsn: Lsn,
        /// Bytes that the message will take in memory.
        cost: u32,
    },
    /// In memory, because something else refers to the message as well.
    Here(OfflineCharge),
}

#[derive(Clone, Debug)]
struct Extra {
    subscription_ids: SubscriptionIds,
    shared: Option<Arc<TopicFilter>>,
}

/// Cost and lifetime of a message that stays in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    cost: u32,
    lasts: Option<NonZeroU32>,
}

impl Known {
    /// `cost`: bytes in memory. `time_left`: until the message expires.
    pub(crate) fn new(cost: usize, time_left: Option<Duration>) -> Self {
        let seconds = time_left.map(|left| left.as_secs() + u64::from(left.subsec_nanos() > 0));
        // More than a century counts as no expiry, until the message is read.
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        let lasts = seconds.and_then(|seconds| NonZeroU32::MIN.checked_add(seconds));
        Self { cost: u32::try_from(cost).unwrap_or(u32::MAX), lasts }
    }
}

impl StoredEntry {
    /// Entry whose message is not known yet and costs nothing. `now`: the wall clock at the start of the broker.
    pub(crate) fn new(queue_lsn: Lsn, delivery: StoredDelivery, now: SystemTime) -> Self {
        let waited = u32::try_from(delivery.waited(now).as_secs()).unwrap_or(u32::MAX);
        let StoredDelivery { message, qos, retain, subscription_ids, priority, shared, enqueued_at: _ } =
            delivery;
        let is_plain = subscription_ids == SubscriptionIds::None && shared.is_none();
        Self {
            queue_lsn: NonZeroU64::new(queue_lsn.value()),
            message: Source::Store { lsn: message, cost: 0 },
            lasts: None,
            waited,
            priority,
            qos,
            retain,
            extra: (!is_plain).then(|| Box::new(Extra { subscription_ids, shared })),
        }
    }

    pub(crate) fn queue_lsn(&self) -> Option<NonZeroU64> {
        self.queue_lsn
    }

    pub(crate) fn source(&self) -> &Source {
        &self.message
    }

    /// Memory that reading the message takes, bytes; 0 for one that is in memory.
    pub(crate) fn bytes_to_read(&self) -> usize {
        match self.message {
            Source::Store { cost, .. } => cost as usize,
            Source::Here(_) => 0,
        }
    }

    /// Notes cost and lifetime of a message that stays in the store.
    pub(crate) fn set_known(&mut self, known: Known) {
        if let Source::Store { cost, .. } = &mut self.message {
            (*cost, self.lasts) = (known.cost, known.lasts);
        }
    }

    /// Refers to a message in memory from now on.
    pub(crate) fn set_message(&mut self, message: SharedMessage) {
        self.message = Source::Here(OfflineCharge::of(message));
    }

    /// Bytes of the entry itself. An entry with a message in memory is counted with the message.
    fn own_bytes(&self) -> usize {
        if matches!(self.message, Source::Store { .. }) { size_of::<Self>() } else { 0 }
    }

    fn usage(&self) -> QueueUsage {
        match &self.message {
            Source::Store { cost, .. } => QueueUsage::of_stored(*cost as usize, self.qos),
            Source::Here(charge) => {
                let ids = self.extra.as_ref().map_or(&SubscriptionIds::None, |extra| &extra.subscription_ids);
                QueueUsage::of_message(charge.message(), ids, self.qos)
            }
        }
    }

    /// Time of expiry, up to a second late while the message is in the store. `recovered_at`: start of the broker.
    fn expires_at(&self, recovered_at: Instant) -> Option<Instant> {
        match &self.message {
            Source::Store { .. } => {
                let seconds = self.lasts?.get() - 1;
                recovered_at.checked_add(Duration::from_secs(seconds.into()))
            }
            Source::Here(charge) => charge.message().expires_at,
        }
    }

    /// [`Delivery::enqueued_at`] of the entry. `at_start`: its value for what was queued at the start of the broker.
    fn enqueued_at(&self, at_start: Option<NonZeroU32>) -> Option<NonZeroU32> {
        // An entry from long before has no number. The lowest one is too old in any case.
        let since = at_start?.get().saturating_sub(self.waited);
        NonZeroU32::new(since).or(Some(NonZeroU32::MIN))
    }

    /// Delivery of the message on the control stream [BQ-42], charged as offline until it is dropped.
    pub(crate) fn into_delivery(self, message: SharedMessage) -> Delivery {
        let Self { queue_lsn, priority, qos, retain, extra, message: _, lasts: _, waited: _ } = self;
        let (subscription_ids, shared) = match extra {
            Some(extra) => (extra.subscription_ids, extra.shared),
            None => (SubscriptionIds::None, None),
        };
        let of = Delivery::of(message);
        let mut delivery = Delivery { qos, retain, subscription_ids, priority, shared, queue_lsn, ..of };
        delivery.charge_offline();
        delivery
    }

    /// The delivery, if the message is in memory.
    fn into_delivery_in_memory(self) -> Option<Delivery> {
        let Source::Here(charge) = &self.message else { return None };
        let message = charge.message().clone();
        Some(self.into_delivery(message))
    }
}

impl Laned for StoredEntry {
    fn lane(&self) -> Lane {
        Lane { stream: StreamKey::CONTROL, priority: self.priority } // [BQ-42]
    }
}

/// Bytes that are reserved in the memory of offline queues, given back on drop.
#[derive(Debug)]
struct MemoryReservation {
    memory: Arc<Memory>,
    bytes: usize,
}

impl MemoryReservation {
    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.note_stored_entries(bytes, 0);
    }

    fn shrink(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.memory.note_stored_entries(0, bytes);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.memory.note_stored_entries(0, self.bytes);
    }
}

/// Queue of the stored entries of a session. They are older than all that arrived since the start.
#[derive(Debug)]
pub(crate) struct StoredQueue {
    entries: EvictableQueue<StoredEntry>,
    usage: QueueUsage,
    reservation: MemoryReservation,
    /// Start of the broker.
    recovered_at: Instant,
    /// [`Delivery::enqueued_at`] of what was queued at the start; `None` without a limit of age.
    at_start: Option<NonZeroU32>,
    /// Expiry and age of all entries that there were at first.
    lifetime: Lifetime,
}

impl StoredQueue {
    pub(crate) fn new(
        stored: Vec<StoredEntry>,
        recovered_at: Instant,
        at_start: Option<NonZeroU32>,
        memory: Arc<Memory>,
    ) -> Self {
        let reservation = MemoryReservation { memory, bytes: 0 };
        let (entries, usage) = (EvictableQueue::with_capacity(stored.len()), QueueUsage::default());
        let lifetime = Lifetime::default();
        let mut queue = Self { entries, usage, reservation, recovered_at, at_start, lifetime };
        for entry in stored {
            queue.usage.add(&entry.usage());
            queue.reservation.grow(entry.own_bytes());
            queue.lifetime.include(lifetime_of(&entry, recovered_at, at_start));
            queue.entries.push_back(entry);
        }
        queue
    }

    /// Appends the entries of another queue, which was read at nearly the same time.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.usage.add(&other.usage);
        self.reservation.grow(other.reservation.bytes);
        self.lifetime.include(other.lifetime);
        for entry in other.entries.take() {
            self.entries.push_back(entry);
        }
    }

    pub(crate) fn usage(&self) -> &QueueUsage {
        &self.usage
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.usage.is_empty()
    }

    /// Earliest expiry and longest wait of all entries that there were at first.
    pub(crate) fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// Copies of all entries, for reading their messages.
    pub(crate) fn list(&mut self) -> Vec<StoredEntry> {
        self.entries.fifo().iter().cloned().collect()
    }

    /// Lane of the lowest priority that `accepts` takes.
    pub(crate) fn victim(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<Lane> {
        self.entries.victim(accepts)
    }

    /// Evicts the oldest entry of the lowest priority whose lane `accepts` takes. Returns its size and number.
    pub(crate) fn evict(
        &mut self,
        accepts: impl Fn(Lane) -> bool,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let evicted = self.entries.evict(accepts)?;
        let usage = evicted.usage();
        self.usage.subtract(&usage);
        self.reservation.shrink(evicted.own_bytes());
        Some((usage, evicted.queue_lsn))
    }

    /// Removes the entries that `is_over` takes.
    pub(crate) fn remove(&mut self, is_over: impl Fn(QoS, Lifetime) -> bool, removed: &mut Evicted) {
        let Self { entries, usage, reservation, recovered_at, at_start, lifetime: _ } = self;
        entries.retain(|entry| {
            let is_over = is_over(entry.qos, lifetime_of(entry, *recovered_at, *at_start));
            if is_over {
                usage.subtract(&entry.usage());
                reservation.shrink(entry.own_bytes());
                removed.note(&entry.usage(), entry.queue_lsn);
            }
            !is_over
        });
    }

    /// Deliveries of all entries whose message was read or is in memory, in their order; and the numbers of the others.
    pub(crate) fn into_deliveries(
        mut self,
        mut read: HashMap<NonZeroU64, Delivery>,
    ) -> (VecDeque<Delivery>, Vec<NonZeroU64>) {
        let mut missing = Vec::new();
        let at_start = self.at_start;
        let deliver = |entry: StoredEntry| {
            let (queue_lsn, enqueued_at) = (entry.queue_lsn, entry.enqueued_at(at_start));
            let found = queue_lsn
                .and_then(|queue_lsn| read.remove(&queue_lsn))
                .or_else(|| entry.into_delivery_in_memory());
            if found.is_none() {
                missing.extend(queue_lsn);
            }
            found.map(|delivery| Delivery { enqueued_at, ..delivery })
        };
        let deliveries = self.entries.take().into_iter().filter_map(deliver).collect();
        (deliveries, missing)
    }
}

fn lifetime_of(entry: &StoredEntry, recovered_at: Instant, at_start: Option<NonZeroU32>) -> Lifetime {
    Lifetime { enqueued_at: entry.enqueued_at(at_start), expires_at: entry.expires_at(recovered_at) }
}
