//! Retained messages (MQTT 3.3.1.3).

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use braid_proto::message::Message;
use braid_proto::session::Subscription;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Retained, Walked};
use braid_store::{Change, Commit};

use crate::memory::Memory;
use crate::persist::Persist;
use crate::queue::usage::{QueueLimits, heap_cost, message_cost};

/// Topics of the broker itself: what they retain is true for its present life only, so no store has it.
pub(crate) const SYS_PREFIX: &str = "$SYS/";

/// What a new subscription is still owed of the retained messages. [MQTT-3.3.1-9]
///
/// A subscription may match a million of them. They are not collected: each turn of its connection looks at some and goes on
/// when the client has taken them, so that nobody else waits and no queue overflows. While the client is away they are
/// owed to the session.
#[derive(Debug)]
pub(crate) struct RetainedCursor {
    pub(crate) filter: TopicFilter,
    pub(crate) subscription: Subscription,
    /// Where the last piece ended.
    pub(crate) after: Option<TopicName>,
}

/// The retained message of each topic. They belong to no session. [MQTT3-3.1.2-7]
#[derive(Debug)]
pub(crate) struct RetainedMessages {
    index: RwLock<Index>,
    capacity: QueueLimits,
    /// Some message has an expiry. Without one nobody looks for what has expired.
    may_expire: AtomicBool,
}

#[derive(Debug)]
struct Index {
    messages: Retained<Arc<Message>>,
    /// What they count for, about.
    bytes: usize,
    /// Is told what of it is at rest.
    memory: Arc<Memory>,
}

impl Index {
    fn insert(&mut self, message: &Arc<Message>) {
        self.bytes += message_cost(message);
        message.begin_rest();
        self.memory.note_retained(rest_of(message), 0);
        if let Some(old) = self.messages.insert(message.topic.clone(), message.clone()) {
            self.bytes -= message_cost(&old);
            self.end_rest(&old);
        }
    }

    /// False: there was none.
    fn remove(&mut self, topic: &TopicName) -> bool {
        let old = self.messages.remove(topic);
        self.bytes -= old.as_deref().map_or(0, message_cost);
        if let Some(old) = &old {
            self.end_rest(old);
        }
        old.is_some()
    }

    fn end_rest(&self, old: &Message) {
        old.end_rest();
        self.memory.note_retained(0, rest_of(old));
    }

    fn has_room(&self, message: &Message, capacity: QueueLimits) -> bool {
        let old = self.messages.get(&message.topic).map(|old| message_cost(old));
        let bytes = self.bytes - old.unwrap_or(0) + message_cost(message);
        bytes <= capacity.bytes && (old.is_some() || self.messages.len() < capacity.messages)
    }
}

/// What a retained message counts for while it rests.
fn rest_of(message: &Message) -> usize {
    if message.is_charged() { heap_cost(message) } else { 0 }
}

impl RetainedMessages {
    pub(crate) fn new(capacity: QueueLimits, memory: Arc<Memory>) -> Self {
        let index = Index { messages: Retained::default(), bytes: 0, memory };
        Self { index: RwLock::new(index), capacity, may_expire: AtomicBool::new(false) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to change what is retained. Nobody else reads or changes it until [`Retaining::commit`].
    pub(crate) fn change<'a>(&'a self, persist: &'a Persist) -> Retaining<'a> {
        Retaining { retained: self, index: self.write(), persist, changes: Vec::new() }
    }

    /// Puts back what the store held; what has expired is forgotten at the next [`RetainedMessages::expire`].
    pub(crate) fn restore(&self, messages: Vec<(TopicName, Arc<Message>)>) {
        let mut index = self.write();
        for (_, message) in messages {
            self.note_expiry(&message);
            index.insert(&message);
        }
    }

    fn note_expiry(&self, message: &Message) {
        if message.expires_at.is_some() {
            self.may_expire.store(true, Ordering::Relaxed);
        }
    }

    /// Visits some of what a filter matches: behind `after`, and at most `steps` names.
    pub(crate) fn walk(
        &self,
        filter: &TopicFilter,
        after: Option<&TopicName>,
        steps: usize,
        mut visit: impl FnMut(&Arc<Message>) -> ControlFlow<()>,
    ) -> Walked {
        self.read().messages.walk(filter, after, steps, |_, message| visit(message))
    }

    /// Forgets what has expired.
    pub(crate) fn expire(&self, now: Instant, persist: &Persist) {
        if !self.may_expire.load(Ordering::Relaxed) {
            return;
        }
        let any = self.read().messages.iter().any(|(_, message)| message.is_expired(now));
        if !any {
            return;
        }
        let mut cleared = Vec::new();
        let mut freed = 0;
        let mut index = self.write();
        let Index { messages, bytes, memory } = &mut *index;
        messages.retain(|topic, message| {
            let is_expired = message.is_expired(now);
            if is_expired {
                freed += message_cost(message);
                message.end_rest();
                memory.note_retained(0, rest_of(message));
                cleared.push(Change::RetainCleared { topic: topic.clone() });
            }
            !is_expired
        });
        *bytes -= freed;
        persist.commit_late(cleared);
    }

    pub(crate) fn len(&self) -> usize {
        self.read().messages.len()
    }
}

/// Changes to what is retained that are committed together.
///
/// They are committed while nobody else can change anything: otherwise two publishers to one topic could leave
/// one message here and the other in the store.
pub(crate) struct Retaining<'a> {
    retained: &'a RetainedMessages,
    index: RwLockWriteGuard<'a, Index>,
    persist: &'a Persist,
    changes: Vec<Change>,
}

impl Retaining<'_> {
    /// Takes over a message with RETAIN: it replaces the topic's message [MQTT-3.3.1-5], and an empty payload
    /// removes it [MQTT-3.3.1-6], [MQTT-3.3.1-7]. False: there is no room for another topic.
    pub(crate) fn set(&mut self, message: &Arc<Message>) -> bool {
        let topic = &message.topic;
        let is_stored = !topic.as_str().starts_with(SYS_PREFIX);
        if message.payload.is_empty() {
            if self.index.remove(topic) && is_stored {
                self.changes.push(Change::RetainCleared { topic: topic.clone() });
            }
            return true;
        }
        // The broker's own topics are few, and known before anybody else's.
        if is_stored && !self.index.has_room(message, self.retained.capacity) {
            return false;
        }
        self.retained.note_expiry(message);
        self.index.insert(message);
        if is_stored {
            self.persist.retain(&mut self.changes, message);
        }
        true
    }

    /// Hands the changes to the store; `None` when there are none.
    pub(crate) fn commit(self) -> Option<Commit> {
        (!self.changes.is_empty()).then(|| self.persist.commit(self.changes))
    }
}
