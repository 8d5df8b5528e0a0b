//! Overflow policy of queues: decides, on values alone, what gives way when a message does not fit.
//!
//! [`Admission`] is for a message that arrives, [`trim`] and [`evicts_oldest`] are for a queue that already holds
//! more than it may. They are the only places that read [`QueueOverflow`]. The queues carry out what is decided here.

use braid_proto::packet::QoS;
use braid_proto::stream::Priority;

use super::usage::{QueueLimits, QueueUsage, is_fair_share};
use crate::config::QueueOverflow;

/// Fate of a message that arrives at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Admit,
    /// Evict these and ask again. If there is nothing to evict, the message is rejected.
    Evict(Eviction),
    Reject,
    /// Reject the message and close the connection of the queue.
    Disconnect,
}

/// Messages to remove from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// All whose Message Expiry Interval has passed.
    Expired,
    /// All of QoS 0.
    Qos0,
    /// The oldest of the lowest priority, if that is not above the priority of the message that arrives.
    Oldest(Victims),
}

/// Messages among which the oldest is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    All,
    /// Those for the stream of the message that arrives.
    SameStream,
    /// Those in memory. Messages in the store alone free hardly any memory.
    InMemory,
}

/// State of a queue, as far as a decision needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupancy<'a> {
    /// Messages in the queue.
    pub(crate) pending: &'a QueueUsage,
    /// Messages that the connection has taken and not sent.
    pub(crate) taken: &'a QueueUsage,
    /// The part of the stream of the message that arrives; `None` while there is only the control stream.
    pub(crate) stream: Option<StreamOccupancy>,
    /// All pending messages are for one stream.
    pub(crate) is_one_stream: bool,
    /// Heap bytes of the pending messages that are in memory.
    pub(crate) evictable_heap_bytes: usize,
    /// The client is offline, and the queues of all offline clients together have no room for the message.
    pub(crate) is_offline_limit_reached: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOccupancy {
    pub(crate) pending: QueueUsage,
    pub(crate) taken: QueueUsage,
}

/// Admission of one message: asked for a decision again after each eviction, until it is admitted or not.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    overflow: QueueOverflow,
    /// The limits for the priority of the message.
    limits: QueueLimits,
    qos: QoS,
    usage: &'a QueueUsage,
    stage: Stage,
    /// The limit of all offline queues was reached when the eviction of the oldest began.
    frees_memory: bool,
    /// Size of the oldest messages that were evicted.
    freed: QueueUsage,
}

/// State of an admission: the messages that the queue may still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// All of them.
    Unchanged,
    /// All but the expired ones.
    WithoutExpired,
    /// Those of QoS 1 and 2 that have not expired.
    WithoutQos0,
    /// The oldest of these are being evicted, one at a time.
    EvictingOldest,
}

impl<'a> Admission<'a> {
    pub(crate) fn new(
        overflow: QueueOverflow,
        limits: QueueLimits,
        (qos, priority): (QoS, Priority),
        usage: &'a QueueUsage,
    ) -> Self {
        let (limits, freed) = (limits.with_reserve(priority), QueueUsage::default());
        Self { overflow, limits, qos, usage, stage: Stage::Unchanged, frees_memory: false, freed }
    }

    /// Notes the size of an oldest message that was evicted.
    pub(crate) fn note_evicted(&mut self, usage: &QueueUsage) {
        self.freed.add(usage);
    }

    /// Whether the oldest messages are evicted for the limit of all offline queues.
    pub(crate) fn frees_memory(&self) -> bool {
        self.frees_memory
    }

    /// Evicts in this order: expired messages, then for QoS 1 and 2 all of QoS 0, then by the policy.
    pub(crate) fn decide(&mut self, occupancy: &Occupancy<'_>) -> Decision {
        match self.stage {
            Stage::EvictingOldest => self.evict_oldest(occupancy),
            _ if self.has_room(occupancy) => Decision::Admit,
            Stage::Unchanged => {
                self.stage = Stage::WithoutExpired;
                Decision::Evict(Eviction::Expired)
            }
            Stage::WithoutExpired if self.qos == QoS::AtMostOnce => Decision::Reject,
            Stage::WithoutExpired => {
                self.stage = Stage::WithoutQos0;
                Decision::Evict(Eviction::Qos0)
            }
            Stage::WithoutQos0 => match self.overflow {
                QueueOverflow::DropNewest => Decision::Reject,
                QueueOverflow::Disconnect => Decision::Disconnect,
                QueueOverflow::DropOldest => {
                    self.stage = Stage::EvictingOldest;
                    self.frees_memory = occupancy.is_offline_limit_reached;
                    // The queue itself must make up for the message, or evictions would be in vain.
                    if self.frees_memory && occupancy.evictable_heap_bytes < self.usage.heap_bytes() {
                        return Decision::Reject;
                    }
                    self.evict_oldest(occupancy)
                }
            },
        }
    }

    /// Without QoS 0, messages of QoS 0 that the connection has taken do not count: it drops them at its next turn.
    fn has_room(&self, occupancy: &Occupancy<'_>) -> bool {
        let without_qos0 = (self.stage == Stage::WithoutQos0).then(|| occupancy.taken.without_qos0());
        let taken = without_qos0.as_ref().unwrap_or(occupancy.taken);
        taken.plus(occupancy.pending).admits(self.usage, self.limits)
            && self.is_fair(occupancy)
            && !occupancy.is_offline_limit_reached
    }

    /// Whether the stream leaves enough for the others with this message, where there are others. [BQ-55]
    fn is_fair(&self, occupancy: &Occupancy<'_>) -> bool {
        let Some(stream) = &occupancy.stream else { return true };
        let mut own = stream.taken.plus(&stream.pending);
        let mut all = occupancy.taken.plus(occupancy.pending);
        if self.qos > QoS::AtMostOnce {
            (own, all) = (own.without_qos0(), all.without_qos0()); // QoS 0 gives way.
        }
        is_fair_share(&own.plus(self.usage), &all.plus(self.usage), self.limits)
    }

    /// Messages that the connection has taken do not count: it evicts them itself at its next turn.
    fn evict_oldest(&self, occupancy: &Occupancy<'_>) -> Decision {
        let Self { limits, usage, ref freed, .. } = *self;
        let fits = occupancy.pending.admits(usage, limits);
        let all = occupancy.pending.plus(usage);
        let own = || occupancy.stream.unwrap_or_default().pending.plus(usage);
        let is_fair = occupancy.is_one_stream || is_fair_share(&own(), &all, limits);
        // Urgent messages may have filled their reserve: then one is evicted for each that arrives.
        let has_bytes = freed.bytes() >= usage.bytes() || all.weight(limits) <= limits.bytes;
        let replaces = !usage.is_large() && !freed.is_empty() && has_bytes;
        let has_room = fits && is_fair || replaces;
        let makes_up = !freed.is_empty() && freed.heap_bytes() >= usage.heap_bytes();
        Decision::Evict(Eviction::Oldest(match (has_room, fits) {
            (true, _) if makes_up || !self.frees_memory => return Decision::Admit,
            (true, _) => Victims::InMemory,
            (false, true) => Victims::SameStream,
            (false, false) => Victims::All,
        }))
    }
}

/// Next eviction for a queue that may hold more than `limits` allow; `None` if nothing has to go.
///
/// `reserve_for`: the priority whose reserve the queue may use.
pub(crate) fn trim(
    overflow: QueueOverflow,
    usage: &QueueUsage,
    limits: QueueLimits,
    reserve_for: Priority,
) -> Option<Eviction> {
    if usage.has_qos0() && usage.exceeds(limits) {
        return Some(Eviction::Qos0);
    }
    let evicts = evicts_oldest(overflow) && usage.exceeds(limits.with_reserve(reserve_for));
    evicts.then_some(Eviction::Oldest(Victims::All))
}

/// Tests whether messages of QoS 1 and 2 that are in a queue may be evicted.
pub(crate) fn evicts_oldest(overflow: QueueOverflow) -> bool {
    overflow == QueueOverflow::DropOldest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: QueueLimits = QueueLimits { messages: 12, bytes: 2 << 20 };

    /// Message of the model. Streams are numbers, the first one is the control stream.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Item {
        number: u32,
        stream: u8,
        priority: u16,
        qos: QoS,
        bytes: usize,
        is_expired: bool,
    }

    impl Item {
        fn usage(&self) -> QueueUsage {
            QueueUsage::of_stored(self.bytes, self.qos)
        }

        fn priority(&self) -> Priority {
            Priority::new(self.priority)
        }
    }

    fn sum<'a>(items: impl IntoIterator<Item = &'a Item>) -> QueueUsage {
        items.into_iter().fold(QueueUsage::default(), |sum, item| sum.plus(&item.usage()))
    }

    /// State of a queue in the model: plain lists.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Model {
        pending: Vec<Item>,
        taken: Vec<Item>,
    }

    impl Model {
        /// Index of the oldest item of the longest lane of the lowest priority.
        fn victim(&self, limit: Priority, stream: Option<u8>) -> Option<usize> {
            let may_go =
                |item: &&Item| item.priority() <= limit && stream.is_none_or(|stream| item.stream == stream);
            let least = self.pending.iter().filter(may_go).map(|item| item.priority).min()?;
            let lane = |stream| {
                self.pending.iter().filter(move |item| item.stream == stream && item.priority == least)
            };
            let is_open = |candidate: &u8| stream.is_none_or(|stream| *candidate == stream);
            let longest = (0..4).rev().filter(is_open).max_by_key(|stream| lane(*stream).count())?;
            let oldest = lane(longest).next()?.number;
            self.pending.iter().position(|item| item.number == oldest)
        }

        fn occupancy_of<'a>(
            &self,
            item: &Item,
            (pending, taken): (&'a QueueUsage, &'a QueueUsage),
        ) -> Occupancy<'a> {
            let of = |items: &[Item]| sum(items.iter().filter(|other| other.stream == item.stream));
            let is_one_stream = self.pending.iter().all(|other| other.stream == self.pending[0].stream);
            let is_control_alone =
                self.pending.iter().chain(&self.taken).chain([item]).all(|item| item.stream == 0);
            let stream = StreamOccupancy { pending: of(&self.pending), taken: of(&self.taken) };
            Occupancy {
                pending,
                taken,
                stream: (!is_control_alone).then_some(stream),
                is_one_stream,
                evictable_heap_bytes: pending.heap_bytes(),
                is_offline_limit_reached: false,
            }
        }

        /// Asks for decisions and carries them out, as a queue does.
        fn push(&mut self, item: Item, overflow: QueueOverflow) -> Decision {
            let usage = item.usage();
            let mut admission = Admission::new(overflow, LIMITS, (item.qos, item.priority()), &usage);
            loop {
                let usages = (sum(&self.pending), sum(&self.taken));
                let occupancy = self.occupancy_of(&item, (&usages.0, &usages.1));
                let decision = admission.decide(&occupancy);
                match decision {
                    Decision::Admit => self.pending.push(item),
                    Decision::Evict(Eviction::Expired) => self.pending.retain(|item| !item.is_expired),
                    Decision::Evict(Eviction::Qos0) => {
                        self.pending.retain(|item| item.qos > QoS::AtMostOnce);
                    }
                    Decision::Evict(Eviction::Oldest(victims)) => {
                        let stream = (victims == Victims::SameStream).then_some(item.stream);
                        let Some(at) = self.victim(item.priority(), stream) else { return Decision::Reject };
                        admission.note_evicted(&self.pending.remove(at).usage());
                    }
                    Decision::Reject | Decision::Disconnect => {}
                }
                if !matches!(decision, Decision::Evict(_)) {
                    return decision;
                }
            }
        }

        /// The rules once more, in a straight line and over plain lists.
        fn push_naively(&mut self, item: Item, overflow: QueueOverflow) -> Decision {
            let limits = LIMITS.with_reserve(item.priority());
            if !self.fits_naively(&item, limits, QoS::AtMostOnce) {
                self.pending.retain(|item| !item.is_expired);
                if !self.fits_naively(&item, limits, QoS::AtMostOnce) {
                    if item.qos == QoS::AtMostOnce {
                        return Decision::Reject;
                    }
                    self.pending.retain(|item| item.qos > QoS::AtMostOnce);
                    if !self.fits_naively(&item, limits, QoS::AtLeastOnce) {
                        match overflow {
                            QueueOverflow::DropNewest => return Decision::Reject,
                            QueueOverflow::Disconnect => return Decision::Disconnect,
                            QueueOverflow::DropOldest if self.evict_naively(&item, limits) => {}
                            QueueOverflow::DropOldest => return Decision::Reject,
                        }
                    }
                }
            }
            self.pending.push(item);
            Decision::Admit
        }

        /// Whether there is room beside the messages of at least this QoS, and the stream keeps to its share.
        fn fits_naively(&self, item: &Item, limits: QueueLimits, from: QoS) -> bool {
            let all = || self.pending.iter().chain(&self.taken);
            let counted = || all().filter(|other| other.qos >= item.qos.min(QoS::AtLeastOnce)).chain([item]);
            let is_mixed = all().chain([item]).any(|item| item.stream > 0);
            has_room_naively(all().filter(|other| other.qos >= from), item, limits)
                && (!is_mixed || is_fair_naively(counted(), item.stream, limits))
        }

        fn evict_naively(&mut self, item: &Item, limits: QueueLimits) -> bool {
            let mut freed = Vec::new();
            loop {
                let fits = has_room_naively(&self.pending, item, limits);
                let with_it = || self.pending.iter().chain([item]);
                let is_mixed = self.pending.iter().any(|other| other.stream != self.pending[0].stream);
                let is_fair = !is_mixed || is_fair_naively(with_it(), item.stream, limits);
                let freed_bytes: usize = freed.iter().map(|freed: &Item| freed.bytes).sum();
                let frees_bytes =
                    freed_bytes >= item.bytes || weight_naively(with_it(), limits) <= limits.bytes;
                let replaces = !freed.is_empty() && frees_bytes && item.bytes <= LARGE;
                if fits && is_fair || replaces {
                    return true;
                }
                let Some(at) = self.victim(item.priority(), fits.then_some(item.stream)) else {
                    return false;
                };
                freed.push(self.pending.remove(at));
            }
        }
    }

    /// Bytes above which a message is large.
    const LARGE: usize = 256 * 1024;

    /// Bytes of small and of large messages.
    fn bytes_naively<'a>(items: impl IntoIterator<Item = &'a Item>) -> (usize, usize) {
        items.into_iter().fold((0, 0), |(small, large), item| match item.bytes {
            bytes if bytes > LARGE => (small, large + bytes),
            bytes => (small + bytes, large),
        })
    }

    /// Large messages count for three quarters of the limit at most.
    fn weight_naively<'a>(items: impl IntoIterator<Item = &'a Item>, limits: QueueLimits) -> usize {
        let (small, large) = bytes_naively(items);
        small + large.min(limits.bytes / 4 * 3)
    }

    fn has_room_naively<'a>(
        items: impl IntoIterator<Item = &'a Item>,
        item: &Item,
        limits: QueueLimits,
    ) -> bool {
        let items: Vec<_> = items.into_iter().collect();
        let (small, large) = bytes_naively(items.iter().copied());
        let has_bytes = match items.len() {
            0 => true,
            _ if item.bytes <= LARGE => {
                weight_naively(items.iter().copied(), limits) + item.bytes <= limits.bytes
            }
            _ if large == 0 => small <= limits.bytes,
            _ => large + item.bytes <= limits.bytes / 4 * 3 && small + large + item.bytes <= limits.bytes,
        };
        has_bytes && items.len() < limits.messages
    }

    /// A stream may hold eight times what is free, and one message in any case.
    fn is_fair_naively<'a>(
        items: impl IntoIterator<Item = &'a Item>,
        stream: u8,
        limits: QueueLimits,
    ) -> bool {
        let all: Vec<_> = items.into_iter().collect();
        let own: Vec<_> = all.iter().copied().filter(|item| item.stream == stream).collect();
        let free_bytes = limits.bytes.saturating_sub(weight_naively(all.iter().copied(), limits));
        let free_messages = (limits.messages + 1).saturating_sub(all.len());
        own.len() <= 1
            || weight_naively(own.iter().copied(), limits) <= 8 * free_bytes && own.len() <= 8 * free_messages
    }

    fn random_item(rng: &mut fastrand::Rng, number: u32, streams: u8) -> Item {
        Item {
            number,
            stream: rng.u8(0..streams),
            priority: [10, 100, 100, 200][rng.usize(0..4)],
            qos: [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][rng.usize(0..3)],
            bytes: [100, 1000, 100_000, 300_000, 3_000_000][rng.usize(0..5)],
            is_expired: rng.u8(0..20) == 0,
        }
    }

    #[test]
    fn random_pushes_agree_with_a_naive_model() {
        let policies = [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect];
        let mut seen = Vec::new();
        for seed in 0..60_usize {
            let mut rng = fastrand::Rng::with_seed(seed as u64);
            let (overflow, streams) = (policies[seed % 3], [1, 1, 4][rng.usize(0..3)]);
            let mut model = Model::default();
            for number in 0..400 {
                if rng.u8(0..12) == 0 {
                    let taken = std::mem::take(&mut model.pending);
                    model.taken.extend(taken);
                }
                if rng.u8(0..3) == 0 && !model.taken.is_empty() {
                    model.taken.remove(0);
                }
                let item = random_item(&mut rng, number, streams);
                let (mut naive, before) = (model.clone(), model.clone());
                let decision = model.push(item, overflow);
                let expected = naive.push_naively(item, overflow);
                assert_eq!((decision, &model), (expected, &naive), "seed {seed}, {item:?}, {before:?}");
                if !seen.contains(&decision) {
                    seen.push(decision);
                }
                let evicted: Vec<_> =
                    before.pending.iter().filter(|old| !model.pending.contains(old)).collect();
                let kept = |old: &&&Item| old.qos > QoS::AtMostOnce && !old.is_expired;
                if item.qos == QoS::AtMostOnce || overflow != QueueOverflow::DropOldest {
                    assert_eq!(evicted.iter().find(|old| kept(old)), None, "seed {seed}");
                }
                assert!(evicted.iter().filter(kept).all(|old| old.priority <= item.priority), "seed {seed}");
            }
        }
        assert_eq!(seen.len(), 3, "admitted, rejected and disconnected: {seen:?}");
    }

    #[test]
    fn drop_newest_evicts_qos0_only() {
        let item = |number, qos| Item { number, stream: 0, priority: 100, qos, bytes: 0, is_expired: false };
        let mut model = Model::default();
        for number in 0..12 {
            let qos = if number % 4 == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
            assert_eq!(model.push(item(number, qos), QueueOverflow::DropNewest), Decision::Admit);
        }
        assert_eq!(model.push(item(12, QoS::AtMostOnce), QueueOverflow::DropNewest), Decision::Reject);
        assert_eq!(model.push(item(13, QoS::AtLeastOnce), QueueOverflow::DropNewest), Decision::Admit);
        let left: Vec<_> = model.pending.iter().map(|item| item.number).collect();
        assert_eq!(left, [1, 2, 3, 5, 6, 7, 9, 10, 11, 13]);
    }

    /// A queue that makes room for the limit of all offline queues frees at least the bytes of the new message.
    #[test]
    fn eviction_for_the_offline_limit_makes_up_for_the_message() {
        let usage = QueueUsage::of_small(1, 300);
        let (pending, taken) = (QueueUsage::of_small(5, 1000), QueueUsage::default());
        let occupancy = Occupancy {
            pending: &pending,
            taken: &taken,
            stream: None,
            is_one_stream: true,
            evictable_heap_bytes: 1000,
            is_offline_limit_reached: true,
        };
        let of = (QoS::AtLeastOnce, Priority::DEFAULT);
        let mut admission = Admission::new(QueueOverflow::DropOldest, LIMITS, of, &usage);
        let from_memory = Decision::Evict(Eviction::Oldest(Victims::InMemory));
        assert_eq!(admission.decide(&occupancy), Decision::Evict(Eviction::Expired));
        assert_eq!(admission.decide(&occupancy), Decision::Evict(Eviction::Qos0));
        for _ in 0..2 {
            assert_eq!(admission.decide(&occupancy), from_memory);
            admission.note_evicted(&QueueUsage::of_small(1, 200));
        }
        assert_eq!(admission.decide(&occupancy), Decision::Admit);
        let mut admission = Admission::new(QueueOverflow::DropOldest, LIMITS, of, &usage);
        let poor = Occupancy { evictable_heap_bytes: 299, ..occupancy };
        let decisions: Vec<_> = (0..3).map(|_| admission.decide(&poor)).collect();
        assert_eq!(decisions[2], Decision::Reject, "it could not make up for the message");
    }
}
