//! Retained messages (MQTT 3.3.1.3).

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use braid_proto::message::{Delivery, Message};
use braid_proto::session::Subscription;
use braid_proto::topic::TopicFilter;
use braid_router::{Retained, replay};

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

    /// Takes over a message with RETAIN: it replaces the topic's message [MQTT-3.3.1-5], and an empty payload
    /// removes it [MQTT-3.3.1-6], [MQTT-3.3.1-7]. False: there is no room for another topic.
    pub(crate) fn set(&self, message: &Arc<Message>) -> bool {
        let mut index = self.write();
        if message.payload.is_empty() {
            index.remove(&message.topic);
            return true;
        }
        if index.len() >= self.capacity && index.get(&message.topic).is_none() {
            return false;
        }
        index.insert(message.topic.clone(), message.clone());
        true
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
    pub(crate) fn expire(&self, now: Instant) {
        let any = self.read().iter().any(|(_, message)| message.is_expired(now));
        if any {
            self.write().retain(|_, message| !message.is_expired(now));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }
}
