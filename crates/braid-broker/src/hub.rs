//! What all connections of a broker share, and what happens to sessions beyond a single connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use braid_proto::connection::{End, ServerOptions, Token};
use braid_proto::message::{Delivery, Message};
use braid_proto::packet::{ClientId, QoS, Will};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Session;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Group, Matches, Router};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::auth::Authenticate;
use crate::config::BrokerConfig;
use crate::dispatch;
use crate::expiry::{DueEvent, Expiry};
use crate::mailbox::Capacity;
use crate::registry::{Claim, Ended, Registry};
use crate::retained::RetainedMessages;
use crate::routes::Routes;
use crate::slot::{ConnectionId, Holder, Parked, Released, SessionKey, Slot};
use crate::statistics::Statistics;

/// Only the broker itself publishes here.
const SYS_PREFIX: &str = "$SYS/";

/// The shared state of a broker. Locks inside are held for lookups and moves of values only.
pub(crate) struct Hub {
    pub(crate) config: BrokerConfig,
    pub(crate) server_options: Arc<ServerOptions>,
    pub(crate) capacity: Capacity,
    pub(crate) authenticate: Box<dyn Authenticate>,
    router: RwLock<Router<SessionKey>>,
    /// The router's generation, readable without its lock.
    generation: AtomicU64,
    pub(crate) registry: Registry,
    pub(crate) retained: RetainedMessages,
    pub(crate) expiry: Expiry,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) started: Instant,
    absences: AtomicU64,
    stopping: AtomicBool,
    /// Rings when a connection ends.
    pub(crate) connection_ended: Notify,
}

impl Hub {
    pub(crate) fn new(config: BrokerConfig, authenticate: Box<dyn Authenticate>) -> Self {
        Self {
            server_options: Arc::new(config.server_options()),
            capacity: Capacity { messages: config.limits.queued_messages, bytes: config.limits.queued_bytes },
            authenticate,
            router: RwLock::new(Router::new()),
            generation: AtomicU64::new(0),
            registry: Registry::new(),
            retained: RetainedMessages::new(config.limits.retained_messages),
            expiry: Expiry::default(),
            statistics: Arc::default(),
            started: Instant::now(),
            absences: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            connection_ended: Notify::new(),
            config,
        }
    }

    // -- Routing -----------------------------------------------------------------------------------

    /// Changes each time the answer of [`Hub::find_matches`] may change.
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

    /// Changes subscriptions.
    pub(crate) fn with_router<T>(&self, change: impl FnOnce(&mut Router<SessionKey>) -> T) -> T {
        let mut router = self.router.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut router);
        self.generation.store(router.generation(), Ordering::Release);
        result
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
    ) {
        let mut index = 0;
        while let Some(message) = messages.get(index) {
            // The acknowledgement of MQTT 3 cannot say that it was not allowed. [MQTT3-3.3.5-2]
            let reason = if message.topic.as_str().starts_with(SYS_PREFIX) {
                Some(ReasonCode::NotAuthorized)
                // Without RETAIN nothing that is retained changes. [MQTT-3.3.1-8]
            } else if message.retain && !self.retained.set(message) {
                Some(ReasonCode::QuotaExceeded)
            } else {
                None
            };
            let Some(reason) = reason else {
                index += 1;
                continue;
            };
            messages.remove(index);
            if let Some(token) = tokens.remove(index) {
                set_reason(token, reason);
            }
            self.statistics.dropped(1);
        }
    }

    /// Publishes a message of the broker itself.
    pub(crate) fn publish(&self, message: Message) {
        self.publish_from(None, message);
    }

    fn publish_from(&self, publisher: Option<SessionKey>, message: Message) {
        let message = Arc::new(message);
        if message.retain {
            self.retained.set(&message);
        }
        dispatch::publish(self, &mut Routes::default(), publisher, &[message], |_, _| {});
    }

    /// Publishes a Will as a message of the session it belongs to: No Local holds for it. [MQTT-3.8.3-3]
    fn publish_will(&self, slot: &Slot, will: Will) {
        let message = Message::from_will(will, Instant::now().into_std());
        self.publish_from(Some(slot.key), message); // [MQTT-3.1.2-14], [MQTT-3.1.2-15]
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
        if let Some(Ended { slot, session, will }) = claim.ended.take() {
            if let Some(will) = will {
                self.publish_will(&slot, will);
            }
            if let Some(session) = session {
                self.end_session(&slot, session);
            }
        }
        claim
    }

    /// Takes back what a connection leaves: the session is parked, handed over or ended, and the Will is
    /// published now, later or never.
    pub(crate) fn release(
        &self,
        slot: &Arc<Slot>,
        connection: ConnectionId,
        end: End,
        leftover: VecDeque<Delivery>,
    ) {
        let Some(session) = end.session else { return };
        let outlives = session.expiry.outlives_connection();
        let (now, later): (Option<Will>, Option<Will>) = match end.will {
            Some(will) if will.delay > 0 && outlives => (None, Some(will)),
            will => (will, None), // [MQTT-3.1.2-8]
        };
        self.statistics.dropped(slot.mailbox.park(leftover));
        let mut ended = None;
        {
            let mut holder = slot.holder();
            match &mut *holder {
                Holder::Connection(current, release) if *current == connection => {
                    let release = release.take();
                    match (release, outlives) {
                        (Some(release), true) => {
                            // Nobody waits any more if the connection that asked is gone too.
                            if let Err(back) = release.send(Released { session: Some(session), will: later })
                            {
                                *holder = self.park(slot, back);
                            }
                        }
                        (release, false) => {
                            *holder = Holder::Nobody;
                            ended = Some((session, release));
                        }
                        (None, true) => {
                            *holder = self.park(slot, Released { session: Some(session), will: later })
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some(will) = now {
            self.publish_will(slot, will);
        }
        if let Some((session, release)) = ended {
            self.registry.remove(slot);
            self.end_session(slot, session);
            drop(release); // Whoever waits finds that the session has ended.
        }
    }

    /// The session keeps what it was sent, from shared subscriptions too, for its client's return. [MQTT-4.8.2-4]
    fn park(&self, slot: &Arc<Slot>, released: Released) -> Holder {
        let Released { session: Some(session), will } = released else { return Holder::Nobody };
        let absence = self.absences.fetch_add(1, Ordering::Relaxed);
        slot.set_absence(absence);
        if let Some(will) = &will {
            let delay = Duration::from_secs(will.delay.into());
            self.expiry.schedule(DueEvent::Will, delay, absence, slot);
        }
        if let Some(interval) = session.expiry.interval() {
            self.expiry.schedule(DueEvent::SessionEnd, interval, absence, slot);
        }
        Holder::Parked(Box::new(Parked { session, will }))
    }

    /// Carries out what was scheduled for an absence, if it still lasts.
    pub(crate) fn handle_due(&self, slot: &Arc<Slot>, event: DueEvent, absence: u64) {
        let (will, session) = {
            let mut holder = slot.holder();
            let Holder::Parked(parked) = &mut *holder else { return };
            if slot.absence() != absence {
                return;
            }
            let will = parked.will.take();
            let session = (event == DueEvent::SessionEnd).then(|| std::mem::take(&mut parked.session));
            if session.is_some() {
                *holder = Holder::Nobody;
            }
            (will, session)
        };
        // The end of the session ends the delay. [MQTT-3.1.3-9]
        if let Some(will) = will {
            self.publish_will(slot, will);
        }
        if let Some(session) = session {
            self.registry.remove(slot);
            self.end_session(slot, session);
        }
    }

    /// Removes everything of a session that is over. [MQTT-4.1.0-2]
    fn end_session(&self, slot: &Slot, session: Session) {
        if !session.subscriptions.is_empty() {
            self.with_router(|router| {
                for filter in session.subscriptions.keys() {
                    router.unsubscribe(slot.key, filter);
                }
            });
        }
        let queued = slot.mailbox.close();
        // A QoS 2 message that was on its way must not go to anybody else. [MQTT-4.8.2-5]
        let may_repeat = |delivery: &Delivery| delivery.qos == QoS::AtLeastOnce;
        let unacknowledged = session.outbound.into_unacknowledged().into_iter().filter(may_repeat);
        dispatch::redistribute(self, unacknowledged.chain(queued));
    }

    // -- Stopping ----------------------------------------------------------------------------------

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }
}
