//! Shared subscriptions (MQTT 4.8.2) and their round-robin selection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use crate::runs::{Match, SortedRuns};

/// Readiness of a member for a message that another member may receive instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Selected at once: connected, with room.
    Ready,
    /// Selected if no member is ready: the message would wait, or be dropped.
    Fallback,
    /// Refused: the session has ended.
    Unfit,
}

impl From<bool> for Readiness {
    fn from(is_ready: bool) -> Self {
        if is_ready { Self::Ready } else { Self::Unfit }
    }
}

/// Members of one `$share/{ShareName}/{filter}`. Another Share Name over the same pattern is another group, which
/// receives its own copy of each message. A session that subscribed on two streams is two members.
///
/// A group that a [`Matches`](crate::Matches) holds never changes its members: the router changes a copy, which shares
/// all members except one run.
#[derive(Debug)]
pub struct Group<K> {
    filter: Arc<TopicFilter>,
    /// Members in sorted runs; never empty while the router holds the group.
    members: SortedRuns<K>,
    /// Number of members up to the end of each run; empty with one run.
    ends: Vec<usize>,
    /// Index of the member to select next; the number of members means the first one again.
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

    /// Selects the next member in round-robin order that is [`Readiness::Ready`], else the next that is a
    /// [`Readiness::Fallback`]. `None` when every member is [`Readiness::Unfit`]; the order is then unchanged.
    ///
    /// Calls `readiness` for each member until one is ready, with the number of members that it was called for before.
    /// Several threads may select at once; one that loses the race starts over at 0.
    pub fn select(&self, mut readiness: impl FnMut(usize, &K) -> Readiness) -> Option<&Match<K>> {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let (mut ready, mut fallback) = (None, None);
            for (ahead, member) in self.members_from(next).enumerate() {
                match readiness(ahead, &member.key) {
                    Readiness::Ready => {
                        ready = Some(ahead);
                        break;
                    }
                    Readiness::Fallback => fallback = fallback.or(Some(ahead)),
                    Readiness::Unfit => {}
                }
            }
            let chosen = (next + ready.or(fallback)?) % self.len();
            // Relaxed: the index guards no other memory.
            match self.next.compare_exchange(next, chosen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.members_from(chosen).next(),
                Err(newer) => next = newer,
            }
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
