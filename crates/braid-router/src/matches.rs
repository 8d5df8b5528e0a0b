//! Result of a match, in a buffer that is reused.

use std::sync::Arc;

use braid_proto::topic::MAX_LEVELS;

use crate::group::Group;
use crate::runs::Match;
use crate::trie::Walk;

/// Receivers of a message. [`Router::matches`](crate::Router::matches) clears and fills it; reused it allocates
/// only to grow.
///
/// Valid as long as [`Router::generation`](crate::Router::generation) is unchanged.
#[derive(Clone, Debug)]
pub struct Matches<K> {
    /// Non-shared subscriptions sorted by session and stream. Several of one stream are neighbours, in an
    /// order that depends only on their filters.
    pub direct: Vec<Match<K>>,
    /// Matching groups: one member of each receives the message.
    pub shared: Vec<Arc<Group<K>>>,
    /// Nodes of the trie of all patterns that the search visited: its cost, also where nothing matches.
    pub visited: usize,
    /// Starts of the sorted runs in `direct`.
    runs: Vec<usize>,
    /// Second buffer for merging.
    spare: Vec<Match<K>>,
    pub(crate) walk: Walk,
}

impl<K> Default for Matches<K> {
    fn default() -> Self {
        Self {
            direct: Vec::new(),
            shared: Vec::new(),
            visited: 0,
            runs: Vec::new(),
            spare: Vec::new(),
            walk: Walk::default(),
        }
    }
}

impl<K> Matches<K> {
    /// Buffer that needs no allocation for up to `subscriptions` direct and as many shared matches.
    pub fn with_capacity(subscriptions: usize) -> Self {
        Self {
            direct: Vec::with_capacity(subscriptions),
            shared: Vec::with_capacity(subscriptions),
            visited: 0,
            runs: Vec::with_capacity(subscriptions),
            spare: Vec::with_capacity(subscriptions),
            walk: Walk::with_capacity(MAX_LEVELS),
        }
    }

    /// Whether no session receives the message.
    pub fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.shared.is_empty()
    }

    /// Removes everything and keeps the capacity.
    pub fn clear(&mut self) {
        self.direct.clear();
        self.shared.clear();
        self.visited = 0;
        self.runs.clear();
    }
}

impl<K: Copy + Ord> Matches<K> {
    /// Direct matches, one slice for each session: the argument of [`route`](crate::route).
    pub fn sessions(&self) -> impl Iterator<Item = &[Match<K>]> {
        self.direct.chunk_by(|a, b| a.key == b.key)
    }

    /// Adds matches that are sorted by key and stream.
    #[inline]
    pub(crate) fn append(&mut self, sorted: &[Match<K>]) {
        let in_order = match (self.direct.last(), sorted.first()) {
            (Some(last), Some(first)) => last.sort_key() <= first.sort_key(),
            _ => false,
        };
        if !in_order {
            self.runs.push(self.direct.len());
        }
        self.direct.extend_from_slice(sorted);
    }

    /// Merges neighbouring runs until one is left. A sort would need more comparisons, and the stable sort of the
    /// standard library allocates.
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
        spare.clear(); // A clone is then as small as the result.
    }
}

/// Appends both to `out`, sorted by session and stream; for equal keys, `left` comes first.
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

    use braid_proto::session::Subscription;
    use braid_proto::stream::StreamKey;

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
                run.sort_by_key(Match::sort_key);
                want.extend_from_slice(&run);
                matches.append(&run);
            }
            matches.merge_runs();
            want.sort_by_key(Match::sort_key);
            assert_eq!(matches.direct, want);
        }
    }
}
