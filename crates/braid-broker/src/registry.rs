//! Registry of sessions, by Client Identifier and by key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use braid_proto::packet::ClientId;
use braid_store::SessionId;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tokio::sync::OwnedMutexGuard;

use crate::lock_order::{Ordered, Rank};
use crate::session_entry::{ConnectionId, SessionEntry, SessionKey};

type ByKey = HashMap<SessionKey, Arc<SessionEntry>>;
type ByClient = HashMap<ClientId, Arc<SessionEntry>>;

/// All sessions, with or without a connection.
///
/// Poison of its locks is ignored: each critical section is one call of a map, so a panic leaves a whole map.
#[derive(Debug)]
pub(crate) struct Registry {
    /// [MQTT-3.1.3-2]
    by_client: Mutex<ByClient>,
    by_key: RwLock<ByKey>,
    next_key: AtomicU64,
    next_connection: AtomicU64,
    /// Clients whose session is being claimed, each with the lock that its claims take one after the other.
    claims: Mutex<HashMap<ClientId, Arc<tokio::sync::Mutex<()>>>>,
}

/// Right to claim the session of one client. Other clients never wait for it.
pub(crate) struct ClaimTurn<'a> {
    registry: &'a Registry,
    client_id: ClientId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Registry {
    /// An empty registry whose keys begin at `next_session`: a session has one identifier here and in the store.
    pub(crate) fn new(next_session: SessionId) -> Self {
        Self {
            by_client: Mutex::default(),
            by_key: RwLock::default(),
            next_key: AtomicU64::new(next_session.value()),
            next_connection: AtomicU64::new(1),
            claims: Mutex::default(),
        }
    }

    pub(crate) fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Locks all sessions by key, for reading.
    pub(crate) fn entries(&self) -> Ordered<RwLockReadGuard<'_, ByKey>> {
        Ordered::acquire(Rank::Registry, || self.by_key.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All sessions, for callers that lock their queues.
    pub(crate) fn snapshot(&self) -> Vec<Arc<SessionEntry>> {
        self.entries().values().cloned().collect()
    }

    fn entries_mut(&self) -> Ordered<RwLockWriteGuard<'_, ByKey>> {
        Ordered::acquire(Rank::Registry, || self.by_key.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn clients(&self) -> Ordered<MutexGuard<'_, ByClient>> {
        Ordered::acquire(Rank::Registry, || self.by_client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClientId, Arc<tokio::sync::Mutex<()>>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tests whether a session of this client is within `limit`. Concurrent claims may exceed it by their number.
    pub(crate) fn has_room_for(&self, client_id: &ClientId, limit: usize) -> bool {
        let clients = self.clients();
        clients.len() < limit || clients.contains_key(client_id)
    }

    /// The present session of a client.
    pub(crate) fn find(&self, client_id: &ClientId) -> Option<Arc<SessionEntry>> {
        self.clients().get(client_id).cloned()
    }

    /// Waits until no other connection claims the session of this client.
    pub(crate) async fn claim_turn(&self, client_id: &ClientId) -> ClaimTurn<'_> {
        let lock = self.claims().entry(client_id.clone()).or_default().clone();
        // Before the wait: a caller that is cancelled in it removes the lock from the map as well.
        let mut turn = ClaimTurn { registry: self, client_id: client_id.clone(), guard: None };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }

    /// Creates a session for a client that has none, owned by `connection`.
    pub(crate) fn create(&self, client_id: &ClientId, connection: ConnectionId) -> Arc<SessionEntry> {
        let key = SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let entry = Arc::new(SessionEntry::new(key, client_id.clone(), connection));
        entry.queue.open();
        self.insert(&entry);
        entry
    }

    /// Adds a session.
    pub(crate) fn insert(&self, entry: &Arc<SessionEntry>) {
        self.clients().insert(entry.client_id.clone(), entry.clone());
        self.entries_mut().insert(entry.key, entry.clone());
    }

    /// Removes a session, and the client unless it has another session by now.
    pub(crate) fn remove(&self, entry: &Arc<SessionEntry>) {
        if let Entry::Occupied(current) = self.clients().entry(entry.client_id.clone())
            && Arc::ptr_eq(current.get(), entry)
        {
            current.remove();
        }
        self.entries_mut().remove(&entry.key);
    }
}

impl Drop for ClaimTurn<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut claims = self.registry.claims();
        // Only the map refers to the lock: no other claim holds or awaits it, and none can begin to meanwhile.
        if claims.get(&self.client_id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            claims.remove(&self.client_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn claims_of_one_client_take_turns_and_leave_no_lock_behind() {
        let registry = Registry::new(SessionId::new(1));
        let client = ClientId::from("client");
        let first = registry.claim_turn(&client).await;
        {
            let second = std::pin::pin!(registry.claim_turn(&client));
            assert!(futures_poll(second).await.is_none(), "the first one has it");
        }
        drop(registry.claim_turn(&ClientId::from("other")).await);
        drop(first);
        assert!(registry.claims().is_empty());
        drop(registry.claim_turn(&client).await);
        assert!(registry.claims().is_empty());
    }

    async fn futures_poll<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
