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
/// clones one run. Most patterns have one subscription, which needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum SortedRuns<K> {
    One(Match<K>),
    /// No run is empty.
    Runs(Vec<Arc<Vec<Match<K>>>>),
}

impl<K> Default for SortedRuns<K> {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl<K> SortedRuns<K> {
    /// Subscriptions as sorted slices, the slices in order.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[Match<K>]> + Clone {
        let (one, runs) = match self {
            Self::One(only) => (Some(std::slice::from_ref(only)), None),
            Self::Runs(runs) => (None, Some(runs.iter().map(|run| run.as_slice()))),
        };
        one.into_iter().chain(runs.into_iter().flatten())
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Runs(runs) if runs.is_empty())
    }
}

impl<K: Copy + Ord> SortedRuns<K> {
    /// Run and index of a subscription; as an error, where it belongs.
    pub(crate) fn locate(&self, key: (K, StreamKey)) -> Result<(usize, usize), (usize, usize)> {
        let runs = match self {
            Self::One(only) => {
                let found = std::slice::from_ref(only).binary_search_by_key(&key, Match::sort_key);
                return found.map(|index| (0, index)).map_err(|index| (0, index));
            }
            Self::Runs(runs) => runs,
        };
        let run = runs.partition_point(|run| run.last().is_some_and(|last| last.sort_key() < key));
        let Some(members) = runs.get(run) else {
            let last = runs.len().saturating_sub(1);
            return Err((last, runs.last().map_or(0, |run| run.len())));
        };
        let index = members.binary_search_by_key(&key, Match::sort_key);
        index.map(|index| (run, index)).map_err(|index| (run, index))
    }

    pub(crate) fn get(&self, key: (K, StreamKey)) -> Option<&Match<K>> {
        let (run, index) = self.locate(key).ok()?;
        self.iter().nth(run)?.get(index)
    }

    /// Adds a subscription, or replaces that of the same session and stream and returns the old one.
    pub(crate) fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        let found = self.locate(new.sort_key());
        match (&mut *self, found) {
            (Self::One(old), Ok(_)) => {
                return Some(std::mem::replace(&mut old.subscription, new.subscription));
            }
            (Self::One(old), Err(_)) => {
                let sorted = if old.is_before(&new) { vec![*old, new] } else { vec![new, *old] };
                *self = Self::Runs(vec![Arc::new(sorted)]);
            }
            (Self::Runs(runs), Ok((run, index))) => {
                let old = &mut Arc::make_mut(&mut runs[run])[index].subscription;
                return Some(std::mem::replace(old, new.subscription));
            }
            (Self::Runs(runs), Err(_)) if runs.is_empty() => *self = Self::One(new),
            (Self::Runs(runs), Err((at, index))) => {
                let run = Arc::make_mut(&mut runs[at]);
                run.insert(index, new);
                if run.len() > RUN {
                    // Keys mostly ascend: an appended one leaves a full run behind.
                    let upper = run.split_off(if index == RUN { RUN } else { RUN / 2 });
                    runs.insert(at + 1, Arc::new(upper));
                }
            }
        }
        None
    }

    pub(crate) fn remove(&mut self, key: (K, StreamKey)) -> Option<Subscription> {
        let (at, index) = self.locate(key).ok()?;
        let runs = match self {
            Self::One(old) => {
                let old = old.subscription;
                *self = Self::default();
                return Some(old);
            }
            Self::Runs(runs) => runs,
        };
        let run = Arc::make_mut(&mut runs[at]);
        let old = run.remove(index).subscription;
        if run.is_empty() {
            runs.remove(at);
        } else if run.len() < run.capacity() / 4 {
            run.shrink_to(run.len() * 2);
        }
        if let [run] = runs.as_slice()
            && let [only] = run.as_slice()
        {
            *self = Self::One(*only);
        }
        Some(old)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn subscriptions_stay_sorted_in_short_runs() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut subscribers = SortedRuns::default();
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
                let held: Vec<_> = subscribers.iter().flatten().map(Match::sort_key).collect();
                assert_eq!(held, keys.iter().copied().collect::<Vec<_>>());
                assert!(subscribers.iter().all(|run| !run.is_empty() && run.len() <= RUN));
            }
        }
    }

    #[test]
    fn ascending_keys_fill_runs_and_empty_runs_are_removed() {
        let mut subscribers = SortedRuns::default();
        for key in 0..10 * RUN {
            subscribers.insert(Match { key, subscription: Subscription::default() });
        }
        assert_eq!(subscribers.iter().count(), 10);
        for key in (RUN..2 * RUN).chain(0..RUN).chain(2 * RUN..10 * RUN - 1) {
            assert!(subscribers.remove((key, StreamKey::CONTROL)).is_some());
            assert!(subscribers.iter().all(|run| !run.is_empty()));
        }
        assert!(matches!(subscribers, SortedRuns::One(Match { key, .. }) if key == 10 * RUN - 1));
        assert!(subscribers.remove((10 * RUN - 1, StreamKey::CONTROL)).is_some() && subscribers.is_empty());
    }
}
