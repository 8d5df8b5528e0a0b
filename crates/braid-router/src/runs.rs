//! Subscriptions to one pattern as sorted runs.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;

/// Maximum length of a run, and so the cost of one insertion or removal.
pub(crate) const RUN: usize = 512;

/// One subscription of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match<K> {
    /// Key of the session.
    pub key: K,
    /// Subscription to the filter that matched.
    pub subscription: Subscription,
}

impl<K: Copy + Ord> Match<K> {
    /// Sort key: a session has one subscription for each filter and stream.
    #[inline]
    pub(crate) fn sort_key(&self) -> (K, StreamKey) {
        (self.key, self.subscription.stream)
    }

    /// `self.sort_key() < other.sort_key()` without a branch, for merging.
    #[inline]
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        let is_same = self.key == other.key;
        (self.key < other.key) | (is_same & (self.subscription.stream < other.subscription.stream))
    }
}

/// Subscriptions sorted by session and stream, in runs of at most [`RUN`] that copies share: a change of a shared copy
/// clones one run.
#[derive(Clone, Debug)]
pub(crate) struct SortedRuns<K> {
    /// No run is empty.
    runs: Vec<Arc<Vec<Match<K>>>>,
}

impl<K> SortedRuns<K> {
    /// Subscriptions in sorted order.
    pub(crate) fn of(sorted: Vec<Match<K>>) -> Self {
        Self { runs: if sorted.is_empty() { Vec::new() } else { vec![Arc::new(sorted)] } }
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[Match<K>]> + Clone {
        self.runs.iter().map(|run| run.as_slice())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

impl<K: Copy + Ord> SortedRuns<K> {
    /// The only subscription, if there is no other one.
    pub(crate) fn single(&self) -> Option<Match<K>> {
        let [run] = self.runs.as_slice() else { return None };
        let [only] = run.as_slice() else { return None };
        Some(*only)
    }

    /// Run and index of a subscription; as an error, where it belongs.
    pub(crate) fn locate(&self, key: (K, StreamKey)) -> Result<(usize, usize), (usize, usize)> {
        let run = self.runs.partition_point(|run| run.last().is_some_and(|last| last.sort_key() < key));
        let Some(members) = self.runs.get(run) else {
            let last = self.runs.len().saturating_sub(1);
            return Err((last, self.runs.last().map_or(0, |run| run.len())));
        };
        let index = members.binary_search_by_key(&key, Match::sort_key);
        index.map(|index| (run, index)).map_err(|index| (run, index))
    }

    pub(crate) fn get(&self, key: (K, StreamKey)) -> Option<&Match<K>> {
        self.locate(key).ok().map(|(run, index)| &self.runs[run][index])
    }

    /// Adds a subscription, or replaces that of the same session and stream and returns the old one.
    pub(crate) fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        let (at, index) = match self.locate(new.sort_key()) {
            Ok((run, index)) => {
                let old = &mut Arc::make_mut(&mut self.runs[run])[index].subscription;
                return Some(std::mem::replace(old, new.subscription));
            }
            Err(_) if self.runs.is_empty() => {
                *self = Self::of(vec![new]);
                return None;
            }
            Err(found) => found,
        };
        let run = Arc::make_mut(&mut self.runs[at]);
        run.insert(index, new);
        if run.len() > RUN {
            // Keys mostly ascend: an appended one leaves a full run behind.
            let upper = run.split_off(if index == RUN { RUN } else { RUN / 2 });
            self.runs.insert(at + 1, Arc::new(upper));
        }
        None
    }

    pub(crate) fn remove(&mut self, key: (K, StreamKey)) -> Option<Subscription> {
        let (at, index) = self.locate(key).ok()?;
        let run = Arc::make_mut(&mut self.runs[at]);
        let old = run.remove(index).subscription;
        if run.is_empty() {
            self.runs.remove(at);
        } else if run.len() < run.capacity() / 4 {
            run.shrink_to(run.len() * 2);
        }
        Some(old)
    }
}
