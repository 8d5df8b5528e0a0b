//! What all connections of a broker share, and what happens to sessions beyond a single connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use braid_proto::codec::Spool;
use braid_proto::connection::{End, ServerOptions, Token};
use braid_proto::message::{Account, Delivery, Message};
use braid_proto::packet::{ClientId, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Moved, Session, Subscriptions};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Group, Matches, Router};
use braid_store::{Change, Commit, NextIds, Store};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::auth::Authenticate;
use crate::config::BrokerConfig;
use crate::dispatch;
use crate::expiry::{DueEvent, Expiry};
use crate::memory::Memory;
use crate::persist::{self, Persist};
use crate::priority::Rules;
use crate::queue::policy::QueuePolicy;
use crate::queue::usage::QueueLimits;
use crate::registry::{Claim, Ended, Registry};
use crate::retained::{RetainedCursor, RetainedMessages, Retaining, SYS_PREFIX};
use crate::routes::Routes;
use crate::session_entry::{ConnectionId, Parked, Released, SessionEntry, SessionKey, SessionOwner};
use crate::session_queues::SessionQueues;
use crate::statistics::Statistics;

/// Nobody can publish while the router changes: long lists are taken in pieces.
pub(crate) const FILTERS_AT_ONCE: usize = 256;

/// The shared state of a broker. Locks inside are held for lookups and moves of values only.
pub(crate) struct Core {
    pub(crate) config: BrokerConfig,
    pub(crate) server_options: Arc<ServerOptions>,
    pub(crate) queues: SessionQueues,
    pub(crate) authenticate: Box<dyn Authenticate>,
    rules: Rules,
    router: RwLock<Router<SessionKey>>,
    /// The router's generation, readable without its lock.
    generation: AtomicU64,
    pub(crate) registry: Registry,
    pub(crate) retained: RetainedMessages,
    pub(crate) memory: Arc<Memory>,
    pub(crate) persist: Persist,
    pub(crate) expiry: Expiry,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) started: Instant,
    next_disconnect_epoch: AtomicU64,
    stopping: watch::Sender<bool>,
    /// Rings when a connection ends.
    pub(crate) connection_ended: Notify,
}

impl Core {
    /// An empty core that counts from `next` on, and in `memory` what is held, and receives large packets into `spool`, if
    /// there is one.
    pub(crate) fn new(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        store: Arc<dyn Store>,
        spool: Option<Arc<dyn Spool>>,
        next: NextIds,
        memory: Arc<Memory>,
    ) -> Self {
        let started = Instant::now();
        let server_options = ServerOptions { spool, ..config.server_options() };
        let statistics = Arc::<Statistics>::default();
        let policy = QueuePolicy::new(&config.limits, started.into_std(), memory.clone());
        Self {
            server_options: Arc::new(server_options),
            queues: SessionQueues::new(policy, statistics.clone(), memory.clone()),
            authenticate,
            rules: Rules::new(&config.priority),
            router: RwLock::new(Router::new()),
            generation: AtomicU64::new(0),
            registry: Registry::new(next.session),
            persist: Persist::new(store, next.lsn),
            retained: RetainedMessages::new(
                QueueLimits {
                    messages: config.limits.retained_messages,
                    bytes: config.limits.retained_bytes,
                },
                memory.clone(),
            ),
            memory,
            expiry: Expiry::default(),
            statistics,
            started,
            next_disconnect_epoch: AtomicU64::new(1),
            stopping: watch::Sender::new(false),
            connection_ended: Notify::new(),
            config,
        }
    }

    // -- Routing -----------------------------------------------------------------------------------

    /// Changes each time the answer of [`Core::find_matches`] may change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Finds who receives a topic; returns the generation for which that is true.
    pub(crate) fn find_matches(&self, topic: &TopicName, found: &mut Matches<SessionKey>) -> u64 {
        let router = self.router.read().unwrap_or_else(PoisonError::into_inner);
        router.matches(topic, found);
        router.generation()
    }

    pub(crate) fn find_group(&self, filter: &TopicFilter) -> Option<Arc<Group<SessionKey>>> {
        self.router.read().unwrap_or_else(PoisonError::into_inner).group(filter).cloned()
    }

    /// The priority of a topic for whoever asked for none; `None` leaves it at the default. [BQ-52]
    pub(crate) fn priority_of(&self, topic: &TopicName) -> Option<Priority> {
        self.rules.priority_of(topic)
    }

    /// Changes subscriptions.
    pub(crate) fn with_router<T>(&self, change: impl FnOnce(&mut Router<SessionKey>) -> T) -> T {
        let mut router = self.router.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut router);
        self.generation.store(router.generation(), Ordering::Release);
        result
    }

    /// Follows subscriptions whose streams have ended, from `subscriptions` as they are now. [BQ-42]
    pub(crate) fn move_subscriptions(
        &self,
        entry: &SessionEntry,
        subscriptions: &Subscriptions,
        moved: &[Moved],
    ) {
        for some in moved.chunks(FILTERS_AT_ONCE) {
            self.with_router(|router| {
                for Moved { filter, from, to } in some {
                    // Before the old one goes: a shared subscription must not lose its last member meanwhile.
                    to.map(|to| router.subscribe(entry.key, filter, to));
                    router.unsubscribe(entry.key, filter, from.stream);
                }
            });
        }
        // The store has one for each filter: it must be one that is left. Not late: what was granted to that one was
        // acknowledged.
        let merged = moved.iter().filter(|moved| moved.to.is_none()).map(|moved| moved.filter.clone());
        let merged: Vec<_> = merged.collect();
        if entry.is_durable() && !merged.is_empty() {
            let left = persist::ended_subscriptions(entry.id(), Some(subscriptions), merged);
            self.persist.commit_unwatched(left);
        }
    }

    /// Subscriptions now, shared ones included.
    pub(crate) fn subscriptions(&self) -> braid_router::Statistics {
        self.router.read().unwrap_or_else(PoisonError::into_inner).statistics()
    }

    /// Takes out of a client's batch what clients must not publish, and keeps what is to be retained.
    pub(crate) fn admit(
        &self,
        messages: &mut Vec<Arc<Message>>,
        tokens: &mut Vec<Option<Token>>,
        mut set_reason: impl FnMut(Token, ReasonCode),
    ) -> Option<Commit> {
        let mut retaining = None;
        let mut retain = |message: &Arc<Message>| {
            retaining.get_or_insert_with(|| self.retained.change(&self.persist)).set(message)
        };
        let mut refuse = |message: &Arc<Message>| {
            // The acknowledgement of MQTT 3 cannot say that it was not allowed. [MQTT3-3.3.5-2]
            if message.topic.as_str().starts_with(SYS_PREFIX) {
                return Some(ReasonCode::NotAuthorized);
            }
            // Without RETAIN nothing that is retained changes. [MQTT-3.3.1-8]
            (message.retain && !retain(message)).then_some(ReasonCode::QuotaExceeded)
        };
        let refused: Vec<_> = messages.iter().map(&mut refuse).collect();
        if refused.iter().any(Option::is_some) {
            for (reason, token) in refused.iter().zip(tokens.iter()) {
                if let (Some(reason), Some(token)) = (*reason, *token) {
                    set_reason(token, reason);
                }
            }
            let mut verdicts = refused.iter().cycle();
            let mut stays = || verdicts.next().is_none_or(Option::is_none);
            messages.retain(|_| stays());
            tokens.retain(|_| stays());
            self.statistics.dropped(refused.iter().flatten().count() as u64);
        }
        retaining.and_then(Retaining::commit)
    }

    /// Publishes a message of the broker itself.
    pub(crate) fn publish(&self, message: Message) {
        self.publish_from(None, message, Vec::new());
    }

    /// Nobody waits for the commit: there is nobody to acknowledge to.
    fn publish_from(&self, publisher: Option<SessionKey>, message: Message, changes: Vec<Change>) {
        let mut message = [Arc::new(message)];
        let account: Arc<dyn Account> = self.memory.clone();
        self.memory.charge(&account, &mut message);
        let [message] = message;
        if message.retain {
            let mut retaining = self.retained.change(&self.persist);
            retaining.set(&message);
            drop(retaining.commit());
        }
        dispatch::publish(self, &mut Routes::default(), publisher, &[message], changes, |_, _| {});
    }

    /// Publishes a Will as a message of the session it belongs to: No Local holds for it. [MQTT-3.8.3-3]
    fn publish_will(&self, entry: &SessionEntry, will: Will) {
        let message = Message::from_will(will, Instant::now().into_std());
        let mut changes = Vec::new();
        if entry.has_stored_will() {
            entry.set_stored_will(false);
            changes.push(Change::WillCleared { session: entry.id() });
        }
        self.publish_from(Some(entry.key), message, changes); // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
    }

    // -- Sessions ----------------------------------------------------------------------------------

    /// Gives the session of a client to a connection.
    pub(crate) async fn claim(
        &self,
        client_id: &ClientId,
        clean_start: bool,
        connection: ConnectionId,
    ) -> Claim {
        let mut claim = self.registry.claim(client_id, clean_start, connection).await;
        if let Some(Ended { entry, session, will }) = claim.ended.take() {
            if let Some(will) = will {
                self.publish_will(&entry, will);
            }
            if let Some(session) = session {
                self.end_session(&entry, session);
            }
        }
        claim
    }

    /// Takes back what a connection leaves: the session is parked, handed over or ended, and the Will is
    /// published now, later or never.
    pub(crate) fn release(
        &self,
        entry: &Arc<SessionEntry>,
        connection: ConnectionId,
        end: End,
        leftover: VecDeque<Delivery>,
        mut pending_retained: Vec<RetainedCursor>,
    ) {
        let Some(mut session) = end.session else { return };
        let outlives = session.expiry.outlives_connection();
        let (now, later): (Option<Will>, Option<Will>) = match end.will {
            Some(will) if will.delay > 0 && outlives => (None, Some(will)),
            will => (will, None), // [MQTT-3.1.2-8]
        };
        if outlives {
            let moved = session.subscriptions.unbind_all(); // [BQ-42]
            self.move_subscriptions(entry, &session.subscriptions, &moved);
            pending_retained.iter_mut().for_each(|replay| replay.subscription.stream = StreamKey::CONTROL);
            session.outbound.rest();
        }
        self.queues.restore(entry, leftover, &self.persist);
        // Before anybody can take over: what clears this Will must not clear the next connection's.
        if let Some(will) = now {
            self.publish_will(entry, will);
        }
        {
            let mut holder = entry.owner();
            let release = match &mut *holder {
                SessionOwner::Connection(current, release) if *current == connection => release,
                _ => return,
            };
            if outlives {
                let released = Released { session: Some(session), will: later, pending_retained };
                let unwanted = match release.take() {
                    // Nobody waits any more if the connection that asked is gone too.
                    Some(release) => release.send(released).err(),
                    None => Some(released),
                };
                if let Some(released) = unwanted {
                    *holder = self.park(entry, released);
                }
                return;
            }
        }
        self.finish(entry, session);
    }

    /// Ends a session that this connection, or what stands for one, still holds: a claim that comes meanwhile
    /// waits until it is gone, so that the store hears of the end before it hears of a new session.
    fn finish(&self, entry: &Arc<SessionEntry>, session: Session) {
        self.end_session(entry, session);
        let held = std::mem::replace(&mut *entry.owner(), SessionOwner::Ended);
        self.registry.remove(entry);
        drop(held); // Whoever waits finds that the session has ended.
    }

    /// The session keeps what it was sent, from shared subscriptions too, for its client's return. [MQTT-4.8.2-4]
    fn park(&self, entry: &Arc<SessionEntry>, released: Released) -> SessionOwner {
        let Released { session: Some(session), will, pending_retained } = released else {
            return SessionOwner::Ended;
        };
        self.persist_parked(entry, session.expiry, will.is_some());
        let will_due_in = will.as_ref().map(|will| Duration::from_secs(will.delay.into()));
        self.begin_offline(entry, will_due_in, session.expiry.interval());
        SessionOwner::Parked(Box::new(Parked { session, will, pending_retained }))
    }

    /// The client is away from now on: schedules what happens if it does not come back.
    pub(crate) fn begin_offline(
        &self,
        entry: &Arc<SessionEntry>,
        will_due_in: Option<Duration>,
        ends_in: Option<Duration>,
    ) {
        let disconnect_epoch = self.next_disconnect_epoch.fetch_add(1, Ordering::Relaxed);
        entry.set_disconnect_epoch(disconnect_epoch);
        if let Some(delay) = will_due_in {
            self.expiry.schedule(DueEvent::Will, delay, disconnect_epoch, entry);
        }
        if let Some(interval) = ends_in {
            self.expiry.schedule(DueEvent::SessionEnd, interval, disconnect_epoch, entry);
        }
    }

    /// Carries out what was scheduled for a disconnect epoch, if it is still current.
    pub(crate) fn handle_due(&self, entry: &Arc<SessionEntry>, event: DueEvent, disconnect_epoch: u64) {
        let (session, will) = {
            let mut holder = entry.owner();
            let SessionOwner::Parked(parked) = &mut *holder else { return };
            if entry.disconnect_epoch() != disconnect_epoch {
                return;
            }
            let will = parked.will.take();
            if event == DueEvent::Will {
                if let Some(will) = will {
                    // With the session locked: what clears this Will must not clear that of a client which returns.
                    self.publish_will(entry, will);
                }
                return;
            }
            let session = std::mem::take(&mut parked.session);
            *holder = SessionOwner::Connection(self.registry.next_connection(), None);
            (session, will)
        };
        // The end of the session ends the delay. [MQTT-3.1.3-9]
        if let Some(will) = will {
            self.publish_will(entry, will);
        }
        self.finish(entry, session);
    }

    /// Removes everything of a session that is over. [MQTT-4.1.0-2]
    fn end_session(&self, entry: &SessionEntry, session: Session) {
        if !session.subscriptions.is_empty() {
            let all: Vec<_> = session.subscriptions.iter().collect();
            for some in all.chunks(FILTERS_AT_ONCE) {
                self.with_router(|router| {
                    for (filter, subscription) in some {
                        router.unsubscribe(entry.key, filter, subscription.stream);
                    }
                });
            }
        }
        let queued = entry.queue.close();
        // A QoS 2 message that was on its way must not go to anybody else. [MQTT-4.8.2-5]
        let may_repeat = |delivery: &Delivery| delivery.qos == QoS::AtLeastOnce;
        let unacknowledged = session.outbound.into_unacknowledged().into_iter().filter(may_repeat);
        // It was sent in time: for another member it begins to wait.
        let unacknowledged = unacknowledged.map(|delivery| Delivery { waits_since: None, ..delivery });
        // One batch: what goes to others is not lost with the session, and does not go twice.
        let closed = Change::Closed { session: entry.id(), claim: entry.claim() };
        let closed = entry.is_durable().then_some(closed);
        let commit = dispatch::redistribute(self, unacknowledged.chain(queued), closed);
        if let Some(commit) = commit.filter(|_| entry.is_durable()) {
            self.persist.note_end(&entry.client_id, commit);
        }
    }

    // -- Stopping ----------------------------------------------------------------------------------

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(crate) fn set_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits until the broker stops.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }
}
