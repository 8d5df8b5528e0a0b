//! Retained messages (MQTT 3.3.1.3).

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use braid_proto::message::{Delivery, Message};
use braid_proto::session::Subscription;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Retained, replay};
use braid_store::{Change, Commit};

use crate::persist::Persist;

/// Topics of the broker itself: what they retain is true for its present life only, so no store has it.
pub(crate) const SYS_PREFIX: &str = "$SYS/";

/// The retained message of each topic. They belong to no session. [MQTT3-3.1.2-7]
#[derive(Debug)]
pub(crate) struct RetainedMessages {
    index: RwLock<Retained<Arc<Message>>>,
    capacity: usize,
}

impl RetainedMessages {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { index: RwLock::new(Retained::new()), capacity }
    }

    fn read(&self) -> RwLockReadGuard<'_, Retained<Arc<Message>>> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Retained<Arc<Message>>> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to change what is retained. Nobody else reads or changes it until [`Retaining::commit`].
    pub(crate) fn change<'a>(&'a self, persist: &'a Persist) -> Retaining<'a> {
        Retaining { index: self.write(), capacity: self.capacity, persist, changes: Vec::new() }
    }

    /// Puts back what the store held; what has expired is forgotten at the next [`RetainedMessages::expire`].
    pub(crate) fn restore(&self, messages: Vec<(TopicName, Arc<Message>)>) {
        let mut index = self.write();
        for (topic, message) in messages {
            index.insert(topic, message);
        }
    }

    /// The deliveries for a new subscription. [MQTT-3.3.1-9]
    pub(crate) fn replay(
        &self,
        filter: &TopicFilter,
        subscription: &Subscription,
        now: Instant,
        out: &mut Vec<Delivery>,
    ) {
        self.read().matching(filter, |_, message| {
            if !message.is_expired(now) {
                out.push(replay(message, subscription));
            }
        });
    }

    /// Forgets what has expired.
    pub(crate) fn expire(&self, now: Instant, persist: &Persist) {
        let any = self.read().iter().any(|(_, message)| message.is_expired(now));
        if !any {
            return;
        }
        let mut cleared = Vec::new();
        let mut index = self.write();
        index.retain(|topic, message| {
            let is_expired = message.is_expired(now);
            if is_expired {
                cleared.push(Change::RetainCleared { topic: topic.clone() });
            }
            !is_expired
        });
        persist.commit_late(cleared);
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }
}

/// Changes to what is retained that are committed together.
///
/// They are committed while nobody else can change anything: otherwise two publishers to one topic could leave
/// one message here and the other in the store.
pub(crate) struct Retaining<'a> {
    index: RwLockWriteGuard<'a, Retained<Arc<Message>>>,
    capacity: usize,
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
            if self.index.remove(topic).is_some() && is_stored {
                self.changes.push(Change::RetainCleared { topic: topic.clone() });
            }
            return true;
        }
        if self.index.len() >= self.capacity && self.index.get(topic).is_none() {
            return false;
        }
        self.index.insert(topic.clone(), message.clone());
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
