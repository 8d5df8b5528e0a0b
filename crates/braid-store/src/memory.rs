//! Store in memory, for `durability = "memory"` and for tests that restart a broker over it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use braid_proto::packet::ClientId;

use crate::change::{Batch, Change, Ownership};
use crate::completion::{Commit, Completion};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds, SessionId};
use crate::index::Index;
use crate::message::{LazyMessage, QueueEntry, StoredMessage};
use crate::recovery::Recover;
use crate::store::Store;
use crate::write_set::{Inflight, Write, WriteSet};

/// A [`Store`] in memory. Every commit is done when it returns; messages are shared with the live ones, not
/// copied.
pub struct MemoryStore {
    /// A std mutex: held for the map operations of one batch, never across a wait. The order of locking is the order of
    /// commits.
    state: Arc<Mutex<State>>,
    id: StoreId,
}

/// Identifies one of the store values over one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoreId(u64);

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::over(Arc::default())
    }

    /// Another value over the same state, as after a restart of the broker, or of another node of a cluster.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self::over(Arc::clone(&self.state))
    }

    fn over(state: Arc<Mutex<State>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { state, id: StoreId(NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Fails the store once a thread panicked with the lock: it may have applied a part of a batch.
    fn lock(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let failed = |_| StoreError::Failed { reason: "a thread panicked while it changed the store".into() };
        self.state.lock().map_err(failed)
    }
}

impl Store for MemoryStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        Ok(self.lock()?.recover(into, self.id))
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        Completion::Done(self.lock().map(|mut state| state.claim(client_id, self.id)))
    }

    fn commit(&self, batch: Batch) -> Commit {
        Completion::Done(self.lock().and_then(|mut state| state.commit(batch, self.id)))
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        Completion::Done(self.lock().map(|state| {
            let message = |lsn| state.rows.messages.get(lsn)?.value().cloned();
            lsns.iter().map(message).collect()
        }))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        for (lsn, message) in self.lock()?.rows.messages.values() {
            show(*lsn, LazyMessage::of(message.clone()));
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("id", &self.id.0).finish_non_exhaustive()
    }
}

/// Everything that is stored.
struct State {
    index: Index,
    /// All rows: a write set without tables below.
    rows: WriteSet,
    /// Store value that owns each session.
    owners: BTreeMap<SessionId, StoreId>,
}

/// Ownership as one of the store values over the state sees it.
struct OwnershipView<'a>(&'a State, StoreId);

impl Ownership for OwnershipView<'_> {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.0.index.session_of(client_id)
    }

    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool {
        if !self.0.index.has_session(session) {
            return false;
        }
        let is_own = self.0.owners.get(&session) == Some(&self.1);
        let current = self.0.index.claim_of(session);
        claim.map_or(!is_own, |claim| claim < current || (claim == current && !is_own))
    }
}

impl State {
    fn recover(&mut self, into: &mut dyn Recover, store: StoreId) -> NextIds {
        let Self { index, rows, owners } = self;
        for (&id, record) in rows.sessions.values() {
            if owners.insert(id, store) != Some(store) {
                index.reclaim(id);
            }
            into.session(record.clone(), index.claim_of(id));
            let Some(rows) = rows.session_rows.get(&id) else { continue };
            for (filter, subscription) in rows.subscriptions.values() {
                into.subscription(id, filter.clone(), *subscription);
            }
            if let Some(will) = rows.will.as_ref().and_then(Write::value) {
                into.will(id, Arc::clone(will));
            }
            for (packet_id, exchanges) in rows.received.values() {
                into.received(id, *packet_id, *exchanges);
            }
        }
        let mut inflight: Vec<_> = rows.inflight.values().collect();
        inflight.sort_unstable_by_key(|(_, inflight)| inflight.step);
        for (key, Inflight { packet_id, .. }) in inflight {
            let entry = match rows.queue.get(key).and_then(Write::value) {
                Some(delivery) => QueueEntry::Sent(*packet_id, delivery.clone()),
                None => QueueEntry::Released(*packet_id),
            };
            into.queued(key.1, key.0, entry);
        }
        for (key, delivery) in rows.queue.values().filter(|(key, _)| rows.inflight.get(key).is_none()) {
            into.queued(key.1, key.0, QueueEntry::Waiting(delivery.clone()));
        }
        for (topic, message) in rows.retained.values() {
            into.retained(topic.clone(), *message);
        }
        index.next()
    }

    fn claim(&mut self, client_id: &ClientId, store: StoreId) -> Claim {
        if let Some(session) = self.index.session_of(client_id) {
            self.owners.insert(session, store);
        }
        self.index.claim(client_id)
    }

    fn commit(&mut self, batch: Batch, store: StoreId) -> Result<(), StoreError> {
        OwnershipView(self, store).check(batch.changes())?;
        // Sessions that the batch may open, keep or end. Decided after it: it may reuse the id of one that it ends.
        let mut touched = Vec::new();
        for change in batch.changes().iter().filter(|change| change.claim().is_some()) {
            touched.extend(change.session());
            if let Change::Opened { client_id, .. } = change {
                touched.extend(self.index.session_of(client_id));
            }
        }
        self.index.apply(batch, &mut self.rows);
        for session in touched {
            if self.index.has_session(session) {
                self.owners.insert(session, store);
            } else {
                self.owners.remove(&session);
            }
        }
        Ok(())
    }
}

impl Default for State {
    fn default() -> Self {
        let index = Index::new(Claim::new(0), NextIds::FIRST);
        Self { index, rows: WriteSet::complete(), owners: BTreeMap::new() }
    }
}
