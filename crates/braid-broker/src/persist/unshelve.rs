//! What was left in the store comes into memory once its client is there.

use std::collections::HashMap;
use std::sync::Arc;

use braid_proto::message::Message;
use braid_store::{Lsn, StoreError};

use super::Persist;
use super::message_loader::MessageLoader;
use crate::core::Core;
use crate::queue::stored::Source;
use crate::session_entry::SessionEntry;

/// Others on this thread get their turn after so many messages.
const AT_ONCE: usize = 64;
/// So many bytes of a payload take as long as a message.
const PIECE: usize = 16 << 10;

impl Core {
    /// Reads what is shelved for a session whose client has come: before that nothing of its queue can be taken. What
    /// is displaced or expires meanwhile does not come back.
    ///
    /// # Errors
    /// The store cannot be read. Everything stays where it is.
    pub(crate) async fn unshelve(&self, entry: &SessionEntry) -> Result<(), StoreError> {
        let shelved = entry.queue.stored_entries();
        if shelved.is_empty() {
            return Ok(());
        }
        let mut read = HashMap::with_capacity(shelved.len());
        let mut arrivals = MessageLoader::new(self.server_options.spool.as_ref(), &self.memory);
        let mut steps = 0;
        for one in shelved {
            if steps >= AT_ONCE {
                steps = 0;
                tokio::task::yield_now().await;
            }
            let message = match one.source() {
                Source::Here(resting) => Some(resting.message().clone()),
                Source::Store { lsn, .. } => self.persist.read(*lsn, &mut arrivals).await?,
            };
            steps += 1 + message.as_ref().map_or(0, |message| message.payload.len() / PIECE);
            if let (Some(place), Some(message)) = (one.place(), message) {
                read.insert(place, one.into_delivery(message));
            }
        }
        arrivals.tell();
        let missing = entry.queue.replace_stored(read);
        if !missing.is_empty() {
            let reason =
                format!("messages for session {} are referred to and not there: {missing:?}", entry.id());
            self.persist.complain(&StoreError::Damaged { reason: reason.into() });
        }
        Ok(())
    }
}

impl Persist {
    /// The message that is stored under a number; `None` when nothing refers to it any more.
    async fn read(&self, lsn: Lsn, arrivals: &mut MessageLoader) -> Result<Option<Arc<Message>>, StoreError> {
        let stored = self.store.message(lsn).await.inspect_err(|error| self.complain(error))?;
        Ok(stored.map(|stored| arrivals.live(lsn, stored, self.recovered_at)))
    }
}
