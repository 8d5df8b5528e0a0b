//! Session manager: the life of a session over its connections, disconnections and restarts of the broker.

mod elsewhere;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use braid_auth::identity::Identity;
use braid_proto::connection::End;
use braid_proto::decoder::{PartialMessages, Spool};
use braid_proto::message::Delivery;
use braid_proto::packet::{ClientId, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{MovedSubscription, Session, SessionExpiry, Subscriptions};
use braid_proto::stream::StreamKey;
use braid_store::{Change, Commit, Now, StoreError};
use tokio::time::{Instant, timeout, timeout_at};

use crate::auth::{ClientAccess, shortened};
use crate::clock;
use crate::dispatch::Dispatcher;
use crate::memory::Memory;
use crate::persist::{self, MessageLoader, Persist, RecoveredSession};
use crate::queue::session_queue::Signal;
use crate::queue::stored::{Source, StoredEntry};
use crate::registry::{
    ConnectionId, Presence, Registry, ReleasedSession, SessionEntry, SessionKey, SessionOwner,
};
use crate::retained::RetainedCursor;
use crate::routing::{FILTERS_AT_ONCE, RoutingTable};
use crate::session_queues::SessionQueues;
use crate::timers::{ExpiredTimer, TimerKind, Timers};

/// Time that a CONNECT waits for the connection that owns its session. An owner releases it at its next turn; one that
/// does not in this time is stuck, and will not become free sooner for more waiting.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// Stored messages that are read in one piece.
const READ_AT_ONCE: usize = 64;

/// Memory of the stored messages that are read in one piece, bytes; the last message may exceed it.
const READ_BYTES_AT_ONCE: usize = 1024 * 1024;

/// Claims, releases, resumes and ends sessions.
pub(crate) struct SessionManager {
    pub(crate) registry: Arc<Registry>,
    pub(crate) timers: Timers,
    routing: Arc<RoutingTable>,
    dispatcher: Arc<Dispatcher>,
    queues: Arc<SessionQueues>,
    persist: Arc<Persist>,
    memory: Arc<Memory>,
    /// Spool for large messages that the store gives back.
    spool: Option<Arc<dyn Spool>>,
    next_disconnect_epoch: AtomicU64,
}

/// Session that a connection has claimed.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) entry: Arc<SessionEntry>,
    pub(crate) session: Session,
    /// Delayed Will of a resumed session: void once the connection is accepted.
    pub(crate) will: Option<Will>,
    /// Positions in the retained messages that its subscriptions have not received yet.
    pub(crate) pending_retained: Vec<RetainedCursor>,
    /// The session existed before.
    pub(crate) present: bool,
}

impl SessionManager {
    pub(crate) fn new(
        registry: Arc<Registry>,
        routing: Arc<RoutingTable>,
        dispatcher: Arc<Dispatcher>,
        queues: Arc<SessionQueues>,
        persist: Arc<Persist>,
        memory: Arc<Memory>,
        spool: Option<Arc<dyn Spool>>,
    ) -> Self {
        Self {
            registry,
            timers: Timers::default(),
            routing,
            dispatcher,
            queues,
            persist,
            memory,
            spool,
            next_disconnect_epoch: AtomicU64::new(1),
        }
    }

    // -- Claim -------------------------------------------------------------------------------------

    /// Gives the session of a client to a connection. Another connection that owns it is closed first. [MQTT-3.1.4-3]
    ///
    /// # Errors
    /// The Reason Code for the CONNACK: the client may not have that session, or its owner does not release it.
    pub(crate) async fn claim(
        &self,
        client_id: &ClientId,
        access: &ClientAccess,
        clean_start: bool,
        connection: ConnectionId,
    ) -> Result<Claim, ReasonCode> {
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        let Ok(_turn) = timeout_at(deadline, self.registry.claim_turn(client_id)).await else {
            return Err(busy(client_id));
        };
        if !self.routing.cluster().takes_client(client_id) {
            return Err(ReasonCode::ClientIdentifierNotValid);
        }
        while let Some(entry) = self.find(client_id, |identity| access.owns(identity)).await? {
            let released = take(&entry, access, connection, deadline).await?;
            // In a cluster no timer runs here: another node ends the session, once the store says that it is free.
            let away = entry.disconnected_for(clock::now());
            let has_passed = |time: Duration| away.is_some_and(|away| away >= time);
            match released {
                // The session lives on at another node.
                None if entry.is_lost() => continue,
                // [MQTT-3.1.2-5], [MQTT-3.1.4-4]
                Some(ReleasedSession { session, mut will, pending_retained })
                    if !clean_start && !session.expiry.interval().is_some_and(has_passed) =>
                {
                    let is_due = |will: &mut Will| has_passed(Duration::from_secs(will.delay.into()));
                    if let Some(will) = will.take_if(is_due) {
                        self.dispatcher.publish_will(&entry, will);
                    }
                    entry.queue.open();
                    return Ok(Claim { entry, session, will, pending_retained, present: true });
                }
                // [MQTT-3.1.2-4], [MQTT-3.1.4-4]
                released => {
                    *entry.owner() = SessionOwner::Ended;
                    self.registry.remove(&entry);
                    if let Some(ReleasedSession { session, will, .. }) = released {
                        // The end of the session ends the delay. [MQTT-3.1.3-9]
                        if let Some(will) = will {
                            self.dispatcher.publish_will(&entry, will);
                        }
                        self.end_session(&entry, session);
                    }
                    break;
                }
            }
        }
        Ok(self.create(client_id, access, connection))
    }

    /// Creates a session for a client that has none. `None`: it has one, which is left as it is.
    ///
    /// # Errors
    /// The Reason Code for the CONNACK: other claims for this client do not end.
    pub(crate) async fn claim_new(
        &self,
        client_id: &ClientId,
        access: &ClientAccess,
        connection: ConnectionId,
    ) -> Result<Option<Claim>, ReasonCode> {
        let Ok(_turn) = timeout(CLAIM_TIMEOUT, self.registry.claim_turn(client_id)).await else {
            return Err(busy(client_id));
        };
        let is_new =
            self.registry.find(client_id).is_none() && self.find_elsewhere(client_id).await?.is_none();
        Ok(is_new.then(|| self.create(client_id, access, connection)))
    }

    fn create(&self, client_id: &ClientId, access: &ClientAccess, connection: ConnectionId) -> Claim {
        let entry = self.registry.create(client_id, connection);
        entry.set_identity(access.identity());
        let session = Session::new(client_id.clone(), SessionExpiry::WITH_CONNECTION); // [MQTT-3.1.2-6]
        Claim { entry, session, will: None, pending_retained: Vec::new(), present: false }
    }

    /// Ends the session of a client: a connection is closed with `reason`, a delayed Will is published. Done when that
    /// is durable. False: the client has none.
    ///
    /// # Errors
    /// The connection that owns the session does not release it, or other claims do not end. Nothing has changed, but
    /// the connection may close later.
    pub(crate) async fn delete(&self, client_id: &ClientId, reason: ReasonCode) -> Result<bool, ReasonCode> {
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        let Ok(_turn) = timeout_at(deadline, self.registry.claim_turn(client_id)).await else {
            return Err(busy(client_id));
        };
        let Some(entry) = self.find(client_id, |_| true).await? else { return Ok(false) };
        let stand_in = self.registry.next_connection();
        if let Some(ReleasedSession { session, will, .. }) =
            take_by(&entry, Signal::Close(reason), stand_in, deadline).await?
        {
            if let Some(will) = will {
                self.dispatcher.publish_will(&entry, will); // [MQTT-3.1.3-9]
            }
            self.finish(&entry, session);
        }
        self.persist.ended(client_id).await.map_err(|_| ReasonCode::ImplementationSpecificError)?;
        Ok(true)
    }

    /// Tells the store that the session has a connection; done when that is durable. A session that ends with its
    /// connection is not stored [MQTT-3.1.2-23], but the end of the client's session before it is.
    pub(crate) async fn open(
        &self,
        entry: &SessionEntry,
        identity: &Identity,
        expiry: SessionExpiry,
        will: Option<Arc<Will>>,
    ) -> Result<(), StoreError> {
        let is_known = entry.is_durable();
        let is_stored = expiry.outlives_connection() || self.persist.store().keeps_every_session();
        if !is_known && !is_stored {
            return self.persist.ended(&entry.client_id).await; // [MQTT-3.1.2-4]
        }
        // The previous owner has committed its last change: later ones would be fenced from here on.
        let claim = self.persist.claim(&entry.client_id).await?;
        let (session, identity) = (entry.id(), Some(identity.encode()));
        let mut changes = vec![if is_known {
            Change::Resumed { session, identity, expiry, claim }
        } else {
            Change::Opened { session, client_id: entry.client_id.clone(), identity, expiry, claim }
        }];
        let has_will = will.is_some();
        match will {
            Some(will) => changes.push(Change::WillSet { session, will }),
            // The change that should have cleared it may have been fenced.
            None if is_known => changes.push(Change::WillCleared { session }),
            None => {}
        }
        self.persist.commit(changes).await.inspect_err(|error| self.persist.complain(error))?;
        entry.set_stored_will(has_will);
        entry.set_durable(claim);
        Ok(())
    }

    /// Reads the messages of a resumed session that are only in the store. Nothing of its queue can be taken before;
    /// what is evicted or expires meanwhile does not come back.
    ///
    /// # Errors
    /// The store cannot be read. Everything stays where it is.
    pub(crate) async fn load_stored(&self, entry: &SessionEntry) -> Result<(), StoreError> {
        let stored = entry.queue.stored_entries();
        if stored.is_empty() {
            return Ok(());
        }
        let mut deliveries = HashMap::with_capacity(stored.len());
        let mut loader = MessageLoader::new(self.spool.as_ref(), &self.memory);
        let mut stored = stored.into_iter().peekable();
        while stored.peek().is_some() {
            let mut bytes = 0;
            let mut is_within = |entry: &StoredEntry| {
                let has_room = bytes < READ_BYTES_AT_ONCE;
                bytes += entry.bytes_to_read();
                has_room
            };
            let piece: Vec<_> =
                std::iter::from_fn(|| stored.next_if(&mut is_within)).take(READ_AT_ONCE).collect();
            let in_store = piece.iter().filter_map(|one| match one.source() {
                Source::Store { lsn, .. } => Some(*lsn),
                Source::Here(_) => None,
            });
            let mut read = self
                .persist
                .read(in_store.collect(), self.persist.recovered_at, &mut loader)
                .await?
                .into_iter();
            for one in piece {
                let message = match one.source() {
                    Source::Here(resting) => Some(resting.message().clone()),
                    Source::Store { .. } => read.next().flatten(),
                };
                if let (Some(queue_lsn), Some(message)) = (one.queue_lsn(), message) {
                    deliveries.insert(queue_lsn, one.into_delivery(message));
                }
            }
            tokio::task::yield_now().await;
        }
        loader.log_unspooled();
        let missing = entry.queue.replace_stored(deliveries);
        if !missing.is_empty() {
            let reason =
                format!("messages for session {} are referred to and not there: {missing:?}", entry.id());
            self.persist.complain(&StoreError::Damaged { reason: reason.into() });
        }
        Ok(())
    }

    // -- Release -----------------------------------------------------------------------------------

    /// Takes back the session of a connection that has ended: it is parked, handed over or ended, and its Will is
    /// published now, later or never. `owns`: no other node may have the session.
    pub(crate) fn release(
        &self,
        entry: &Arc<SessionEntry>,
        connection: ConnectionId,
        end: End,
        leftover: VecDeque<Delivery>,
        mut pending_retained: Vec<RetainedCursor>,
        owns: bool,
    ) {
        let Some(mut session) = end.session else { return };
        // Otherwise the Will would be published by this node and by another one: the one that claims the session does.
        let is_abandoned = !owns && end.will.is_some() && !entry.is_lost();
        if is_abandoned {
            entry.set_lost();
            self.routing.cluster().abandon(entry.id());
        }
        if entry.is_lost() {
            let owner = std::mem::replace(&mut *entry.owner(), SessionOwner::Ended);
            self.discard(entry, &session);
            drop(owner); // A connection that waits for it looks for it at the other node.
            return;
        }
        let outlives = session.expiry.outlives_connection();
        let (now, later): (Option<Will>, Option<Will>) = match end.will {
            Some(will) if will.delay > 0 && outlives => (None, Some(will)),
            will => (will, None), // [MQTT-3.1.2-8]
        };
        if outlives {
            let moved = session.subscriptions.unbind_all(); // [BQ-42]
            self.move_subscriptions(entry, &session.subscriptions, &moved);
            pending_retained.iter_mut().for_each(|cursor| cursor.subscription.stream = StreamKey::CONTROL);
            session.outbound.charge_offline();
        }
        entry.observe(&session);
        let at = self.note_disconnected(entry);
        self.queues.restore(entry, leftover, &self.persist);
        // Before a takeover is possible: the change that clears this Will must not clear the next connection's.
        if let Some(will) = now {
            self.dispatcher.publish_will(entry, will);
        }
        if outlives {
            let released = ReleasedSession { session, will: later, pending_retained };
            self.hand_over(entry, connection, released, |released| {
                drop(self.begin_offline(entry, released, at));
            });
        } else if is_owner(entry, connection) {
            self.finish(entry, session);
        }
    }

    /// Gives the session to the connection that waits for it, or parks it after `park`. Without effect if `connection`
    /// is not its owner any more.
    fn hand_over(
        &self,
        entry: &Arc<SessionEntry>,
        connection: ConnectionId,
        released: ReleasedSession,
        park: impl FnOnce(&ReleasedSession),
    ) {
        let mut owner = entry.owner();
        let waiting = match &mut *owner {
            SessionOwner::Connection(current, waiting) if *current == connection => waiting.take(),
            _ => return,
        };
        let unwanted = match waiting {
            // The connection that asked may be gone too.
            Some(waiting) => waiting.send(released).err(),
            None => Some(released),
        };
        // With the owner locked: what `park` commits must come before anything of the next connection. A commit hands
        // over to the store and does not wait for it.
        if let Some(released) = unwanted {
            park(&released);
            *owner = SessionOwner::Parked(Box::new(released));
        }
    }

    /// Notes that a client is disconnected, and returns the time since which it is: a CONNECT that was refused after it
    /// had claimed the session changes nothing.
    fn note_disconnected(&self, entry: &SessionEntry) -> SystemTime {
        let (now, time) = (clock::now(), self.persist.now().system);
        let away = entry.disconnected_for(now);
        if away.is_none() {
            entry.set_presence(Presence::Disconnected(Some(now)));
        }
        away.and_then(|away| time.checked_sub(away)).unwrap_or(time)
    }

    /// Tells the store of the disconnection `at` a time and sets the timers. The session keeps what it was sent, from
    /// shared subscriptions too, until its client returns. [MQTT-4.8.2-4]
    fn begin_offline(
        &self,
        entry: &Arc<SessionEntry>,
        released: &ReleasedSession,
        at: SystemTime,
    ) -> Option<Commit> {
        let ReleasedSession { session, will, .. } = released;
        let mut commit = None;
        if entry.is_durable() {
            let (id, claim) = (entry.id(), entry.claim());
            let parked = Change::Parked { session: id, at, expiry: session.expiry, claim };
            if will.is_none() && entry.take_stored_will() {
                commit = Some(self.persist.commit(vec![parked, Change::WillCleared { session: id }]));
            } else if self.persist.store().keeps_every_session() {
                // Other nodes may claim it from here on.
                commit = Some(self.persist.commit(vec![parked]));
            } else {
                self.persist.commit_late([parked]);
            }
        }
        let away = self.persist.now().system.duration_since(at).unwrap_or_default();
        let left = |interval: Duration| interval.saturating_sub(away);
        let will_due_in = will.as_ref().map(|will| left(Duration::from_secs(will.delay.into())));
        self.set_timers(entry, will_due_in, session.expiry.interval().map(left));
        if !session.partials.is_empty() {
            let epoch = entry.disconnect_epoch();
            self.timers.set(TimerKind::Partials, PartialMessages::KEPT_FOR, epoch, entry);
        }
        commit
    }

    /// Begins a disconnect epoch and sets its timers, unless all nodes keep those of the session together.
    fn set_timers(
        &self,
        entry: &Arc<SessionEntry>,
        will_due_in: Option<Duration>,
        ends_in: Option<Duration>,
    ) {
        let epoch = self.next_disconnect_epoch.fetch_add(1, Ordering::Relaxed);
        entry.set_disconnect_epoch(epoch);
        if self.routing.cluster().has_log() {
            return;
        }
        for (kind, after) in [(TimerKind::Will, will_due_in), (TimerKind::SessionEnd, ends_in)] {
            if let Some(after) = after {
                self.timers.set(kind, after, epoch, entry);
            }
        }
    }

    /// Carries out an expired timer, if its disconnect epoch is the present one.
    ///
    /// Meanwhile the session belongs to a connection that does not exist, and a claim waits for it: the change that
    /// clears this Will must not clear that of a client which returns, and no lock is held while it is published.
    /// Returns the session if it has ended.
    pub(crate) fn handle_due(&self, timer: &ExpiredTimer) -> Option<Arc<SessionEntry>> {
        let entry = timer.entry.upgrade()?;
        let stand_in = self.registry.next_connection();
        let mut parked = {
            let mut owner = entry.owner();
            if entry.disconnect_epoch() != timer.disconnect_epoch {
                return None;
            }
            match std::mem::replace(&mut *owner, SessionOwner::Connection(stand_in, None)) {
                SessionOwner::Parked(parked) => parked,
                other => {
                    *owner = other;
                    return None;
                }
            }
        };
        if timer.kind == TimerKind::Partials {
            parked.session.partials.expire(clock::now()); // [BQ-96]
            self.hand_over(&entry, stand_in, *parked, |_| {});
            return None;
        }
        // The end of the session ends the delay. [MQTT-3.1.3-9]
        if let Some(will) = parked.will.take() {
            self.dispatcher.publish_will(&entry, will);
        }
        match timer.kind {
            TimerKind::Will | TimerKind::Partials => {
                self.hand_over(&entry, stand_in, *parked, |_| {});
                None
            }
            TimerKind::SessionEnd => {
                self.finish(&entry, parked.session);
                Some(entry)
            }
        }
    }

    /// Ends a session that still has an owner: a claim that comes meanwhile waits until it is gone, so that the store
    /// is told of the end before it is told of a new session.
    fn finish(&self, entry: &Arc<SessionEntry>, session: Session) {
        self.end_session(entry, session);
        let owner = std::mem::replace(&mut *entry.owner(), SessionOwner::Ended);
        self.registry.remove(entry);
        drop(owner); // A connection that waits for it finds that the session has ended.
    }

    /// Removes the subscriptions of a session from the routing table.
    fn unsubscribe(&self, entry: &SessionEntry, session: &Session) {
        let all: Vec<_> = session.subscriptions.iter().collect();
        for some in all.chunks(FILTERS_AT_ONCE) {
            self.routing.change(|router| {
                for (filter, subscription) in some {
                    router.unsubscribe(entry.key, filter, subscription.stream);
                }
            });
        }
    }

    /// Forgets a session that lives on elsewhere.
    fn discard(&self, entry: &Arc<SessionEntry>, session: &Session) {
        self.unsubscribe(entry, session);
        self.registry.remove(entry);
        drop(entry.queue.close());
    }

    /// Removes everything of a session that is over. [MQTT-4.1.0-2]
    fn end_session(&self, entry: &SessionEntry, session: Session) {
        self.unsubscribe(entry, &session);
        let queued = entry.queue.close();
        // A QoS 2 message that was in flight must not go to another member. [MQTT-4.8.2-5]
        let may_repeat = |delivery: &Delivery| delivery.qos == QoS::AtLeastOnce;
        let unacknowledged = session.outbound.into_unacknowledged().into_iter().filter(may_repeat);
        // Sent in time: for another member it begins to wait.
        let unacknowledged = unacknowledged.map(|delivery| Delivery { enqueued_at: None, ..delivery });
        // One batch: deliveries to other members are neither lost with the session nor made twice.
        let closed = Change::Closed { session: entry.id(), claim: entry.claim() };
        let closed = entry.is_durable().then_some(closed);
        let commit = self.dispatcher.redistribute(unacknowledged.chain(queued), closed);
        if let Some(commit) = commit.filter(|_| entry.is_durable()) {
            self.persist.note_end(&entry.client_id, commit);
        }
    }

    /// Moves subscriptions whose streams have ended, from `subscriptions` as they are now. [BQ-42]
    pub(crate) fn move_subscriptions(
        &self,
        entry: &SessionEntry,
        subscriptions: &Subscriptions,
        moved: &[MovedSubscription],
    ) {
        self.routing.rebind(entry.key, moved);
        // The store has one subscription for each filter, which must be one that is left. Not late: that one was
        // granted in a SUBACK.
        let merged = moved.iter().filter(|moved| moved.is_merged).map(|moved| moved.filter.clone());
        let merged: Vec<_> = merged.collect();
        if entry.is_durable() && !merged.is_empty() {
            let left = persist::ended_subscriptions(entry.id(), Some(subscriptions), merged);
            self.persist.commit_unwatched(left);
        }
    }

    // -- Restart -----------------------------------------------------------------------------------

    /// Restores the sessions that the store had at `now`. Their clients are disconnected.
    pub(crate) fn restore(&self, sessions: Vec<RecoveredSession>, now: Now) {
        // A clock that is behind, as on a machine that has not synchronized it yet, must not be stored: once it is
        // right, the client would have been disconnected for as long as the clock was behind.
        let is_ahead =
            |session: &RecoveredSession| session.record.parked_at.is_some_and(|at| at > now.system);
        let is_clock_behind = sessions.iter().any(is_ahead);
        if is_clock_behind {
            self.queues.policy.distrust_clock();
        }
        for session in sessions {
            let (record, claim) = (session.record.clone(), session.claim);
            let entry = self.restore_session(session, now);
            // A CONNECT may come before its timers, of which there may be many.
            let away = record.parked_at.and_then(|at| now.system.duration_since(at).ok()).unwrap_or_default();
            entry.set_presence(Presence::Disconnected(now.instant.checked_sub(away)));
            if record.parked_at.is_none() && !is_clock_behind {
                // Connected when its broker ended. Its timers begin to run now, and must not begin anew at the next
                // start.
                let (session, at) = (record.id, now.system);
                self.persist.commit_late([Change::Parked { session, at, expiry: record.expiry, claim }]);
            }
        }
        // Timers that expired while no broker ran come before any connection. They were set after `now`.
        while let Ok(timer) = self.timers.poll_due(Instant::now()) {
            drop(self.handle_due(&timer));
        }
    }

    fn restore_session(&self, recovered: RecoveredSession, now: Now) -> Arc<SessionEntry> {
        let RecoveredSession { record, identity, claim, mut session, will, waiting } = recovered;
        let key = SessionKey(record.id.value());
        // No connection has this number: the session is parked before it is in the registry.
        let connection = self.registry.next_connection();
        let entry = Arc::new(SessionEntry::new(key, record.client_id.clone(), connection));
        entry.set_durable(claim);
        if let Some(identity) = &identity {
            entry.set_identity(identity);
        }
        entry.set_stored_will(will.is_some());
        // The store does not know the client's version. Both are allowed, and this is one copy.
        entry.set_merges(true);
        session.outbound.charge_offline();
        entry.observe(&session);
        self.queues.set_stored(&entry, waiting, now.instant, &self.persist);
        self.routing.change(|router| {
            for (filter, subscription) in session.subscriptions.iter() {
                router.subscribe(key, filter, *subscription);
            }
        });
        let will_due_in = will.as_deref().map(|will| record.will_due_in(will, now.system));
        self.set_timers(&entry, will_due_in, record.expires_in(now.system));
        let will = will.map(Arc::unwrap_or_clone);
        let parked = ReleasedSession { session, will, pending_retained: Vec::new() };
        *entry.owner() = SessionOwner::Parked(Box::new(parked));
        self.registry.insert(&entry);
        entry
    }
}

fn is_owner(entry: &SessionEntry, connection: ConnectionId) -> bool {
    matches!(&*entry.owner(), SessionOwner::Connection(current, _) if *current == connection)
}

/// Takes the session out of its entry and makes `connection` the owner. `None`: the session has ended.
async fn take(
    entry: &SessionEntry,
    access: &ClientAccess,
    connection: ConnectionId,
    deadline: Instant,
) -> Result<Option<ReleasedSession>, ReasonCode> {
    if !access.owns(entry.identity().as_ref()) {
        return Err(ReasonCode::NotAuthorized);
    }
    take_by(entry, Signal::TakeOver, connection, deadline).await
}

/// Takes the session as [`take`] does, for any user. `signal`: the command to a connection that owns it.
async fn take_by(
    entry: &SessionEntry,
    signal: Signal,
    connection: ConnectionId,
    deadline: Instant,
) -> Result<Option<ReleasedSession>, ReasonCode> {
    let (mut released, waker) = {
        let mut owner = entry.owner();
        match std::mem::replace(&mut *owner, SessionOwner::Connection(connection, None)) {
            SessionOwner::Parked(parked) => {
                entry.set_disconnect_epoch(0);
                return Ok(Some(*parked));
            }
            SessionOwner::Ended => return Ok(None),
            SessionOwner::Connection(current, _) => {
                let (release, released) = tokio::sync::oneshot::channel();
                *owner = SessionOwner::Connection(current, Some(release));
                (released, entry.queue.signal(signal))
            }
        }
    };
    if let Some(waker) = waker {
        waker.wake();
    }
    // The owner is a task of this process, which answers at its next turn. If it ends without an answer, its session
    // has ended.
    let session = match timeout_at(deadline, &mut released).await {
        Ok(answer) => answer.ok(),
        Err(_) => {
            // From here on the owner keeps the session; it may have sent it just now.
            released.close();
            Some(released.try_recv().map_err(|_| busy(&entry.client_id))?)
        }
    };
    let mut owner = entry.owner();
    entry.set_disconnect_epoch(0);
    *owner = SessionOwner::Connection(connection, None);
    Ok(session)
}

/// Logs a claim that has timed out; returns the Reason Code of its CONNACK.
fn busy(client_id: &ClientId) -> ReasonCode {
    let (client, secs) = (shortened(client_id.as_str()), CLAIM_TIMEOUT.as_secs());
    tracing::warn!(client, secs, "refused: the connection that owns the session does not release it");
    ReasonCode::ServerBusy
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::config::BrokerConfig;
    use crate::core::Core;
    use crate::queue::egress::EgressQueue;
    use crate::queue::usage::QueueLimits;

    // Between a claim and the next step of its connection, another thread may run the next claim: its signal must find
    // an open queue, and nothing of the first claim may void it.
    #[tokio::test]
    async fn a_claim_that_follows_at_once_signals_the_owner() {
        let core = Core::in_memory(BrokerConfig::default());
        let (client_id, access) = (ClientId::from("client"), ClientAccess::default());
        let capacity = QueueLimits { messages: 1, bytes: 1 };
        let first = core.sessions.claim(&client_id, &access, false, ConnectionId(1)).await.unwrap();
        let mut second = pin!(core.sessions.claim(&client_id, &access, false, ConnectionId(2)));
        let signal = poll_fn(|context| {
            assert!(second.as_mut().poll(context).is_pending());
            let queue = &first.entry.queue;
            Poll::Ready(queue.poll_take(&mut EgressQueue::default(), |stream| stream, capacity, context))
        });
        assert_eq!(signal.await, Some(Signal::TakeOver));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_owner_delays_claims_of_its_own_client_only_and_for_a_limited_time() {
        let core = Core::in_memory(BrokerConfig::default());
        let access = ClientAccess::default();
        let claim = |client: &str, connection| {
            let client_id = ClientId::from(client);
            let (sessions, access) = (&core.sessions, &access);
            async move { sessions.claim(&client_id, access, false, ConnectionId(connection)).await }
        };
        let stuck = claim("stuck", 1).await.unwrap();
        let start = Instant::now();
        let others = async {
            for number in 0..1000 {
                claim(&number.to_string(), 10 + number).await.unwrap();
            }
            assert_eq!(start.elapsed(), Duration::ZERO);
        };
        let limit = Duration::from_secs(60);
        let claims = async { tokio::join!(claim("stuck", 2), claim("stuck", 3), others) };
        let (second, third, ()) = timeout(limit, claims).await.expect("no claim waits for ever");
        assert_eq!(second.unwrap_err(), ReasonCode::ServerBusy);
        assert_eq!(third.unwrap_err(), ReasonCode::ServerBusy);
        assert_eq!(start.elapsed(), CLAIM_TIMEOUT);
        // The owner was not robbed of the session.
        assert!(is_owner(&stuck.entry, ConnectionId(1)));
    }
}
