//! What does not stay in the queue of a session: counted, logged, and taken out of the store.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

use braid_proto::message::Delivery;
use tokio::time::Instant;

use crate::core::Core;
use crate::log_throttle::LogThrottle;
use crate::persist;
use crate::queue::session_queue::{Expired, Pushed};
use crate::queue::stored::{StoredEntry, StoredQueue};
use crate::session_entry::SessionEntry;

impl Core {
    /// Puts what a session's connection left, or what the store had, into its mailbox: the client is away.
    pub(crate) fn refill(&self, entry: &SessionEntry, leftover: VecDeque<Delivery>) {
        let parked = entry.queue.park(leftover, &self.queue_policy, Instant::now().into_std());
        self.note_drops(entry, &parked);
        self.persist.commit_late(persist::completed(entry.id(), parked.lost));
    }

    /// Puts what the store has for a session into its mailbox, which leaves it there: the client is away.
    pub(crate) fn shelve(
        &self,
        entry: &SessionEntry,
        shelved: Vec<StoredEntry>,
        recovered_at: std::time::Instant,
    ) {
        let now = Instant::now().into_std();
        let at_start = self.queue_policy.waits_since(recovered_at);
        let shelf = StoredQueue::new(shelved, recovered_at, at_start, self.memory.clone());
        let (over, parked) = entry.queue.shelve(shelf, &self.queue_policy, now);
        self.drop_over(entry, over);
        self.note_drops(entry, &parked);
        self.persist.commit_late(persist::completed(entry.id(), parked.lost));
    }

    /// Counts what was dropped in a session's queue; says so if it is time.
    pub(crate) fn note_drops(&self, entry: &SessionEntry, pushed: &Pushed) {
        self.statistics.dropped(pushed.dropped);
        self.statistics.overflowed(pushed.overflowed);
        self.statistics.overwhelmed(u64::from(pushed.disconnects));
        self.log_overflow(entry, pushed.log);
        self.note_crowding(pushed.crowded);
    }

    /// So many were dropped because the queues of clients that are away hold too much together.
    fn note_crowding(&self, dropped: u64) {
        if dropped == 0 {
            return;
        }
        self.statistics.crowded(dropped);
        if let Some(dropped) = self.crowding().note(dropped, Instant::now().into_std()) {
            let queued = self.memory.queued();
            tracing::warn!(
                queued,
                dropped,
                "clients that are away have too much waiting: messages are dropped"
            );
        }
    }

    fn crowding(&self) -> MutexGuard<'_, LogThrottle> {
        self.crowding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that there is room again, if something was said before.
    fn end_crowding(&self) {
        if self.memory.is_uncrowded()
            && let Some(dropped) = self.crowding().end()
        {
            let queued = self.memory.queued();
            tracing::info!(queued, dropped, "clients that are away have room for messages again");
        }
    }

    pub(crate) fn log_overflow(&self, entry: &SessionEntry, dropped: Option<u64>) {
        if let Some(dropped) = dropped {
            let client = entry.client_id.as_str();
            tracing::warn!(client, dropped, "messages did not fit into the queue of a session");
        }
    }

    /// Drops what has expired, or waited for too long, for clients that are away.
    pub(crate) fn expire_queues(&self) {
        self.end_crowding();
        if !self.queue_policy.take_expiring() && !self.queue_policy.has_age() {
            return;
        }
        let entries: Vec<_> = self.registry.entries().values().cloned().collect();
        let now = Instant::now().into_std();
        for entry in entries {
            self.drop_over(&entry, entry.queue.expire(&self.queue_policy, now));
        }
    }

    /// Counts what has expired or waited for too long, and takes it out of the store.
    fn drop_over(&self, entry: &SessionEntry, over: Expired) {
        let Expired { expired, outdated, may_expire } = over;
        if may_expire {
            self.queue_policy.note_expiring();
        }
        self.statistics.dropped(expired.load.messages as u64);
        self.note_expired(outdated.load.messages as u64);
        let places = expired.places.into_iter().chain(outdated.places);
        self.persist.commit_late(persist::completed(entry.id(), places));
    }

    /// So many messages have waited for too long.
    pub(crate) fn note_expired(&self, messages: u64) {
        self.statistics.dropped(messages);
        self.statistics.outdated(messages);
    }
}
