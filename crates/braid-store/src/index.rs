//! In-memory index: owners of sessions, their queue entries, and reference counts of messages, so that commits and
//! claims read no table. Pure: a batch goes in, a [`WriteSet`] comes out.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::mem;

use braid_proto::packet::{ClientId, PacketId};
use braid_proto::topic::TopicName;

use super::write_set::{Inflight, Phase, QueueKey, Write, WriteSet};
use crate::change::{Batch, Change, Ownership};
use crate::ids::{Claim, Lsn, NextIds, SessionId};
use crate::session::SessionRecord;

/// Numbers that are reserved at once, so that `meta` is written only once for so many.
const RESERVATION: NextIds = NextIds { session: SessionId::new(1 << 10), lsn: Lsn::new(1 << 16) };

pub(super) struct Index {
    sessions: BTreeMap<SessionId, Session>,
    clients: BTreeMap<ClientId, SessionId>,
    /// Reference count of every message: its queue entries and retained topics. Counted when the store is opened and
    /// never written, so it cannot disagree with the tables.
    references: BTreeMap<Lsn, u32>,
    retained: BTreeMap<TopicName, Lsn>,
    /// Messages that may have lost their last reference; examined at the end of the batch.
    maybe_unreferenced: Vec<Lsn>,
    next: NextIds,
    /// The next free numbers as they are in `meta`.
    reserved: NextIds,
    first_claim: Claim,
    last_claim: Claim,
    /// Number of the last PUBLISH or PUBREL that was sent.
    last_step: u64,
}

impl Ownership for Index {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.clients.get(client_id).copied()
    }

    /// One device has one store value, so every session is its own and only the claim decides.
    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool {
        claim.is_some_and(|claim| self.sessions.get(&session).is_some_and(|owner| claim < owner.claim))
    }
}

impl Index {
    /// An empty index that grants claims above `claim` and continues the numbers at `next`.
    pub(super) const fn new(claim: Claim, next: NextIds) -> Self {
        Self {
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
            references: BTreeMap::new(),
            retained: BTreeMap::new(),
            maybe_unreferenced: Vec::new(),
            next,
            reserved: next,
            first_claim: claim,
            last_claim: claim,
            last_step: 0,
        }
    }

    pub(super) const fn next(&self) -> NextIds {
        self.next
    }

    /// Current claim of the session; for one that ended since, a claim that owns nothing.
    pub(super) fn claim_of(&self, session: SessionId) -> Claim {
        self.sessions.get(&session).map_or(self.first_claim, |session| session.claim)
    }

    /// True when something references the message.
    pub(super) fn holds(&self, message: Lsn) -> bool {
        self.references.contains_key(&message)
    }

    /// Grants a new claim to the session.
    pub(super) fn reclaim(&mut self, session: SessionId) {
        self.last_claim = self.last_claim.next();
        if let Some(session) = self.sessions.get_mut(&session) {
            session.claim = self.last_claim;
        }
    }

    /// Grants a new claim to the client. One counter for all clients: clients without a session need no entry.
    pub(super) fn claim(&mut self, client_id: &ClientId) -> Claim {
        self.last_claim = self.last_claim.next();
        if let Some(session) = self.clients.get(client_id).and_then(|id| self.sessions.get_mut(id)) {
            session.claim = self.last_claim;
        }
        self.last_claim
    }

    /// Applies a batch that passed [`Ownership::check`].
    pub(super) fn apply(&mut self, batch: Batch, writes: &mut WriteSet) {
        // Topics of the batch's messages, collected only if it retains one of them.
        let retains = batch.changes().iter().any(|change| matches!(change, Change::Retained { .. }));
        let mut topics: BTreeMap<Lsn, TopicName> = BTreeMap::new();
        for change in batch {
            match change {
                Change::Opened { session, client_id, identity, expiry, claim } => {
                    self.next.session = self.next.session.max(session.next());
                    let record = SessionRecord { id: session, client_id, identity, expiry, parked_at: None };
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
                    self.maybe_unreferenced.push(lsn);
                }
                Change::Retained { message } => {
                    if let Some(topic) = topics.get(&message) {
                        self.retain(topic.clone(), message, writes);
                    }
                }
                Change::RetainCleared { topic } => {
                    if let Some(former) = self.retained.remove(&topic) {
                        writes.retained.remove(topic);
                        self.remove_reference(Some(former));
                    }
                }
                change => self.edit(change, writes),
            }
        }
        for message in self.maybe_unreferenced.drain(..) {
            if self.references.get(&message) == Some(&0) {
                self.references.remove(&message);
                writes.messages.remove(message);
            }
        }
        // Keeps its memory for the next batch, except the much that closing a long queue needed.
        self.maybe_unreferenced.shrink_to(1 << 10);
        self.reserve_numbers(writes);
    }

    fn reserve_numbers(&mut self, writes: &mut WriteSet) {
        let (next, reserved) = (self.next, self.reserved);
        if next.session <= reserved.session && next.lsn <= reserved.lsn {
            return;
        }
        self.reserved = NextIds {
            session: SessionId::new(next.session.value().saturating_add(RESERVATION.session.value())),
            lsn: Lsn::new(next.lsn.value().saturating_add(RESERVATION.lsn.value())),
        };
        writes.next = Some(self.reserved);
    }

    /// Applies a change inside one session.
    fn edit(&mut self, change: Change, writes: &mut WriteSet) {
        if let Change::Queued { lsn, .. } = change {
            self.next.lsn = self.next.lsn.max(lsn.next());
        }
        let Some(id) = change.session() else { return };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match change {
            Change::Resumed { identity, expiry, claim, .. } => {
                (session.claim, session.record.identity) = (claim, identity);
                (session.record.expiry, session.record.parked_at) = (expiry, None);
                writes.sessions.put(id, session.record.clone());
            }
            Change::Parked { at, expiry, .. } => {
                (session.record.expiry, session.record.parked_at) = (expiry, Some(at));
                writes.sessions.put(id, session.record.clone());
            }
            Change::WillSet { will, .. } => writes.session_rows(id).will = Some(Write::Put(will)),
            Change::WillCleared { .. } => writes.session_rows(id).will = Some(Write::Remove),
            Change::Subscribed { filter, subscription, .. } => {
                writes.session_rows(id).subscriptions.put(filter, subscription);
            }
            Change::Unsubscribed { filter, .. } => writes.session_rows(id).subscriptions.remove(filter),
            Change::Received { packet_id, exchanges, .. } => {
                writes.session_rows(id).received.put(packet_id, exchanges);
            }
            Change::ReceivedReleased { packet_id, .. } => writes.session_rows(id).received.remove(packet_id),
            Change::Queued { lsn, delivery, .. } => {
                let (key, message) = ((lsn, id), delivery.message);
                let former = session.set(lsn, Entry::Waiting(message));
                match former {
                    None | Some(Entry::Released) => writes.queue.insert(key, delivery),
                    Some(Entry::Waiting(_) | Entry::Sent(_)) => writes.queue.put(key, delivery),
                }
                if matches!(former, Some(Entry::Sent(_) | Entry::Released)) {
                    writes.inflight.remove(key);
                }
                self.add_reference(message);
                self.remove_reference(former.and_then(Entry::message));
            }
            Change::Sent { lsn, packet_id, .. } => {
                let Some(queued) = session.find_mut(lsn) else { return };
                let Some(message) = queued.entry.message() else { return };
                queued.entry = Entry::Sent(message);
                self.step((lsn, id), Phase::Sent, packet_id, writes);
            }
            Change::Released { lsn, packet_id, .. } => {
                let Some(queued) = session.find_mut(lsn) else { return };
                let former = mem::replace(&mut queued.entry, Entry::Released).message();
                if former.is_some() {
                    writes.queue.remove((lsn, id));
                }
                self.remove_reference(former);
                self.step((lsn, id), Phase::Released, packet_id, writes);
            }
            Change::Completed { lsn, .. } => {
                if let Some(entry) = session.take(lsn) {
                    self.remove_entry((lsn, id), entry, writes);
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, key: QueueKey, phase: Phase, packet_id: PacketId, writes: &mut WriteSet) {
        self.last_step += 1;
        writes.inflight.put(key, Inflight { phase, packet_id, step: self.last_step });
    }

    /// Removes the rows and the reference of an entry that left its queue.
    fn remove_entry(&mut self, key: QueueKey, entry: Entry, writes: &mut WriteSet) {
        if !matches!(entry, Entry::Released) {
            writes.queue.remove(key);
        }
        if !matches!(entry, Entry::Waiting(_)) {
            writes.inflight.remove(key);
        }
        self.remove_reference(entry.message());
    }

    fn open(&mut self, session: Session, writes: &mut WriteSet) {
        let (id, client_id) = (session.record.id, session.record.client_id.clone());
        self.close(id, writes);
        if let Some(former) = self.session_of(&client_id) {
            self.close(former, writes);
        }
        writes.sessions.insert(id, session.record.clone());
        self.clients.insert(client_id, id);
        self.sessions.insert(id, session);
    }

    fn close(&mut self, session: SessionId, writes: &mut WriteSet) {
        let Some(closed) = self.sessions.remove(&session) else { return };
        self.clients.remove(&closed.record.client_id);
        for queued in closed.queue {
            self.remove_entry((queued.lsn, session), queued.entry, writes);
        }
        writes.close(session);
    }

    fn retain(&mut self, topic: TopicName, message: Lsn, writes: &mut WriteSet) {
        let former = self.retained.insert(topic.clone(), message);
        match former {
            None => writes.retained.insert(topic, message),
            Some(former) if former == message => {}
            Some(_) => writes.retained.put(topic, message),
        }
        self.add_reference(message);
        self.remove_reference(former);
    }

    fn add_reference(&mut self, message: Lsn) {
        *self.references.entry(message).or_insert(0) += 1;
    }

    fn remove_reference(&mut self, message: Option<Lsn>) {
        let Some((message, count)) = message.and_then(|lsn| Some((lsn, self.references.get_mut(&lsn)?)))
        else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.maybe_unreferenced.push(message);
        }
    }
}

/// Loading from the tables: sessions first, then queue entries by ascending lsn.
impl Index {
    /// False when the session or its client is already loaded.
    #[must_use]
    pub(super) fn load_session(&mut self, record: SessionRecord) -> bool {
        let (id, client_id) = (record.id, record.client_id.clone());
        self.clients.insert(client_id, id).is_none()
            && self.sessions.insert(id, Session::new(record, self.first_claim)).is_none()
    }

    pub(super) fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// False when the session does not exist or already has the entry.
    #[must_use]
    pub(super) fn load_queued(&mut self, (lsn, session): QueueKey, message: Lsn) -> bool {
        let Some(session) = self.sessions.get_mut(&session) else { return false };
        let new = session.set(lsn, Entry::Waiting(message)).is_none();
        self.add_reference(message);
        new
    }

    /// False when the session does not exist, or the entry does not fit the phase.
    #[must_use]
    pub(super) fn load_inflight(&mut self, (lsn, session): QueueKey, inflight: Inflight) -> bool {
        self.last_step = self.last_step.max(inflight.step);
        let Some(session) = self.sessions.get_mut(&session) else { return false };
        match (inflight.phase, session.find_mut(lsn)) {
            (Phase::Sent, Some(queued)) => {
                let Entry::Waiting(message) = queued.entry else { return false };
                queued.entry = Entry::Sent(message);
                true
            }
            (Phase::Released, None) => session.set(lsn, Entry::Released).is_none(),
            (Phase::Sent, None) | (Phase::Released, Some(_)) => false,
        }
    }

    /// False when the topic already has a retained message.
    #[must_use]
    pub(super) fn load_retained(&mut self, topic: TopicName, message: Lsn) -> bool {
        self.add_reference(message);
        self.retained.insert(topic, message).is_none()
    }

    /// Reference counts by message.
    pub(super) const fn references(&self) -> &BTreeMap<Lsn, u32> {
        &self.references
    }
}

/// A session and its queue, in compact form: a million entries are in memory at once.
struct Session {
    record: SessionRecord,
    claim: Claim,
    /// By ascending lsn.
    queue: VecDeque<Queued>,
}

#[derive(Clone, Copy)]
struct Queued {
    lsn: Lsn,
    entry: Entry,
}

#[derive(Clone, Copy)]
enum Entry {
    Waiting(Lsn),
    Sent(Lsn),
    Released,
}

impl Entry {
    const fn message(self) -> Option<Lsn> {
        match self {
            Self::Waiting(message) | Self::Sent(message) => Some(message),
            Self::Released => None,
        }
    }
}

impl Session {
    const fn new(record: SessionRecord, claim: Claim) -> Self {
        Self { record, claim, queue: VecDeque::new() }
    }

    /// Index of the entry, or of its insertion.
    fn find(&self, lsn: Lsn) -> Result<usize, usize> {
        // Mostly the newest entry is added and the oldest removed.
        match (self.queue.front(), self.queue.back()) {
            (_, Some(last)) if last.lsn < lsn => Err(self.queue.len()),
            (Some(first), _) if first.lsn == lsn => Ok(0),
            _ => self.queue.binary_search_by_key(&lsn, |queued| queued.lsn),
        }
    }

    /// Sets the entry and returns the former one.
    fn set(&mut self, lsn: Lsn, entry: Entry) -> Option<Entry> {
        match self.find(lsn) {
            Ok(at) => self.queue.get_mut(at).map(|queued| mem::replace(&mut queued.entry, entry)),
            Err(at) => {
                self.queue.insert(at, Queued { lsn, entry });
                None
            }
        }
    }

    fn find_mut(&mut self, lsn: Lsn) -> Option<&mut Queued> {
        self.find(lsn).ok().and_then(|at| self.queue.get_mut(at))
    }

    fn take(&mut self, lsn: Lsn) -> Option<Entry> {
        let queued = self.find(lsn).ok().and_then(|at| self.queue.remove(at))?;
        if self.queue.is_empty() {
            // Frees the memory of a queue that was long.
            self.queue = VecDeque::new();
        }
        Some(queued.entry)
    }
}
