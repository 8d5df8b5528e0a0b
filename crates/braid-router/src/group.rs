//! Shared subscriptions (MQTT 4.8.2) and their round-robin selection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use crate::runs::{Match, SortedRuns};

/// Members of one `$share/{ShareName}/{filter}`. Another Share Name over the same pattern is another group, which
/// receives its own copy of each message. A session that subscribed on two streams is two members.
///
/// A group that a [`Matches`](crate::Matches) holds never changes its members: the router changes a copy, which shares
/// all members except one run.
#[derive(Debug)]
pub struct Group<K> {
    filter: Arc<TopicFilter>,
    /// Not empty while the router holds the group.
    members: SortedRuns<K>,
    /// Number of members up to the end of each run, if there are several runs.
    ends: Vec<usize>,
    /// Index of the member to select next; the number of members stands for the first.
    next: AtomicUsize,
}

impl<K: Clone> Clone for Group<K> {
    fn clone(&self) -> Self {
        let next = AtomicUsize::new(self.next.load(Ordering::Relaxed));
        Self {
            filter: Arc::clone(&self.filter),
            members: self.members.clone(),
            ends: self.ends.clone(),
            next,
        }
    }
}

impl<K> Group<K> {
    /// Whole filter with its Share Name.
    pub fn filter(&self) -> &Arc<TopicFilter> {
        &self.filter
    }

    /// Members, sorted by session and stream.
    pub fn members(&self) -> impl Iterator<Item = &Match<K>> {
        self.members.iter().flatten()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or_else(|| self.members.iter().map(<[_]>::len).sum())
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Selects the next member for which `ready` is true, in round-robin order. `None` when no member is ready; the
    /// order is then unchanged.
    ///
    /// The caller may then select again with a weaker condition, finally with `|_| true`. Several threads may select at
    /// once; one that loses the race calls `ready` again.
    ///
    /// Calls `ready` for each member before the selected one. Where that is not free (a lock, say) and a group can have
    /// thousands of members, use [`Group::select_within`].
    pub fn select(&self, ready: impl FnMut(&K) -> bool) -> Option<&Match<K>> {
        self.select_within(usize::MAX, ready)
    }

    /// [`Group::select`] that stops after `probes` members that are not ready. The next call continues behind them, so
    /// that a few calls in a row probe every member.
    ///
    /// `None` says that no member is ready only if `probes` is at least the number of members; the order is then
    /// unchanged.
    pub fn select_within(&self, probes: usize, mut ready: impl FnMut(&K) -> bool) -> Option<&Match<K>> {
        let len = self.len();
        let mut left = probes;
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let Some(ahead) = self.members_from(next).take(left).position(|member| ready(&member.key)) else {
                if left < len {
                    // If another thread moved it meanwhile, that thread has passed these members as well.
                    let behind = (next + left) % len;
                    let _ = self.next.compare_exchange(next, behind, Ordering::Relaxed, Ordering::Relaxed);
                }
                return None;
            };
            let chosen = (next + ahead) % len;
            // Relaxed: the index guards no other memory.
            match self.next.compare_exchange_weak(next, chosen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.members_from(chosen).next(),
                Err(newer) => next = newer,
            }
            // Only members that were not ready use up probes: losing a race does not.
            left -= ahead;
        }
    }

    /// Members from an index on, then those before it.
    fn members_from(&self, index: usize) -> impl Iterator<Item = &Match<K>> {
        let index = if index < self.len() { index } else { 0 };
        let run = self.ends.partition_point(|end| *end <= index);
        let runs = self.members.iter();
        let after = runs.clone().skip(run).flatten().skip(index - self.start(run));
        after.chain(runs.take(run + 1).flatten()).take(self.len())
    }

    /// Index of the first member of a run.
    fn start(&self, run: usize) -> usize {
        run.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

impl<K: Copy + Ord> Group<K> {
    pub(crate) fn new(filter: TopicFilter, first: Match<K>) -> Self {
        let members = SortedRuns::One(first);
        Self { filter: Arc::new(filter), members, ends: Vec::new(), next: AtomicUsize::new(0) }
    }

    /// Subscription of one member.
    pub fn subscription(&self, key: K, stream: StreamKey) -> Option<Subscription> {
        self.members.get((key, stream)).map(|member| member.subscription)
    }

    pub(crate) fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        if let Err((run, index)) = self.members.locate(new.sort_key()) {
            let (at, len) = (self.start(run) + index, self.len());
            let next = self.next.get_mut();
            if *next == len {
                *next = 0;
            }
            // A new member is selected last: the next one stays.
            if at <= *next {
                *next += 1;
            }
        }
        let replaced = self.members.insert(new);
        self.update_ends();
        replaced
    }

    pub(crate) fn remove(&mut self, key: K, stream: StreamKey) -> Option<Subscription> {
        let (run, index) = self.members.locate((key, stream)).ok()?;
        let at = self.start(run) + index;
        let next = self.next.get_mut();
        if at < *next {
            *next -= 1;
        }
        let removed = self.members.remove((key, stream));
        self.update_ends();
        removed
    }

    fn update_ends(&mut self) {
        self.ends.clear();
        if self.members.iter().nth(1).is_none() {
            return;
        }
        self.ends.extend(self.members.iter().scan(0, |sum, run| {
            *sum += run.len();
            Some(*sum)
        }));
    }
}
