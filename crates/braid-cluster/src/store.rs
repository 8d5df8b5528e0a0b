//! Store of a node: records of its sessions, whose queues are parts of the log.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use braid_proto::packet::{ClientId, PacketId};
use braid_store::{
    Batch, Change, Claim, Commit, Completion, LazyMessage, Lsn, NextIds, Recover, SessionId, Store,
    StoreError, StoredMessage,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::appending::Appending;
use crate::clock::ClusterClock;
use crate::commit::CommitPart;
use crate::exchanges::{ExchangeUpdate, Exchanges};
use crate::interest::{Interest, SUBSCRIBERS};
use crate::layout::{Layout, OWN_NUMBERS};
use crate::lazy::Lazy;
use crate::log_writer::{Append, Command, Commands, Outcomes};
use crate::name::Name;
use crate::position::ReadPosition;
use crate::retained::RetainedMessage;
use crate::sessions::{OwnSession, SharedMessage};

/// Longest wait for writes at the end of a node: with the five seconds in which connections end, and two for the lease,
/// it leaves in ten.
const SETTLE: Duration = Duration::from_secs(3);

/// Time between two looks at the writes.
const LOOK: Duration = Duration::from_millis(20);

/// Event of a session that the broker has to be told of.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// Its record says that no node has it.
    Parked(SessionId),
    /// Another node has it.
    Lost(SessionId),
    /// The servers do not answer, and its state there is not known.
    Unavailable(SessionId),
    /// The claim of a session has failed, and its record may name this node.
    Unclaimed(ClientId),
    /// None: the events before are carried out.
    Verified(oneshot::Sender<()>),
}

/// Message of a shared subscription that is over at this node.
#[derive(Debug)]
pub(crate) struct SharedOutcome {
    pub(crate) message: SharedMessage,
    /// False: another member is to get it.
    pub(crate) is_complete: bool,
}

/// Ways out of the store.
#[derive(Debug)]
pub(crate) struct Outlets {
    /// Sessions whose record is to be written.
    pub(crate) due: UnboundedSender<SessionId>,
    pub(crate) events: UnboundedSender<SessionEvent>,
    pub(crate) shared: UnboundedSender<SharedOutcome>,
    /// Reads of messages.
    pub(crate) reads: UnboundedSender<ReadRequest>,
    pub(crate) interest: UnboundedSender<Interest>,
    /// Writers of the shards, by index.
    pub(crate) writers: Vec<Commands>,
}

/// Messages to be read.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    pub(crate) lsns: Vec<Lsn>,
    pub(crate) completer: braid_store::Completer<Vec<Option<StoredMessage>>>,
}

/// State that the tasks of a node share.
pub(crate) struct NodeState {
    pub(crate) layout: Layout,
    /// Name and process of this node.
    pub(crate) node: String,
    pub(crate) run: Arc<str>,
    pub(crate) outlets: Outlets,
    /// Readers of the shards, by index.
    pub(crate) positions: Vec<ReadPosition>,
    sessions: Mutex<Sessions>,
    retained: Mutex<Vec<RetainedMessage>>,
    next_claim: AtomicU64,
    /// Nodes with a lease, as of a short time ago.
    live_nodes: Mutex<Arc<[Name]>>,
    /// The servers take messages.
    pub(crate) is_reachable: AtomicBool,
    pub(crate) appending: Appending,
    pub(crate) clock: ClusterClock,
}

#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) own: HashMap<SessionId, OwnSession>,
    by_client: HashMap<ClientId, SessionId>,
    /// Sessions whose record may be written late.
    pub(crate) lazy: Lazy,
}

impl Sessions {
    /// Adds a session of this node.
    pub(crate) fn insert(&mut self, id: SessionId, session: OwnSession) {
        self.by_client.insert(session.client_id.clone(), id);
        self.own.insert(id, session);
    }

    fn of_client(&mut self, client_id: &ClientId) -> Option<&mut OwnSession> {
        self.own.get_mut(self.by_client.get(client_id)?)
    }

    fn remove(&mut self, id: SessionId) -> Option<OwnSession> {
        self.lazy.remove(id);
        let session = self.own.remove(&id)?;
        if self.by_client.get(&session.client_id) == Some(&id) {
            self.by_client.remove(&session.client_id);
        }
        Some(session)
    }
}

impl NodeState {
    pub(crate) fn new(
        layout: Layout,
        node: String,
        run: Arc<str>,
        outlets: Outlets,
        positions: Vec<ReadPosition>,
        retained: Vec<RetainedMessage>,
    ) -> Self {
        Self {
            layout,
            node,
            run,
            outlets,
            positions,
            sessions: Mutex::default(),
            retained: Mutex::new(retained),
            next_claim: AtomicU64::new(1),
            live_nodes: Mutex::default(),
            is_reachable: AtomicBool::new(true),
            appending: Appending::default(),
            clock: ClusterClock::new(),
        }
    }

    /// Locks the sessions. Poison is ignored: a panic leaves a session whose record is found again by the next claim.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_claim(&self) -> Claim {
        Claim::new(self.next_claim.fetch_add(1, Ordering::Relaxed))
    }

    /// Nodes with a lease, as of a short time ago.
    pub(crate) fn live_nodes(&self) -> Arc<[Name]> {
        self.live_nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn note_live_nodes(&self, nodes: Arc<[Name]>) {
        *self.live_nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Position up to which each shard is delivered here.
    pub(crate) fn positions(&self) -> Arc<[u64]> {
        self.positions.iter().map(ReadPosition::completed).collect()
    }

    /// Sends an event. Without a receiver the node stops.
    pub(crate) fn tell(&self, event: SessionEvent) {
        let _ = self.outlets.events.send(event);
    }

    /// Marks the record of a session as to be written.
    pub(crate) fn note_due(&self, session: SessionId) {
        let _ = self.outlets.due.send(session);
    }

    /// Writes all records: those of sessions that other nodes have taken over meanwhile are refused. Returns when each
    /// is decided, and the broker knows which sessions it has lost.
    pub(crate) async fn verify_all(&self) {
        for decision in self.write_all() {
            // A session that is lost is told by an event.
            let _ = decision.await;
        }
        let (told, is_told) = oneshot::channel();
        self.tell(SessionEvent::Verified(told));
        let _ = is_told.await;
    }

    fn write_all(&self) -> Vec<Commit> {
        let mut sessions = self.sessions();
        let own = sessions.own.iter_mut().filter(|(_, session)| !session.is_lost);
        let decisions = own.map(|(id, session)| {
            let (part, decision) = CommitPart::join(1);
            session.write.waiters.push(part);
            session.write.is_due = true;
            self.note_due(*id);
            decision
        });
        decisions.collect()
    }

    /// Waits until nothing is due any more, for a bounded time.
    pub(crate) async fn settle(&self) {
        let give_up = Instant::now() + SETTLE;
        let is_busy = || {
            let sessions = self.sessions();
            let is_busy = |session: &OwnSession| {
                session.write.is_due || session.write.is_running || session.write.appending > 0
            };
            sessions.own.values().any(is_busy)
        };
        while is_busy() && Instant::now() < give_up {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Removes a session that this node does not have any more, and returns its client.
    pub(crate) fn drop_session(&self, id: SessionId) -> Option<ClientId> {
        let mut sessions = self.sessions();
        let mut session = sessions.remove(id)?;
        drop(sessions);
        self.return_shared(&mut session, false);
        for part in session.write.waiters {
            part.complete(&Err(StoreError::Fenced { session: id }));
        }
        for completer in session.write.claims {
            completer.complete(Ok(self.next_claim()));
        }
        for writer in &self.outlets.writers {
            let _ = writer.send(Command::Forget(id));
        }
        Some(session.client_id)
    }

    /// Gives messages of shared subscriptions back that a session does not keep. `goes_on`: it is here still.
    pub(crate) fn return_shared(&self, session: &mut OwnSession, goes_on: bool) {
        for (message, is_complete) in session.take_shared(goes_on) {
            self.end_shared(message, is_complete);
        }
    }

    /// Ends a message of a shared subscription at this node.
    pub(crate) fn end_shared(&self, message: SharedMessage, is_complete: bool) {
        let _ = self.outlets.shared.send(SharedOutcome { message, is_complete });
    }

    /// Ends an exchange of QoS 2 in the log. `None`: it is not known.
    fn release_exchange(
        &self,
        id: SessionId,
        session: &mut OwnSession,
        packet_id: PacketId,
    ) -> Option<(usize, Append)> {
        let index = session.close_exchange(packet_id)?;
        if !session.outlives_connection() {
            return None;
        }
        session.write.appending += 1;
        let update = ExchangeUpdate { opened: Vec::new(), released: vec![packet_id] };
        let exchanges = Some((session.client_id.clone(), update));
        let (part, _) = CommitPart::join(1);
        let charge = self.appending.charge(0);
        let (session, arrived) = (Some(id), Instant::now());
        Some((index, Append { session, messages: Vec::new(), exchanges, part, charge, arrived }))
    }
}

impl Outcomes for NodeState {
    fn note_appended(&self, session: SessionId) {
        let mut sessions = self.sessions();
        let Some(own) = sessions.own.get_mut(&session) else { return };
        own.write.appending = own.write.appending.saturating_sub(1);
        if own.write.appending == 0 {
            own.note_decided();
        }
        let is_due = own.write.appending == 0 && own.write.holds && own.write.is_due;
        drop(sessions);
        if is_due {
            self.note_due(session);
        }
    }

    fn note_lost(&self, session: SessionId) {
        self.tell(SessionEvent::Lost(session));
    }

    fn note_unavailable(&self, session: SessionId) {
        // At once: no record is written any more that says that the messages, such as a Will, are published.
        if let Some(own) = self.sessions().own.get_mut(&session) {
            own.is_lost = true;
        }
        self.tell(SessionEvent::Unavailable(session));
    }
}

/// Store of a node.
pub(crate) struct ClusterStore(pub(crate) Arc<NodeState>);

impl fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("node", &self.0.node).finish_non_exhaustive()
    }
}

/// Effect of a change.
enum Effect {
    /// The record may be written late.
    Late,
    /// The record must be written.
    Write,
    /// None of the record.
    Nothing,
    /// An exchange ends in the log.
    Append(usize, Append),
    /// The session is of another node.
    Fenced,
}

impl Store for ClusterStore {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        let retained = self.0.retained.lock().unwrap_or_else(PoisonError::into_inner);
        for RetainedMessage { lsn, message } in retained.iter() {
            into.retained(message.topic().clone(), *lsn);
        }
        Ok(NextIds { session: SessionId::new(1), lsn: OWN_NUMBERS })
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        let mut retained =
            std::mem::take(&mut *self.0.retained.lock().unwrap_or_else(PoisonError::into_inner));
        retained.sort_unstable_by_key(|one| one.lsn);
        for RetainedMessage { lsn, message } in retained {
            show(lsn, LazyMessage::of(message));
        }
        Ok(())
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        let mut sessions = self.0.sessions();
        // The record is claimed by its first write, which must follow the last one of a session that ends here.
        match sessions.of_client(client_id).filter(|session| session.write.ends) {
            Some(ending) => {
                let (completer, claim) = Completion::pending();
                ending.write.claims.push(completer);
                claim
            }
            None => Completion::Done(Ok(self.0.next_claim())),
        }
    }

    fn commit(&self, batch: Batch) -> Commit {
        let is_lazy = batch.is_lazy();
        let positions = self.0.positions();
        let (mut due, mut appends, mut fenced, mut marks) = (Vec::new(), Vec::new(), None, 0);
        let mut sessions = self.0.sessions();
        for change in batch {
            if matches!(change, Change::Subscribed { since: Some(_), .. }) {
                marks = SUBSCRIBERS;
            }
            let Some(id) = session_of(&change) else { continue };
            match self.apply(&mut sessions, id, change, &positions) {
                Effect::Nothing => {}
                Effect::Late => sessions.lazy.insert(id),
                Effect::Write => due.push(id),
                Effect::Append(index, append) => appends.push((index, append)),
                Effect::Fenced => fenced = Some(id),
            }
        }
        due.sort_unstable();
        due.dedup();
        if is_lazy {
            due.drain(..).for_each(|id| sessions.lazy.insert(id));
        }
        let parts = due.len() + appends.len() + marks;
        let (part, commit) = CommitPart::join(parts.max(1));
        for id in &due {
            if let Some(session) = sessions.own.get_mut(id) {
                session.write.is_due = true;
                session.write.waiters.push(part.clone());
            }
        }
        drop(sessions);
        due.into_iter().for_each(|id| self.0.note_due(id));
        for (index, append) in appends {
            let append = Append { part: part.clone(), ..append };
            let _ = self.0.outlets.writers[index].send(Command::Append(append));
        }
        if marks > 0 {
            let _ = self.0.outlets.interest.send(Interest::Mark(part));
        }
        match fenced {
            Some(session) => Completion::Done(Err(StoreError::Fenced { session })),
            None if parts == 0 => Completion::Done(Ok(())),
            None => commit,
        }
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        let (completer, answer) = Completion::pending();
        let _ = self.0.outlets.reads.send(ReadRequest { lsns: lsns.to_vec(), completer });
        answer
    }

    fn keeps_every_session(&self) -> bool {
        true
    }

    fn positions(&self) -> Arc<[u64]> {
        self.0.positions()
    }

    fn wall_clock(&self) -> SystemTime {
        self.0.clock.wall()
    }
}

impl ClusterStore {
    fn apply(&self, sessions: &mut Sessions, id: SessionId, change: Change, positions: &[u64]) -> Effect {
        let NodeState { layout, outlets, .. } = &*self.0;
        if let Change::Opened { client_id, identity, expiry, claim, .. } = change {
            for (place, writer) in outlets.writers.iter().enumerate() {
                let subject = layout.exchanges(layout.shard_at(place), &client_id);
                let _ = writer.send(Command::Adopt(id, Exchanges::new(client_id.clone(), subject)));
            }
            let session = OwnSession::new(layout, client_id, identity, expiry, claim, positions);
            sessions.insert(id, session);
            return Effect::Write;
        }
        let session = match sessions.own.get_mut(&id) {
            Some(session) if !session.is_lost => session,
            lost => {
                if let Change::Queued { delivery, .. } = &change
                    && let Some(filter) = &delivery.shared
                {
                    self.0.end_shared((filter.clone(), delivery.message), false);
                }
                // Others of the batch are not concerned.
                let is_refused = !is_of_queue(&change) && (lost.is_some() || has_client(&change));
                return if is_refused { Effect::Fenced } else { Effect::Nothing };
            }
        };
        let outlives = session.outlives_connection();
        let due_if = |is_due: bool| if is_due { Effect::Write } else { Effect::Late };
        match change {
            Change::Resumed { identity, expiry, claim, .. } => {
                session.resume(identity, expiry, claim);
                Effect::Write
            }
            Change::Parked { claim, .. } | Change::Closed { claim, .. } if claim < session.claim => {
                Effect::Fenced
            }
            Change::Parked { at, expiry, .. } => {
                session.park(at, expiry);
                self.0.return_shared(session, true);
                Effect::Write
            }
            Change::Closed { .. } => {
                (session.write.ends, session.write.holds) = (true, true);
                self.0.return_shared(session, false);
                Effect::Write
            }
            Change::WillSet { will, .. } => {
                session.set_will(Some(will));
                Effect::Write
            }
            Change::WillCleared { .. } => {
                session.set_will(None);
                Effect::Write
            }
            Change::Subscribed { filter, subscription, since, .. } => {
                session.subscribe(filter, subscription, since);
                due_if(outlives)
            }
            Change::Unsubscribed { filter, .. } => {
                session.unsubscribe(&filter);
                due_if(outlives)
            }
            Change::Queued { lsn, delivery, .. } => {
                session.queue(layout, lsn, delivery);
                Effect::Nothing
            }
            Change::Sent { lsn, packet_id, .. } => due_if(session.send(lsn, packet_id)),
            Change::Released { lsn, packet_id, .. } => due_if(session.release(lsn, packet_id)),
            Change::Completed { lsn, .. } => {
                if let Some(message) = session.complete(layout, lsn) {
                    self.0.end_shared(message, true);
                }
                if outlives { Effect::Late } else { Effect::Nothing }
            }
            Change::ReceivedReleased { packet_id, .. } => self.end_exchange(id, session, packet_id),
            Change::Received { packet_id, exchanges, .. }
                if session.exchanges(packet_id) > usize::from(exchanges.get()) =>
            {
                self.end_exchange(id, session, packet_id)
            }
            _ => Effect::Nothing,
        }
    }

    fn end_exchange(&self, id: SessionId, session: &mut OwnSession, packet_id: PacketId) -> Effect {
        let released = self.0.release_exchange(id, session, packet_id);
        released.map_or(Effect::Nothing, |(index, append)| Effect::Append(index, append))
    }
}

/// Session that a change concerns; `None`: it is of retained messages or of none.
fn session_of(change: &Change) -> Option<SessionId> {
    match change {
        Change::Opened { session, .. }
        | Change::Resumed { session, .. }
        | Change::Parked { session, .. }
        | Change::Closed { session, .. }
        | Change::WillSet { session, .. }
        | Change::WillCleared { session }
        | Change::Subscribed { session, .. }
        | Change::Unsubscribed { session, .. }
        | Change::Queued { session, .. }
        | Change::Sent { session, .. }
        | Change::Released { session, .. }
        | Change::Completed { session, .. }
        | Change::Received { session, .. }
        | Change::ReceivedReleased { session, .. } => Some(*session),
        Change::Stored { .. } | Change::Retained { .. } | Change::RetainCleared { .. } => None,
    }
}

/// Tests for a change whose outcome a client or another node waits for: without the session it must not get one.
const fn has_client(change: &Change) -> bool {
    matches!(
        change,
        Change::Resumed { .. }
            | Change::Parked { .. }
            | Change::WillSet { .. }
            | Change::Subscribed { .. }
            | Change::Unsubscribed { .. }
            | Change::Sent { .. }
            | Change::Released { .. }
            | Change::Received { .. }
            | Change::ReceivedReleased { .. }
    )
}

const fn is_of_queue(change: &Change) -> bool {
    matches!(change, Change::Queued { .. } | Change::Completed { .. } | Change::Closed { .. })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::num::NonZeroU16;

    use braid_proto::packet::QoS;
    use braid_proto::session::{SessionExpiry, Subscription};
    use braid_proto::topic::TopicFilter;
    use braid_store::{StoredDelivery, StoredSubscription};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::clock::Readings;
    use crate::layout::Dimensions;
    use crate::record::Record;

    /// A store, and the ends of its outlets.
    pub(crate) struct Fixture {
        pub(crate) store: ClusterStore,
        due: UnboundedReceiver<SessionId>,
        pub(crate) writers: Vec<UnboundedReceiver<Command>>,
        shared: UnboundedReceiver<SharedOutcome>,
    }

    pub(crate) fn fixture() -> Fixture {
        let dimensions = Dimensions { shards: 2, replicas: 3, log_bytes: 1 << 30 };
        let layout = Layout::new("test".parse().unwrap(), dimensions);
        let ((due, from_due), (events, _)) = (unbounded_channel(), unbounded_channel());
        let ((shared, from_shared), (reads, _)) = (unbounded_channel(), unbounded_channel());
        let (writers, from_writers) = (0..layout.parts()).map(|_| unbounded_channel()).unzip();
        let (interest, _) = unbounded_channel();
        let outlets = Outlets { due, events, shared, reads, interest, writers };
        let positions = [5, 6, 7].map(ReadPosition::new).into();
        let state = NodeState::new(layout, "a".to_owned(), "run".into(), outlets, positions, Vec::new());
        let store = ClusterStore(Arc::new(state));
        Fixture { store, due: from_due, writers: from_writers, shared: from_shared }
    }

    const ID: SessionId = SessionId::new(1);

    fn opened(id: SessionId, client: &str, expiry: u32) -> Change {
        let (client_id, claim) = (ClientId::from(client), Claim::new(1));
        Change::Opened {
            session: id,
            client_id,
            identity: None,
            expiry: SessionExpiry::from_secs(expiry),
            claim,
        }
    }

    fn subscribed(id: SessionId) -> Change {
        let subscription = StoredSubscription::of(&Subscription::default());
        let filter = TopicFilter::parse("a").unwrap();
        Change::Subscribed { session: id, filter, subscription, since: None }
    }

    fn queued(id: SessionId, lsn: Lsn, delivery: StoredDelivery) -> Change {
        Change::Queued { session: id, lsn, delivery }
    }

    fn delivery(lsn: Lsn, qos: QoS) -> StoredDelivery {
        StoredDelivery::new(lsn, qos)
    }

    fn commit(
        store: &ClusterStore,
        changes: impl IntoIterator<Item = Change>,
    ) -> Option<Result<(), StoreError>> {
        store.commit(changes.into_iter().collect()).try_take()
    }

    #[test]
    fn a_commit_waits_for_the_record_where_an_answer_to_the_client_depends_on_it() {
        let Fixture { store, mut due, .. } = fixture();
        let packet_id = PacketId::FIRST;
        let lsn = store.0.layout.lsn(0, 9);
        assert_eq!(commit(&store, [opened(ID, "c", 60)]), None);
        assert_eq!(due.try_recv(), Ok(ID));
        for (change, waits) in [
            (queued(ID, lsn, delivery(lsn, QoS::ExactlyOnce)), false),
            (subscribed(ID), true),
            (Change::Sent { session: ID, lsn, packet_id }, true),
            (Change::Released { session: ID, lsn, packet_id }, true),
            (Change::Completed { session: ID, lsn }, false),
            (Change::Unsubscribed { session: ID, filter: TopicFilter::parse("a").unwrap() }, true),
            (Change::WillCleared { session: ID }, true),
        ] {
            let text = format!("{change:?}");
            assert_eq!(commit(&store, [change]).is_none(), waits, "{text}");
            assert_eq!(due.try_recv().is_ok(), waits, "{text}");
        }
        // A session that ends with its connection has nothing to outlive it.
        let short = SessionId::new(2);
        assert_eq!(commit(&store, [opened(short, "d", 0)]), None);
        assert_eq!(due.try_recv(), Ok(short));
        assert_eq!(commit(&store, [subscribed(short)]), Some(Ok(())));
    }

    #[test]
    fn its_clock_is_that_of_the_servers() {
        let Fixture { store, .. } = fixture();
        let ahead = Duration::from_secs(7200);
        store.0.clock.set_to_median(&Readings::of("n1", SystemTime::now() + ahead), 1);
        assert!(store.wall_clock() > SystemTime::now() + ahead / 2);
    }

    #[test]
    fn a_claim_waits_for_the_end_of_the_session_before() {
        let Fixture { store, .. } = fixture();
        let client = ClientId::from("c");
        commit(&store, [opened(ID, "c", 60)]);
        assert!(store.claim(&client).try_take().is_some_and(|claim| claim.is_ok()));
        commit(&store, [Change::Closed { session: ID, claim: Claim::new(1) }]);
        let mut claim = store.claim(&client);
        assert!(claim.try_take().is_none() && store.claim(&ClientId::from("d")).try_take().is_some());
        assert_eq!(store.0.drop_session(ID), Some(client));
        assert!(claim.try_take().is_some_and(|claim| claim.is_ok()));
    }

    #[test]
    fn a_lost_session_is_fenced_and_others_of_its_batch_are_not() {
        let Fixture { store, .. } = fixture();
        let other = SessionId::new(2);
        commit(&store, [opened(ID, "c", 60), opened(other, "d", 60)]);
        store.0.sessions().own.get_mut(&ID).unwrap().is_lost = true;
        let lsn = store.0.layout.lsn(1, 9);
        let both = [ID, other].map(|id| queued(id, lsn, delivery(lsn, QoS::AtLeastOnce)));
        assert_eq!(commit(&store, both), Some(Ok(())));
        let record = store.0.sessions().own[&other].record(&store.0.layout, &[20, 20, 20], "a", "1");
        assert_eq!(record.progress.iter().map(|shard| shard.done).collect::<Vec<_>>(), [20, 8, 20]);
        assert_eq!(commit(&store, [subscribed(ID)]), Some(Err(StoreError::Fenced { session: ID })));
        let late = Change::Parked {
            session: other,
            at: SystemTime::now(),
            expiry: SessionExpiry::NEVER,
            claim: Claim::new(0),
        };
        assert_eq!(
            commit(&store, [late]),
            Some(Err(StoreError::Fenced { session: other })),
            "an older claim"
        );
    }

    // The broker may still be reading the messages in flight of a session that it takes over.
    #[test]
    fn the_record_of_a_session_names_the_node_until_the_broker_gives_it_back() {
        let Fixture { store, .. } = fixture();
        let NodeState { layout, .. } = &*store.0;
        commit(&store, [opened(ID, "c", 60)]);
        let record = || store.0.sessions().own[&ID].record(layout, &[5, 6, 7], "a", "run");
        let found = Record { parked_at: Some(1), ..record() };
        let (client, claim) = (ClientId::from("c"), Claim::new(2));
        let taken = OwnSession::taken(layout, client, &found, 9, std::collections::BTreeMap::new(), claim);
        assert!(!taken.is_parked());
        store.0.sessions().insert(ID, taken);
        let of = |record: Record| (record.owner, record.run, record.is_clean, record.parked_at);
        let own = |parked_at| (Some("a".to_owned()), "run".to_owned(), false, parked_at);
        assert_eq!(of(record()), own(Some(1)));
        let expiry = SessionExpiry::from_secs(60);
        commit(&store, [Change::Resumed { session: ID, identity: None, expiry, claim }]);
        assert_eq!(of(record()), own(None));
        let at = std::time::UNIX_EPOCH + Duration::from_secs(2);
        commit(&store, [Change::Parked { session: ID, at, expiry, claim }]);
        assert_eq!(of(record()), (None, String::new(), true, Some(2000)));
    }

    #[test]
    fn nothing_is_acknowledged_of_a_session_that_is_not_here() {
        let Fixture { store, .. } = fixture();
        let (session, lsn, packet_id) = (ID, store.0.layout.lsn(0, 9), PacketId::FIRST);
        let (fenced, expiry) = (|| Some(Err(StoreError::Fenced { session: ID })), SessionExpiry::NEVER);
        for (change, outcome) in [
            (subscribed(ID), fenced()),
            (Change::Sent { session, lsn, packet_id }, fenced()),
            (Change::Released { session, lsn, packet_id }, fenced()),
            (Change::ReceivedReleased { session, packet_id }, fenced()),
            (Change::Parked { session, at: std::time::UNIX_EPOCH, expiry, claim: Claim::new(1) }, fenced()),
            (queued(ID, lsn, delivery(lsn, QoS::AtLeastOnce)), Some(Ok(()))),
            (Change::Completed { session, lsn }, Some(Ok(()))),
            (Change::WillCleared { session }, Some(Ok(()))),
        ] {
            let text = format!("{change:?}");
            assert_eq!(commit(&store, [change]), outcome, "{text}");
        }
    }

    #[test]
    fn an_exchange_ends_in_the_shard_in_which_it_began() {
        let Fixture { store, mut writers, .. } = fixture();
        commit(&store, [opened(ID, "c", 60)]);
        for index in [1, 2] {
            store.0.sessions().own.get_mut(&ID).unwrap().open_exchange(PacketId::FIRST, index);
        }
        let (session, packet_id) = (ID, PacketId::FIRST);
        let one = Change::Received { session, packet_id, exchanges: NonZeroU16::MIN };
        assert_eq!(commit(&store, [one.clone()]), None);
        assert_eq!(commit(&store, [one]), Some(Ok(())), "there is one left");
        assert_eq!(commit(&store, [Change::ReceivedReleased { session, packet_id }]), None);
        assert_eq!(
            commit(&store, [Change::ReceivedReleased { session, packet_id }]),
            Some(Ok(())),
            "none is left"
        );
        let appends = writers.iter_mut().map(|writer| {
            std::iter::from_fn(|| writer.try_recv().ok())
                .filter(|command| {
                    matches!(command, Command::Append(Append { exchanges: Some((_, update)), .. })
                    if update.released == [packet_id] && update.opened.is_empty())
                })
                .count()
        });
        assert_eq!(appends.collect::<Vec<_>>(), [0, 1, 1]);
        assert_eq!(store.0.sessions().own[&ID].write.appending, 2);
    }

    #[test]
    fn an_exchange_is_in_the_record_when_its_messages_are_decided() {
        let Fixture { store, .. } = fixture();
        commit(&store, [opened(ID, "c", 60)]);
        let received = || {
            let sessions = store.0.sessions();
            sessions.own[&ID].record(&store.0.layout, &[0; 3], "a", "1").received
        };
        for (number, index) in [(1, 2), (2, 0)] {
            let mut sessions = store.0.sessions();
            let session = sessions.own.get_mut(&ID).unwrap();
            session.open_exchange(PacketId::new(number).unwrap(), index);
            session.write.appending += 1;
        }
        assert_eq!(received(), []);
        store.0.note_appended(ID);
        assert_eq!(received(), [], "one of them is on its way");
        store.0.note_appended(ID);
        assert_eq!(received(), [(1, 1, 2), (2, 1, 0)]);
    }

    #[test]
    fn a_shared_message_for_a_session_that_is_lost_goes_to_another_member() {
        let Fixture { store, mut shared, .. } = fixture();
        commit(&store, [opened(ID, "c", 60)]);
        store.0.sessions().own.get_mut(&ID).unwrap().is_lost = true;
        let (filter, message) =
            (Arc::new(TopicFilter::parse("$share/g/a").unwrap()), store.0.layout.lsn(0, 9));
        for id in [ID, SessionId::new(9)] {
            let delivery =
                StoredDelivery { shared: Some(filter.clone()), ..delivery(message, QoS::AtLeastOnce) };
            assert_eq!(commit(&store, [queued(id, OWN_NUMBERS, delivery)]), Some(Ok(())));
            let outcome = shared.try_recv().unwrap();
            assert_eq!((outcome.message, outcome.is_complete), ((filter.clone(), message), false));
        }
    }

    #[test]
    fn a_completed_message_of_a_shared_subscription_is_acknowledged() {
        let Fixture { store, mut shared, .. } = fixture();
        commit(&store, [opened(ID, "c", 0)]);
        let filter = Arc::new(TopicFilter::parse("$share/g/a").unwrap());
        let message = store.0.layout.lsn(0, 9);
        for number in 0..2 {
            let lsn = Lsn::new(OWN_NUMBERS.value() + number);
            let shared = Some(filter.clone());
            let delivery = StoredDelivery { shared, ..delivery(message, QoS::AtLeastOnce) };
            commit(&store, [queued(ID, lsn, delivery)]);
        }
        commit(&store, [Change::Completed { session: ID, lsn: OWN_NUMBERS }]);
        commit(&store, [Change::Closed { session: ID, claim: Claim::new(1) }]);
        let outcomes = std::iter::from_fn(|| shared.try_recv().ok());
        let outcomes: Vec<_> = outcomes.map(|outcome| (outcome.message, outcome.is_complete)).collect();
        assert_eq!(outcomes, [((filter.clone(), message), true), ((filter, message), false)]);
    }
}
