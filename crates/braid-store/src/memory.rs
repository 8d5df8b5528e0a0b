//! Store in memory, for `durability = "memory"` and for tests that restart a broker over it.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::mem;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use braid_proto::packet::{ClientId, PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};

use crate::change::{Batch, Change, Ownership};
use crate::completion::{Commit, Completion};
use crate::error::StoreError;
use crate::ids::{Claim, Lsn, NextIds, SessionId};
use crate::message::{LazyMessage, QueueEntry, StoredMessage};
use crate::recovery::Recover;
use crate::session::{SessionRecord, StoredSubscription};
use crate::store::Store;

/// A [`Store`] in memory. Every commit is done when it returns; messages are shared with the live ones, not
/// copied.
pub struct MemoryStore {
    /// A std mutex: held for the map operations of one batch, never across a wait. The order of locking is the order of
    /// commits.
    state: Arc<Mutex<State>>,
    holder: Holder,
}

/// Identifies one of the store values over one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder(u64);

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
        static HOLDERS: AtomicU64 = AtomicU64::new(0);
        Self { state, holder: Holder(HOLDERS.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Fails the store once a thread panicked with the lock: it may have applied a part of a batch.
    fn lock(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        let failed = |_| StoreError::Failed { reason: "a thread panicked while it changed the store".into() };
        self.state.lock().map_err(failed)
    }
}

impl Store for MemoryStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        Ok(self.lock()?.recover(into, self.holder))
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        Completion::Done(self.lock().map(|mut state| state.claim(client_id, self.holder)))
    }

    fn commit(&self, batch: Batch) -> Commit {
        Completion::Done(self.lock().and_then(|mut state| state.commit(batch, self.holder)))
    }

    fn message(&self, message: Lsn) -> Completion<Option<StoredMessage>> {
        let read = |state: MutexGuard<'_, State>| Some(state.messages.get(&message)?.message.clone());
        Completion::Done(self.lock().map(read))
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        for (lsn, body) in &self.lock()?.messages {
            show(*lsn, LazyMessage::of(body.message.clone()));
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
        f.debug_struct("MemoryStore").field("holder", &self.holder.0).finish_non_exhaustive()
    }
}

/// Everything that is stored. Ordered maps, so that two runs of the same changes show the same order.
struct State {
    sessions: BTreeMap<SessionId, Session>,
    clients: BTreeMap<ClientId, SessionId>,
    messages: BTreeMap<Lsn, Body>,
    retained: BTreeMap<TopicName, Lsn>,
    /// Messages that may have lost their last reference; examined at the end of the batch.
    maybe_unreferenced: Vec<Lsn>,
    next: NextIds,
    last_claim: Claim,
    /// Number of the last PUBLISH or PUBREL that was sent.
    last_step: u64,
}

struct Body {
    message: StoredMessage,
    /// Number of queue entries and retained messages that reference it.
    references: u32,
}

/// A session with everything that belongs to it.
struct Session {
    record: SessionRecord,
    claim: Claim,
    holder: Holder,
    will: Option<Arc<Will>>,
    subscriptions: BTreeMap<TopicFilter, StoredSubscription>,
    received: BTreeMap<PacketId, NonZeroU16>,
    queue: BTreeMap<Lsn, Queued>,
}

struct Queued {
    entry: QueueEntry,
    /// Order of sending and releasing, over the whole store; 0 before the entry is sent.
    step: u64,
}

/// Ownership as one of the store values over the state sees it.
struct HolderView<'a>(&'a State, Holder);

impl Ownership for HolderView<'_> {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.0.clients.get(client_id).copied()
    }

    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool {
        let Some(owner) = self.0.sessions.get(&session) else { return false };
        let is_own = owner.holder == self.1;
        match claim {
            None => !is_own,
            Some(claim) => claim < owner.claim || (claim == owner.claim && !is_own),
        }
    }
}

impl State {
    fn recover(&mut self, into: &mut dyn Recover, holder: Holder) -> NextIds {
        for session in self.sessions.values_mut() {
            if session.holder != holder {
                self.last_claim = self.last_claim.next();
                (session.claim, session.holder) = (self.last_claim, holder);
            }
            session.show(into);
        }
        for (topic, message) in &self.retained {
            into.retained(topic.clone(), *message);
        }
        self.next
    }

    fn claim(&mut self, client_id: &ClientId, holder: Holder) -> Claim {
        // One counter for all clients: clients without a session need no entry.
        self.last_claim = self.last_claim.next();
        if let Some(session) = self.clients.get(client_id).and_then(|id| self.sessions.get_mut(id)) {
            (session.claim, session.holder) = (self.last_claim, holder);
        }
        self.last_claim
    }

    fn commit(&mut self, batch: Batch, holder: Holder) -> Result<(), StoreError> {
        HolderView(self, holder).check(batch.changes())?;
        for change in batch {
            self.apply(change, holder);
        }
        for message in mem::take(&mut self.maybe_unreferenced) {
            if let btree_map::Entry::Occupied(body) = self.messages.entry(message)
                && body.get().references == 0
            {
                body.remove();
            }
        }
        Ok(())
    }

    fn apply(&mut self, change: Change, holder: Holder) {
        match change {
            Change::Opened { session, client_id, expiry, claim } => {
                self.next.session = self.next.session.max(session.next());
                let record = SessionRecord { id: session, client_id, expiry, parked_at: None };
                self.open(Session::new(record, claim, holder));
            }
            Change::Closed { session, .. } => self.close(session),
            Change::Stored { lsn, message } => {
                self.next.lsn = self.next.lsn.max(lsn.next());
                self.messages.entry(lsn).or_insert(Body { message, references: 0 });
                self.maybe_unreferenced.push(lsn);
            }
            Change::Retained { message } => self.retain(message),
            Change::RetainCleared { topic } => {
                let former = self.retained.remove(&topic);
                self.remove_reference(former);
            }
            change => self.edit(change, holder),
        }
    }

    /// Applies a change inside one session.
    fn edit(&mut self, change: Change, holder: Holder) {
        if let Change::Queued { lsn, .. } = change {
            self.next.lsn = self.next.lsn.max(lsn.next());
        }
        let Some(session) = change.session().and_then(|id| self.sessions.get_mut(&id)) else { return };
        match change {
            Change::Resumed { expiry, claim, .. } => {
                (session.claim, session.holder) = (claim, holder);
                (session.record.expiry, session.record.parked_at) = (expiry, None);
            }
            Change::Parked { at, expiry, .. } => {
                (session.record.expiry, session.record.parked_at) = (expiry, Some(at));
            }
            Change::WillSet { will, .. } => session.will = Some(will),
            Change::WillCleared { .. } => session.will = None,
            Change::Subscribed { filter, subscription, .. } => {
                session.subscriptions.insert(filter, subscription);
            }
            Change::Unsubscribed { filter, .. } => {
                session.subscriptions.remove(&filter);
            }
            Change::Queued { lsn, delivery, .. } => {
                let message = delivery.message;
                let queued = Queued { entry: QueueEntry::Waiting(delivery), step: 0 };
                let former = session.queue.insert(lsn, queued).and_then(|former| former.entry.message());
                self.add_reference(message);
                self.remove_reference(former);
            }
            Change::Completed { lsn, .. } => {
                let former = session.queue.remove(&lsn).and_then(|former| former.entry.message());
                self.remove_reference(former);
            }
            Change::Received { packet_id, exchanges, .. } => {
                session.received.insert(packet_id, exchanges);
            }
            Change::ReceivedReleased { packet_id, .. } => {
                session.received.remove(&packet_id);
            }
            Change::Sent { lsn, packet_id, .. } => {
                if let Some(queued) = session.queue.get_mut(&lsn) {
                    self.last_step += 1;
                    queued.send(packet_id, self.last_step);
                }
            }
            Change::Released { lsn, packet_id, .. } => {
                let Some(queued) = session.queue.get_mut(&lsn) else { return };
                let former = queued.entry.message();
                self.last_step += 1;
                *queued = Queued { entry: QueueEntry::Released(packet_id), step: self.last_step };
                self.remove_reference(former);
            }
            Change::Opened { .. }
            | Change::Closed { .. }
            | Change::Stored { .. }
            | Change::Retained { .. }
            | Change::RetainCleared { .. } => {}
        }
    }

    fn open(&mut self, session: Session) {
        let (id, client_id) = (session.record.id, session.record.client_id.clone());
        self.close(id);
        if let Some(former) = self.clients.get(&client_id) {
            self.close(*former);
        }
        self.clients.insert(client_id, id);
        self.sessions.insert(id, session);
    }

    fn close(&mut self, session: SessionId) {
        let Some(closed) = self.sessions.remove(&session) else { return };
        self.clients.remove(&closed.record.client_id);
        for queued in closed.queue.into_values() {
            self.remove_reference(queued.entry.message());
        }
    }

    fn retain(&mut self, message: Lsn) {
        let Some(body) = self.messages.get(&message) else { return };
        let former = self.retained.insert(body.message.topic().clone(), message);
        self.add_reference(message);
        self.remove_reference(former);
    }

    fn add_reference(&mut self, message: Lsn) {
        if let Some(body) = self.messages.get_mut(&message) {
            body.references += 1;
        }
    }

    fn remove_reference(&mut self, message: Option<Lsn>) {
        let Some(message) = message else { return };
        if let Some(body) = self.messages.get_mut(&message) {
            body.references -= 1;
            if body.references == 0 {
                self.maybe_unreferenced.push(message);
            }
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
            messages: BTreeMap::new(),
            retained: BTreeMap::new(),
            maybe_unreferenced: Vec::new(),
            next: NextIds::FIRST,
            last_claim: Claim::new(0),
            last_step: 0,
        }
    }
}

impl Queued {
    /// Marks the entry as sent, unless it was released.
    fn send(&mut self, packet_id: PacketId, step: u64) {
        // A placeholder, so that the delivery is moved out and not copied.
        self.entry = match mem::replace(&mut self.entry, QueueEntry::Released(packet_id)) {
            QueueEntry::Waiting(delivery) | QueueEntry::Sent(_, delivery) => {
                self.step = step;
                QueueEntry::Sent(packet_id, delivery)
            }
            released @ QueueEntry::Released(_) => released,
        };
    }
}

impl Session {
    fn new(record: SessionRecord, claim: Claim, holder: Holder) -> Self {
        let (subscriptions, received, queue) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { record, claim, holder, will: None, subscriptions, received, queue }
    }

    fn show(&self, into: &mut dyn Recover) {
        let id = self.record.id;
        into.session(self.record.clone(), self.claim);
        for (filter, subscription) in &self.subscriptions {
            into.subscription(id, filter.clone(), *subscription);
        }
        if let Some(will) = &self.will {
            into.will(id, Arc::clone(will));
        }
        for (packet_id, exchanges) in &self.received {
            into.received(id, *packet_id, *exchanges);
        }
        let (waiting, mut sent): (Vec<_>, Vec<_>) =
            self.queue.iter().partition(|(_, queued)| matches!(queued.entry, QueueEntry::Waiting(_)));
        sent.sort_unstable_by_key(|(_, queued)| queued.step);
        for (lsn, queued) in sent.into_iter().chain(waiting) {
            into.queued(id, *lsn, queued.entry.clone());
        }
    }
}
