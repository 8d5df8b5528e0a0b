//! Interest of a node in filters.

use std::sync::Arc;

use braid_proto::topic::TopicFilter;

/// Beginning or end of the interest of this node in a filter.
#[derive(Debug)]
pub(crate) struct InterestChange {
    pub(crate) filter: TopicFilter,
    pub(crate) is_interested: bool,
    /// Position of the log before it.
    pub(crate) since: Arc<[u64]>,
}
