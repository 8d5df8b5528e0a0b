//! Owner of what all session queues share: their policy, the counts and log lines of dropped messages, and their
//! removal from the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::packet::ClientId;

use crate::clock::now;
use crate::lock_order::{Ordered, Rank};
use crate::log_throttle::LogThrottle;
use crate::memory::Memory;
use crate::persist::{self, Persist};
use crate::queue::policy::QueuePolicy;
use crate::queue::session_queue::{Expired, PushOutcome};
use crate::queue::stored::{StoredEntry, StoredQueue};
use crate::registry::SessionEntry;
use crate::statistics::{Counter, Statistics};

/// Queues and messages that one turn of [`SessionQueues::expire`] looks at before other tasks get theirs.
const EXPIRY_BUDGET: usize = 4096;

/// Policy and accounting of all session queues.
pub(crate) struct SessionQueues {
    pub(crate) policy: QueuePolicy,
    statistics: Arc<Statistics>,
    memory: Arc<Memory>,
    /// Throttle of the warning that the queues of all offline clients together are full. A std Mutex: it is locked when
    /// a message is dropped, for a comparison. Poisoning does no harm: each change leaves a valid value.
    offline_log: Mutex<LogThrottle>,
}

impl SessionQueues {
    pub(crate) fn new(policy: QueuePolicy, statistics: Arc<Statistics>, memory: Arc<Memory>) -> Self {
        Self { policy, statistics, memory, offline_log: Mutex::default() }
    }

    fn offline_log(&self) -> Ordered<MutexGuard<'_, LogThrottle>> {
        Ordered::acquire(Rank::Leaf, || self.offline_log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pushes deliveries to a session, as [`SessionQueue::push`](crate::queue::session_queue::SessionQueue::push) does,
    /// and counts those that were dropped. The caller deletes `lost` from the store.
    pub(crate) fn push(
        &self,
        entry: &SessionEntry,
        deliveries: impl Iterator<Item = Delivery>,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) -> PushOutcome {
        let outcome = entry.queue.push(deliveries, &self.policy, now, wakers);
        if outcome.dropped > 0 {
            self.note(entry, &outcome);
        }
        outcome
    }

    /// Puts messages that a connection did not send back into the queue of its session.
    pub(crate) fn restore(&self, entry: &SessionEntry, unsent: VecDeque<Delivery>, persist: &Persist) {
        let outcome = entry.queue.park(unsent, &self.policy, now());
        self.note(entry, &outcome);
        persist.commit_late(persist::completed(entry.id(), outcome.lost));
    }

    /// Fills the queue of a session with the entries that the store has for it.
    pub(crate) fn set_stored(
        &self,
        entry: &SessionEntry,
        stored: Vec<StoredEntry>,
        recovered_at: Instant,
        persist: &Persist,
    ) {
        let at_start = self.policy.enqueued_at(recovered_at);
        let stored = StoredQueue::new(stored, recovered_at, at_start, self.memory.clone());
        let (expired, outcome) = entry.queue.set_stored(stored, &self.policy, now());
        self.drop_expired(entry, expired, persist);
        self.note(entry, &outcome);
        persist.commit_late(persist::completed(entry.id(), outcome.lost));
    }

    /// Drops messages that have expired or waited for too long, of all sessions. Yields to other tasks after every
    /// [`EXPIRY_BUDGET`] queues and messages.
    pub(crate) async fn expire(
        &self,
        sessions: impl Iterator<Item = Vec<Arc<SessionEntry>>>,
        persist: &Persist,
    ) {
        self.end_offline_overflow();
        if !self.policy.take_expiring() && !self.policy.has_age() {
            return;
        }
        let mut visited = 0;
        for entry in sessions.flatten() {
            let expired = entry.queue.expire(&self.policy, now());
            visited += 1 + expired.visited;
            self.drop_expired(&entry, expired, persist);
            if visited >= EXPIRY_BUDGET {
                visited = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    fn drop_expired(&self, entry: &SessionEntry, expired: Expired, persist: &Persist) {
        let Expired { expired, aged, may_expire, visited: _ } = expired;
        if may_expire {
            self.policy.note_expiring();
        }
        entry.note_dropped(expired.messages() + aged.messages());
        self.statistics.add(Counter::MessagesDropped, expired.messages());
        self.note_aged(aged.messages());
        let lsns = expired.lsns.into_iter().chain(aged.lsns);
        persist.commit_late(persist::completed(entry.id(), lsns));
    }

    fn note(&self, entry: &SessionEntry, outcome: &PushOutcome) {
        entry.note_dropped(outcome.dropped);
        self.statistics.add(Counter::MessagesDropped, outcome.dropped);
        self.statistics.add(Counter::MessagesOverflowed, outcome.overflowed);
        self.statistics.add(Counter::ClientsOverwhelmed, u64::from(outcome.disconnects));
        log_overflow(&entry.client_id, outcome.log);
        if outcome.crowded > 0 {
            self.note_offline_overflow(outcome.crowded);
        }
    }

    /// Counts messages that a connection evicted of its egress queue. `log`: the number to log, if a line is due.
    pub(crate) fn note_trimmed(&self, entry: &SessionEntry, dropped: u64, log: Option<u64>) {
        entry.note_dropped(dropped);
        self.statistics.add(Counter::MessagesDropped, dropped);
        self.statistics.add(Counter::MessagesOverflowed, dropped);
        log_overflow(&entry.client_id, log);
    }

    /// Counts messages that waited for too long.
    pub(crate) fn note_aged(&self, messages: u64) {
        self.statistics.add(Counter::MessagesDropped, messages);
        self.statistics.add(Counter::MessagesOutdated, messages);
    }

    fn note_offline_overflow(&self, dropped: u64) {
        self.statistics.add(Counter::MessagesCrowdedOut, dropped);
        let mut log = self.offline_log();
        if let Some(dropped) = log.note(dropped, now()) {
            let queued = self.memory.queued();
            tracing::warn!(
                queued,
                dropped,
                "the queues of all offline clients together are full (limits.resting_bytes): messages are dropped"
            );
        }
    }

    fn end_offline_overflow(&self) {
        if !self.memory.has_offline_room() {
            return;
        }
        let mut log = self.offline_log();
        if let Some(dropped) = log.end() {
            let queued = self.memory.queued();
            tracing::info!(queued, dropped, "the queues of all offline clients together have room again");
        }
    }
}

fn log_overflow(client: &ClientId, dropped: Option<u64>) {
    if let Some(dropped) = dropped {
        let client = client.as_str();
        tracing::warn!(
            client,
            dropped,
            "messages did not fit into the queue of a session (limits.queued_messages, limits.queued_bytes)"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use braid_store::{Lsn, MemoryStore};

    use super::*;
    use crate::config::LimitsConfig;
    use crate::registry::{ConnectionId, SessionKey};

    /// A search through many queues does not keep a runtime thread from other tasks.
    #[tokio::test]
    async fn expiry_of_many_queues_yields_to_other_tasks() {
        let limits = LimitsConfig { queued_secs: 60, ..LimitsConfig::default() };
        let memory = Arc::new(Memory::new(&limits));
        let policy = QueuePolicy::new(&limits, now(), memory.clone());
        let queues = SessionQueues::new(policy, Arc::default(), memory);
        let persist = Persist::new(Arc::new(MemoryStore::new()), Lsn::new(1));
        let entry = |key| SessionEntry::new(SessionKey(key), "client".into(), ConnectionId(1));
        let entries: Vec<_> = (0..3 * EXPIRY_BUDGET as u64).map(|key| Arc::new(entry(key))).collect();
        let mut expire = pin!(queues.expire(std::iter::once(entries), &persist));
        let mut context = Context::from_waker(Waker::noop());
        let turns = (1..100).find(|_| expire.as_mut().poll(&mut context).is_ready());
        assert_eq!(turns, Some(4));
    }
}
