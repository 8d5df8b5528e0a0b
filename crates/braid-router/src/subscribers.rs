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
    pub(crate) direct: DirectSubscribers<K>,
    /// One group for each Share Name, sorted by it. None is empty.
    pub(crate) groups: Vec<Arc<Group<K>>>,
}

impl<K> Default for PatternSubscribers<K> {
    fn default() -> Self {
        Self { direct: DirectSubscribers::default(), groups: Vec::new() }
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

/// Non-shared subscriptions, sorted by session and stream. Most patterns have one, which needs no allocation.
#[derive(Debug)]
pub(crate) enum DirectSubscribers<K> {
    One(Match<K>),
    Runs(SortedRuns<K>),
}

impl<K> Default for DirectSubscribers<K> {
    fn default() -> Self {
        Self::Runs(SortedRuns::of(Vec::new()))
    }
}

impl<K: Copy + Ord> DirectSubscribers<K> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Runs(runs) if runs.is_empty())
    }

    /// Subscriptions as sorted slices, the slices in order.
    #[inline]
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Match<K>]> {
        let (one, runs) = match self {
            Self::One(only) => (Some(std::slice::from_ref(only)), None),
            Self::Runs(runs) => (None, Some(runs.iter())),
        };
        one.into_iter().chain(runs.into_iter().flatten())
    }

    fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        match self {
            Self::One(old) if old.sort_key() == new.sort_key() => {
                return Some(std::mem::replace(&mut old.subscription, new.subscription));
            }
            Self::One(old) => {
                let sorted = if old.is_before(&new) { vec![*old, new] } else { vec![new, *old] };
                *self = Self::Runs(SortedRuns::of(sorted));
            }
            Self::Runs(runs) if runs.is_empty() => *self = Self::One(new),
            Self::Runs(runs) => return runs.insert(new),
        }
        None
    }

    fn remove(&mut self, key: (K, StreamKey)) -> Option<Subscription> {
        match self {
            Self::One(old) if old.sort_key() == key => {
                let old = old.subscription;
                *self = Self::default();
                Some(old)
            }
            Self::One(_) => None,
            Self::Runs(runs) => {
                let old = runs.remove(key);
                if let Some(last) = runs.single() {
                    *self = Self::One(last);
                }
                old
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::runs::RUN;

    #[test]
    fn subscriptions_stay_sorted_in_short_runs() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut subscribers = DirectSubscribers::default();
        let mut keys = BTreeSet::new();
        for round in 0..20_000_u32 {
            let (key, stream) = (rng.u32(0..1_000), StreamKey::bidi(rng.u32(0..4)));
            if rng.u32(0..20_000) > round {
                let subscription = Subscription { stream, ..Subscription::default() };
                let old = subscribers.insert(Match { key, subscription });
                assert_eq!(old.is_none(), keys.insert((key, stream)));
            } else {
                assert_eq!(subscribers.remove((key, stream)).is_some(), keys.remove(&(key, stream)));
            }
            assert_eq!(subscribers.is_empty(), keys.is_empty());
            if round % 1_000 == 0 {
                let held: Vec<_> = subscribers.runs().flatten().map(Match::sort_key).collect();
                assert_eq!(held, keys.iter().copied().collect::<Vec<_>>());
                assert!(subscribers.runs().all(|run| !run.is_empty() && run.len() <= RUN));
            }
        }
    }

    #[test]
    fn ascending_keys_fill_runs_and_empty_runs_are_removed() {
        let mut subscribers = DirectSubscribers::default();
        for key in 0..10 * RUN {
            subscribers.insert(Match { key, subscription: Subscription::default() });
        }
        assert_eq!(subscribers.runs().count(), 10);
        for key in (RUN..2 * RUN).chain(0..RUN).chain(2 * RUN..10 * RUN - 1) {
            assert!(subscribers.remove((key, StreamKey::CONTROL)).is_some());
            assert!(subscribers.runs().all(|run| !run.is_empty()));
        }
        assert!(matches!(subscribers, DirectSubscribers::One(Match { key, .. }) if key == 10 * RUN - 1));
        assert!(subscribers.remove((10 * RUN - 1, StreamKey::CONTROL)).is_some() && subscribers.is_empty());
    }
}
