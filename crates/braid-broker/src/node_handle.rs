//! Handle of a broker for its cluster: messages and sessions of other nodes.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use braid_proto::message::Message;
use braid_proto::packet::{ClientId, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicFilter;
use braid_store::SessionId;

use crate::clock;
use crate::cluster::{ArrivedMessage, RemoteSession};
use crate::core::Core;
use crate::queue::session_queue::Signal;
use crate::routing::RouteCache;

/// Handle of a broker for its cluster. Cheap to clone.
#[derive(Clone)]
pub struct NodeHandle(Arc<Core>);

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle").finish_non_exhaustive()
    }
}

/// Cache of the routes of messages that come one after the other.
#[derive(Default)]
pub struct DeliveryRoutes(RouteCache);

impl fmt::Debug for DeliveryRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryRoutes").finish_non_exhaustive()
    }
}

impl NodeHandle {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(core)
    }

    /// Delivers messages of the log or of other nodes in their order, and retains those with RETAIN.
    pub fn deliver(&self, routes: &mut DeliveryRoutes, messages: Vec<ArrivedMessage>) {
        let find = |client: &ClientId| self.0.sessions.registry.find(client).map(|entry| entry.key);
        self.0.dispatcher.deliver_arrived(&mut routes.0, messages, find);
    }

    /// Delivers a message to a member of a shared subscription, with the QoS that is returned. `None`: this node has no
    /// member that could take it.
    pub fn deliver_shared(&self, filter: &TopicFilter, message: Message) -> Option<QoS> {
        self.0.dispatcher.deliver_shared(filter, message)
    }

    /// Notes whether the servers of the cluster take messages: without them new clients are refused, and the broker is
    /// not ready.
    pub fn set_reachable(&self, is_reachable: bool) {
        if self.0.statistics.set_cluster_unreachable(!is_reachable) {
            if is_reachable {
                tracing::info!("NATS takes messages again");
            } else {
                tracing::warn!(
                    "NATS takes no messages: clients of QoS 1 and 2 wait, and new ones are refused"
                );
            }
        }
    }

    /// Sets the time until which other nodes leave the sessions of this one alone. From then on nothing of QoS 1 and 2
    /// is delivered, until the time is set anew.
    pub fn set_owns_until(&self, until: Instant) {
        if self.0.lifecycle.set_owns_until(until) && self.0.lifecycle.owns_sessions(clock::now()) {
            // Deliveries wait.
            for entry in self.0.sessions.registry.pieces().flatten() {
                entry.queue.signal(Signal::Inquire).into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Whether the sessions of this node are its own for certain.
    #[must_use]
    pub fn owns_sessions(&self) -> bool {
        self.0.lifecycle.owns_sessions(clock::now())
    }

    /// Sets the addresses of other nodes, to which clients are sent when this broker stops.
    pub fn set_successors(&self, addresses: Vec<String>) {
        self.0.lifecycle.set_successors(addresses);
    }

    /// Releases the session of a client for another node: its connection is closed with 0x8E, and the store has
    /// everything of it when this is done. False: this node does not have the session.
    ///
    /// # Errors
    /// The connection does not release it in time, or the store does not take it.
    pub async fn release_session(&self, client_id: &ClientId) -> Result<bool, ReasonCode> {
        self.0.sessions.give_away(client_id).await
    }

    /// Takes over the session of a client that has no connection, for its timers: a Will that is due, its end. False:
    /// it has ended with that, or is not as it was `found`.
    ///
    /// # Errors
    /// The session cannot be taken.
    pub async fn adopt_session(
        &self,
        client_id: &ClientId,
        found: RemoteSession,
    ) -> Result<bool, ReasonCode> {
        self.0.sessions.adopt(client_id, found).await
    }

    /// Forgets a session without a connection that the store has whole. False, and without effect, if it has one again.
    pub async fn forget_session(&self, id: SessionId) -> bool {
        self.0.sessions.forget(id).await
    }

    /// Ends the part of this node in a session that another one has by now, or may have: its connection is closed with
    /// `reason`, and nothing of it is published or stored any more.
    pub fn lose_session(&self, id: SessionId, reason: ReasonCode) {
        self.0.sessions.lose(id, reason);
    }
}
