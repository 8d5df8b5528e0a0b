//! Seam to the other nodes of a cluster: the way of messages to their subscribers, and sessions that move.
//!
//! A broker of its own has [`SingleNode`]: every message is delivered here, and every session is here. Calls in the
//! other direction are those of [`NodeHandle`](crate::node_handle::NodeHandle).

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use braid_auth::publisher::Publisher;
use braid_proto::decoder::Spool;
use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::{Change, Commit, Lsn, RecoveredSession, SessionId, Store, StoreError, StoredMessage};

/// Answer of other nodes.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Other nodes, as a broker sees them.
///
/// Messages that all nodes have to see are appended to a log. They are delivered when they come back from it, by
/// [`NodeHandle::deliver`](crate::node_handle::NodeHandle::deliver), at the node of their publisher as at any other.
pub trait Cluster: Send + Sync + 'static {
    /// Passes messages on to other nodes. `changes` are those of the publisher's session that belong to the messages;
    /// those that are durable with the returned commit are removed.
    fn forward(&self, publication: &Publication<'_>, changes: &mut Vec<Change>) -> Forwarded;

    /// Removes the retained message of a topic at all nodes, without a word to subscribers. `is_urgent`: whether the
    /// topic has a priority above the default. `None`: there are no other nodes, and the caller removes it.
    fn remove_retained(&self, topic: &TopicName, is_urgent: bool) -> Option<Commit>;

    /// Tests whether all nodes can have a message of a client.
    ///
    /// # Errors
    /// The Reason Code of its acknowledgement.
    fn check(&self, message: &Message) -> Result<(), ReasonCode>;

    /// Tests whether all nodes can use a Topic Filter.
    fn takes_filter(&self, filter: &TopicFilter) -> bool;

    /// Tests whether a session that outlives its connection can have so many subscriptions, with so many bytes of
    /// filters.
    fn takes_subscriptions(&self, count: usize, bytes: usize) -> bool;

    /// Tests whether a Client Identifier can be used by all nodes.
    fn takes_client(&self, client_id: &ClientId) -> bool;

    /// Looks for the session of a client that this node does not have. `None`: there are no other nodes.
    fn find<'a>(&'a self, client_id: &'a ClientId) -> Option<Answer<'a, Option<RemoteSession>>>;

    /// Takes a session over from its node, which releases it first if it can, and makes it one of the store of this
    /// node under `id`. Messages that are in flight are among its queue, and no others: [`replay`](Self::replay) has
    /// them. `None`: the session has ended.
    fn take(&self, found: RemoteSession, id: SessionId) -> Answer<'_, Option<RecoveredSession>>;

    /// Messages of the log that match a session which was taken and is routed to by now, as far as they were not
    /// delivered since. Of more than `limits` the latest.
    fn replay(&self, session: SessionId, limits: ReplayLimits) -> Answer<'_, Vec<Replayed>>;

    /// Forgets a session that was taken and has been given back.
    fn forget(&self, session: SessionId);

    /// Gives a session back that was taken and could not be resumed.
    fn abandon(&self, session: SessionId);

    /// Notes the first subscription of this node with a filter, or the end of the last one.
    fn note_interest(&self, filter: &TopicFilter, is_interested: bool);

    /// Tests whether a message of the log that arrives now is later than another one of its topic that is known.
    fn is_later(&self, arrived: Lsn, known: Lsn) -> bool;

    /// Whether messages come by a log. Then those with RETAIN are retained when they come back, and members of shared
    /// subscriptions are selected among all nodes: only
    /// [`NodeHandle::deliver_shared`](crate::node_handle::NodeHandle::deliver_shared) delivers to them, and a message
    /// that its member does not complete goes back.
    fn has_log(&self) -> bool;
}

/// Messages of one publisher.
pub struct Publication<'a> {
    /// Client Identifier and session of the publisher; `None` for the broker itself.
    pub publisher: Option<(&'a ClientId, SessionId)>,
    /// Messages in their order.
    pub messages: &'a [SharedMessage],
    /// Publishers of the messages with RETAIN, in their order, in the encoding of the store.
    pub retained_by: &'a [Option<Arc<str>>],
    /// Tests whether a topic has a priority above the default.
    pub is_urgent: &'a dyn Fn(&TopicName) -> bool,
}

/// Result of [`Cluster::forward`].
#[derive(Debug)]
pub enum Forwarded {
    /// All messages are to be delivered here, now.
    Here,
    /// Some come by the log, and their publisher waits for the commit. `here`: whether each message is to be delivered
    /// here and now.
    Split {
        /// One for each message.
        here: Vec<bool>,
        /// Done when the log has the others.
        commit: Option<Commit>,
    },
}

/// Session of a client at another node, or at none.
pub struct RemoteSession {
    /// Its owner's identity in the encoding of the store; `None` if it is not known.
    pub identity: Option<Arc<str>>,
    /// State of the cluster.
    pub state: Box<dyn Any + Send>,
}

/// Upper bounds of a replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplayLimits {
    /// Messages.
    pub messages: usize,
    /// Bytes of payloads.
    pub bytes: usize,
}

/// Message of the log for a session that was taken.
pub struct Replayed {
    /// Number of the message.
    pub lsn: Lsn,
    /// The message.
    pub message: StoredMessage,
    /// Client Identifier of its publisher; `None` for a broker.
    pub publisher: Option<ClientId>,
    /// Filters of the session that match it, with the subscriptions that began before it.
    pub filters: Vec<TopicFilter>,
}

/// Message that comes from another node, or from the log.
pub struct ArrivedMessage {
    /// The message, with its number if it is one of the log.
    pub message: Message,
    /// Client Identifier of its publisher; `None` for a broker.
    pub publisher: Option<ClientId>,
    /// Publisher of a message that is to be retained.
    pub retained_by: Option<Arc<Publisher>>,
    /// Subscribers do not get it: it only changes what is retained.
    pub is_withheld: bool,
}

/// Owners of what outlives a connection: the store, the spool for large packets, and the other nodes.
#[derive(Clone)]
pub struct Storage {
    /// Store of sessions, queues and retained messages.
    pub store: Arc<dyn Store>,
    /// Spool that receives large packets instead of the heap.
    pub spool: Option<Arc<dyn Spool>>,
    /// Other nodes.
    pub cluster: Arc<dyn Cluster>,
}

impl Storage {
    /// A store without a spool and without other nodes.
    #[must_use]
    pub fn of(store: Arc<dyn Store>) -> Self {
        Self { store, spool: None, cluster: Arc::new(SingleNode) }
    }
}

/// Broker without other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleNode;

impl Cluster for SingleNode {
    fn forward(&self, _publication: &Publication<'_>, _changes: &mut Vec<Change>) -> Forwarded {
        Forwarded::Here
    }

    fn remove_retained(&self, _topic: &TopicName, _is_urgent: bool) -> Option<Commit> {
        None
    }

    fn check(&self, _message: &Message) -> Result<(), ReasonCode> {
        Ok(())
    }

    fn takes_filter(&self, _filter: &TopicFilter) -> bool {
        true
    }

    fn takes_subscriptions(&self, _count: usize, _bytes: usize) -> bool {
        true
    }

    fn takes_client(&self, _client_id: &ClientId) -> bool {
        true
    }

    fn find<'a>(&'a self, _client_id: &'a ClientId) -> Option<Answer<'a, Option<RemoteSession>>> {
        None
    }

    fn take(&self, _found: RemoteSession, _id: SessionId) -> Answer<'_, Option<RecoveredSession>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn replay(&self, _session: SessionId, _limits: ReplayLimits) -> Answer<'_, Vec<Replayed>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn forget(&self, _session: SessionId) {}

    fn abandon(&self, _session: SessionId) {}

    fn note_interest(&self, _filter: &TopicFilter, _is_interested: bool) {}

    fn is_later(&self, arrived: Lsn, known: Lsn) -> bool {
        arrived > known
    }

    fn has_log(&self) -> bool {
        false
    }
}
