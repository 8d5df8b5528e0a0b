//! Commands of operators: publish, disconnect, delete.

use braid_proto::message::Message;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicName;
use braid_store::StoreError;
use thiserror::Error;

use crate::Handle;
use crate::queue::session_queue::Signal;
use crate::view::ClientName;

/// Result of [`Handle::publish_durably`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Sessions that receive the message, connected or not: one member of each shared subscription counts. Fewer get it
    /// where a queue is full.
    pub receivers: usize,
}

/// Reason why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The broker stops.
    #[error("the broker is stopping")]
    Stopping,
    /// Nodes of a cluster cannot have the message.
    #[error("the message is refused: {0}. Its topic or its properties are too long for a cluster")]
    Refused(ReasonCode),
    /// Memory is above the high mark.
    #[error("memory is above limits.memory_high: nothing is published until messages are delivered")]
    Overloaded,
    /// The message was delivered and not retained.
    #[error(
        "the message was delivered (to {receivers} sessions), but it is not retained: \
         limits.retained_messages or limits.retained_bytes is reached"
    )]
    NotRetained {
        /// As [`Published::receivers`].
        receivers: usize,
    },
    /// The message was delivered, and the store failed after that.
    #[error(
        "the message was delivered (to {receivers} sessions), but it is not durable: the store of the broker failed"
    )]
    NotDurable {
        /// As [`Published::receivers`].
        receivers: usize,
    },
    /// The connection of the client does not give its session back.
    #[error("the connection of the client does not release its session; try again")]
    Busy,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Handle {
    /// Publishes a message as the broker itself. Done when it is durable for the sessions that the store knows.
    ///
    /// # Errors
    /// The broker stops, memory is short, or the store failed before: nothing was published. With
    /// [`CommandError::NotDurable`] and [`CommandError::NotRetained`] the message was delivered all the same.
    pub async fn publish_durably(&self, message: Message) -> Result<Published, CommandError> {
        if self.core.lifecycle.is_stopping() || self.is_stopping() {
            return Err(CommandError::Stopping);
        }
        if self.core.memory.is_exhausted() {
            return Err(CommandError::Overloaded);
        }
        if let Some(error) = self.core.persist.failure() {
            return Err(error.into());
        }
        self.core.dispatcher.check(&message).map_err(CommandError::Refused)?;
        let published = self.core.dispatcher.publish_for_operator(message);
        let receivers = published.receivers;
        for commit in published.commits.into_iter().flatten() {
            commit.await.map_err(|_| CommandError::NotDurable { receivers })?;
        }
        if published.is_retained {
            Ok(Published { receivers })
        } else {
            Err(CommandError::NotRetained { receivers })
        }
    }

    /// Begins to disconnect a client, with this reason in its DISCONNECT. Its session lives on as it had asked for.
    /// False if the client is not connected.
    pub fn disconnect(&self, client: &ClientName, reason: ReasonCode) -> bool {
        let Some(entry) = self.core.sessions.registry.find(client.session_id()) else { return false };
        let is_connected = entry.queue.is_online();
        if is_connected && let Some(waker) = entry.queue.signal(Signal::Close(reason)) {
            waker.wake();
        }
        is_connected
    }

    /// Ends the session of a client, connected or not, with its subscriptions and queued messages. A connection is
    /// closed for an administrative action; a delayed Will is published. False if the client has no session.
    ///
    /// # Errors
    /// The connection does not release the session within 10 s, or the store failed.
    pub async fn delete_session(&self, client: &ClientName) -> Result<bool, CommandError> {
        let (core, client_id) = (self.core.clone(), client.session_id().clone());
        let delete = async move { core.sessions.delete(&client_id, ReasonCode::AdministrativeAction).await };
        let failed = || self.core.persist.failure().map_or(CommandError::Busy, CommandError::Store);
        // A task of its own goes on where the caller does not wait: a session that was taken must be given back.
        tokio::spawn(delete).await.ok().and_then(Result::ok).ok_or_else(failed)
    }

    /// Removes the retained message of a topic, without a word to subscribers. Done when that is durable: the nodes of
    /// a cluster follow within moments. False if there is none.
    ///
    /// # Errors
    /// The store failed, or in a cluster no majority of the servers answers.
    pub async fn delete_retained(&self, topic: &TopicName) -> Result<bool, CommandError> {
        if !self.core.retained.has(topic) {
            return Ok(false);
        }
        if let Some(commit) = self.core.dispatcher.remove_retained_everywhere(topic) {
            commit.await?;
            return Ok(true);
        }
        let (is_removed, commit) = {
            let mut retaining = self.core.retained.change(&self.core.persist);
            (retaining.remove(topic), retaining.commit())
        };
        if let Some(commit) = commit {
            commit.await?;
        }
        Ok(is_removed)
    }
}
