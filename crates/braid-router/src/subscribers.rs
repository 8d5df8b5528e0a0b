//! The non-shared subscriptions to one pattern, sorted by key and stream.

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;

use crate::matches::Match;

/// The most subscriptions in one run: what one insertion or removal may have to move.
const RUN: usize = 512;

/// Sorted by key and stream. Most patterns have one subscriber, which then costs no allocation; a pattern with a
/// million has them in short runs, so that one more or one less moves at most [`RUN`] of them.
#[derive(Debug)]
pub(crate) enum Subscribers<K> {
    One(Match<K>),
    /// No run is empty.
    Runs(Vec<Vec<Match<K>>>),
}

impl<K> Default for Subscribers<K> {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl<K: Copy + Ord> Subscribers<K> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Runs(runs) if runs.is_empty())
    }

    /// The subscriptions as sorted slices, the slices in order.
    #[inline]
    pub(crate) fn runs(&self) -> impl Iterator<Item = &[Match<K>]> {
        let (one, runs) = match self {
            Self::One(only) => (Some(std::slice::from_ref(only)), &[][..]),
            Self::Runs(runs) => (None, runs.as_slice()),
        };
        one.into_iter().chain(runs.iter().map(Vec::as_slice))
    }

    /// Adds a subscription, or replaces that of the same key and stream and returns the old one.
    pub(crate) fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        match self {
            Self::One(old) if old.place() == new.place() => {
                return Some(std::mem::replace(&mut old.subscription, new.subscription));
            }
            Self::One(old) => {
                let run = if old.place() < new.place() { vec![*old, new] } else { vec![new, *old] };
                *self = Self::Runs(vec![run]);
            }
            Self::Runs(runs) if runs.is_empty() => *self = Self::One(new),
            Self::Runs(runs) => {
                let at = run_of(runs, new.place()).min(runs.len() - 1);
                let run = &mut runs[at];
                match run.binary_search_by_key(&new.place(), Match::place) {
                    Ok(i) => return Some(std::mem::replace(&mut run[i].subscription, new.subscription)),
                    Err(i) => run.insert(i, new),
                }
                if run.len() > RUN {
                    // Keys mostly grow: whoever appends leaves a full run behind.
                    let appended = run.last().is_some_and(|last| last.place() == new.place());
                    let cut = if appended { RUN } else { RUN / 2 };
                    let upper = run.split_off(cut);
                    runs.insert(at + 1, upper);
                }
            }
        }
        None
    }

    pub(crate) fn remove(&mut self, key: K, stream: StreamKey) -> Option<Subscription> {
        let place = (key, stream);
        let runs = match self {
            Self::One(old) if old.place() == place => {
                let old = old.subscription;
                *self = Self::default();
                return Some(old);
            }
            Self::One(_) => return None,
            Self::Runs(runs) => runs,
        };
        let at = run_of(runs, place);
        let run = runs.get_mut(at)?;
        let i = run.binary_search_by_key(&place, Match::place).ok()?;
        let old = run.remove(i).subscription;
        if run.is_empty() {
            runs.remove(at);
        } else if run.len() < run.capacity() / 4 {
            run.shrink_to(run.len() * 2);
        }
        if let [run] = runs.as_slice()
            && let [last] = run.as_slice()
        {
            *self = Self::One(*last);
        }
        Some(old)
    }
}

/// The index of the only run that may hold `place`; the number of runs when every place is smaller.
fn run_of<K: Copy + Ord>(runs: &[Vec<Match<K>>], place: (K, StreamKey)) -> usize {
    runs.partition_point(|run| run.last().is_some_and(|last| last.place() < place))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stays_sorted_in_short_runs() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut subscribers = Subscribers::default();
        let mut places = BTreeSet::new();
        for round in 0..20_000_u32 {
            let (key, stream) = (rng.u32(0..1_000), StreamKey::bidi(rng.u32(0..4)));
            if rng.u32(0..20_000) > round {
                let subscription = Subscription { stream, ..Subscription::default() };
                let old = subscribers.insert(Match { key, subscription });
                assert_eq!(old.is_none(), places.insert((key, stream)));
            } else {
                assert_eq!(subscribers.remove(key, stream).is_some(), places.remove(&(key, stream)));
            }
            assert_eq!(subscribers.is_empty(), places.is_empty());
            if round % 1_000 == 0 {
                let held: Vec<_> = subscribers.runs().flatten().map(Match::place).collect();
                assert_eq!(held, places.iter().copied().collect::<Vec<_>>());
                assert!(subscribers.runs().all(|run| !run.is_empty() && run.len() <= RUN));
            }
        }
    }

    #[test]
    fn ascending_keys_fill_their_runs_and_empty_runs_go() {
        let mut subscribers = Subscribers::default();
        for key in 0..10 * RUN {
            subscribers.insert(Match { key, subscription: Subscription::default() });
        }
        assert_eq!(subscribers.runs().count(), 10);
        for key in (RUN..2 * RUN).chain(0..RUN).chain(2 * RUN..10 * RUN - 1) {
            assert!(subscribers.remove(key, StreamKey::CONTROL).is_some());
            assert!(subscribers.runs().all(|run| !run.is_empty()));
        }
        assert!(matches!(subscribers, Subscribers::One(Match { key, .. }) if key == 10 * RUN - 1));
        assert!(subscribers.remove(10 * RUN - 1, StreamKey::CONTROL).is_some() && subscribers.is_empty());
    }
}
