//! Whom a topic reaches, remembered per publisher.

use std::sync::Arc;

use braid_proto::stream::Priority;
use braid_proto::topic::TopicName;
use braid_router::{Group, Match, Matches};

use crate::core::Core;
use crate::session_entry::{SessionEntry, SessionKey};

/// How many topics a publisher's connection remembers.
const CACHED_TOPICS: usize = 8;

/// A route to more sessions than this is found anew for each batch: next to pushing to all of them that costs
/// little, and ten thousand publishers must not each remember ten thousand subscribers.
const REMEMBERED_TARGETS: usize = 128;

/// The routes of the topics that a connection published to last.
///
/// A publisher's decoder gives equal topics one allocation, so a hit costs a comparison of pointers; and a
/// route stays true until the router's generation changes.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// Empty until the first PUBLISH: an idle connection pays nothing.
    known: Vec<(TopicName, Arc<Route>)>,
    next: usize,
    matches: Matches<SessionKey>,
}

/// Everybody a topic reaches.
#[derive(Debug)]
pub(crate) struct Route {
    generation: u64,
    /// The matching subscriptions, those of one session side by side. Whoever asked for no priority has that of
    /// the topic.
    pub(crate) matches: Vec<Match<SessionKey>>,
    /// Each session with where its matches end.
    pub(crate) targets: Vec<(Arc<SessionEntry>, usize)>,
    pub(crate) groups: Vec<SharedTarget>,
    /// The topic's, for members of the groups that asked for none.
    pub(crate) priority: Option<Priority>,
}

/// A shared subscription with the places of its members.
#[derive(Debug)]
pub(crate) struct SharedTarget {
    pub(crate) group: Arc<Group<SessionKey>>,
    /// Sorted by key, like the group's members.
    entries: Vec<Arc<SessionEntry>>,
}

impl Route {
    /// How many sessions it names.
    fn size(&self) -> usize {
        self.targets.len() + self.groups.iter().map(|shared| shared.entries.len()).sum::<usize>()
    }

    /// Whether nobody is reached.
    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.groups.is_empty()
    }
}

impl SharedTarget {
    pub(crate) fn entry(&self, key: SessionKey) -> Option<&Arc<SessionEntry>> {
        self.entries.binary_search_by_key(&key, |entry| entry.key).ok().map(|at| &self.entries[at])
    }
}

impl Routes {
    /// The route of a topic.
    pub(crate) fn find(&mut self, core: &Core, topic: &TopicName) -> Arc<Route> {
        let generation = core.generation();
        let known = self.known.iter().position(|(name, _)| name.same_allocation(topic));
        if let Some(at) = known
            && self.known[at].1.generation == generation
        {
            return self.known[at].1.clone();
        }
        let route = Arc::new(resolve(core, topic, &mut self.matches));
        if route.size() > REMEMBERED_TARGETS {
            known.map(|at| self.known.swap_remove(at));
            self.matches = Matches::default();
            return route;
        }
        let entry = (topic.clone(), route.clone());
        match known {
            Some(at) => self.known[at] = entry,
            None if self.known.len() < CACHED_TOPICS => self.known.push(entry),
            None => {
                self.known[self.next] = entry;
                self.next = (self.next + 1) % CACHED_TOPICS;
            }
        }
        route
    }
}

/// The name that is delivered is the one that matched. [MQTT-3.3.2-3]
fn resolve(core: &Core, topic: &TopicName, found: &mut Matches<SessionKey>) -> Route {
    let generation = core.find_matches(topic, found);
    let mut route = Route {
        generation,
        matches: Vec::with_capacity(found.direct.len()),
        targets: Vec::new(),
        groups: Vec::new(),
        priority: core.priority_of(topic), // [BQ-52]
    };
    let registry = core.registry.entries();
    for of_session in found.sessions() {
        // A session that is ending may be gone from the registry before its subscriptions are.
        let Some(entry) = of_session.first().and_then(|first| registry.get(&first.key)) else { continue };
        route.matches.extend_from_slice(of_session);
        route.targets.push((entry.clone(), route.matches.len()));
    }
    drop(registry);
    if let Some(priority) = route.priority {
        for found in &mut route.matches {
            found.subscription.priority.get_or_insert(priority);
        }
    }
    route.groups.extend(found.shared.iter().map(|group| shared_target(core, group)));
    route
}

/// A group with the places of its members.
pub(crate) fn shared_target(core: &Core, group: &Arc<Group<SessionKey>>) -> SharedTarget {
    let registry = core.registry.entries();
    let entries = group.members().iter().filter_map(|member| registry.get(&member.key).cloned()).collect();
    SharedTarget { group: group.clone(), entries }
}
