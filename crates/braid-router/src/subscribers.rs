//! Subscriptions to one pattern, shared and not.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use crate::group::Group;
use crate::runs::{Match, SortedRuns};

/// Subscriptions to one pattern.
#[derive(Debug)]
pub(crate) struct PatternSubscribers<K> {
    /// Non-shared subscriptions.
    pub(crate) direct: SortedRuns<K>,
    /// One group for each Share Name, sorted by it. None is empty.
    pub(crate) groups: Vec<Arc<Group<K>>>,
}

impl<K> Default for PatternSubscribers<K> {
    fn default() -> Self {
        Self { direct: SortedRuns::default(), groups: Vec::new() }
    }
}

impl<K: Copy + Ord> PatternSubscribers<K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.direct.is_empty()
    }

    pub(crate) fn group(&self, filter: &TopicFilter) -> Option<&Arc<Group<K>>> {
        self.locate(filter).ok().map(|at| &self.groups[at])
    }

    /// Adds a subscription, or replaces that of the same session, filter and stream and returns the old one.
    pub(crate) fn insert(&mut self, filter: &TopicFilter, new: Match<K>) -> Option<Subscription> {
        if !filter.is_shared() {
            return self.direct.insert(new);
        }
        match self.locate(filter) {
            Ok(at) => Arc::make_mut(&mut self.groups[at]).insert(new),
            Err(at) => {
                self.groups.insert(at, Arc::new(Group::new(filter.clone(), new)));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, filter: &TopicFilter, key: K, stream: StreamKey) -> Option<Subscription> {
        if !filter.is_shared() {
            return self.direct.remove((key, stream));
        }
        let at = self.locate(filter).ok()?;
        self.groups[at].subscription(key, stream)?; // Before make_mut: a key that is no member copies nothing.
        let group = Arc::make_mut(&mut self.groups[at]);
        let old = group.remove(key, stream);
        if group.is_empty() {
            self.groups.remove(at);
        }
        old
    }

    /// Index of a group. All groups have one pattern, so that the order of whole filters is that of the Share Names.
    fn locate(&self, filter: &TopicFilter) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| group.filter().as_str().cmp(filter.as_str()))
    }
}
