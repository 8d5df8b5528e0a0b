//! Everybody who subscribed to one pattern.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use crate::group::Group;
use crate::matches::Match;
use crate::subscribers::Subscribers;

/// The subscriptions to one pattern, shared and not.
#[derive(Debug)]
pub(crate) struct Audience<K> {
    pub(crate) direct: Subscribers<K>,
    /// One per Share Name, sorted by it. None is empty.
    pub(crate) groups: Vec<Arc<Group<K>>>,
}

impl<K> Default for Audience<K> {
    fn default() -> Self {
        Self { direct: Subscribers::default(), groups: Vec::new() }
    }
}

impl<K: Copy + Ord> Audience<K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.direct.is_empty()
    }

    pub(crate) fn group(&self, filter: &TopicFilter) -> Option<&Arc<Group<K>>> {
        self.locate(filter).ok().map(|at| &self.groups[at])
    }

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
            return self.direct.remove(key, stream);
        }
        let at = self.locate(filter).ok()?;
        self.groups[at].subscription(key, stream)?; // Before make_mut: a stranger's key copies nothing.
        let group = Arc::make_mut(&mut self.groups[at]);
        let old = group.remove(key, stream);
        if group.is_empty() {
            self.groups.remove(at);
        }
        old
    }

    /// All groups have one pattern, so the order of whole filters is that of the Share Names.
    fn locate(&self, filter: &TopicFilter) -> Result<usize, usize> {
        self.groups.binary_search_by(|group| group.filter().as_str().cmp(filter.as_str()))
    }
}
