//! One session in the registry: its queue, and the owner of its state.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_proto::packet::{ClientId, Will};
use braid_proto::session::Session;
use braid_router::Overlap;
use braid_store::{Claim, SessionId};
use tokio::sync::oneshot;

use crate::auth::Identity;
use crate::lock_order::{Ordered, Rank};
use crate::queue::session_queue::SessionQueue;
use crate::retained::RetainedCursor;

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
    /// The store has a Will of the session.
    has_stored_will: AtomicBool,
    /// The store's claim of the present or last connection.
    claim: AtomicU64,
    /// Number of the present disconnection, 0 while connected: a timer of an earlier one is stale. Written with `owner`
    /// locked.
    disconnect_epoch: AtomicU64,
    /// Bytes that the connection holds outside of the queue: in flight, and of incomplete packets.
    holdings: AtomicUsize,
    /// Bytes that the connection has written, or read of incomplete packets.
    moved: AtomicU64,
    /// Identity that claimed the session last; `None` if the broker has started since.
    identity: Mutex<Option<Identity>>,
    owner: Mutex<SessionOwner>,
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
            has_stored_will: AtomicBool::new(false),
            claim: AtomicU64::new(0),
            disconnect_epoch: AtomicU64::new(0),
            holdings: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            identity: Mutex::default(),
            owner: Mutex::new(SessionOwner::Connection(connection, None)),
        }
    }

    // Poison of both locks is ignored: the values are replaced whole, so a panic leaves the old one or the new one.

    /// Identity that claimed the session last; `None` if the broker has started since.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Ordered::acquire(Rank::Leaf, || self.identity.lock().unwrap_or_else(PoisonError::into_inner)).clone()
    }

    pub(crate) fn set_identity(&self, identity: &Identity) {
        let lock = || self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        *Ordered::acquire(Rank::Leaf, lock) = Some(identity.clone());
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
        self.holdings.store(bytes, Ordering::Relaxed);
        self.moved.store(moved, Ordering::Relaxed);
    }

    /// Bytes that are held for a connected client, and would be free or at rest if it were not connected.
    pub(crate) fn used(&self) -> usize {
        self.queue.used().saturating_add(self.holdings.load(Ordering::Relaxed))
    }

    /// Bytes that the connection has written, or read of incomplete packets.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Identifier of the session in the store.
    pub(crate) fn id(&self) -> SessionId {
        SessionId::new(self.key.0)
    }

    /// Tests whether the store knows the session, and so what is queued for it.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
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
