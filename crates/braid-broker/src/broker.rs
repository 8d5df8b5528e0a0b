//! A broker put together, and what can be asked of one that runs.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::message::Message;
use braid_proto::reason::ReasonCode;
use braid_store::{Store, StoreError};
use braid_transport::{Listener, Transport};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::auth::Authenticate;
use crate::config::BrokerConfig;
use crate::hub::Hub;
use crate::mailbox::Signal;
use crate::statistics::Statistics;
use crate::{expiry, listen, sys};

/// A broker with its listeners bound, ready to [`run`](Broker::run).
pub struct Broker {
    hub: Arc<Hub>,
    listeners: Vec<Listener>,
    stop: watch::Sender<bool>,
}

/// A running broker, seen from outside. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    hub: Arc<Hub>,
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
        let hub = Arc::new(Hub::recover(config, authenticate, store)?);
        Ok(Self { hub, listeners, stop: watch::Sender::new(false) })
    }

    /// A handle, which stays useful while the broker runs.
    pub fn handle(&self) -> Handle {
        Handle { hub: self.hub.clone(), stop: self.stop.clone() }
    }

    /// Serves until [`Handle::stop`]. Then nothing new is accepted, every client is told, and connections get
    /// `drain` for their last bytes.
    pub async fn run(self, drain: Duration) {
        let Self { hub, listeners, stop } = self;
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(listen::run(hub.clone(), listener, stop.subscribe()));
        }
        let mut chores = JoinSet::new();
        chores.spawn(expiry::run(hub.clone()));
        chores.spawn(sys::run(hub.clone()));
        let mut stopped = stop.subscribe();
        // The sender lives in `stop`: waiting cannot fail.
        let _ = stopped.wait_for(|stop| *stop).await;
        let mut shared = Vec::new();
        while let Some(listener) = accepting.join_next().await {
            // Others are closed by letting them go; the links of QUIC share its socket.
            shared.extend(listener.ok().filter(|listener| listener.transport() == Transport::Quic));
        }
        close_all(&hub);
        let _ = tokio::time::timeout(drain, connections_ended(&hub)).await;
        for listener in shared {
            listener.close().await;
        }
    }
}

/// Tells every client that the broker stops.
fn close_all(hub: &Hub) {
    hub.set_stopping();
    let slots: Vec<_> = hub.registry.slots().values().cloned().collect();
    for slot in slots {
        if let Some(waker) = slot.mailbox.signal(Signal::Close(ReasonCode::ServerShuttingDown)) {
            waker.wake();
        }
    }
}

async fn connections_ended(hub: &Hub) {
    while hub.statistics.connections() > 0 {
        hub.connection_ended.notified().await;
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

    /// The broker's counters.
    pub fn statistics(&self) -> Arc<Statistics> {
        self.hub.statistics.clone()
    }

    /// Publishes a message as the broker itself.
    pub fn publish(&self, message: Message) {
        self.hub.publish(message);
    }
}
