//! What happens to the connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_proto::packet::ConnackProperties;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicFilter;
use tokio::sync::broadcast;

use crate::error::Error;

/// Events that a slow reader may be behind before it misses the oldest.
const BACKLOG: usize = 64;

/// What happened to the connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// The server accepted the connection.
    Connected {
        /// The server goes on with the session.
        session_present: bool,
        /// What the server said; empty before MQTT 5.
        server: Arc<ConnackProperties>,
    },
    /// There is no connection, or not any more.
    Disconnected {
        /// Why.
        error: Error,
        /// The pause before the next attempt; `None`: the client is closed.
        retry_in: Option<Duration>,
    },
    /// After a reconnect the server did not grant a subscription again.
    SubscriptionLost {
        /// Which.
        filter: TopicFilter,
        /// Why.
        reason: ReasonCode,
    },
}

/// The sender's side; remembers the last event for those who come later.
#[derive(Debug)]
pub(crate) struct EventLog {
    last: Mutex<Option<ConnectionEvent>>,
    sender: broadcast::Sender<ConnectionEvent>,
}

impl EventLog {
    pub(crate) fn new() -> Self {
        Self { last: Mutex::new(None), sender: broadcast::Sender::new(BACKLOG) }
    }

    pub(crate) fn push(&self, event: ConnectionEvent) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(event.clone());
        // Nobody may be listening. Under the lock, so that nobody who subscribes now sees it twice or never.
        let _ = self.sender.send(event);
    }

    pub(crate) fn subscribe(&self) -> Events {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Events { first: last.clone(), receiver: self.sender.subscribe(), is_over: false }
    }
}

/// The events of a connection: first the last one before this was made, if any, then all that follow.
#[derive(Debug)]
pub struct Events {
    first: Option<ConnectionEvent>,
    receiver: broadcast::Receiver<ConnectionEvent>,
    is_over: bool,
}

impl Events {
    /// The next event; who is more than 64 behind misses the oldest. `None` after the client was closed, which
    /// the last event tells: `Disconnected` without another attempt.
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
