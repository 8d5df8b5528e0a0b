//! A broker put together, and what can be asked of one that runs.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::codec::Spool;
use braid_proto::message::Message;
use braid_proto::reason::ReasonCode;
use braid_store::{Store, StoreError};
use braid_transport::{Listener, Transport};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::auth::Authenticate;
use crate::config::BrokerConfig;
use crate::core::Core;
use crate::health::HealthMonitor;
use crate::persist::Recovery;
use crate::queue::session_queue::Signal;
use crate::statistics::Statistics;
use crate::{expiry, listen, overload, spool_monitor, sys};

/// A broker with its listeners bound, ready to [`run`](Broker::run).
pub struct Broker {
    core: Arc<Core>,
    recovery: Recovery,
    listeners: Vec<Listener>,
    stop: watch::Sender<bool>,
}

/// A running broker, seen from outside. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    core: Arc<Core>,
    stop: watch::Sender<bool>,
}

impl Broker {
    /// Puts a broker together that goes on where the last one over `store` was: its sessions are there, their
    /// clients away; what fell due meanwhile is carried out. Nothing is accepted before [`Broker::run`].
    ///
    /// Blocks for as long as `store` takes to show what it holds.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and whatever else keeps the store from showing it.
    pub fn build(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        store: Arc<dyn Store>,
        listeners: Vec<Listener>,
    ) -> Result<Self, StoreError> {
        Self::recover(config, authenticate, store, None, listeners, |_| {})
    }

    /// The same, receives large packets into `spool` instead of the heap, and tells `progress` now and then how much is
    /// there again.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn recover(
        config: BrokerConfig,
        authenticate: Box<dyn Authenticate>,
        store: Arc<dyn Store>,
        spool: Option<Arc<dyn Spool>>,
        listeners: Vec<Listener>,
        progress: impl FnMut(Recovery),
    ) -> Result<Self, StoreError> {
        let (core, recovery) = Core::recover(config, authenticate, store, spool, progress)?;
        Ok(Self { core: Arc::new(core), recovery, listeners, stop: watch::Sender::new(false) })
    }

    /// What the store had, those included whose time was over by now.
    pub const fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// A handle, which stays useful while the broker runs.
    pub fn handle(&self) -> Handle {
        Handle { core: self.core.clone(), stop: self.stop.clone() }
    }

    /// Serves until [`Handle::stop`]. Then nothing new is accepted, every client is told, and connections get
    /// `drain` for their last bytes.
    ///
    /// # Errors
    /// The store failed. From then on nothing was acknowledged, and the broker stopped by itself in the same way:
    /// what its clients still wait for they send again to the next broker, which knows what was acknowledged.
    pub async fn run(self, drain: Duration) -> Result<(), StoreError> {
        let Self { core, listeners, stop, recovery: _ } = self;
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(listen::run(core.clone(), listener, stop.subscribe()));
        }
        let mut chores = JoinSet::new();
        chores.spawn(expiry::run(core.clone()));
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
        }
        let mut shared = Vec::new();
        while let Some(listener) = accepting.join_next().await {
            // Others are closed by letting them go; the links of QUIC share its socket.
            shared.extend(listener.ok().filter(|listener| listener.transport() == Transport::Quic));
        }
        close_all(&core);
        let _ = tokio::time::timeout(drain, connections_ended(&core)).await;
        for listener in shared {
            listener.close().await;
        }
        core.persist.failure().map_or(Ok(()), Err)
    }
}

/// Tells every client that the broker stops.
fn close_all(core: &Core) {
    core.set_stopping();
    let entries: Vec<_> = core.registry.entries().values().cloned().collect();
    for entry in entries {
        if let Some(waker) = entry.queue.signal(Signal::Close(ReasonCode::ServerShuttingDown)) {
            waker.wake();
        }
    }
}

async fn connections_ended(core: &Core) {
    while core.statistics.connections() > 0 {
        core.connection_ended.notified().await;
    }
}

impl Handle {
    /// Begins to stop the broker.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether the broker stops.
    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Tells the broker that its store has failed, for stores that know it before the next commit is made.
    pub fn fail(&self, error: &StoreError) {
        self.core.persist.fail(error);
    }

    /// The broker's counters.
    pub fn statistics(&self) -> Arc<Statistics> {
        self.core.statistics.clone()
    }

    /// How the broker is, as told by a value that outlives it.
    pub fn health_monitor(&self) -> HealthMonitor {
        HealthMonitor {
            statistics: self.core.statistics.clone(),
            memory: self.core.memory.clone(),
            failure: self.core.persist.watch_failure(),
            stop: self.stop.subscribe(),
            most_connections: self.core.config.limits.connections as u64,
        }
    }

    /// Bytes that the broker holds for connected clients, and of incomplete packets: what the marks are about.
    pub fn memory_used(&self) -> u64 {
        self.core.memory.used()
    }

    /// Bytes of messages that wait for clients that are away, or are retained.
    pub fn memory_resting(&self) -> u64 {
        self.core.memory.resting()
    }

    /// Bytes of what waits for all clients that are away together.
    pub fn memory_queued(&self) -> u64 {
        self.core.memory.queued()
    }

    /// Publishes a message as the broker itself.
    pub fn publish(&self, message: Message) {
        self.core.publish(message);
    }
}
