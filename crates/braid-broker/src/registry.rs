//! Registry of sessions, by Client Identifier and by key, and the entry of each: its queue, and the owner of its state.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use braid_auth::identity::Identity;
use braid_proto::packet::{ClientId, Will};
use braid_proto::session::{Session, SessionExpiry};
use braid_router::Overlap;
use braid_store::{Claim, SessionId};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::lock_order::{self, Ordered, Rank};
use crate::queue::session_queue::SessionQueue;
use crate::retained::RetainedCursor;
use crate::view::ConnectionSummary;

/// Ordered, so that a walk over all sessions can go on where it released the lock.
type ByKey = BTreeMap<SessionKey, Arc<SessionEntry>>;
type ByClient = HashMap<ClientId, Arc<SessionEntry>>;

/// Sessions in one piece of [`Registry::pieces`].
const ENTRIES_AT_ONCE: usize = 1024;

/// All sessions, with or without a connection.
///
/// Poison of its locks is ignored: each critical section is one call of a map, so a panic leaves a whole map.
#[derive(Debug)]
pub(crate) struct Registry {
    /// [MQTT-3.1.3-2]
    by_client: Mutex<ByClient>,
    by_key: RwLock<ByKey>,
    /// Number of sessions, readable without a lock.
    len: AtomicUsize,
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
            len: AtomicUsize::new(0),
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

    /// All sessions in pieces of at most [`ENTRIES_AT_ONCE`], for callers that lock their queues. The registry is
    /// locked for one piece at a time; sessions that are added meanwhile have greater keys and are visited as well.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Vec<Arc<SessionEntry>>> {
        let mut after = None;
        std::iter::from_fn(move || {
            let piece = self.piece(after, ENTRIES_AT_ONCE);
            after = Some(piece.last()?.key);
            Some(piece)
        })
    }

    /// At most `count` sessions with greater keys than `after`, in the order of their keys. Keys are never used again:
    /// walks by them meet no session twice, and each that is there throughout.
    pub(crate) fn piece(&self, after: Option<SessionKey>, count: usize) -> Vec<Arc<SessionEntry>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.entries();
        entries.range((from, Bound::Unbounded)).take(count).map(|(_, entry)| entry.clone()).collect()
    }

    /// Number of sessions. Takes no lock.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn entries_mut(&self) -> Ordered<RwLockWriteGuard<'_, ByKey>> {
        Ordered::acquire(Rank::Registry, || self.by_key.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn clients(&self) -> Ordered<MutexGuard<'_, ByClient>> {
        Ordered::acquire(Rank::Registry, || self.by_client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn claims(&self) -> Ordered<MutexGuard<'_, HashMap<ClientId, Arc<tokio::sync::Mutex<()>>>>> {
        Ordered::acquire(Rank::Leaf, || self.claims.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Identifier for a session that is about to be made.
    pub(crate) fn next_session(&self) -> SessionId {
        SessionId::new(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// The session with this identifier.
    pub(crate) fn find_by_id(&self, id: SessionId) -> Option<Arc<SessionEntry>> {
        self.entries().get(&SessionKey(id.value())).cloned()
    }

    /// Creates a session for a client that has none, owned by `connection`.
    pub(crate) fn create(&self, client_id: &ClientId, connection: ConnectionId) -> Arc<SessionEntry> {
        let key = SessionKey(self.next_session().value());
        let entry = Arc::new(SessionEntry::new(key, client_id.clone(), connection));
        entry.queue.open();
        self.insert(&entry);
        entry
    }

    /// Adds a session.
    pub(crate) fn insert(&self, entry: &Arc<SessionEntry>) {
        self.clients().insert(entry.client_id.clone(), entry.clone());
        let mut entries = self.entries_mut();
        entries.insert(entry.key, entry.clone());
        self.len.store(entries.len(), Ordering::Relaxed);
    }

    /// Removes a session, and the client unless it has another session by now.
    pub(crate) fn remove(&self, entry: &Arc<SessionEntry>) {
        if let Entry::Occupied(current) = self.clients().entry(entry.client_id.clone())
            && Arc::ptr_eq(current.get(), entry)
        {
            current.remove();
        }
        let mut entries = self.entries_mut();
        let removed = entries.remove(&entry.key);
        self.len.store(entries.len(), Ordering::Relaxed);
        drop(entries);
        drop(removed);
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

/// Identifier of a session, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u64);

/// Identifier of a connection, never used again. The late clean-up of a displaced connection finds another one in the
/// entry and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// Session as other tasks see it: the queue, which every publisher pushes to, and the owner of the state.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(crate) key: SessionKey,
    pub(crate) client_id: ClientId,
    pub(crate) queue: SessionQueue,
    /// MQTT 5: several matches become one delivery.
    merges: AtomicBool,
    /// The store knows the session. Set before anything can be pushed, and never unset.
    durable: AtomicBool,
    /// Another node has the session by now.
    lost: AtomicBool,
    /// The store has a Will of the session.
    has_stored_will: AtomicBool,
    /// The store's claim of the present or last connection.
    claim: AtomicU64,
    /// Number of the present disconnection, 0 while connected: a timer of an earlier one is stale. Written with `owner`
    /// locked.
    disconnect_epoch: AtomicU64,
    /// Identity that claimed the session last; `None` if it was stored by a version that did not store it.
    identity: Mutex<Option<Identity>>,
    observed: Observed,
    owner: Mutex<SessionOwner>,
}

/// Facts about a session and its connection, for operators and for the choice of a victim when memory is short. They
/// guard nothing: relaxed atomics, and a lock that no message takes.
#[derive(Debug)]
struct Observed {
    /// Bytes that the connection holds outside of the queue: in flight, and of incomplete packets.
    holdings: AtomicUsize,
    /// Bytes that the connection has written, or read of incomplete packets.
    moved: AtomicU64,
    presence: Mutex<Presence>,
    /// Session Expiry Interval, seconds.
    expiry: AtomicU32,
    /// Subscriptions, and 32 bits below them inflight messages to the client.
    counts: AtomicU64,
    /// Deliveries that were dropped.
    dropped: AtomicU64,
}

/// Connection of a session, or the time since which it has none.
#[derive(Clone, Debug)]
pub(crate) enum Presence {
    Connected(Arc<ConnectionSummary>),
    /// `None`: the connection is being decided about, or ended before the start of the broker.
    Disconnected(Option<Instant>),
}

/// Owner of the session's state, which is moved and never shared.
#[derive(Debug)]
pub(crate) enum SessionOwner {
    /// A connection, and the channel to one that takes over from it.
    Connection(ConnectionId, Option<oneshot::Sender<ReleasedSession>>),
    /// None: the client is disconnected.
    Parked(Box<ReleasedSession>),
    /// The session has ended.
    Ended,
}

/// State of a session that has no connection.
#[derive(Debug)]
pub(crate) struct ReleasedSession {
    pub(crate) session: Session,
    /// A Will whose delay has not passed.
    pub(crate) will: Option<Will>,
    /// Positions in the retained messages that its subscriptions have not received yet.
    pub(crate) pending_retained: Vec<RetainedCursor>,
}

impl SessionEntry {
    pub(crate) fn new(key: SessionKey, client_id: ClientId, connection: ConnectionId) -> Self {
        Self {
            key,
            client_id,
            queue: SessionQueue::default(),
            merges: AtomicBool::new(false),
            durable: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            has_stored_will: AtomicBool::new(false),
            claim: AtomicU64::new(0),
            disconnect_epoch: AtomicU64::new(0),
            identity: Mutex::default(),
            observed: Observed {
                holdings: AtomicUsize::new(0),
                moved: AtomicU64::new(0),
                presence: Mutex::new(Presence::Disconnected(None)),
                expiry: AtomicU32::new(0),
                counts: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
            },
            owner: Mutex::new(SessionOwner::Connection(connection, None)),
        }
    }

    // Poison of both locks is ignored: the values are replaced whole, so a panic leaves the old one or the new one.

    /// Identity that claimed the session last; `None` if it was stored by a version that did not store it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Ordered::acquire(Rank::Leaf, || self.identity.lock().unwrap_or_else(PoisonError::into_inner)).clone()
    }

    pub(crate) fn set_identity(&self, identity: &Identity) {
        let lock = || self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        *Ordered::acquire(Rank::Leaf, lock) = Some(identity.clone());
    }

    /// Connection of the session, or the time since which it has none.
    pub(crate) fn presence(&self) -> Presence {
        let lock = || self.observed.presence.lock().unwrap_or_else(PoisonError::into_inner);
        Ordered::acquire(Rank::Leaf, lock).clone()
    }

    /// Time for which the client has been disconnected, where this broker saw it go.
    pub(crate) fn disconnected_for(&self, now: Instant) -> Option<Duration> {
        let Presence::Disconnected(since) = self.presence() else { return None };
        Some(now.saturating_duration_since(since?))
    }

    pub(crate) fn set_presence(&self, presence: Presence) {
        let lock = || self.observed.presence.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *Ordered::acquire(Rank::Leaf, lock), presence);
        drop(before);
    }

    /// Session Expiry Interval, as last agreed.
    pub(crate) fn expiry(&self) -> SessionExpiry {
        SessionExpiry::from_secs(self.observed.expiry.load(Ordering::Relaxed))
    }

    /// Records what operators see of a session.
    pub(crate) fn observe(&self, session: &Session) {
        let count = |len: usize| u64::from(u32::try_from(len).unwrap_or(u32::MAX));
        let counts = count(session.subscriptions.len()) << 32 | count(session.outbound.len());
        self.observed.counts.store(counts, Ordering::Relaxed);
        self.observed.expiry.store(session.expiry.as_secs(), Ordering::Relaxed);
    }

    /// Number of subscriptions, and of inflight messages to the client, at the end of the last turn.
    pub(crate) fn counts(&self) -> (u32, u32) {
        let counts = self.observed.counts.load(Ordering::Relaxed);
        (
            u32::try_from(counts >> 32).unwrap_or(u32::MAX),
            u32::try_from(counts & u64::from(u32::MAX)).unwrap_or(u32::MAX),
        )
    }

    /// Counts deliveries that were dropped.
    pub(crate) fn note_dropped(&self, deliveries: u64) {
        if deliveries > 0 {
            self.observed.dropped.fetch_add(deliveries, Ordering::Relaxed);
        }
    }

    /// Deliveries that were dropped since the session began, or since the start of the broker.
    pub(crate) fn dropped(&self) -> u64 {
        self.observed.dropped.load(Ordering::Relaxed)
    }

    /// Locks the owner, for moves of values.
    pub(crate) fn owner(&self) -> Ordered<MutexGuard<'_, SessionOwner>> {
        Ordered::acquire(Rank::Owner, || self.owner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn disconnect_epoch(&self) -> u64 {
        self.disconnect_epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disconnect_epoch(&self, disconnect_epoch: u64) {
        self.disconnect_epoch.store(disconnect_epoch, Ordering::Relaxed);
    }

    /// Records the bytes that the connection holds outside of the queue, and has moved.
    pub(crate) fn set_holdings(&self, bytes: usize, moved: u64) {
        self.observed.holdings.store(bytes, Ordering::Relaxed);
        self.observed.moved.store(moved, Ordering::Relaxed);
    }

    /// Bytes that are held for a connected client, and would be free or at rest if it were not connected.
    pub(crate) fn used(&self) -> usize {
        // A queue whose lock is held for long must not keep new sessions out of the registry.
        lock_order::assert_none_held();
        self.queue.used().saturating_add(self.observed.holdings.load(Ordering::Relaxed))
    }

    /// Bytes that the connection has written, or read of incomplete packets.
    pub(crate) fn moved(&self) -> u64 {
        self.observed.moved.load(Ordering::Relaxed)
    }

    /// Identifier of the session in the store.
    pub(crate) fn id(&self) -> SessionId {
        SessionId::new(self.key.0)
    }

    /// Tests whether the store knows the session, and so what is queued for it.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// Marks the session as one that another node has by now.
    pub(crate) fn set_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether another node has the session by now: then nothing of it may be published or stored here.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Marks the session as known to the store, under this claim.
    pub(crate) fn set_durable(&self, claim: Claim) {
        self.claim.store(claim.value(), Ordering::Relaxed);
        self.durable.store(true, Ordering::Relaxed);
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::new(self.claim.load(Ordering::Relaxed))
    }

    /// Marks whether the store has a Will of the session.
    pub(crate) fn set_stored_will(&self, has_stored_will: bool) {
        self.has_stored_will.store(has_stored_will, Ordering::Relaxed);
    }

    /// Unmarks the Will in the store; true if there was one, which the caller must clear there.
    pub(crate) fn take_stored_will(&self) -> bool {
        self.has_stored_will.swap(false, Ordering::Relaxed)
    }

    /// Rule for several matches of one message.
    pub(crate) fn overlap(&self) -> Overlap {
        if self.merges.load(Ordering::Relaxed) { Overlap::Merge } else { Overlap::Separate }
    }

    pub(crate) fn set_merges(&self, merges: bool) {
        self.merges.store(merges, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_all_sessions_locks_the_registry_for_one_piece_at_a_time() {
        let registry = Registry::new(SessionId::new(1));
        let create =
            |number: usize| registry.create(&ClientId::from(number.to_string().as_str()), ConnectionId(1));
        let first: Vec<_> = (0..2 * ENTRIES_AT_ONCE + 1).map(create).collect();
        let (mut visited, mut added) = (Vec::new(), None);
        for piece in registry.pieces() {
            assert!(piece.len() <= ENTRIES_AT_ONCE);
            visited.extend(piece.iter().map(|entry| entry.key));
            // Locks the registry itself.
            added.get_or_insert_with(|| create(usize::MAX));
            registry.remove(&first[2 * ENTRIES_AT_ONCE]);
        }
        let expected = first[..2 * ENTRIES_AT_ONCE].iter().chain(&added).map(|entry| entry.key);
        assert_eq!(visited, expected.collect::<Vec<_>>());
    }

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
        {
            let mut second = std::pin::pin!(registry.claim_turn(&client));
            assert!(futures_poll(second.as_mut()).await.is_none());
            drop(first);
            let third = std::pin::pin!(registry.claim_turn(&client));
            assert!(futures_poll(third).await.is_none(), "the second one is before it");
            assert!(futures_poll(second).await.is_some());
        }
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
