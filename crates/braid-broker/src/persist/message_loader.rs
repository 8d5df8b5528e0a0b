//! Loader of stored messages into memory.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::Arc;

use braid_proto::decoder::Spool;
use braid_proto::message::{MemoryAccount, Message};
use braid_proto::topic::TopicName;
use braid_store::{Lsn, Now, StoredMessage};

use crate::memory::Memory;

/// Turns stored messages into live ones: shares topics, accounts for memory.
#[derive(Debug)]
pub(crate) struct MessageLoader {
    /// A queue of a thousand messages has a handful of topics, which share their names as live messages do.
    topics: HashSet<TopicName>,
    unspooled: Unspooled,
    memory: Arc<Memory>,
    account: Arc<dyn MemoryAccount>,
}

impl MessageLoader {
    /// A loader that accounts in `memory`; large messages belong into `spool`, if there is one.
    pub(crate) fn new(spool: Option<&Arc<dyn Spool>>, memory: &Arc<Memory>) -> Self {
        let unspooled = Unspooled { from: spool.map(|spool| spool.threshold()), ..Unspooled::default() };
        Self { topics: HashSet::new(), unspooled, memory: memory.clone(), account: memory.account() }
    }

    /// The live message of a stored one.
    pub(crate) fn live(&mut self, lsn: Lsn, stored: StoredMessage, now: Now) -> Arc<Message> {
        let mut message = stored.live(now);
        drop(stored);
        // A message that the store shares was charged before.
        if let Some(message) = Arc::get_mut(&mut message) {
            self.share_topic(message);
            self.unspooled.note(message);
            self.memory.charge_one(&self.account, message);
        }
        if let Some(number) = NonZeroU64::new(lsn.value()) {
            message.set_lsn(number);
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

    /// Logs the large messages that are not in the spool.
    pub(crate) fn log_unspooled(&self) {
        self.unspooled.log();
    }
}

/// Count of large messages that are in the heap instead of the spool.
#[derive(Debug, Default)]
struct Unspooled {
    /// Payload size above which a message is large.
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

    fn log(&self) {
        let Self { messages, bytes, .. } = *self;
        if messages > 0 {
            tracing::warn!(messages, bytes, "large messages are in memory: the spool has no room for them");
        }
    }
}
