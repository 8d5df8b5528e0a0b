//! Which sessions exist, by client and by key, and how one passes from connection to connection.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use braid_proto::packet::{ClientId, Will};
use braid_proto::session::{Session, SessionExpiry};
use braid_store::SessionId;
use hashbrown::HashMap;
use tokio::sync::oneshot;

use crate::queue::session_queue::Signal;
use crate::retained::RetainedCursor;
use crate::session_entry::{ConnectionId, Parked, Released, SessionEntry, SessionKey, SessionOwner};

/// Claims of different clients rarely share a stripe; claims of one client always do.
const STRIPES: usize = 64;

/// All sessions, with or without a connection.
#[derive(Debug)]
pub(crate) struct Registry {
    /// [MQTT-3.1.3-2]
    by_client: Mutex<HashMap<ClientId, Arc<SessionEntry>>>,
    by_key: RwLock<HashMap<SessionKey, Arc<SessionEntry>>>,
    next_key: AtomicU64,
    next_connection: AtomicU64,
    /// Claims of one client happen one after the other.
    stripes: Vec<tokio::sync::Mutex<()>>,
    hasher: RandomState,
}

/// What a connection has claimed.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) entry: Arc<SessionEntry>,
    pub(crate) session: Session,
    /// The delayed Will of a session that was there: void once the connection is accepted.
    pub(crate) will: Option<Will>,
    /// What its subscriptions have not got of the retained messages.
    pub(crate) pending_retained: Vec<RetainedCursor>,
    /// The session existed before.
    pub(crate) present: bool,
    /// What the claim put an end to, for the core to finish.
    pub(crate) ended: Option<Ended>,
}

/// A session that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) entry: Arc<SessionEntry>,
    /// `None` when it ended with the connection it was taken from, which has finished it already.
    pub(crate) session: Option<Session>,
    /// To be published now: the session's end does not wait for the delay.
    pub(crate) will: Option<Will>,
}

impl Registry {
    /// `next_session`: where the store goes on counting; one name serves here and there.
    pub(crate) fn new(next_session: SessionId) -> Self {
        Self {
            by_client: Mutex::default(),
            by_key: RwLock::default(),
            next_key: AtomicU64::new(next_session.value()),
            next_connection: AtomicU64::new(1),
            stripes: (0..STRIPES).map(|_| tokio::sync::Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    pub(crate) fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// All sessions by key, for reading.
    pub(crate) fn entries(&self) -> RwLockReadGuard<'_, HashMap<SessionKey, Arc<SessionEntry>>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions. Their queues must not be locked under the registry's lock.
    pub(crate) fn snapshot(&self) -> Vec<Arc<SessionEntry>> {
        self.entries().values().cloned().collect()
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientId, Arc<SessionEntry>>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session of this client is within `limit`. Concurrent claims may exceed it by their number.
    pub(crate) fn has_room_for(&self, client_id: &ClientId, limit: usize) -> bool {
        let clients = self.clients();
        clients.len() < limit || clients.contains_key(client_id)
    }

    /// Gives the session of a client to a connection. Another connection that has it is closed first.
    /// [MQTT-3.1.4-3]
    pub(crate) async fn claim(
        &self,
        client_id: &ClientId,
        clean_start: bool,
        connection: ConnectionId,
    ) -> Claim {
        let stripe = usize::try_from(self.hasher.hash_one(client_id) % STRIPES as u64).unwrap_or(0);
        let _turn = self.stripes[stripe].lock().await;
        let existing = self.clients().get(client_id).cloned();
        let Some(entry) = existing else { return self.create(client_id, connection, None) };
        let Released { session, will, pending_retained } = take(&entry, connection).await;
        match session {
            // [MQTT-3.1.2-5], [MQTT-3.1.4-4]
            Some(session) if !clean_start => {
                entry.queue.open();
                Claim { entry, session, will, pending_retained, present: true, ended: None }
            }
            // [MQTT-3.1.2-4], [MQTT-3.1.4-4]
            session => {
                *entry.owner() = SessionOwner::Ended;
                self.remove(&entry);
                self.create(client_id, connection, Some(Ended { entry, session, will }))
            }
        }
    }

    fn create(&self, client_id: &ClientId, connection: ConnectionId, ended: Option<Ended>) -> Claim {
        let key = SessionKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let entry = Arc::new(SessionEntry::new(key, client_id.clone(), connection));
        entry.queue.open();
        self.insert(&entry);
        let session = Session::new(client_id.clone(), SessionExpiry::WITH_CONNECTION); // [MQTT-3.1.2-6]
        Claim { entry, session, will: None, pending_retained: Vec::new(), present: false, ended }
    }

    /// Adds a session.
    pub(crate) fn insert(&self, entry: &Arc<SessionEntry>) {
        self.clients().insert(entry.client_id.clone(), entry.clone());
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).insert(entry.key, entry.clone());
    }

    /// Forgets a session, unless the client has another one by now.
    pub(crate) fn remove(&self, entry: &Arc<SessionEntry>) {
        let mut clients = self.clients();
        if clients.get(&entry.client_id).is_some_and(|current| Arc::ptr_eq(current, entry)) {
            clients.remove(&entry.client_id);
        }
        drop(clients);
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).remove(&entry.key);
    }
}

/// Takes the session out of its entry and makes `connection` the holder.
async fn take(entry: &SessionEntry, connection: ConnectionId) -> Released {
    let (released, waker) = {
        let mut holder = entry.owner();
        match std::mem::replace(&mut *holder, SessionOwner::Connection(connection, None)) {
            SessionOwner::Parked(parked) => {
                entry.set_disconnect_epoch(0);
                let Parked { session, will, pending_retained } = *parked;
                return Released { session: Some(session), will, pending_retained };
            }
            SessionOwner::Ended => return Released::NOTHING,
            SessionOwner::Connection(current, _) => {
                let (release, released) = oneshot::channel();
                *holder = SessionOwner::Connection(current, Some(release));
                (released, entry.queue.signal(Signal::TakeOver))
            }
        }
    };
    if let Some(waker) = waker {
        waker.wake();
    }
    // The holder is a task of this process which only has to notice: it answers at its next turn, and if it
    // ends without an answer its session is gone.
    let released = released.await.unwrap_or(Released::NOTHING);
    *entry.owner() = SessionOwner::Connection(connection, None);
    released
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::queue::backpressure::AckRttEstimator;
    use crate::queue::egress::EgressQueue;
    use crate::queue::usage::QueueLimits;

    // Between the claim and whatever its connection does next, another thread may run the next claim: its signal
    // must find an open mailbox, and nothing of the first may void it.
    #[tokio::test]
    async fn a_claim_that_follows_at_once_is_heard() {
        let registry = Registry::new(SessionId::new(1));
        let client_id = ClientId::from("client");
        let capacity = QueueLimits { messages: 1, bytes: 1 };
        let first = registry.claim(&client_id, false, ConnectionId(1)).await;
        let topic = braid_proto::topic::TopicName::parse("t").unwrap();
        let message = braid_proto::message::Message::new(
            topic,
            bytes::Bytes::new(),
            braid_proto::packet::QoS::AtMostOnce,
            false,
        );
        assert!(first.entry.queue.is_ready(&message, capacity));
        let mut second = pin!(registry.claim(&client_id, false, ConnectionId(2)));
        let signal = poll_fn(|context| {
            assert!(second.as_mut().poll(context).is_pending());
            let queue = &first.entry.queue;
            Poll::Ready(queue.poll_take(
                &mut EgressQueue::default(),
                |stream| stream,
                AckRttEstimator::default(),
                capacity,
                context,
            ))
        });
        assert_eq!(signal.await, Some(Signal::TakeOver));
    }
}
