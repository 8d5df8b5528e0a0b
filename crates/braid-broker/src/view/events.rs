//! Events of a broker, for those who watch it live.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_proto::connection::Cause;
use braid_proto::packet::QoS;
use braid_proto::topic::TopicFilter;
use tokio::sync::broadcast;

use super::connection::{ClientName, ConnectionSummary};
use super::listeners::ListenerStatus;

/// Events that a subscriber may be behind before it loses the oldest.
const CAPACITY: usize = 4096;

/// Event of a broker.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokerEvent {
    /// The CONNECT of a client was accepted.
    Connected {
        /// Client.
        client: ClientName,
        /// User name; `None` for an anonymous client.
        user: Option<Box<str>>,
        /// Connection.
        connection: Arc<ConnectionSummary>,
    },
    /// The connection of a client ended.
    Disconnected {
        /// Client.
        client: ClientName,
        /// Cause.
        cause: Cause,
        /// Address of the client.
        address: Option<SocketAddr>,
    },
    /// A client was granted subscriptions.
    Subscribed {
        /// Client.
        client: ClientName,
        /// Filters with their QoS, at most 32: those of large packets come in several events.
        filters: Vec<(TopicFilter, QoS)>,
    },
    /// Subscriptions ended because their client unsubscribed.
    Unsubscribed {
        /// Client.
        client: ClientName,
        /// Filters, at most 32.
        filters: Vec<TopicFilter>,
    },
    /// A client moved to another address.
    Migrated {
        /// Client.
        client: ClientName,
        /// Address before.
        from: Option<SocketAddr>,
        /// Address by now.
        to: SocketAddr,
    },
    /// The Session Expiry Interval of a disconnected client has passed.
    SessionExpired {
        /// Client.
        client: ClientName,
    },
    /// The endpoint of a listener was restarted after a failure.
    ListenerRestarted {
        /// Listener.
        listener: ListenerStatus,
    },
}

impl BrokerEvent {
    /// Name of the kind of event, for logs and APIs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Connected { .. } => "connected",
            Self::Disconnected { .. } => "disconnected",
            Self::Subscribed { .. } => "subscribed",
            Self::Unsubscribed { .. } => "unsubscribed",
            Self::Migrated { .. } => "migrated",
            Self::SessionExpired { .. } => "session_expired",
            Self::ListenerRestarted { .. } => "listener_restarted",
        }
    }

    /// Client that the event is about.
    pub const fn client(&self) -> Option<&ClientName> {
        match self {
            Self::Connected { client, .. }
            | Self::Disconnected { client, .. }
            | Self::Subscribed { client, .. }
            | Self::Unsubscribed { client, .. }
            | Self::Migrated { client, .. }
            | Self::SessionExpired { client } => Some(client),
            Self::ListenerRestarted { .. } => None,
        }
    }
}

/// Source of the events of a broker. Without a subscriber no event is made.
pub(crate) struct Events {
    sender: broadcast::Sender<Arc<BrokerEvent>>,
    /// Set while there may be a receiver: tokio counts them under a lock. Relaxed: the flag guards no memory, and an
    /// event that is about as old as its subscriber may be missed.
    is_watched: AtomicBool,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(CAPACITY), is_watched: AtomicBool::new(false) }
    }
}

impl Events {
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        let receiver = self.sender.subscribe();
        self.is_watched.store(true, Ordering::Relaxed);
        receiver
    }

    /// Passes an event on, if there is a subscriber.
    pub(crate) fn record(&self, event: impl FnOnce() -> BrokerEvent) {
        if !self.is_watched.load(Ordering::Relaxed) || self.sender.send(Arc::new(event())).is_ok() {
            return;
        }
        self.is_watched.store(false, Ordering::Relaxed);
        // One that subscribed between the send and the store has set the flag in vain.
        if self.sender.receiver_count() > 0 {
            self.is_watched.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> BrokerEvent {
        BrokerEvent::SessionExpired { client: ClientName::new(None, "client") }
    }

    #[test]
    fn an_event_without_a_subscriber_is_not_made() {
        let events = Events::default();
        events.record(|| unreachable!("there is no subscriber"));
        let mut receiver = events.subscribe();
        events.record(event);
        assert_eq!(*receiver.try_recv().unwrap(), event());
        drop(receiver);
        events.record(event); // Finds that none is left.
        events.record(|| unreachable!("there is no subscriber"));
        let mut receiver = events.subscribe();
        events.record(event);
        assert!(receiver.try_recv().is_ok());
    }

    #[test]
    fn a_slow_subscriber_is_told_how_many_events_it_lost() {
        let events = Events::default();
        let mut receiver = events.subscribe();
        (0..CAPACITY + 7).for_each(|_| events.record(event));
        assert_eq!(receiver.try_recv().unwrap_err(), broadcast::error::TryRecvError::Lagged(7));
        assert!(receiver.try_recv().is_ok());
    }
}
