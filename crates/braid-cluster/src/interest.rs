//! Interest of a node in filters.

use std::sync::Arc;

use braid_proto::topic::TopicFilter;

use crate::commit::CommitPart;

/// Tasks that subscribe at NATS: two for the messages of clients, one for the shared subscriptions.
pub(crate) const SUBSCRIBERS: usize = 3;

/// Command to the tasks that subscribe at NATS, in the order of the commands.
#[derive(Clone, Debug)]
pub(crate) enum Interest {
    Change(Arc<InterestChange>),
    /// Ends when the servers of all nodes know the changes before it.
    Mark(CommitPart),
}

/// Beginning or end of the interest of this node in a filter.
#[derive(Debug)]
pub(crate) struct InterestChange {
    pub(crate) filter: TopicFilter,
    pub(crate) is_interested: bool,
    /// Position of the log before it.
    pub(crate) since: Arc<[u64]>,
}
