//! Subscriptions of all sessions.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};

use crate::exact::ExactPatterns;
use crate::group::Group;
use crate::matches::Matches;
use crate::runs::Match;
use crate::subscribers::PatternSubscribers;
use crate::trie::Trie;

/// Size of a [`Router`], for `$SYS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// All subscriptions of all sessions, shared ones included.
    pub subscriptions: usize,
    /// Shared subscriptions.
    pub shared_subscriptions: usize,
    /// Different patterns: filters without their `$share/{ShareName}/`.
    pub patterns: usize,
}

/// Index of the sessions that receive a Topic Name. `K` is the key of a session.
///
/// Patterns without wildcards are found with one lookup, independent of the number of levels and patterns. The
/// others are found by walking a trie, which visits only nodes that agree with the name so far.
#[derive(Debug)]
pub struct Router<K> {
    exact: ExactPatterns<PatternSubscribers<K>>,
    wildcard: Trie<PatternSubscribers<K>>,
    generation: u64,
    subscriptions: usize,
    shared_subscriptions: usize,
}

impl<K: Copy + Ord> Default for Router<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy + Ord> Router<K> {
    /// Router without subscriptions.
    pub fn new() -> Self {
        Self {
            exact: ExactPatterns::new(),
            wildcard: Trie::new(),
            generation: 0,
            subscriptions: 0,
            shared_subscriptions: 0,
        }
    }

    /// Adds a subscription. That of the same session with the same filter on the same stream is replaced and
    /// returned (`[MQTT-3.8.4-3]`, `[BQ-16]`); a shared filter is the same only with the same Share Name.
    ///
    /// The filter's subscription on another stream stays: a caller that moves a subscription to another stream
    /// (`[BQ-43]`) unsubscribes it there.
    pub fn subscribe(
        &mut self,
        key: K,
        filter: &TopicFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        let subscribers = if filter.has_wildcard() {
            self.wildcard.at_or_default(filter.pattern())
        } else {
            self.exact.at_or_default(filter)
        };
        let replaced = subscribers.insert(filter, Match { key, subscription }); // [MQTT-3.8.4-3] [BQ-16]
        if replaced.is_none() {
            self.subscriptions += 1;
            self.shared_subscriptions += usize::from(filter.is_shared());
        }
        if replaced != Some(subscription) {
            self.generation += 1;
        }
        replaced
    }

    /// Removes a subscription and returns it; `None` when there was none with this filter on this stream.
    /// Filters are compared character by character (`[MQTT-3.10.4-1]`).
    pub fn unsubscribe(&mut self, key: K, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        let pattern = filter.pattern();
        let wildcard = filter.has_wildcard();
        let subscribers =
            if wildcard { self.wildcard.get_mut(pattern) } else { self.exact.get_mut(pattern) }?;
        let removed = subscribers.remove(filter, key, stream)?; // [MQTT-3.10.4-1]
        if subscribers.is_empty() {
            if wildcard {
                self.wildcard.remove(pattern);
            } else {
                self.exact.remove(pattern);
            }
        }
        self.subscriptions -= 1;
        self.shared_subscriptions -= usize::from(filter.is_shared());
        self.generation += 1;
        Some(removed)
    }

    /// Finds every subscription that `name` matches. Allocates nothing that `matches` has capacity for.
    pub fn matches(&self, name: &TopicName, matches: &mut Matches<K>) {
        matches.clear();
        if let Some(subscribers) = self.exact.get(name.as_str()) {
            collect(subscribers, matches);
        }
        if self.wildcard.len() > 0 {
            let mut walk = std::mem::take(&mut matches.walk);
            matches.visited =
                self.wildcard.visit(name.as_str(), &mut walk, |subscribers| collect(subscribers, matches));
            matches.walk = walk;
        }
        matches.merge_runs();
    }

    /// Group of a shared filter, to select another member for an unacknowledged message.
    pub fn group(&self, filter: &TopicFilter) -> Option<&Arc<Group<K>>> {
        let pattern = filter.pattern();
        let subscribers =
            if filter.has_wildcard() { self.wildcard.get(pattern) } else { self.exact.get(pattern) };
        subscribers?.group(filter)
    }

    /// Keys of the sessions that subscribe to this filter, sorted, each once; a shared filter is the same only with the
    /// same Share Name.
    pub fn subscribers(&self, filter: &TopicFilter) -> Vec<K> {
        let pattern = filter.pattern();
        let subscribers =
            if filter.has_wildcard() { self.wildcard.get(pattern) } else { self.exact.get(pattern) };
        let Some(subscribers) = subscribers else { return Vec::new() };
        let mut keys: Vec<K> = if filter.is_shared() {
            let group = subscribers.group(filter);
            group.into_iter().flat_map(|group| group.members()).map(|member| member.key).collect()
        } else {
            subscribers.direct.iter().flatten().map(|one| one.key).collect()
        };
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Number that each change raises. While it stays, all matches stay: callers may cache [`Matches`].
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Size of the router, in constant time.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            subscriptions: self.subscriptions,
            shared_subscriptions: self.shared_subscriptions,
            patterns: self.exact.len() + self.wildcard.len(),
        }
    }
}

#[inline]
fn collect<K: Copy + Ord>(subscribers: &PatternSubscribers<K>, matches: &mut Matches<K>) {
    for run in subscribers.direct.iter() {
        matches.append(run);
    }
    matches.shared.extend(subscribers.groups.iter().cloned());
}
