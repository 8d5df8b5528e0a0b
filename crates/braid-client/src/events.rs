//! Events of a connection, broadcast to the application.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_proto::packet::ConnackProperties;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_transport::Transport;
use braid_transport::quic::PathChange;
use tokio::sync::broadcast;

use crate::error::Error;
use crate::lock::lock;

/// Number of events by which a slow receiver may lag before it loses the oldest.
const CAPACITY: usize = 64;

/// Change of the connection, or loss of a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The server accepted the connection.
    Connected {
        /// Transport of the connection.
        transport: Transport,
        /// Whether the server resumed the session.
        session_present: bool,
        /// Properties of CONNACK; empty before MQTT 5.
        server: Arc<ConnackProperties>,
    },
    /// A large message that was under way when the last connection ended goes on where the server has its first part.
    /// Follows [`Connected`](Self::Connected).
    Continued {
        /// Topic of the message.
        topic: TopicName,
        /// Bytes of the payload that the server has, and that are not sent again. 0: it lacks the part that it had
        /// listed, and the message is sent from its beginning.
        offset: usize,
        /// Bytes of the payload.
        size: usize,
    },
    /// The connection moves to another link, which is established already; [`Connected`](Self::Connected) follows.
    /// Requests that are not answered go on there.
    Moving {
        /// Transport of the link.
        to: Transport,
        /// The cause.
        reason: Arc<str>,
    },
    /// A path of a client with several has changed ([`Builder::paths`](crate::Builder::paths)). The connection goes on.
    Path {
        /// The interface or address.
        path: Arc<str>,
        /// The change.
        change: PathChange,
    },
    /// The connection was lost, or an attempt failed.
    Disconnected {
        /// The cause.
        error: Error,
        /// Pause before the next attempt; `None`: the client is closed.
        retry_in: Option<Duration>,
    },
    /// The server refused to restore a subscription after a reconnect.
    SubscriptionLost {
        /// The filter.
        filter: TopicFilter,
        /// The refusal.
        reason: ReasonCode,
    },
}

/// Sending end of the broadcast. Keeps the last event that is not about one message for receivers that subscribe later.
#[derive(Debug)]
pub(crate) struct EventLog {
    last: Mutex<Option<ConnectionEvent>>,
    sender: broadcast::Sender<ConnectionEvent>,
}

impl EventLog {
    pub(crate) fn new() -> Self {
        Self { last: Mutex::new(None), sender: broadcast::Sender::new(CAPACITY) }
    }

    pub(crate) fn push(&self, event: ConnectionEvent) {
        let mut last = lock(&self.last);
        // A later receiver is told of the connection.
        if !matches!(event, ConnectionEvent::Continued { .. } | ConnectionEvent::Path { .. }) {
            *last = Some(event.clone());
        }
        // Under the lock, so that a concurrent `subscribe` gets the event exactly once. There may be no receiver.
        let _ = self.sender.send(event);
    }

    pub(crate) fn subscribe(&self) -> Events {
        let last = lock(&self.last);
        Events { first: last.clone(), receiver: self.sender.subscribe(), is_over: false }
    }
}

/// Receiving end of the broadcast: the last event before its creation that is not about one message, if any, then all
/// later ones.
#[derive(Debug)]
pub struct Events {
    first: Option<ConnectionEvent>,
    receiver: broadcast::Receiver<ConnectionEvent>,
    is_over: bool,
}

impl Events {
    /// Waits for the next event. A receiver that lags by more than 64 events loses the oldest. `None` follows the last
    /// event, which is `Disconnected` without another attempt.
    ///
    /// Cancel safe: an event that is not returned is not lost.
    pub async fn recv(&mut self) -> Option<ConnectionEvent> {
        if self.is_over {
            return None;
        }
        let event = match self.first.take() {
            Some(first) => first,
            None => self.recv_new().await?,
        };
        self.is_over = matches!(event, ConnectionEvent::Disconnected { retry_in: None, .. });
        Some(event)
    }

    async fn recv_new(&mut self) -> Option<ConnectionEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
