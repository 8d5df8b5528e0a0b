//! Views of the broker, as its handle offers them.

use std::sync::Arc;

use braid_proto::topic::TopicName;
use tokio::sync::broadcast;

use super::Page;
use super::answer::ask;
use super::clients::{self, ClientCursor, ClientDetail, ClientQuery, ClientRow};
use super::connection::ClientName;
use super::events::BrokerEvent;
use super::inquiry::{Inquiry, ViewError};
use super::listeners::{ListenerState, ListenerStatus};
use super::messages::MessageTap;
use super::metrics::{self, Metric};
use super::retained::{self, RetainedQuery, RetainedRow};
use super::streams::ConnectionReport;
use super::subscriptions::{self, SubscriptionCursor, SubscriptionQuery, SubscriptionRow};
use crate::Handle;

/// Views. Futures of these methods need the timer of a tokio runtime, any one.
impl Handle {
    /// Page of the clients that match `query`, connected or not, behind `cursor`.
    ///
    /// Sessions are in the order in which they began. The pages of one walk have each session that is there throughout
    /// exactly once; one that begins meanwhile comes at the end.
    pub async fn clients(
        &self,
        query: &ClientQuery,
        cursor: Option<ClientCursor>,
        limit: usize,
    ) -> Page<ClientRow, ClientCursor> {
        clients::list(&self.core.sessions.registry, query, cursor, limit).await
    }

    /// The clients that match `query` for which most bytes are queued, the most first: at most `limit`, and no further
    /// page. Visits all sessions.
    pub async fn most_queued_clients(
        &self,
        query: &ClientQuery,
        limit: usize,
    ) -> Page<ClientRow, ClientCursor> {
        clients::most_queued(&self.core.sessions.registry, query, limit).await
    }

    /// Details of one client, connected or not.
    ///
    /// # Errors
    /// The client has no session, or its connection does not answer.
    pub async fn client(&self, name: &ClientName) -> Result<ClientDetail, ViewError> {
        clients::detail(&self.core, name).await
    }

    /// Connection of a client and its streams. A transport without streams has one, the control stream.
    ///
    /// # Errors
    /// The client is not connected, or its connection does not answer.
    pub async fn streams(&self, name: &ClientName) -> Result<ConnectionReport, ViewError> {
        let entry = self.core.sessions.registry.find(name.session_id()).ok_or(ViewError::NotFound)?;
        ask(&entry, Inquiry::Streams).await.map(|report| *report)
    }

    /// Page of the subscriptions that match `query`, behind `cursor`, in the order of sessions and filters.
    ///
    /// Each connected client that may have one is asked, which costs a turn of its connection: for a topic or filter
    /// its subscribers, for a client that one, else all clients with subscriptions, 1,024 for a page. Those of a
    /// connection that does not answer are passed over. A subscription whose stream ends meanwhile may come twice.
    pub async fn subscriptions(
        &self,
        query: &SubscriptionQuery,
        cursor: Option<SubscriptionCursor>,
        limit: usize,
    ) -> Page<SubscriptionRow, SubscriptionCursor> {
        subscriptions::list(&self.core, query, cursor, limit).await
    }

    /// Page of the retained messages that match `query`, behind the topic `after`, in the order of their levels. Topics
    /// that begin with `$` match only filters that begin with it too.
    pub async fn retained(
        &self,
        query: &RetainedQuery,
        after: Option<TopicName>,
        limit: usize,
    ) -> Page<RetainedRow, TopicName> {
        retained::list(&self.core.retained, query, after, limit).await
    }

    /// Listeners, in the order in which the broker was given them.
    pub fn listeners(&self) -> Vec<ListenerStatus> {
        self.core.lifecycle.listeners.iter().map(ListenerState::status).collect()
    }

    /// Events of clients and listeners from now on. A subscriber that is more than 4,096 events behind loses the
    /// oldest, and is told how many. Nothing is made while there is no subscriber.
    pub fn events(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        self.core.lifecycle.events.subscribe()
    }

    /// Opens a tap of the messages of all publishers, the broker included, from now on: those that were permitted.
    /// Takers come by themselves; nothing is woken. At most 4,096 messages and 8 MiB wait for one, others are lost and
    /// counted. Nothing is recorded while there is no tap.
    pub fn tap_messages(&self) -> MessageTap {
        self.core.dispatcher.taps.open()
    }

    /// True while there is a tap of messages.
    pub fn is_tapped(&self) -> bool {
        self.core.dispatcher.taps.is_watched()
    }

    /// Present values of all metrics: those of `$SYS`, with names, kinds and units. Takes no lock that a message
    /// passes.
    pub fn metrics(&self) -> Vec<Metric> {
        metrics::read(&self.core)
    }
}
