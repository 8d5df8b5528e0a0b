//! A session's place in the registry.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use braid_proto::packet::{ClientId, Will};
use braid_proto::session::Session;
use braid_router::Overlap;
use braid_store::{Claim, SessionId};
use tokio::sync::oneshot;

use crate::queue::session_queue::SessionQueue;
use crate::retained::RetainedCursor;

/// Names a session for as long as it lives; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u64);

/// Names a connection. A late clean-up of a displaced connection has the wrong one and is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// A session's place: its mailbox, which everybody may push to, and who holds its state.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(crate) key: SessionKey,
    pub(crate) client_id: ClientId,
    pub(crate) queue: SessionQueue,
    /// The client speaks MQTT 5: several matches become one delivery.
    merges: AtomicBool,
    /// The store is told of the session. Set before anything can be pushed, and never unset.
    durable: AtomicBool,
    /// The store has a Will of the session.
    has_stored_will: AtomicBool,
    /// Under which the store is told of the session's life: that of its present or last connection.
    claim: AtomicU64,
    /// Number of the present disconnection, 0 while connected: a timer of an earlier one is stale. Written
    /// with `holder` locked.
    disconnect_epoch: AtomicU64,
    /// Bytes of memory that its connection holds beside the mailbox: on their way, and in parts.
    holdings: AtomicUsize,
    /// Bytes that its connection has written, or read of packets in parts.
    moved: AtomicU64,
    owner: Mutex<SessionOwner>,
}

/// Who holds the session's state. It is moved from one to the other, never shared.
#[derive(Debug)]
pub(crate) enum SessionOwner {
    /// A connection, and who wants to take over from it.
    Connection(ConnectionId, Option<oneshot::Sender<Released>>),
    /// Nobody: the client is away.
    Parked(Box<Parked>),
    /// The session has ended.
    Ended,
}

/// A session without a connection.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) session: Session,
    /// A Will whose delay has not passed.
    pub(crate) will: Option<Will>,
    /// What its subscriptions have not got of the retained messages.
    pub(crate) pending_retained: Vec<RetainedCursor>,
}

/// What a connection that was taken over from leaves.
#[derive(Debug)]
pub(crate) struct Released {
    /// `None`: the session ended with the connection.
    pub(crate) session: Option<Session>,
    /// A Will whose delay has not passed.
    pub(crate) will: Option<Will>,
    /// What its subscriptions have not got of the retained messages.
    pub(crate) pending_retained: Vec<RetainedCursor>,
}

impl Released {
    /// Nothing is left.
    pub(crate) const NOTHING: Self = Self { session: None, will: None, pending_retained: Vec::new() };
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
            owner: Mutex::new(SessionOwner::Connection(connection, None)),
        }
    }

    /// Held for a few moves of values, never across an await.
    pub(crate) fn owner(&self) -> MutexGuard<'_, SessionOwner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn disconnect_epoch(&self) -> u64 {
        self.disconnect_epoch.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disconnect_epoch(&self, disconnect_epoch: u64) {
        self.disconnect_epoch.store(disconnect_epoch, Ordering::Relaxed);
    }

    /// Notes what the connection holds beside the mailbox, and how much it has moved.
    pub(crate) fn set_holdings(&self, bytes: usize, moved: u64) {
        self.holdings.store(bytes, Ordering::Relaxed);
        self.moved.store(moved, Ordering::Relaxed);
    }

    /// Bytes that are held for a client that is connected, and would be free or at rest if it were not.
    pub(crate) fn used(&self) -> usize {
        self.queue.used().saturating_add(self.holdings.load(Ordering::Relaxed))
    }

    /// Bytes that its connection has written, or read of packets in parts.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// The session's name in the store.
    pub(crate) fn id(&self) -> SessionId {
        SessionId::new(self.key.0)
    }

    /// Whether the store is told of the session, and so of what is queued for it.
    pub(crate) fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Relaxed)
    }

    /// From now on the store is told of the session, under this claim.
    pub(crate) fn set_durable(&self, claim: Claim) {
        self.claim.store(claim.value(), Ordering::Relaxed);
        self.durable.store(true, Ordering::Relaxed);
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::new(self.claim.load(Ordering::Relaxed))
    }

    pub(crate) fn has_stored_will(&self) -> bool {
        self.has_stored_will.load(Ordering::Relaxed)
    }

    pub(crate) fn set_stored_will(&self, has_stored_will: bool) {
        self.has_stored_will.store(has_stored_will, Ordering::Relaxed);
    }

    /// What several matches of one message become.
    pub(crate) fn overlap(&self) -> Overlap {
        if self.merges.load(Ordering::Relaxed) { Overlap::Merge } else { Overlap::Separate }
    }

    pub(crate) fn set_merges(&self, merges: bool) {
        self.merges.store(merges, Ordering::Relaxed);
    }
}
