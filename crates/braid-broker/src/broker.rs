//! Broker: its composition, its main loop, and the handle of a running one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use braid_auth::identity::Identity;
use braid_proto::message::Message;
use braid_proto::reason::ReasonCode;
use braid_store::{Store, StoreError};
use braid_transport::Listener;
use tokio::sync::{broadcast, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout_at};

use crate::admission::{Ban, BanError, BanFilter, BanTarget, Subject};
use crate::auth::audit::{self, SecurityEvent};
use crate::auth::{Access, Authenticate, Authorize, PermitAll};
use crate::cluster::Storage;
use crate::config::BrokerConfig;
use crate::core::Core;
use crate::health::HealthMonitor;
use crate::listen::BrokerListener;
use crate::node_handle::NodeHandle;
use crate::persist::Recovery;
use crate::queue::session_queue::Signal;
use crate::statistics::Statistics;
use crate::view::{BrokerEvent, ListenerState};
use crate::{clock, listen, overload, spool_monitor, sys};

/// Interval at which expired messages are removed.
const SWEEP: Duration = Duration::from_secs(10);

/// Longest time for last bytes: some clocks cannot tell a time that is further away.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Least time for the ends of QUIC connections to leave, once nothing waits for the clients any more.
const LAST: Duration = Duration::from_millis(500);

/// Timers that are carried out before other tasks run: a Will may be published to many sessions.
const TIMERS_AT_ONCE: usize = 16;

/// A broker with its listeners bound, ready to [`run`](Broker::run).
pub struct Broker {
    core: Arc<Core>,
    recovery: Recovery,
    listeners: Vec<BrokerListener>,
    stop: watch::Sender<bool>,
}

/// Handle of a running broker. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) core: Arc<Core>,
    stop: watch::Sender<bool>,
}

impl Broker {
    /// Builds a broker that goes on where the last one over `store` was: its sessions are there, their clients
    /// disconnected, and timers that expired meanwhile are carried out. Nothing is accepted before [`Broker::run`].
    ///
    /// Blocks for as long as `store` takes to recover.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and every other error of [`Store::recover`].
    pub fn build(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        store: Arc<dyn Store>,
        listeners: Vec<Listener>,
    ) -> Result<Self, StoreError> {
        let listeners = listeners.into_iter().map(Into::into).collect();
        Self::recover(config, authenticate, Arc::new(PermitAll), Storage::of(store), listeners, |_| {})
    }

    /// Builds a broker as [`build`](Self::build) does, which asks `authorize` for permission, and reports to `progress`
    /// now and then how much is recovered.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn recover(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        authorize: Arc<dyn Authorize>,
        storage: Storage,
        listeners: Vec<BrokerListener>,
        progress: impl FnMut(Recovery),
    ) -> Result<Self, StoreError> {
        let access = Access::new(authenticate, authorize);
        let (mut core, recovery) = Core::recover(config, access, storage, progress)?;
        let state = |one: &BrokerListener| ListenerState::new(&one.listener, one.policy.tag.clone());
        core.lifecycle.listeners = listeners.iter().map(state).collect();
        Ok(Self { core: Arc::new(core), recovery, listeners, stop: watch::Sender::new(false) })
    }

    /// Counts of what the store had, expired sessions and messages included.
    pub const fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// A handle that is valid before and while the broker runs.
    pub fn handle(&self) -> Handle {
        Handle { core: self.core.clone(), stop: self.stop.clone() }
    }

    /// Serves until [`Handle::stop`]. Then nothing new is accepted, every client is disconnected, and connections get
    /// `drain` for their last bytes.
    ///
    /// # Errors
    /// The store failed. Nothing was acknowledged from then on, and the broker stopped by itself in the same way:
    /// clients send again what was not acknowledged to the next broker, which has everything that was.
    pub async fn run(self, drain: Duration) -> Result<(), StoreError> {
        let Self { core, listeners, stop, recovery: _ } = self;
        let mut accepting = JoinSet::new();
        for (index, listener) in (0..).zip(listeners) {
            accepting.spawn(listen::run(core.clone(), index, listener, stop.subscribe()));
        }
        let mut chores = JoinSet::new();
        chores.spawn(run_timers(core.clone()));
        chores.spawn(audit::log(core.access.audit.subscribe()));
        chores.spawn(sys::run(core.clone()));
        chores.spawn(overload::run(core.clone()));
        chores.spawn(spool_monitor::run(core.clone()));
        let mut stopped = stop.subscribe();
        tokio::select! {
            // The sender lives in `stop`: waiting cannot fail.
            _ = stopped.wait_for(|stop| *stop) => {}
            () = core.persist.failed() => {
                sys::publish_store(&core);
                stop.send_replace(true);
            }
            () = panicked(&mut chores) => {
                let reason = "a background task of the broker panicked".into();
                core.persist.fail(&StoreError::Failed { reason });
                stop.send_replace(true);
            }
            () = core.routing.failed() => {
                let reason = "a panic left the routing table half changed".into();
                core.persist.fail(&StoreError::Failed { reason });
                stop.send_replace(true);
            }
        }
        let mut shared = Vec::new();
        while let Some(listener) = accepting.join_next().await {
            // The others close when they are dropped.
            shared.extend(listener.ok().filter(Listener::shares_socket));
        }
        let end = Instant::now() + drain.min(LONGEST);
        close_all(&core).await;
        let _ = timeout_at(end, connections_ended(&core)).await;
        let mut closing: JoinSet<()> = shared.into_iter().map(Listener::close).collect();
        let end = end.max(Instant::now() + LAST);
        let _ = timeout_at(end, async { while closing.join_next().await.is_some() {} }).await;
        core.persist.failure().map_or(Ok(()), Err)
    }
}

/// Waits until a task panics: without its timers, say, a broker would publish no Will and end no session.
async fn panicked(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            return;
        }
    }
    std::future::pending().await
}

/// Carries out timers, and removes expired messages, for as long as the broker runs. Each turn of the task is limited.
async fn run_timers(core: Arc<Core>) {
    let mut sweep_at = Instant::now() + SWEEP;
    loop {
        let now = Instant::now();
        if now >= sweep_at {
            while core.retained.expire(now.into_std(), &core.persist) {
                yield_now().await;
            }
            core.queues.expire(core.sessions.registry.pieces(), &core.persist).await;
            core.access.admission.expire(clock::now());
            sweep_at = now + SWEEP;
        }
        let timers = &core.sessions.timers;
        let mut next = Ok(());
        for _ in 0..TIMERS_AT_ONCE {
            match timers.poll_due(now) {
                Ok(timer) => {
                    if let Some(entry) = core.sessions.handle_due(&timer) {
                        let client = (&entry.client_id).into();
                        core.lifecycle.events.record(|| BrokerEvent::SessionExpired { client });
                    }
                }
                Err(at) => {
                    next = Err(at);
                    break;
                }
            }
        }
        match next {
            Ok(()) => yield_now().await,
            Err(next) => {
                let until = next.map_or(sweep_at, |at| at.min(sweep_at));
                let _ = timeout_at(until, timers.earlier()).await;
            }
        }
    }
}

/// Disconnects every client because the broker stops. Others have a turn between the pieces: what the first clients
/// answer has to be read while the last ones are told.
async fn close_all(core: &Core) {
    core.lifecycle.set_stopping();
    for piece in core.sessions.registry.pieces() {
        for entry in piece {
            if let Some(waker) = entry.queue.signal(Signal::Close(ReasonCode::ServerShuttingDown)) {
                waker.wake();
            }
        }
        yield_now().await;
    }
}

async fn connections_ended(core: &Core) {
    while core.statistics.connections() > 0 {
        core.lifecycle.connection_ended().await;
    }
}

impl Handle {
    /// Begins to stop the broker.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Tests whether the broker stops.
    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Reports a failure of the store, for stores that know of it before the next commit.
    pub fn fail(&self, error: &StoreError) {
        self.core.persist.fail(error);
    }

    /// Checks every connected client against rules and users that have changed: revoked users are disconnected, and
    /// subscriptions end that are not permitted any more.
    pub async fn recheck_clients(&self) {
        self.core.lifecycle.note_recheck();
        for piece in self.core.sessions.registry.pieces() {
            for entry in piece {
                if let Some(waker) = entry.queue.signal(Signal::Recheck) {
                    waker.wake();
                }
            }
            yield_now().await;
        }
    }

    /// Bans a client, a user or addresses for a time, or until the broker ends, and disconnects those who are
    /// connected. `reason` is for the record of refusals. A ban of the same target is replaced.
    ///
    /// # Errors
    /// There are too many bans, or the reason is too long. Nothing has changed.
    pub async fn ban(
        &self,
        target: BanTarget,
        duration: Option<Duration>,
        reason: &str,
    ) -> Result<(), BanError> {
        let Core { access, sessions, .. } = &*self.core;
        let client_id = match &target {
            BanTarget::Client(client_id) | BanTarget::ClientAt(client_id, ..) => Some(client_id.clone()),
            BanTarget::User(_) | BanTarget::Addresses(_) => None,
        };
        // First: a client that connects meanwhile finds the ban itself.
        access.admission.ban(target, duration, reason, clock::now())?;
        match client_id {
            Some(client_id) => {
                let entry = sessions.registry.find(&client_id);
                let waker = entry.and_then(|entry| entry.queue.signal(Signal::Recheck));
                waker.into_iter().for_each(Waker::wake);
            }
            None => self.recheck_clients().await,
        }
        Ok(())
    }

    /// Lifts bans and sets others, until the broker ends, in place of those of the same targets. Who is connected is
    /// disconnected by [`recheck_clients`](Self::recheck_clients).
    ///
    /// # Errors
    /// There would be too many bans, or the reason is too long. Nothing has changed.
    pub fn replace_bans(
        &self,
        lifted: Vec<BanTarget>,
        set: Vec<BanTarget>,
        reason: &str,
    ) -> Result<(), BanError> {
        self.core.access.admission.replace(lifted, set, reason, clock::now())
    }

    /// Lifts the ban of exactly this target. False if there is none.
    pub fn unban(&self, target: BanTarget) -> bool {
        self.core.access.admission.unban(target, clock::now())
    }

    /// The bans that are in force, those for flapping included, in no order.
    pub fn bans(&self) -> Vec<Ban> {
        self.core.access.admission.bans(clock::now())
    }

    /// The ban of a user or an address that is in force, for a peer that has no Client Identifier: a client of another
    /// protocol than MQTT.
    pub fn find_ban(&self, user: Option<&str>, address: SocketAddr) -> Option<Ban> {
        let subject = Subject { client_id: None, user, address: Some(address) };
        self.core.access.admission.find_ban(subject, BanFilter::All, clock::now())
    }

    /// Tests whether a peer of another protocol that was accepted with this identity would not be accepted any more.
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        self.core.access.is_revoked(identity)
    }

    /// Signal after which [`find_ban`](Self::find_ban) and [`is_revoked`](Self::is_revoked) may have other answers. A
    /// ban that ends, or is lifted, gives none.
    pub fn rechecks(&self) -> watch::Receiver<()> {
        self.core.lifecycle.rechecks()
    }

    /// Security events from now on: what was refused, to whom, and by which rule.
    pub fn security_events(&self) -> broadcast::Receiver<Arc<SecurityEvent>> {
        self.core.access.audit.subscribe()
    }

    /// Handle for the cluster of this broker.
    pub fn node_handle(&self) -> NodeHandle {
        NodeHandle::new(self.core.clone())
    }

    /// The broker's counters.
    pub fn statistics(&self) -> Arc<Statistics> {
        self.core.statistics.clone()
    }

    /// A monitor of the broker's health, which outlives it.
    pub fn health_monitor(&self) -> HealthMonitor {
        HealthMonitor {
            statistics: self.core.statistics.clone(),
            memory: self.core.memory.clone(),
            failure: self.core.persist.watch_failure(),
            stop: self.stop.subscribe(),
            most_connections: self.core.config.limits.connections as u64,
        }
    }

    /// Bytes that the broker holds for connected clients and of incomplete packets, to which the memory marks apply.
    pub fn memory_used(&self) -> u64 {
        self.core.memory.used()
    }

    /// Bytes of messages that are queued for disconnected clients, or are retained.
    pub fn memory_resting(&self) -> u64 {
        self.core.memory.resting()
    }

    /// Bytes that are queued for all disconnected clients together.
    pub fn memory_queued(&self) -> u64 {
        self.core.memory.queued()
    }

    /// Publishes a message as the broker itself.
    pub fn publish(&self, message: Message) {
        self.core.dispatcher.publish_own(message);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use braid_proto::connection::{Cause, End};
    use braid_proto::decoder::{Spool, SpoolError, SpooledPacket};
    use braid_proto::packet::{ClientId, QoS, Will};
    use braid_proto::session::SessionExpiry;
    use braid_proto::topic::TopicName;
    use braid_store::MemoryStore;

    use super::*;
    use crate::auth::{Anonymous, ClientAccess};

    /// Spool whose monitor panics.
    #[derive(Debug)]
    struct Panicking;

    impl Spool for Panicking {
        fn threshold(&self) -> usize {
            usize::MAX
        }

        fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError> {
            Err(SpoolError::Full)
        }

        fn used(&self) -> u64 {
            0
        }

        fn refused(&self) -> u64 {
            panic!("on purpose")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_background_task_stops_the_broker_with_an_error() {
        let broker = Broker::recover(
            BrokerConfig::default(),
            Box::new(Anonymous::default()),
            Arc::new(PermitAll),
            Storage { spool: Some(Arc::new(Panicking)), ..Storage::of(Arc::new(MemoryStore::new())) },
            Vec::new(),
            |_| {},
        );
        let run = broker.unwrap().run(Duration::ZERO);
        let outcome = tokio::time::timeout(Duration::from_secs(60), run).await.unwrap();
        assert!(matches!(outcome, Err(StoreError::Failed { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn due_wills_are_published_a_few_at_a_time() {
        let core = Arc::new(Core::in_memory(BrokerConfig::default()));
        let total = 10 * TIMERS_AT_ONCE;
        for number in 0..total {
            let connection = core.sessions.registry.next_connection();
            let (client_id, access) = (ClientId::from(number.to_string().as_str()), ClientAccess::default());
            let claim = core.sessions.claim(&client_id, &access, false, connection).await.unwrap();
            let mut session = claim.session;
            session.expiry = SessionExpiry::from_secs(3600);
            let will = Will {
                topic: TopicName::parse(&format!("will/{number}")).unwrap(),
                payload: "x".into(),
                qos: QoS::AtMostOnce,
                retain: true,
                delay: 1,
                properties: None,
            };
            let end = End { cause: Cause::Lost, session: Some(session), will: Some(will) };
            core.sessions.release(&claim.entry, connection, end, VecDeque::new(), Vec::new(), true);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let mut timers = pin!(run_timers(core.clone()));
        let mut turn = async || {
            poll_fn(|context| {
                assert!(timers.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        };
        turn().await;
        assert_eq!(core.retained.len(), TIMERS_AT_ONCE);
        for _ in 0..10 {
            turn().await;
        }
        assert_eq!(core.retained.len(), total);
    }
}
