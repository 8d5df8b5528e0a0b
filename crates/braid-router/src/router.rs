//! The subscriptions of all sessions.

use std::sync::Arc;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};

use crate::audience::Audience;
use crate::exact::Exact;
use crate::group::Group;
use crate::matches::{Match, Matches};
use crate::trie::Trie;

/// How much a [`Router`] holds: what `$SYS` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// All subscriptions of all sessions, shared ones included.
    pub subscriptions: usize,
    /// The shared ones among them.
    pub shared_subscriptions: usize,
    /// Different patterns: filters without their `$share/{ShareName}/`.
    pub patterns: usize,
}

/// Which sessions receive what is published to a Topic Name. `K` names a session.
///
/// Patterns without wildcards are found with one lookup, however many levels and patterns there are. The
/// others are found by walking a trie, which visits only nodes that agree with the name so far.
#[derive(Debug)]
pub struct Router<K> {
    exact: Exact<Audience<K>>,
    wildcard: Trie<Audience<K>>,
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
    /// A router without subscriptions.
    pub fn new() -> Self {
        Self {
            exact: Exact::new(),
            wildcard: Trie::new(),
            generation: 0,
            subscriptions: 0,
            shared_subscriptions: 0,
        }
    }

    /// Adds a subscription. That of the same session with the same filter on the same stream is replaced and
    /// returned (`[MQTT-3.8.4-3]`, `[BQ-16]`); a shared filter is the same only with the same Share Name.
    ///
    /// What the filter has on another stream stays: whoever binds a subscription to another stream
    /// (`[BQ-43]`) unsubscribes it there.
    pub fn subscribe(
        &mut self,
        key: K,
        filter: &TopicFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        let audience = if filter.has_wildcard() {
            self.wildcard.at_or_default(filter.pattern())
        } else {
            self.exact.at_or_default(filter)
        };
        let replaced = audience.insert(filter, Match { key, subscription }); // [MQTT-3.8.4-3] [BQ-16]
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
        let audience = if wildcard { self.wildcard.get_mut(pattern) } else { self.exact.get_mut(pattern) }?;
        let removed = audience.remove(filter, key, stream)?; // [MQTT-3.10.4-1]
        if audience.is_empty() {
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
        if let Some(audience) = self.exact.get(name.as_str()) {
            collect(audience, matches);
        }
        if self.wildcard.len() > 0 {
            let mut walk = std::mem::take(&mut matches.walk);
            self.wildcard.visit(name.as_str(), &mut walk, |audience| collect(audience, matches));
            matches.walk = walk;
        }
        matches.merge_runs();
    }

    /// The group of a shared filter: for a message that a member left unacknowledged.
    pub fn group(&self, filter: &TopicFilter) -> Option<&Arc<Group<K>>> {
        let pattern = filter.pattern();
        let audience =
            if filter.has_wildcard() { self.wildcard.get(pattern) } else { self.exact.get(pattern) };
        audience?.group(filter)
    }

    /// Raised by each change. While it stays, so does every match: callers may keep their [`Matches`].
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// How much the router holds. Costs nothing.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            subscriptions: self.subscriptions,
            shared_subscriptions: self.shared_subscriptions,
            patterns: self.exact.len() + self.wildcard.len(),
        }
    }
}

#[inline]
fn collect<K: Copy + Ord>(audience: &Audience<K>, matches: &mut Matches<K>) {
    for run in audience.direct.runs() {
        matches.append(run);
    }
    matches.shared.extend(audience.groups.iter().cloned());
}
