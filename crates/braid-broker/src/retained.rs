//! Retained messages (MQTT 3.3.1.3).

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use braid_auth::publisher::Publisher;
use braid_proto::message::{Message, SharedMessage};
use braid_proto::session::Subscription;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Retained, Walked};
use braid_store::{Change, Commit, Lsn};
use hashbrown::HashMap;

use crate::auth::{Permitted, is_broker_topic};
use crate::clock;
use crate::limit::Limit;
use crate::lock_order::{Ordered, Rank};
use crate::memory::Memory;
use crate::persist::Persist;
use crate::queue::usage::{QueueLimits, heap_cost, message_cost};

/// Expired messages that one call of [`RetainedMessages::expire`] removes.
const EXPIRED_AT_ONCE: usize = 1024;

/// Position of a new subscription in the retained messages that it receives. [MQTT-3.3.1-9]
///
/// A subscription may match a million of them. They are not collected: each turn of its connection visits some and goes
/// on when the client has taken them, so that no other connection waits and no queue overflows. While the client is
/// disconnected the cursor is kept with the session.
#[derive(Debug)]
pub(crate) struct RetainedCursor {
    pub(crate) filter: TopicFilter,
    pub(crate) subscription: Subscription,
    /// Topic at which the last piece ended.
    pub(crate) after: Option<TopicName>,
}

/// Retained message and its publisher.
#[derive(Debug)]
pub(crate) struct RetainedMessage {
    pub(crate) message: SharedMessage,
    /// `None` if it is not known: then the message is always permitted.
    publisher: Option<Arc<Publisher>>,
    /// Last answer whether the publisher may publish the message: twice the generation of the rules, and one more if it
    /// was yes. Where a reload has changed no rule yet, a SUBSCRIBE of `#` asks nothing.
    answer: AtomicU64,
    /// `None` if it was retained before the start of the broker.
    since: Option<Instant>,
}

/// Value of `RetainedMessage::answer` before the first question: the highest generation does not come.
const NOT_ASKED: u64 = u64::MAX;

impl RetainedMessage {
    /// Message that was permitted just now. `None`: the publisher is not known.
    pub(crate) fn new(message: SharedMessage, publisher: Option<Permitted>) -> Self {
        let answer =
            publisher.as_ref().map_or(NOT_ASKED, |permitted| encode_answer(permitted.generation, true));
        let publisher = publisher.map(|permitted| permitted.publisher);
        Self { message, publisher, answer: AtomicU64::new(answer), since: Some(clock::now()) }
    }

    /// Message of a store, about whose publisher nothing was asked yet.
    pub(crate) const fn stored(message: SharedMessage, publisher: Option<Arc<Publisher>>) -> Self {
        Self { message, publisher, answer: AtomicU64::new(NOT_ASKED), since: None }
    }

    /// Message that was retained just now at another node, about whose publisher nothing was asked here.
    fn arrived(message: SharedMessage, publisher: Option<Arc<Publisher>>) -> Self {
        Self { since: Some(clock::now()), ..Self::stored(message, publisher) }
    }

    /// Time at which it was retained; `None` if that was before the start of the broker.
    pub(crate) const fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Publisher; `None` if it is not known.
    pub(crate) fn publisher(&self) -> Option<&Publisher> {
        self.publisher.as_deref()
    }

    /// Whether the rules of this generation permit the message to its publisher; `Err`: the publisher, about whom they
    /// have not been asked.
    pub(crate) fn is_permitted(&self, generation: Option<u64>) -> Result<bool, &Arc<Publisher>> {
        let (Some(publisher), Some(generation)) = (&self.publisher, generation) else { return Ok(true) };
        // Relaxed: the answer guards no other memory.
        let answer = self.answer.load(Ordering::Relaxed);
        match [true, false].into_iter().find(|is| answer == encode_answer(generation, *is)) {
            Some(is_permitted) => Ok(is_permitted),
            None => Err(publisher),
        }
    }
}

/// Publishers of retained messages, by their text: all messages of one share it, which counts once.
#[derive(Debug, Default)]
struct Publishers(HashMap<Arc<str>, CountedPublisher>);

#[derive(Debug)]
struct CountedPublisher {
    publisher: Arc<Publisher>,
    messages: usize,
}

impl Publishers {
    /// Bytes that one more message of a publisher takes.
    fn cost_of_one_more(&self, publisher: Option<&Arc<Publisher>>) -> usize {
        let publisher = publisher.filter(|publisher| !self.0.contains_key(publisher.encoded()));
        publisher.map_or(0, |publisher| publisher.cost())
    }

    /// Counts one more message of a publisher, and returns the shared one.
    fn add(&mut self, publisher: Arc<Publisher>) -> Arc<Publisher> {
        let text = publisher.encoded().clone();
        let counted = self.0.entry(text).or_insert(CountedPublisher { publisher, messages: 0 });
        counted.messages += 1;
        counted.publisher.clone()
    }

    /// Removes one message of a publisher, and returns the bytes that are free now.
    fn remove(&mut self, publisher: &Publisher) -> usize {
        let Some(counted) = self.0.get_mut(publisher.encoded()) else { return 0 };
        counted.messages -= 1;
        if counted.messages > 0 {
            return 0;
        }
        self.0.remove(publisher.encoded());
        publisher.cost()
    }
}

const fn encode_answer(generation: u64, is_permitted: bool) -> u64 {
    generation.wrapping_mul(2).wrapping_add(is_permitted as u64)
}

/// The retained message of each topic. They belong to no session. [MQTT3-3.1.2-7]
#[derive(Debug)]
pub(crate) struct RetainedMessages {
    index: RwLock<Index>,
    capacity: QueueLimits,
    /// Number of messages after the last change, readable without the lock.
    len: AtomicUsize,
}

#[derive(Debug)]
struct Index {
    messages: Retained<RetainedMessage>,
    publishers: Publishers,
    /// Topics of messages with a Message Expiry Interval, by deadline.
    expiring: BTreeSet<(Instant, TopicName)>,
    /// Approximate bytes of all messages and publishers.
    bytes: usize,
    memory: Arc<Memory>,
}

impl Index {
    fn insert(&mut self, mut retained: RetainedMessage) {
        self.bytes += self.cost_of_insertion(&retained);
        retained.publisher = retained.publisher.map(|publisher| self.publishers.add(publisher));
        let message = retained.message.clone();
        message.begin_offline();
        self.memory.note_retained(resting_bytes(&message), 0);
        if let Some(at) = message.expires_at {
            self.expiring.insert((at, message.topic.clone()));
        }
        if let Some(old) = self.messages.insert(message.topic.clone(), retained) {
            self.end_offline(&old, message.expires_at);
        }
    }

    /// False: there was none.
    fn remove(&mut self, topic: &TopicName) -> bool {
        let old = self.messages.remove(topic);
        if let Some(old) = &old {
            self.end_offline(old, None);
        }
        old.is_some()
    }

    /// Accounts for a message that is no longer retained; `replaced_until` is the deadline of its successor.
    fn end_offline(&mut self, old: &RetainedMessage, replaced_until: Option<Instant>) {
        let of_publisher = old.publisher.as_ref().map_or(0, |publisher| self.publishers.remove(publisher));
        let old = &old.message;
        self.bytes -= message_cost(old) + of_publisher;
        old.end_offline();
        self.memory.note_retained(0, resting_bytes(old));
        if let Some(at) = old.expires_at.filter(|at| Some(*at) != replaced_until) {
            self.expiring.remove(&(at, old.topic.clone()));
        }
    }

    fn cost_of_insertion(&self, retained: &RetainedMessage) -> usize {
        message_cost(&retained.message) + self.publishers.cost_of_one_more(retained.publisher.as_ref())
    }

    /// Tests whether a message can be inserted. The publisher of the one that it replaces counts as if it stayed.
    ///
    /// # Errors
    /// The limit that it would exceed.
    fn check_room(&self, retained: &RetainedMessage, capacity: QueueLimits) -> Result<(), Limit> {
        let old = self.messages.get(&retained.message.topic).map(|old| message_cost(&old.message));
        let bytes = self.bytes - old.unwrap_or(0) + self.cost_of_insertion(retained);
        if old.is_none() && self.messages.len() >= capacity.messages {
            Err(Limit::RetainedMessages)
        } else if bytes > capacity.bytes {
            Err(Limit::RetainedBytes)
        } else {
            Ok(())
        }
    }
}

/// Bytes of a retained message that count as at rest.
fn resting_bytes(message: &Message) -> usize {
    if message.is_charged() { heap_cost(message) } else { 0 }
}

impl RetainedMessages {
    pub(crate) fn new(capacity: QueueLimits, memory: Arc<Memory>) -> Self {
        let index = Index {
            messages: Retained::default(),
            publishers: Publishers::default(),
            expiring: BTreeSet::new(),
            bytes: 0,
            memory,
        };
        Self { index: RwLock::new(index), capacity, len: AtomicUsize::new(0) }
    }

    // Poison is ignored: the index of names is changed by single inserts and removes. A panic between them and the sums
    // leaves a sum that is off by one message, which counts memory and guards none.
    fn read(&self) -> Ordered<RwLockReadGuard<'_, Index>> {
        Ordered::acquire(Rank::Leaf, || self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> Ordered<RwLockWriteGuard<'_, Index>> {
        Ordered::acquire(Rank::Leaf, || self.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a change, which excludes all others until [`Retaining::commit`].
    pub(crate) fn change<'a>(&'a self, persist: &'a Persist) -> Retaining<'a> {
        Retaining {
            index: self.write(),
            len: &self.len,
            capacity: self.capacity,
            persist,
            changes: Vec::new(),
        }
    }

    /// Tests whether a message can be retained, as far as is known before it is.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub(crate) fn check_room(&self, message: &SharedMessage) -> Result<(), Limit> {
        let retained = RetainedMessage::stored(message.clone(), None);
        let is_removal = message.payload.is_empty() || is_broker_topic(&message.topic);
        if is_removal { Ok(()) } else { self.read().check_room(&retained, self.capacity) }
    }

    /// Restores what the store held; expired messages are removed by the next [`RetainedMessages::expire`].
    pub(crate) fn restore(&self, messages: impl IntoIterator<Item = RetainedMessage>) {
        let mut index = self.write();
        messages.into_iter().for_each(|message| index.insert(message));
        self.len.store(index.messages.len(), Ordering::Relaxed);
    }

    /// Notes answers about messages of [`RetainedMessages::walk`], by the rules of a generation.
    pub(crate) fn note_answers<'a>(
        &self,
        generation: u64,
        answers: impl IntoIterator<Item = (&'a SharedMessage, bool)>,
    ) {
        let index = self.read();
        for (message, is_permitted) in answers {
            let retained = index.messages.get(&message.topic);
            // Another one may have replaced it meanwhile.
            if let Some(retained) =
                retained.filter(|retained| SharedMessage::ptr_eq(&retained.message, message))
            {
                retained.answer.store(encode_answer(generation, is_permitted), Ordering::Relaxed);
            }
        }
    }

    /// Visits messages that a filter matches: those after `after`, looking at no more than `steps` names.
    pub(crate) fn walk(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        steps: usize,
        mut visit: impl FnMut(&RetainedMessage) -> ControlFlow<()>,
    ) -> Walked {
        self.read().messages.walk(filter, after, steps, |_, message| visit(message))
    }

    /// Messages with one of these numbers. Looks at all that are retained.
    pub(crate) fn find(&self, lsns: &HashSet<Lsn>) -> Vec<(Lsn, SharedMessage)> {
        let index = self.read();
        let messages = index.messages.iter().map(|(_, retained)| &retained.message);
        let numbered = messages.filter_map(|message| Some((Lsn::new(message.lsn()?.get()), message)));
        let found = numbered.filter(|(lsn, _)| lsns.contains(lsn));
        found.map(|(lsn, message)| (lsn, message.clone())).collect()
    }

    /// Removes some expired messages, the earliest first; false when none is left. Costs as much as it removes.
    pub(crate) fn expire(&self, now: Instant, persist: &Persist) -> bool {
        let is_due = |index: &Index| index.expiring.first().is_some_and(|(at, _)| *at <= now);
        // Readers are not stopped for nothing.
        if !is_due(&self.read()) {
            return false;
        }
        let mut cleared = Vec::new();
        let mut index = self.write();
        while cleared.len() < EXPIRED_AT_ONCE
            && is_due(&index)
            && let Some((_, topic)) = index.expiring.pop_first()
        {
            index.remove(&topic);
            cleared.push(Change::RetainCleared { topic });
        }
        // Under the lock: a message that is retained meanwhile must be committed after this.
        persist.commit_late(cleared);
        self.len.store(index.messages.len(), Ordering::Relaxed);
        is_due(&index)
    }

    /// Tests whether a topic has a message.
    pub(crate) fn has(&self, topic: &TopicName) -> bool {
        self.read().messages.get(topic).is_some()
    }

    /// Number of retained messages. Takes no lock.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// Changes of retained messages that are committed together.
///
/// They are committed while no other change is possible: otherwise two publishers to one topic could leave one message
/// here and the other in the store.
pub(crate) struct Retaining<'a> {
    index: Ordered<RwLockWriteGuard<'a, Index>>,
    len: &'a AtomicUsize,
    capacity: QueueLimits,
    persist: &'a Persist,
    changes: Vec<Change>,
}

impl Retaining<'_> {
    /// Retains a message with RETAIN: it replaces the topic's message [MQTT-3.3.1-5], and an empty payload removes
    /// it [MQTT-3.3.1-6], [MQTT-3.3.1-7].
    ///
    /// # Errors
    /// The limit that it would exceed. Nothing has changed.
    pub(crate) fn set(&mut self, message: &SharedMessage, publisher: Option<Permitted>) -> Result<(), Limit> {
        let topic = &message.topic;
        if message.payload.is_empty() {
            self.remove(topic);
            return Ok(());
        }
        // The broker's own topics describe its present run only: no store has them.
        let is_stored = !is_broker_topic(topic);
        let publisher_text = publisher.as_ref().map(|permitted| permitted.publisher.encoded().clone());
        let retained = RetainedMessage::new(message.clone(), publisher);
        // They are few as well, and known before any of a client's.
        if is_stored {
            self.index.check_room(&retained, self.capacity)?;
        }
        self.index.insert(retained);
        if is_stored {
            self.persist.retain(&mut self.changes, message, publisher_text);
        }
        Ok(())
    }

    /// Retains a message that comes from the log, unless there is a later one already, by `is_later` of its number and
    /// that of the other. Its room was checked where it was published.
    pub(crate) fn set_arrived(
        &mut self,
        message: &SharedMessage,
        publisher: Option<Arc<Publisher>>,
        is_later: impl Fn(Lsn, Lsn) -> bool,
    ) {
        let known = self.index.messages.get(&message.topic).and_then(|known| known.message.lsn());
        let lsn = |number: NonZeroU64| Lsn::new(number.get());
        if known.zip(message.lsn()).is_some_and(|(known, arrived)| !is_later(lsn(arrived), lsn(known))) {
            return;
        }
        if message.payload.is_empty() {
            self.remove(&message.topic);
        } else {
            self.index.insert(RetainedMessage::arrived(message.clone(), publisher));
        }
    }

    /// Removes the message of a topic. False: there is none.
    pub(crate) fn remove(&mut self, topic: &TopicName) -> bool {
        let removed = self.index.remove(topic);
        if removed && !is_broker_topic(topic) {
            self.changes.push(Change::RetainCleared { topic: topic.clone() });
        }
        removed
    }

    /// Hands the changes to the store; `None` when there are none.
    pub(crate) fn commit(self) -> Option<Commit> {
        self.len.store(self.index.messages.len(), Ordering::Relaxed);
        (!self.changes.is_empty()).then(|| self.persist.commit(self.changes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use braid_auth::identity::Identity;
    use braid_proto::packet::{ClientId, QoS};
    use braid_store::MemoryStore;

    use super::*;
    use crate::config::LimitsConfig;

    fn message(topic: &str, expires_at: Option<Instant>) -> SharedMessage {
        let topic = TopicName::parse(topic).unwrap();
        let mut message = Message::new(topic, "x", QoS::AtMostOnce, true);
        message.expires_at = expires_at;
        SharedMessage::new(message)
    }

    fn retain(retained: &RetainedMessages, persist: &Persist, message: &SharedMessage) {
        let mut change = retained.change(persist);
        assert_eq!(change.set(message, None), Ok(()));
        drop(change.commit());
    }

    fn publisher(name: &str) -> Permitted {
        let identity = Identity::named(name);
        let publisher = Arc::new(Publisher::new(&identity, ClientId::from(name), false));
        Permitted { publisher, generation: 0 }
    }

    /// Random messages of publishers with long names, each made anew as by another connection, against a sum over all.
    #[test]
    fn publishers_are_shared_by_their_messages_and_count_once() {
        const CAPACITY: usize = 300_000;
        let names = ["a", "b", "c", "d"].map(|name| name.repeat(20_000));
        let memory = Arc::new(Memory::new(&LimitsConfig::default()));
        let retained = RetainedMessages::new(QueueLimits { messages: 1000, bytes: CAPACITY }, memory);
        let persist = Persist::new(Arc::new(MemoryStore::new()), Lsn::new(1));
        let mut random = fastrand::Rng::with_seed(1);
        let mut model: BTreeMap<String, (usize, Option<usize>)> = BTreeMap::new();
        let sum = |model: &BTreeMap<String, (usize, Option<usize>)>| {
            let used: BTreeSet<_> = model.values().filter_map(|(_, by)| *by).collect();
            let of_messages: usize = model.values().map(|(cost, _)| cost).sum();
            of_messages + used.into_iter().map(|by| publisher(&names[by]).publisher.cost()).sum::<usize>()
        };
        let mut outcomes = [0; 2];
        for _ in 0..2000 {
            let topic = format!("t/{}", random.u8(..6));
            if random.u8(..4) == 0 {
                retained.change(&persist).index.remove(&TopicName::parse(&topic).unwrap());
                model.remove(&topic);
            } else {
                let by = Some(random.usize(..=names.len())).filter(|by| *by < names.len());
                let payload = vec![0; random.usize(1..40_000)];
                let name = TopicName::parse(&topic).unwrap();
                let message = Message::new(name, payload, QoS::AtMostOnce, true);
                let mut after = model.clone();
                after.insert(topic.clone(), (message_cost(&message), by));
                // The publisher of a replaced message counts as if it stayed.
                let mut both = after.clone();
                both.extend(model.get(&topic).map(|(_, by)| ("replaced".to_owned(), (0, *by))));
                let has_room = sum(&both) <= CAPACITY;
                let set = retained
                    .change(&persist)
                    .set(&SharedMessage::new(message), by.map(|by| publisher(&names[by])));
                assert_eq!(set, if has_room { Ok(()) } else { Err(Limit::RetainedBytes) });
                outcomes[usize::from(has_room)] += 1;
                if has_room {
                    model = after;
                }
            }
            let index = retained.read();
            assert_eq!(index.bytes, sum(&model));
            for counted in index.publishers.0.values() {
                // One in the table, and one for each message.
                assert_eq!(Arc::strong_count(&counted.publisher), 1 + counted.messages);
            }
        }
        assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
    }

    #[test]
    fn expiry_removes_due_messages_in_pieces_and_remembers_no_others() {
        let memory = Arc::new(Memory::new(&LimitsConfig::default()));
        let retained = RetainedMessages::new(QueueLimits { messages: 10_000, bytes: 1 << 30 }, memory);
        let persist = Persist::new(Arc::new(MemoryStore::new()), Lsn::new(1));
        let start = Instant::now();
        let (due, later) = (start + Duration::from_secs(1), start + Duration::from_secs(9));
        for number in 0..2 * EXPIRED_AT_ONCE {
            retain(&retained, &persist, &message(&format!("due/{number}"), Some(due)));
            retain(&retained, &persist, &message(&format!("always/{number}"), None));
        }
        for (topic, expires_at) in [("due/0", Some(later)), ("due/1", None), ("due/2", Some(due))] {
            retain(&retained, &persist, &message(topic, expires_at));
        }
        assert!(!retained.expire(start, &persist), "nothing is due");
        assert!(retained.expire(due, &persist), "there is more than one piece");
        assert_eq!(retained.len(), 3 * EXPIRED_AT_ONCE);
        assert!(!retained.expire(due, &persist));
        assert_eq!(retained.len(), 2 * EXPIRED_AT_ONCE + 2);
        assert_eq!(retained.read().expiring.len(), 1, "only one message can expire");
        retain(&retained, &persist, &message("due/0", None));
        assert!(retained.read().expiring.is_empty());
    }
}
