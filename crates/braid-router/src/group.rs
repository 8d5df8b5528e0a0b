//! The members of one shared subscription and whose turn it is (MQTT 4.8.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;

use crate::matches::Match;

/// Everybody with the same `$share/{ShareName}/{filter}`. Another Share Name over the same pattern is
/// another group, which receives its own copy of each message. A session that subscribed on two streams is two
/// members, each with its own turn.
///
/// A group that a [`Matches`](crate::Matches) holds never changes its members: the router changes a copy.
#[derive(Debug)]
pub struct Group<K> {
    filter: Arc<TopicFilter>,
    /// Sorted by key and stream, never empty while the router holds the group.
    members: Vec<Match<K>>,
    /// The index of the member whose turn it is; at most `members.len()`, which means the first.
    turn: AtomicUsize,
}

impl<K: Clone> Clone for Group<K> {
    fn clone(&self) -> Self {
        let turn = AtomicUsize::new(self.turn.load(Ordering::Relaxed));
        Self { filter: Arc::clone(&self.filter), members: self.members.clone(), turn }
    }
}

impl<K> Group<K> {
    /// The whole filter with its Share Name.
    pub fn filter(&self) -> &Arc<TopicFilter> {
        &self.filter
    }

    /// The members, sorted by key, those of one session by stream.
    pub fn members(&self) -> &[Match<K>] {
        &self.members
    }

    /// The member whose turn it is among those that are `ready`, who then goes to the end of the line.
    /// `None` when nobody is ready; the turn is then unchanged.
    ///
    /// What happens then is the caller's choice: ask again with a weaker condition, at last with
    /// `|_| true`. Several threads may select at once; the one that is overtaken asks `ready` again.
    ///
    /// Asks every member in front of the one it finds, all of them when nobody is ready, and that for each
    /// message. Where asking is not free (a lock, say) and a group can have thousands of members, use
    /// [`Group::select_within`].
    pub fn select(&self, ready: impl FnMut(&K) -> bool) -> Option<&Match<K>> {
        self.select_within(usize::MAX, ready)
    }

    /// [`Group::select`] that gives up when `probes` members were not ready. The turn then goes to the member
    /// behind them, so that a few calls in a row come to everybody.
    ///
    /// `None` says that nobody is ready only if `probes` is at least the number of members; the turn is then
    /// unchanged.
    pub fn select_within(&self, probes: usize, mut ready: impl FnMut(&K) -> bool) -> Option<&Match<K>> {
        let mut left = probes;
        let mut turn = self.turn.load(Ordering::Relaxed);
        loop {
            let (before, after) = self.members.split_at_checked(turn).unwrap_or((&self.members, &[]));
            let line = after.iter().chain(before);
            let Some(ahead) = line.take(left).position(|member| ready(&member.key)) else {
                self.pass_over(turn, left);
                return None;
            };
            let chosen = (turn + ahead) % self.members.len();
            // Relaxed: the turn guards no other memory.
            match self.turn.compare_exchange_weak(turn, chosen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return self.members.get(chosen),
                Err(newer) => turn = newer,
            }
            // Only who was not ready has cost a probe: where all are ready, nobody gives up because others are
            // quicker.
            left -= ahead;
        }
    }

    /// Gives the turn to the member `count` places behind `turn`, unless that is everybody.
    fn pass_over(&self, turn: usize, count: usize) {
        if count < self.members.len() {
            let next = (turn + count) % self.members.len();
            // Whoever moved the turn meanwhile has passed these members as well.
            let _ = self.turn.compare_exchange(turn, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl<K: Copy + Ord> Group<K> {
    pub(crate) fn new(filter: TopicFilter, first: Match<K>) -> Self {
        Self { filter: Arc::new(filter), members: vec![first], turn: AtomicUsize::new(0) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The subscription of one member.
    pub fn subscription(&self, key: K, stream: StreamKey) -> Option<Subscription> {
        self.locate((key, stream)).ok().map(|at| self.members[at].subscription)
    }

    pub(crate) fn insert(&mut self, new: Match<K>) -> Option<Subscription> {
        match self.locate(new.place()) {
            Ok(at) => Some(std::mem::replace(&mut self.members[at].subscription, new.subscription)),
            Err(at) => {
                let turn = self.turn.get_mut();
                if *turn == self.members.len() {
                    *turn = 0;
                }
                // Whoever had the turn keeps it: the new one goes to the end of the line.
                if at <= *turn {
                    *turn += 1;
                }
                self.members.insert(at, new);
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K, stream: StreamKey) -> Option<Subscription> {
        let at = self.locate((key, stream)).ok()?;
        let turn = self.turn.get_mut();
        if at < *turn {
            *turn -= 1;
        }
        Some(self.members.remove(at).subscription)
    }

    fn locate(&self, place: (K, StreamKey)) -> Result<usize, usize> {
        self.members.binary_search_by_key(&place, Match::place)
    }
}
