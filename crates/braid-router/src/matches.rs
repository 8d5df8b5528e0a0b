//! What a match found, in a buffer that is used again.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::MAX_LEVELS;

use crate::group::Group;
use crate::trie::Walk;

/// One subscription of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match<K> {
    /// The session.
    pub key: K,
    /// What it asked for with the filter that matched.
    pub subscription: Subscription,
}

impl<K: Copy + Ord> Match<K> {
    /// What it is sorted by: a session has one subscription per filter and stream.
    #[inline]
    pub(crate) fn place(&self) -> (K, StreamKey) {
        (self.key, self.subscription.stream)
    }

    /// `self.place() < other.place()` without a branch: merging asks it for each match.
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        let is_same = self.key == other.key;
        (self.key < other.key) | (is_same & (self.subscription.stream < other.subscription.stream))
    }
}

/// Who receives a message. [`Router::matches`](crate::Router::matches) clears and fills it; kept from call
/// to call it allocates only to grow.
///
/// It stays true as long as [`Router::generation`](crate::Router::generation) is unchanged.
#[derive(Clone, Debug)]
pub struct Matches<K> {
    /// The non-shared subscriptions sorted by key, those of one session by stream. Several of one stream are
    /// neighbours, in an order that depends only on their filters.
    pub direct: Vec<Match<K>>,
    /// Each matching group: one of its members receives the message.
    pub shared: Vec<Arc<Group<K>>>,
    /// Where in `direct` the sorted runs start.
    runs: Vec<usize>,
    /// The other half of merging.
    spare: Vec<Match<K>>,
    pub(crate) walk: Walk,
}

impl<K> Default for Matches<K> {
    fn default() -> Self {
        Self {
            direct: Vec::new(),
            shared: Vec::new(),
            runs: Vec::new(),
            spare: Vec::new(),
            walk: Walk::default(),
        }
    }
}

impl<K> Matches<K> {
    /// A buffer that needs no allocation for up to `subscriptions` direct and as many shared matches.
    pub fn with_capacity(subscriptions: usize) -> Self {
        Self {
            direct: Vec::with_capacity(subscriptions),
            shared: Vec::with_capacity(subscriptions),
            runs: Vec::with_capacity(subscriptions),
            spare: Vec::with_capacity(subscriptions),
            walk: Walk::with_capacity(MAX_LEVELS),
        }
    }

    /// Whether nobody receives the message.
    pub fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.shared.is_empty()
    }

    /// Forgets everything but the capacity.
    pub fn clear(&mut self) {
        self.direct.clear();
        self.shared.clear();
        self.runs.clear();
    }
}

impl<K: Copy + Ord> Matches<K> {
    /// The direct matches, one slice per session: what [`route`](crate::route) takes.
    pub fn sessions(&self) -> impl Iterator<Item = &[Match<K>]> {
        self.direct.chunk_by(|a, b| a.key == b.key)
    }

    /// Adds matches that are sorted by key and stream.
    #[inline]
    pub(crate) fn append(&mut self, sorted: &[Match<K>]) {
        let in_order = match (self.direct.last(), sorted.first()) {
            (Some(last), Some(first)) => last.place() <= first.place(),
            _ => false,
        };
        if !in_order {
            self.runs.push(self.direct.len());
        }
        self.direct.extend_from_slice(sorted);
    }

    /// Makes one sorted run of all: neighbours are merged until one is left. A sort would need more
    /// comparisons, and the standard library's stable one allocates.
    #[inline]
    pub(crate) fn merge_runs(&mut self) {
        while self.runs.len() > 1 {
            self.merge_neighbours();
        }
    }

    fn merge_neighbours(&mut self) {
        let Self { direct, runs, spare, .. } = self;
        spare.reserve(direct.len());
        let bound = |runs: &[usize], i: usize| runs.get(i).copied().unwrap_or(direct.len());
        let mut merged = 0;
        for i in (0..runs.len()).step_by(2) {
            let (start, middle, end) = (bound(runs, i), bound(runs, i + 1), bound(runs, i + 2));
            runs[merged] = spare.len();
            merged += 1;
            merge(&direct[start..middle], &direct[middle..end], spare);
        }
        runs.truncate(merged);
        std::mem::swap(direct, spare);
        spare.clear(); // So that a clone is as small as what was found.
    }
}

/// Appends both to `out`, sorted by key and stream; for one place, `left` comes first.
fn merge<K: Copy + Ord>(mut left: &[Match<K>], mut right: &[Match<K>], out: &mut Vec<Match<K>>) {
    while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
        if !second.is_before(first) {
            out.push(*first);
            left = left_rest;
        } else {
            out.push(*second);
            right = right_rest;
        }
    }
    out.extend_from_slice(left);
    out.extend_from_slice(right);
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn merging_is_a_stable_sort() {
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..500 {
            let mut matches = Matches::default();
            let mut want = Vec::new();
            for id in 1..=rng.u32(0..9) {
                let on = |stream| Subscription {
                    id: NonZeroU32::new(id),
                    stream: StreamKey::bidi(stream),
                    ..Subscription::default()
                };
                let mut run: Vec<_> = (0..rng.usize(0..6))
                    .map(|_| Match { key: rng.u8(0..5), subscription: on(rng.u32(0..3)) })
                    .collect();
                run.sort_by_key(Match::place);
                want.extend_from_slice(&run);
                matches.append(&run);
            }
            matches.merge_runs();
            want.sort_by_key(Match::place);
            assert_eq!(matches.direct, want);
        }
    }
}
