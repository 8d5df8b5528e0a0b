//! What a session had in the store when the broker started, and nobody has come for yet: it stays there.

use std::collections::{HashMap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use braid_proto::message::{Delivery, Message, OfflineCharge, SubscriptionIds};
use braid_proto::packet::QoS;
use braid_proto::stream::{Lane, Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use braid_store::{Lsn, StoredDelivery};

use crate::memory::Memory;
use crate::queue::evictable::{EvictableQueue, Laned};
use crate::queue::policy::Terms;
use crate::queue::usage::{QueueUsage, usage_of_qos, usage_of_stored};

/// A delivery that is in the store: what must be known of it while its client is away, in few bytes. A million of
/// them are in memory at once.
#[derive(Clone, Debug)]
pub(crate) struct StoredEntry {
    /// Its place in the session's queue.
    place: Option<NonZeroU64>,
    message: Source,
    /// How long a message that is in the store lives: one more than the seconds after the start, rounded up; `None`
    /// if it does not expire.
    lasts: Option<NonZeroU32>,
    /// For how many seconds it had waited at the start.
    waited: u32,
    priority: Priority,
    qos: QoS,
    retain: bool,
    /// What few deliveries have.
    rest: Option<Box<Rest>>,
}

/// Where the message is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Store {
        lsn: Lsn,
        /// What it will cost once it is in memory.
        cost: u32,
    },
    /// Others have it in memory as well.
    Here(OfflineCharge),
}

#[derive(Clone, Debug)]
struct Rest {
    subscription_ids: SubscriptionIds,
    shared: Option<Arc<TopicFilter>>,
}

/// What is known of a message that is in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    cost: u32,
    lasts: Option<NonZeroU32>,
}

impl Known {
    /// It costs so much in memory, and expires after so long.
    pub(crate) fn new(cost: usize, time_left: Option<Duration>) -> Self {
        let seconds = time_left.map(|left| left.as_secs() + u64::from(left.subsec_nanos() > 0));
        // What lasts for more than a century does not expire before it is read.
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        let lasts = seconds.and_then(|seconds| NonZeroU32::MIN.checked_add(seconds));
        Self { cost: u32::try_from(cost).unwrap_or(u32::MAX), lasts }
    }
}

impl StoredEntry {
    /// A delivery whose message nobody has looked at: it costs nothing yet. `now`: when the broker recovers.
    pub(crate) fn new(place: Lsn, delivery: StoredDelivery, now: SystemTime) -> Self {
        let waited = u32::try_from(delivery.waited(now).as_secs()).unwrap_or(u32::MAX);
        let StoredDelivery { message, qos, retain, subscription_ids, priority, shared, waits_since: _ } =
            delivery;
        let is_plain = subscription_ids == SubscriptionIds::None && shared.is_none();
        Self {
            place: NonZeroU64::new(place.value()),
            message: Source::Store { lsn: message, cost: 0 },
            lasts: None,
            waited,
            priority,
            qos,
            retain,
            rest: (!is_plain).then(|| Box::new(Rest { subscription_ids, shared })),
        }
    }

    pub(crate) fn place(&self) -> Option<NonZeroU64> {
        self.place
    }

    pub(crate) fn source(&self) -> &Source {
        &self.message
    }

    /// The message is in the store, and so much is known of it.
    pub(crate) fn set_known(&mut self, known: Known) {
        if let Source::Store { cost, .. } = &mut self.message {
            (*cost, self.lasts) = (known.cost, known.lasts);
        }
    }

    /// The message is in memory.
    pub(crate) fn set_message(&mut self, message: Arc<Message>) {
        self.message = Source::Here(OfflineCharge::of(message));
    }

    /// Bytes that it takes without its message.
    fn own_bytes(&self) -> usize {
        // Who holds a message at rest counts with it.
        if matches!(self.message, Source::Store { .. }) { size_of::<Self>() } else { 0 }
    }

    fn load(&self) -> QueueUsage {
        match &self.message {
            Source::Store { cost, .. } => usage_of_stored(*cost as usize, self.qos),
            Source::Here(resting) => usage_of_qos(resting.message(), self.qos),
        }
    }

    /// When it expires, if the broker recovered at `recovered_at`; up to a second later if nobody has read it.
    fn expires_at(&self, recovered_at: Instant) -> Option<Instant> {
        match &self.message {
            Source::Store { .. } => {
                let seconds = self.lasts?.get() - 1;
                recovered_at.checked_add(Duration::from_secs(seconds.into()))
            }
            Source::Here(resting) => resting.message().expires_at,
        }
    }

    /// As [`Delivery::waits_since`], if that is `at_start` of what began to wait at the start.
    fn waits_since(&self, at_start: Option<NonZeroU32>) -> Option<NonZeroU32> {
        // There is no number for what waits since long before: the first of them is too old.
        let since = at_start?.get().saturating_sub(self.waited);
        NonZeroU32::new(since).or(Some(NonZeroU32::MIN))
    }

    /// The delivery of the message, on the control stream [BQ-42], at rest until it is gone: its client was away.
    pub(crate) fn into_delivery(self, message: Arc<Message>) -> Delivery {
        let Self { place, priority, qos, retain, rest, message: _, lasts: _, waited: _ } = self;
        let (subscription_ids, shared) = match rest {
            Some(rest) => (rest.subscription_ids, rest.shared),
            None => (SubscriptionIds::None, None),
        };
        let stored = place;
        let of = Delivery::of(message);
        let mut delivery = Delivery { qos, retain, subscription_ids, priority, shared, stored, ..of };
        delivery.rest();
        delivery
    }

    /// The delivery, if its message is in memory.
    fn present(self) -> Option<Delivery> {
        let Source::Here(resting) = &self.message else { return None };
        let message = resting.message().clone();
        Some(self.into_delivery(message))
    }
}

impl Laned for StoredEntry {
    fn lane(&self) -> Lane {
        Lane { stream: StreamKey::CONTROL, priority: self.priority } // [BQ-42]
    }
}

/// What a shelf takes in memory, as long as it is there.
#[derive(Debug)]
struct MemoryReservation {
    memory: Arc<Memory>,
    bytes: usize,
}

impl MemoryReservation {
    fn pay(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.note_shelved(bytes, 0);
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.memory.note_shelved(0, bytes);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.memory.note_shelved(0, self.bytes);
    }
}

/// What is shelved for a session. It is older than whatever came since.
#[derive(Debug)]
pub(crate) struct StoredQueue {
    pile: EvictableQueue<StoredEntry>,
    load: QueueUsage,
    toll: MemoryReservation,
    /// When the store was recovered.
    recovered_at: Instant,
    /// The same as [`Delivery::waits_since`]; `None` if nothing ever is too old.
    at_start: Option<NonZeroU32>,
    /// When the first of what was shelved expires.
    expires_from: Option<Instant>,
}

impl StoredQueue {
    pub(crate) fn new(
        shelved: Vec<StoredEntry>,
        recovered_at: Instant,
        at_start: Option<NonZeroU32>,
        memory: Arc<Memory>,
    ) -> Self {
        let (mut pile, mut load) = (EvictableQueue::with_capacity(shelved.len()), QueueUsage::default());
        let mut toll = MemoryReservation { memory, bytes: 0 };
        let expires_from = shelved.iter().filter_map(|one| one.expires_at(recovered_at)).min();
        for one in shelved {
            load.add(one.load());
            toll.pay(one.own_bytes());
            pile.push_back(one);
        }
        Self { pile, load, toll, recovered_at, at_start, expires_from }
    }

    pub(crate) fn load(&self) -> QueueUsage {
        self.load
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.load.messages == 0
    }

    /// When the first of it expired or expires, of all that it began with.
    pub(crate) fn expires_from(&self) -> Option<Instant> {
        self.expires_from
    }

    /// A copy of everything, to be read.
    pub(crate) fn list(&mut self) -> Vec<StoredEntry> {
        self.pile.queue().iter().cloned().collect()
    }

    /// The least urgent lane that `accepts` takes.
    pub(crate) fn least(&mut self, accepts: impl Fn(Lane) -> bool) -> Option<Lane> {
        self.pile.least(accepts)
    }

    /// Takes out the oldest of the least urgent lane that `accepts` takes: its load, and its place in the store.
    pub(crate) fn displace(
        &mut self,
        accepts: impl Fn(Lane) -> bool,
    ) -> Option<(QueueUsage, Option<NonZeroU64>)> {
        let displaced = self.pile.displace(accepts)?;
        let load = displaced.load();
        self.load.subtract(load);
        self.toll.give_back(displaced.own_bytes());
        Some((load, displaced.place))
    }

    /// Takes out what `is_over`, and says of each what it was.
    pub(crate) fn remove(
        &mut self,
        is_over: impl Fn(Terms) -> bool,
        mut note: impl FnMut(QueueUsage, Option<NonZeroU64>),
    ) {
        let Self { pile, load, toll, recovered_at, at_start, expires_from: _ } = self;
        pile.retain(|one| {
            let expires_at = one.expires_at(*recovered_at);
            let waits_since = one.waits_since(*at_start);
            let is_over = is_over(Terms { qos: one.qos, waits_since, expires_at });
            if is_over {
                load.subtract(one.load());
                toll.give_back(one.own_bytes());
                note(one.load(), one.place);
            }
            !is_over
        });
    }

    /// Everything as deliveries in their order, of what was read; and the places of what was not.
    pub(crate) fn into_deliveries(
        mut self,
        mut read: HashMap<NonZeroU64, Delivery>,
    ) -> (VecDeque<Delivery>, Vec<NonZeroU64>) {
        let mut missing = Vec::new();
        let at_start = self.at_start;
        let mut deliver = |one: StoredEntry| {
            let (place, waits_since) = (one.place, one.waits_since(at_start));
            let found = place.and_then(|place| read.remove(&place)).or_else(|| one.present());
            if found.is_none() {
                missing.extend(place);
            }
            found.map(|delivery| Delivery { waits_since, ..delivery })
        };
        let deliveries = self.pile.take().into_iter().filter_map(&mut deliver).collect();
        (deliveries, missing)
    }

    /// The deliveries whose messages are in memory: those of shared subscriptions are among them.
    pub(crate) fn into_present(mut self) -> impl Iterator<Item = Delivery> {
        let at_start = self.at_start;
        let present = move |one: StoredEntry| {
            let waits_since = one.waits_since(at_start);
            one.present().map(|delivery| Delivery { waits_since, ..delivery })
        };
        self.pile.take().into_iter().filter_map(present)
    }
}
