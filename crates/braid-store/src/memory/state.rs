use std::collections::{BTreeMap, btree_map};
use std::mem;

use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;

use super::Holder;
use super::held::Held;
use super::session::{Queued, Session};
use crate::batch::Batch;
use crate::change::Change;
use crate::error::StoreError;
use crate::identity::{Claim, Lsn, SessionId};
use crate::message::{QueueEntry, StoredMessage};
use crate::ownership::Ownership;
use crate::recover::{NextIds, Recover};
use crate::session::SessionRecord;

/// What is stored. Ordered maps, so that two runs of the same changes show the same.
pub(super) struct State {
    sessions: BTreeMap<SessionId, Session>,
    clients: BTreeMap<ClientId, SessionId>,
    messages: BTreeMap<Lsn, Body>,
    retained: BTreeMap<TopicName, Lsn>,
    /// Messages whose last reference may be gone: looked at when the batch is over.
    loose: Vec<Lsn>,
    next: NextIds,
    last_claim: Claim,
    last_holder: Holder,
    /// Counts sendings and releases.
    last_step: u64,
}

struct Body {
    message: StoredMessage,
    /// Queue entries and the retained messages.
    references: u32,
}

impl State {
    pub(super) fn next_holder(&mut self) -> Holder {
        self.last_holder = Holder(self.last_holder.0 + 1);
        self.last_holder
    }

    pub(super) fn recover(&mut self, into: &mut dyn Recover, holder: Holder) -> NextIds {
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

    pub(super) fn claim(&mut self, client_id: &ClientId, holder: Holder) -> Claim {
        // One counter for all clients: nothing needs to be kept of those without a session.
        self.last_claim = self.last_claim.next();
        if let Some(session) = self.clients.get(client_id).and_then(|id| self.sessions.get_mut(id)) {
            (session.claim, session.holder) = (self.last_claim, holder);
        }
        self.last_claim
    }

    pub(super) fn message(&self, message: Lsn) -> Option<StoredMessage> {
        self.messages.get(&message).map(|body| body.message.clone())
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = (Lsn, StoredMessage)> {
        self.messages.iter().map(|(lsn, body)| (*lsn, body.message.clone()))
    }

    pub(super) fn session(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    pub(super) fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.clients.get(client_id).copied()
    }

    pub(super) fn commit(&mut self, batch: Batch, holder: Holder) -> Result<(), StoreError> {
        Held { state: self, holder }.check(batch.changes())?;
        for change in batch {
            self.apply(change, holder);
        }
        for message in mem::take(&mut self.loose) {
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
                self.loose.push(lsn);
            }
            Change::Retained { message } => self.retain(message),
            Change::RetainCleared { topic } => {
                let former = self.retained.remove(&topic);
                self.unrefer(former);
            }
            change => self.edit(change, holder),
        }
    }

    /// The changes inside one session.
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
                self.refer(message);
                self.unrefer(former);
            }
            Change::Completed { lsn, .. } => {
                let former = session.queue.remove(&lsn).and_then(|former| former.entry.message());
                self.unrefer(former);
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
                self.unrefer(former);
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
        if let Some(former) = self.session_of(&client_id) {
            self.close(former);
        }
        self.clients.insert(client_id, id);
        self.sessions.insert(id, session);
    }

    fn close(&mut self, session: SessionId) {
        let Some(closed) = self.sessions.remove(&session) else { return };
        self.clients.remove(&closed.record.client_id);
        for queued in closed.queue.into_values() {
            self.unrefer(queued.entry.message());
        }
    }

    fn retain(&mut self, message: Lsn) {
        let Some(body) = self.messages.get(&message) else { return };
        let former = self.retained.insert(body.message.topic().clone(), message);
        self.refer(message);
        self.unrefer(former);
    }

    fn refer(&mut self, message: Lsn) {
        if let Some(body) = self.messages.get_mut(&message) {
            body.references += 1;
        }
    }

    fn unrefer(&mut self, message: Option<Lsn>) {
        let Some((message, body)) = message.and_then(|lsn| Some((lsn, self.messages.get_mut(&lsn)?))) else {
            return;
        };
        body.references -= 1;
        if body.references == 0 {
            self.loose.push(message);
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
            loose: Vec::new(),
            next: NextIds::FIRST,
            last_claim: Claim::new(0),
            last_holder: Holder(0),
            last_step: 0,
        }
    }
}
