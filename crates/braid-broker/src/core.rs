//! Shared state of a broker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use braid_proto::connection::ServerOptions;
use braid_store::{NextIds, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::auth::Access;
use crate::clock;
use crate::cluster::Storage;
use crate::config::BrokerConfig;
use crate::dispatch::Dispatcher;
use crate::lock_order::{Ordered, Rank};
use crate::log_throttle::LogThrottle;
use crate::memory::Memory;
use crate::persist::{self, MessageLoader, Persist, Recovery};
use crate::queue::policy::QueuePolicy;
use crate::queue::usage::QueueLimits;
use crate::registry::Registry;
use crate::retained::RetainedMessages;
use crate::routing::RoutingTable;
use crate::session_queues::SessionQueues;
use crate::sessions::SessionManager;
use crate::statistics::Statistics;
use crate::view::{Events, ListenerState};

/// Owners of the broker's shared state, as its tasks see them. Has no logic of its own.
///
/// The order of the locks in them is that of [`lock_order`](crate::lock_order).
pub(crate) struct Core {
    pub(crate) config: BrokerConfig,
    pub(crate) server_options: Arc<ServerOptions>,
    pub(crate) access: Arc<Access>,
    pub(crate) routing: Arc<RoutingTable>,
    pub(crate) sessions: SessionManager,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) queues: Arc<SessionQueues>,
    pub(crate) retained: Arc<RetainedMessages>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) persist: Arc<Persist>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) lifecycle: Lifecycle,
}

impl Core {
    /// Empty state that counts on from `next`, accounts in `memory`, and receives large packets into `spool`, if there
    /// is one.
    pub(crate) fn new(
        config: BrokerConfig,
        access: Access,
        storage: Storage,
        next: NextIds,
        memory: Arc<Memory>,
    ) -> Self {
        let Storage { store, spool, cluster } = storage;
        let lifecycle = Lifecycle::default();
        let limits = &config.limits;
        let capacity = QueueLimits { messages: limits.retained_messages, bytes: limits.retained_bytes };
        let policy = QueuePolicy::new(limits, lifecycle.started.into_std(), memory.clone());
        let statistics = Arc::<Statistics>::default();
        let access = Arc::new(access.with_limits(limits));
        let persist = Arc::new(Persist::new(store, next.lsn));
        let registry = Arc::new(Registry::new(next.session));
        let routing = Arc::new(RoutingTable::new(&config.priority, registry.clone(), cluster));
        let retained = Arc::new(RetainedMessages::new(capacity, memory.clone()));
        let queues = Arc::new(SessionQueues::new(policy, statistics.clone(), memory.clone()));
        let dispatcher = Arc::new(Dispatcher::new(
            access.clone(),
            routing.clone(),
            queues.clone(),
            retained.clone(),
            persist.clone(),
            memory.clone(),
            statistics.clone(),
        ));
        let sessions = SessionManager::new(
            registry,
            routing.clone(),
            dispatcher.clone(),
            queues.clone(),
            persist.clone(),
            memory.clone(),
            spool.clone(),
        );
        Self {
            server_options: Arc::new(ServerOptions { spool, ..config.server_options() }),
            config,
            access,
            routing,
            sessions,
            dispatcher,
            queues,
            retained,
            memory,
            persist,
            statistics,
            lifecycle,
        }
    }

    /// State that goes on where the last broker over this store was.
    pub(crate) fn recover(
        config: BrokerConfig,
        access: Access,
        storage: Storage,
        progress: impl FnMut(Recovery),
    ) -> Result<(Self, Recovery), StoreError> {
        let now = persist::now(&*storage.store);
        let memory = Arc::new(Memory::new(&config.limits));
        let mut loader = MessageLoader::new(storage.spool.as_ref(), &memory);
        let recovered = persist::recover(&*storage.store, now, &mut loader, progress)?;
        loader.log_unspooled();
        let core = Self::new(config, access, storage, recovered.next, memory);
        core.retained.restore(recovered.retained);
        core.sessions.restore(recovered.sessions, now);
        Ok((core, recovered.recovery))
    }

    /// Empty state over a store in memory that permits everything.
    #[cfg(test)]
    pub(crate) fn in_memory(config: BrokerConfig) -> Self {
        use crate::auth::{Anonymous, PermitAll};

        let access = Access::new(Box::new(Anonymous::default()), Arc::new(PermitAll));
        let memory = Arc::new(Memory::new(&config.limits));
        let storage = Storage::of(Arc::new(braid_store::MemoryStore::new()));
        Self::new(config, access, storage, NextIds::FIRST, memory)
    }
}

/// Start and stop of a broker, its listeners, and the events that tell of both and of its clients.
pub(crate) struct Lifecycle {
    pub(crate) started: Instant,
    pub(crate) events: Events,
    /// In the order in which the broker was given them.
    pub(crate) listeners: Vec<ListenerState>,
    stopping: watch::Sender<bool>,
    /// Milliseconds from the start until which the sessions of this node are its own for certain; without other nodes
    /// always.
    owns_until: AtomicU64,
    /// Addresses of other nodes, for the clients of a node that leaves.
    successors: OnceLock<Vec<String>>,
    connection_ended: Notify,
    /// Signalled when users, rules or bans have changed.
    rechecks: watch::Sender<()>,
    /// A std lock, never held across an await.
    session_limit_log: Mutex<LogThrottle>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            events: Events::default(),
            listeners: Vec::new(),
            stopping: watch::Sender::new(false),
            owns_until: AtomicU64::new(u64::MAX),
            successors: OnceLock::new(),
            connection_ended: Notify::new(),
            rechecks: watch::Sender::new(()),
            session_limit_log: Mutex::default(),
        }
    }
}

impl Lifecycle {
    /// Listener with this index.
    pub(crate) fn listener(&self, index: u16) -> Option<&ListenerState> {
        self.listeners.get(usize::from(index))
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(crate) fn set_stopping(&self) {
        self.stopping.send_replace(true);
    }

    /// Whether the sessions of this node are its own for certain at `now`. Otherwise another node may deliver to their
    /// clients, and this one delivers nothing of QoS 1 and 2.
    pub(crate) fn owns_sessions(&self, now: std::time::Instant) -> bool {
        let until = self.owns_until.load(Ordering::Relaxed);
        until == u64::MAX || self.millis(now) < until
    }

    /// Sets the time until which the sessions of this node are its own. True: they were not for certain before.
    pub(crate) fn set_owns_until(&self, until: std::time::Instant) -> bool {
        let before = self.owns_until.swap(self.millis(until), Ordering::Relaxed);
        before <= self.millis(clock::now())
    }

    fn millis(&self, at: std::time::Instant) -> u64 {
        let since = at.saturating_duration_since(self.started.into_std());
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Sets the addresses to which clients are sent when the broker stops. The first call counts.
    pub(crate) fn set_successors(&self, addresses: Vec<String>) {
        let _ = self.successors.set(addresses);
    }

    /// Address of another node: clients with different numbers are spread over all of them.
    pub(crate) fn successor(&self, number: u64) -> Option<&str> {
        let addresses = self.successors.get().filter(|addresses| !addresses.is_empty())?;
        let index = usize::try_from(number % addresses.len() as u64).unwrap_or(0);
        addresses.get(index).map(String::as_str)
    }

    /// Waits until the broker stops.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Signals that users, rules or bans have changed.
    pub(crate) fn note_recheck(&self) {
        self.rechecks.send_replace(());
    }

    pub(crate) fn rechecks(&self) -> watch::Receiver<()> {
        self.rechecks.subscribe()
    }

    pub(crate) fn note_connection_ended(&self) {
        self.connection_ended.notify_one();
    }

    /// Notes a client that is refused because of the limit of sessions. Returns the number to log, if a line is due.
    pub(crate) fn note_session_limit(&self) -> Option<u64> {
        let mut log = Ordered::acquire(Rank::Leaf, || {
            self.session_limit_log.lock().unwrap_or_else(PoisonError::into_inner)
        });
        log.note(1, clock::now())
    }

    /// Waits until a connection ends.
    pub(crate) async fn connection_ended(&self) {
        self.connection_ended.notified().await;
    }
}
