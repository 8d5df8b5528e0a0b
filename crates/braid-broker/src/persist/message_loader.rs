//! Messages that a store gives back, as they arrive in memory.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use braid_proto::codec::Spool;
use braid_proto::message::{Account, Message};
use braid_proto::topic::TopicName;
use braid_store::{Lsn, Now, StoredMessage};

use crate::memory::Memory;

/// What is done with each of them.
#[derive(Debug)]
pub(super) struct MessageLoader {
    /// A queue of a thousand messages is of a handful of topics: they share the names, as live messages do.
    topics: HashSet<TopicName>,
    unspooled: Unspooled,
    memory: Arc<Memory>,
    account: Arc<dyn Account>,
}

impl MessageLoader {
    /// They count in `memory`, and large ones belong into `spool`, if there is one.
    pub(super) fn new(spool: Option<&Arc<dyn Spool>>, memory: &Arc<Memory>) -> Self {
        let unspooled = Unspooled { from: spool.map(|spool| spool.threshold()), ..Unspooled::default() };
        Self { topics: HashSet::new(), unspooled, memory: memory.clone(), account: memory.clone() }
    }

    /// The live message of what is stored under a number.
    pub(super) fn live(&mut self, lsn: Lsn, stored: StoredMessage, now: Now) -> Arc<Message> {
        let mut message = stored.live(now);
        drop(stored);
        // What a store shares with us was here before.
        if let Some(message) = Arc::get_mut(&mut message) {
            self.share_topic(message);
            self.unspooled.note(message);
            self.memory.charge_one(&self.account, message);
        }
        if let Some(number) = NonZeroU64::new(lsn.value()) {
            message.set_stored(number);
        }
        message
    }

    fn share_topic(&mut self, message: &mut Message) {
        match self.topics.get(&message.topic) {
            Some(topic) => message.topic = topic.clone(),
            None => {
                self.topics.insert(message.topic.clone());
            }
        }
    }

    /// Logs what is not where it belongs.
    pub(super) fn tell(&self) {
        self.unspooled.tell();
    }
}

/// Large messages that came back and are not where they belong.
#[derive(Debug, Default)]
struct Unspooled {
    /// From more bytes of payload on.
    from: Option<usize>,
    messages: u64,
    bytes: u64,
}

impl Unspooled {
    fn note(&mut self, message: &Message) {
        if !message.is_spooled() && self.from.is_some_and(|from| message.payload.len() > from) {
            self.messages += 1;
            self.bytes += message.payload.len() as u64;
        }
    }

    fn tell(&self) {
        let Self { messages, bytes, .. } = *self;
        if messages > 0 {
            tracing::warn!(messages, bytes, "large messages are in memory: the spool has no room for them");
        }
    }
}
