//! What the store must know to answer without reading: who owns which session, what is queued for it, and how
//! often a message is referred to. Pure: a batch goes in, [`Writes`] come out.

use std::collections::{BTreeMap, btree_map};
use std::mem;

use braid_proto::packet::{ClientId, PacketId};
use braid_proto::topic::TopicName;

use super::queue::{Entry, Session};
use super::writes::{Inflight, Phase, Write, Writes};
use crate::batch::Batch;
use crate::change::Change;
use crate::identity::{Claim, Lsn, SessionId};
use crate::ownership::Ownership;
use crate::recover::NextIds;
use crate::session::SessionRecord;

/// How many numbers are set aside at once, so that `meta` is written once in so many.
const SET_ASIDE: NextIds = NextIds { session: SessionId::new(1 << 10), lsn: Lsn::new(1 << 16) };

pub(super) struct Index {
    sessions: BTreeMap<SessionId, Session>,
    clients: BTreeMap<ClientId, SessionId>,
    /// Every message that is kept, and how many queue entries and retained messages refer to it. Counted when
    /// the store is opened and nowhere written: it cannot differ from what it counts.
    references: BTreeMap<Lsn, u32>,
    retained: BTreeMap<TopicName, Lsn>,
    /// Messages whose last reference may be gone: looked at when the batch is over.
    loose: Vec<Lsn>,
    next: NextIds,
    /// What is written in `meta`.
    set_aside: NextIds,
    first_claim: Claim,
    last_claim: Claim,
    /// Counts sendings and releases.
    last_step: u64,
}

impl Ownership for Index {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.clients.get(client_id).copied()
    }

    /// There is one value over one device, so every session is its own.
    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool {
        claim.is_some_and(|claim| self.sessions.get(&session).is_some_and(|owner| claim < owner.claim))
    }
}

impl Index {
    /// An empty index that grants claims after `claim` and counts on from `next`.
    pub(super) const fn new(claim: Claim, next: NextIds) -> Self {
        Self {
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
            references: BTreeMap::new(),
            retained: BTreeMap::new(),
            loose: Vec::new(),
            next,
            set_aside: next,
            first_claim: claim,
            last_claim: claim,
            last_step: 0,
        }
    }

    pub(super) const fn next(&self) -> NextIds {
        self.next
    }

    /// The claim under which the session is held; for one that ended meanwhile, one that holds nothing.
    pub(super) fn claim_of(&self, session: SessionId) -> Claim {
        self.sessions.get(&session).map_or(self.first_claim, |session| session.claim)
    }

    /// Whether the message is kept.
    pub(super) fn holds(&self, message: Lsn) -> bool {
        self.references.contains_key(&message)
    }

    pub(super) fn claim(&mut self, client_id: &ClientId) -> Claim {
        self.last_claim = self.last_claim.next();
        if let Some(session) = self.clients.get(client_id).and_then(|id| self.sessions.get_mut(id)) {
            session.claim = self.last_claim;
        }
        self.last_claim
    }

    /// Applies a batch that was checked.
    pub(super) fn apply(&mut self, batch: Batch, writes: &mut Writes) {
        // The topics of what the batch stores: a retained message is among it. Mostly there is none.
        let retains = batch.changes().iter().any(|change| matches!(change, Change::Retained { .. }));
        let mut topics: BTreeMap<Lsn, TopicName> = BTreeMap::new();
        for change in batch {
            match change {
                Change::Opened { session, client_id, expiry, claim } => {
                    self.next.session = self.next.session.max(session.next());
                    let record = SessionRecord { id: session, client_id, expiry, parked_at: None };
                    self.open(Session::new(record, claim), writes);
                }
                Change::Closed { session, .. } => self.close(session, writes),
                Change::Stored { lsn, message } => {
                    self.next.lsn = self.next.lsn.max(lsn.next());
                    if retains {
                        topics.entry(lsn).or_insert_with(|| message.topic().clone());
                    }
                    if let btree_map::Entry::Vacant(count) = self.references.entry(lsn) {
                        count.insert(0);
                        writes.messages.insert(lsn, message);
                    }
                    self.loose.push(lsn);
                }
                Change::Retained { message } => {
                    if let Some(topic) = topics.get(&message) {
                        self.retain(topic.clone(), message, writes);
                    }
                }
                Change::RetainCleared { topic } => {
                    if let Some(former) = self.retained.remove(&topic) {
                        writes.retained.remove(topic);
                        self.unrefer(Some(former));
                    }
                }
                change => self.edit(change, writes),
            }
        }
        for message in self.loose.drain(..) {
            if self.references.get(&message) == Some(&0) {
                self.references.remove(&message);
                writes.messages.remove(message);
            }
        }
        // Kept for the next batch, but not what a long queue that was closed needed.
        self.loose.shrink_to(1 << 10);
        self.set_numbers_aside(writes);
    }

    fn set_numbers_aside(&mut self, writes: &mut Writes) {
        let (next, aside) = (self.next, self.set_aside);
        if next.session <= aside.session && next.lsn <= aside.lsn {
            return;
        }
        self.set_aside = NextIds {
            session: SessionId::new(next.session.value().saturating_add(SET_ASIDE.session.value())),
            lsn: Lsn::new(next.lsn.value().saturating_add(SET_ASIDE.lsn.value())),
        };
        writes.next = Some(self.set_aside);
    }

    /// The changes inside one session.
    fn edit(&mut self, change: Change, writes: &mut Writes) {
        if let Change::Queued { lsn, .. } = change {
            self.next.lsn = self.next.lsn.max(lsn.next());
        }
        let Some(id) = change.session() else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match change {
            Change::Resumed { expiry, claim, .. } => {
                session.claim = claim;
                (session.record.expiry, session.record.parked_at) = (expiry, None);
                writes.sessions.put(id, session.record.clone());
            }
            Change::Parked { at, expiry, .. } => {
                (session.record.expiry, session.record.parked_at) = (expiry, Some(at));
                writes.sessions.put(id, session.record.clone());
            }
            Change::WillSet { will, .. } => writes.belongings(id).will = Some(Write::Put(will)),
            Change::WillCleared { .. } => writes.belongings(id).will = Some(Write::Remove),
            Change::Subscribed { filter, subscription, .. } => {
                writes.belongings(id).subscriptions.put(filter, subscription);
            }
            Change::Unsubscribed { filter, .. } => writes.belongings(id).subscriptions.remove(filter),
            Change::Received { packet_id, exchanges, .. } => {
                writes.belongings(id).received.put(packet_id, exchanges);
            }
            Change::ReceivedReleased { packet_id, .. } => writes.belongings(id).received.remove(packet_id),
            change => self.advance(change, writes),
        }
    }

    /// The changes of one entry of a queue.
    fn advance(&mut self, change: Change, writes: &mut Writes) {
        let Some(id) = change.session() else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match change {
            Change::Queued { lsn, delivery, .. } => {
                let (place, message) = ((lsn, id), delivery.message);
                let former = session.set(lsn, Entry::Waiting(message));
                match former {
                    None | Some(Entry::Released) => writes.queue.insert(place, delivery),
                    Some(Entry::Waiting(_) | Entry::Sent(_)) => writes.queue.put(place, delivery),
                }
                if matches!(former, Some(Entry::Sent(_) | Entry::Released)) {
                    writes.inflight.remove(place);
                }
                self.refer(message);
                self.unrefer(former.and_then(Entry::message));
            }
            Change::Sent { lsn, packet_id, .. } => {
                let Some(slot) = session.slot(lsn) else { return };
                let Some(message) = slot.entry.message() else { return };
                slot.entry = Entry::Sent(message);
                self.step((lsn, id), Phase::Sent, packet_id, writes);
            }
            Change::Released { lsn, packet_id, .. } => {
                let Some(slot) = session.slot(lsn) else { return };
                let former = mem::replace(&mut slot.entry, Entry::Released).message();
                if former.is_some() {
                    writes.queue.remove((lsn, id));
                }
                self.unrefer(former);
                self.step((lsn, id), Phase::Released, packet_id, writes);
            }
            Change::Completed { lsn, .. } => {
                if let Some(entry) = session.take(lsn) {
                    self.forget((lsn, id), entry, writes);
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, place: (Lsn, SessionId), phase: Phase, packet_id: PacketId, writes: &mut Writes) {
        self.last_step += 1;
        writes.inflight.put(place, Inflight { phase, packet_id, step: self.last_step });
    }

    /// An entry that is in no queue any more.
    fn forget(&mut self, place: (Lsn, SessionId), entry: Entry, writes: &mut Writes) {
        if !matches!(entry, Entry::Released) {
            writes.queue.remove(place);
        }
        if !matches!(entry, Entry::Waiting(_)) {
            writes.inflight.remove(place);
        }
        self.unrefer(entry.message());
    }

    fn open(&mut self, session: Session, writes: &mut Writes) {
        let (id, client_id) = (session.record.id, session.record.client_id.clone());
        self.close(id, writes);
        if let Some(former) = self.session_of(&client_id) {
            self.close(former, writes);
        }
        writes.sessions.insert(id, session.record.clone());
        self.clients.insert(client_id, id);
        self.sessions.insert(id, session);
    }

    fn close(&mut self, session: SessionId, writes: &mut Writes) {
        let Some(closed) = self.sessions.remove(&session) else { return };
        self.clients.remove(&closed.record.client_id);
        for slot in closed.queue {
            self.forget((slot.lsn, session), slot.entry, writes);
        }
        writes.close(session);
    }

    fn retain(&mut self, topic: TopicName, message: Lsn, writes: &mut Writes) {
        let former = self.retained.insert(topic.clone(), message);
        match former {
            None => writes.retained.insert(topic, message),
            Some(former) if former == message => {}
            Some(_) => writes.retained.put(topic, message),
        }
        self.refer(message);
        self.unrefer(former);
    }

    fn refer(&mut self, message: Lsn) {
        *self.references.entry(message).or_insert(0) += 1;
    }

    fn unrefer(&mut self, message: Option<Lsn>) {
        let Some((message, count)) = message.and_then(|lsn| Some((lsn, self.references.get_mut(&lsn)?)))
        else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.loose.push(message);
        }
    }
}

/// How the index is built from the tables: sessions first, then what is queued by ascending lsn.
impl Index {
    /// False when the session or its client has one already.
    #[must_use]
    pub(super) fn load_session(&mut self, record: SessionRecord) -> bool {
        let (id, client_id) = (record.id, record.client_id.clone());
        self.clients.insert(client_id, id).is_none()
            && self.sessions.insert(id, Session::new(record, self.first_claim)).is_none()
    }

    /// Whether there is such a session.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// False when there is no such session, or it has the entry already.
    #[must_use]
    pub(super) fn load_queued(&mut self, (lsn, session): (Lsn, SessionId), message: Lsn) -> bool {
        let Some(session) = self.sessions.get_mut(&session) else { return false };
        let new = session.set(lsn, Entry::Waiting(message)).is_none();
        self.refer(message);
        new
    }

    /// False when there is no such session or nothing that could have been sent.
    #[must_use]
    pub(super) fn load_inflight(&mut self, (lsn, session): (Lsn, SessionId), inflight: Inflight) -> bool {
        self.last_step = self.last_step.max(inflight.step);
        let Some(session) = self.sessions.get_mut(&session) else { return false };
        match (inflight.phase, session.slot(lsn)) {
            (Phase::Sent, Some(slot)) => {
                let Entry::Waiting(message) = slot.entry else { return false };
                slot.entry = Entry::Sent(message);
                true
            }
            (Phase::Released, None) => session.set(lsn, Entry::Released).is_none(),
            (Phase::Sent, None) | (Phase::Released, Some(_)) => false,
        }
    }

    /// False when the topic has one already.
    #[must_use]
    pub(super) fn load_retained(&mut self, topic: TopicName, message: Lsn) -> bool {
        self.refer(message);
        self.retained.insert(topic, message).is_none()
    }

    /// The messages that are referred to.
    pub(super) const fn references(&self) -> &BTreeMap<Lsn, u32> {
        &self.references
    }
}
