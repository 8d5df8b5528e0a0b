//! Routing table: the subscriptions of all sessions, and the routes that publishers cache.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use braid_proto::session::{MovedSubscription, Subscription};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Group, Match, Matches, Router};
use hashbrown::HashMap;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::lock_order::{Ordered, Rank};
use crate::priority::{PriorityRule, Rules};
use crate::registry::{Registry, SessionEntry, SessionKey};

/// Filters that one write of the table changes: nothing is published meanwhile.
pub(crate) const FILTERS_AT_ONCE: usize = 256;

/// Topics whose routes a connection caches.
const CACHED_TOPICS: usize = 8;

/// Largest route that is cached. Resolving a larger one for each batch costs little next to pushing to all of its
/// sessions, and ten thousand publishers must not each cache ten thousand subscribers. The table keeps the list of the
/// sessions of a large group: it is resolved without a visit to each of them.
const CACHED_TARGETS: usize = 128;

/// Number of members above which the list of the sessions of a shared subscription is kept.
const KEPT_MEMBERS: usize = 32;

/// Subscriptions of all sessions, and the rules of priority.
///
/// A panic while the router changes leaves it half changed. It cannot be rebuilt, as the subscriptions are owned by
/// the sessions' connections; [`RoutingTable::failed`] tells the broker to stop.
pub(crate) struct RoutingTable {
    router: RwLock<SubscriptionIndex>,
    /// Generation of the router, readable without its lock.
    generation: AtomicU64,
    /// Number of subscriptions, readable without the lock.
    subscriptions: AtomicUsize,
    rules: Rules,
    registry: Arc<Registry>,
    /// Large groups, until their members change. A std Mutex: it is locked for calls of the map. Poison is ignored:
    /// each call leaves a whole map.
    shared: Mutex<HashMap<TopicFilter, Arc<SharedTarget>>>,
    cluster: Arc<dyn Cluster>,
    failed: watch::Sender<bool>,
}

/// Router, with the number of subscriptions of each filter where other nodes are told of the first and the last.
pub(crate) struct SubscriptionIndex {
    router: Router<SessionKey>,
    /// `None`: there are no other nodes.
    interest: Option<Interest>,
    /// Shared filters whose members have changed, as far as [`RoutingTable::shared`] has not been told.
    changed_groups: Vec<TopicFilter>,
}

struct Interest {
    subscriptions: HashMap<TopicFilter, usize>,
    cluster: Arc<dyn Cluster>,
}

impl SubscriptionIndex {
    /// Adds a subscription, as [`Router::subscribe`] does.
    pub(crate) fn subscribe(
        &mut self,
        key: SessionKey,
        filter: &TopicFilter,
        subscription: Subscription,
    ) -> Option<Subscription> {
        let replaced = self.router.subscribe(key, filter, subscription);
        self.changed_groups.extend(filter.is_shared().then(|| filter.clone()));
        if let (None, Some(Interest { subscriptions, cluster })) = (replaced, &mut self.interest) {
            match subscriptions.get_mut(filter) {
                Some(count) => *count += 1,
                None => {
                    subscriptions.insert(filter.clone(), 1);
                    cluster.note_interest(filter, true);
                }
            }
        }
        replaced
    }

    /// Removes a subscription, as [`Router::unsubscribe`] does.
    pub(crate) fn unsubscribe(
        &mut self,
        key: SessionKey,
        filter: &TopicFilter,
        stream: StreamKey,
    ) -> Option<Subscription> {
        let removed = self.router.unsubscribe(key, filter, stream);
        self.changed_groups.extend(filter.is_shared().then(|| filter.clone()));
        if let (Some(_), Some(Interest { subscriptions, cluster })) = (removed, &mut self.interest)
            && let Some(count) = subscriptions.get_mut(filter)
        {
            *count -= 1;
            if *count == 0 {
                subscriptions.remove(filter);
                cluster.note_interest(filter, false);
            }
        }
        removed
    }
}

impl Deref for SubscriptionIndex {
    type Target = Router<SessionKey>;

    fn deref(&self) -> &Router<SessionKey> {
        &self.router
    }
}

impl RoutingTable {
    /// An empty table that resolves sessions in `registry`, and tells a cluster with a log of its filters.
    pub(crate) fn new(rules: &[PriorityRule], registry: Arc<Registry>, cluster: Arc<dyn Cluster>) -> Self {
        let interest =
            cluster.has_log().then(|| Interest { subscriptions: HashMap::new(), cluster: cluster.clone() });
        Self {
            router: RwLock::new(SubscriptionIndex {
                router: Router::new(),
                interest,
                changed_groups: Vec::new(),
            }),
            generation: AtomicU64::new(0),
            subscriptions: AtomicUsize::new(0),
            rules: Rules::new(rules),
            registry,
            shared: Mutex::default(),
            cluster,
            failed: watch::Sender::new(false),
        }
    }

    fn read(&self) -> Ordered<RwLockReadGuard<'_, SubscriptionIndex>> {
        Ordered::acquire(Rank::Routing, || self.router.read().unwrap_or_else(|poisoned| self.fail(poisoned)))
    }

    fn write(&self) -> Ordered<RwLockWriteGuard<'_, SubscriptionIndex>> {
        Ordered::acquire(Rank::Routing, || self.router.write().unwrap_or_else(|poisoned| self.fail(poisoned)))
    }

    fn fail<G>(&self, poisoned: PoisonError<G>) -> G {
        self.failed.send_replace(true);
        poisoned.into_inner()
    }

    /// Other nodes.
    pub(crate) fn cluster(&self) -> &Arc<dyn Cluster> {
        &self.cluster
    }

    /// Waits until a panic has left the table half changed.
    pub(crate) async fn failed(&self) {
        // The sender lives as long as `self`: waiting cannot fail.
        let _ = self.failed.subscribe().wait_for(|failed| *failed).await;
    }

    /// Changes subscriptions. Callers change at most [`FILTERS_AT_ONCE`] at a time.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut SubscriptionIndex) -> T) -> T {
        let mut router = self.write();
        let result = change(&mut router);
        self.generation.store(router.generation(), Ordering::Release);
        self.subscriptions.store(router.statistics().subscriptions, Ordering::Relaxed);
        let changed = std::mem::take(&mut router.changed_groups);
        drop(router);
        if !changed.is_empty() {
            let mut shared = self.shared();
            let gone: Vec<_> = changed.iter().filter_map(|filter| shared.remove(filter)).collect();
            drop(shared);
            drop(gone);
        }
        result
    }

    fn shared(&self) -> Ordered<MutexGuard<'_, HashMap<TopicFilter, Arc<SharedTarget>>>> {
        Ordered::acquire(Rank::Leaf, || self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rebinds the subscriptions of a session whose streams have ended. [BQ-42]
    pub(crate) fn rebind(&self, key: SessionKey, moved: &[MovedSubscription]) {
        for some in moved.chunks(FILTERS_AT_ONCE) {
            self.change(|router| {
                for MovedSubscription { filter, from, to, .. } in some {
                    // Before the old one is removed: a shared subscription must not lose its last member meanwhile.
                    router.subscribe(key, filter, *to);
                    router.unsubscribe(key, filter, from.stream);
                }
            });
        }
    }

    /// Number of subscriptions, shared ones included. Takes no lock.
    pub(crate) fn subscriptions(&self) -> usize {
        self.subscriptions.load(Ordering::Relaxed)
    }

    /// Priority of a topic for subscriptions that asked for none; `None` leaves it at the default. [BQ-52]
    pub(crate) fn priority_of(&self, topic: &TopicName) -> Option<Priority> {
        self.rules.priority_of(topic)
    }

    /// The present members of a shared subscription.
    pub(crate) fn group(&self, filter: &TopicFilter) -> Option<Arc<SharedTarget>> {
        let router = self.read();
        let (group, generation) = (router.group(filter)?.clone(), router.generation());
        drop(router);
        Some(self.shared_target(&group, generation))
    }

    /// Sessions that subscribe to a filter, sorted, each once.
    pub(crate) fn subscribers(&self, filter: &TopicFilter) -> Vec<SessionKey> {
        self.read().subscribers(filter)
    }

    /// Sessions with a subscription that matches a topic, sorted, each once: those of this Share Name, or all.
    pub(crate) fn matching(&self, topic: &TopicName, share_name: Option<&str>) -> Vec<SessionKey> {
        let mut found = Matches::default();
        self.read().matches(topic, &mut found);
        let direct = found.direct.iter().filter(|_| share_name.is_none());
        let is_wanted = |group: &&Arc<Group<SessionKey>>| {
            share_name.is_none() || group.filter().share_name() == share_name
        };
        let shared = found.shared.iter().filter(is_wanted).flat_map(|group| group.members());
        let mut keys: Vec<_> = direct.chain(shared).map(|one| one.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Sessions of a group, which was found in this generation of the router.
    fn shared_target(&self, group: &Arc<Group<SessionKey>>, generation: u64) -> Arc<SharedTarget> {
        let is_large = group.len() > KEPT_MEMBERS;
        if is_large
            && let Some(kept) = self.shared().get(&**group.filter())
            && Arc::ptr_eq(&kept.group, group)
        {
            return kept.clone();
        }
        let registry = self.registry.entries();
        let members = group.members();
        let entries = members.filter_map(|member| registry.get(&member.key).cloned()).collect();
        drop(registry);
        let target = Arc::new(SharedTarget { group: group.clone(), entries });
        if is_large && target.is_whole() {
            let mut shared = self.shared();
            // A change after this one removes the list again. Of a group that has changed by now it would stay.
            if self.generation.load(Ordering::Acquire) == generation {
                shared.insert(group.filter().as_ref().clone(), target.clone());
            }
        }
        target
    }

    /// The delivered name is the one that matched. [MQTT-3.3.2-3]
    fn resolve(&self, topic: &TopicName, found: &mut Matches<SessionKey>) -> Route {
        let generation = {
            let router = self.read();
            router.matches(topic, found);
            router.generation()
        };
        let mut route = Route {
            generation,
            is_whole: true,
            matches: Vec::with_capacity(found.direct.len()),
            targets: Vec::new(),
            groups: Vec::new(),
            priority: self.priority_of(topic), // [BQ-52]
        };
        let registry = self.registry.entries();
        for of_session in found.sessions() {
            // A session may be in the registry after its subscriptions, and gone before them: the route is not
            // kept then.
            let Some(entry) = of_session.first().and_then(|first| registry.get(&first.key)) else {
                route.is_whole = false;
                continue;
            };
            route.matches.extend_from_slice(of_session);
            route.targets.push((entry.clone(), route.matches.len()));
        }
        drop(registry);
        if let Some(priority) = route.priority {
            for found in &mut route.matches {
                found.subscription.priority.get_or_insert(priority);
            }
        }
        route.groups.extend(found.shared.iter().map(|group| self.shared_target(group, generation)));
        route.is_whole &= route.groups.iter().all(|shared| shared.is_whole());
        route
    }
}

/// Sessions that receive a topic.
#[derive(Debug)]
pub(crate) struct Route {
    generation: u64,
    /// The registry has every session.
    is_whole: bool,
    /// Matching subscriptions, those of one session side by side. Where a subscription asked for no priority it has the
    /// topic's.
    pub(crate) matches: Vec<Match<SessionKey>>,
    /// Each session with the end of its matches.
    pub(crate) targets: Vec<(Arc<SessionEntry>, usize)>,
    pub(crate) groups: Vec<Arc<SharedTarget>>,
    /// The topic's, for members of the groups that asked for none.
    pub(crate) priority: Option<Priority>,
}

impl Route {
    /// Tests whether the route is still that of its topic.
    const fn is_valid(&self, generation: u64) -> bool {
        self.is_whole && self.generation == generation
    }

    fn sessions(&self) -> usize {
        self.targets.len() + self.groups.iter().map(|shared| shared.entries.len()).sum::<usize>()
    }

    /// Sessions that receive a message: one member of each group.
    pub(crate) fn receivers(&self) -> usize {
        self.targets.len() + self.groups.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.groups.is_empty()
    }
}

/// Shared subscription with the sessions of its members.
#[derive(Debug)]
pub(crate) struct SharedTarget {
    pub(crate) group: Arc<Group<SessionKey>>,
    /// Sorted by key, like the group's members.
    entries: Vec<Arc<SessionEntry>>,
}

impl SharedTarget {
    /// Whether the registry has the session of each member.
    fn is_whole(&self) -> bool {
        self.entries.len() == self.group.len()
    }

    pub(crate) fn entry(&self, key: SessionKey) -> Option<&Arc<SessionEntry>> {
        self.entries.binary_search_by_key(&key, |entry| entry.key).ok().map(|at| &self.entries[at])
    }
}

/// Cache of the routes that one connection publishes to.
///
/// A publisher's decoder gives equal topics one allocation, so a hit costs a comparison of pointers. A cached route is
/// valid until the router's generation changes.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    /// Empty until the first PUBLISH: an idle connection allocates nothing.
    routes: Vec<(TopicName, Arc<Route>)>,
    next: usize,
    matches: Matches<SessionKey>,
    /// Nodes that the searches for routes have visited, since they were taken last.
    visited: usize,
}

impl RouteCache {
    /// Takes the number of nodes that the searches have visited: a route that was cached costs none.
    pub(crate) fn take_visited(&mut self) -> usize {
        std::mem::take(&mut self.visited)
    }

    /// The route of a topic.
    pub(crate) fn find(&mut self, table: &RoutingTable, topic: &TopicName) -> Arc<Route> {
        let generation = table.generation.load(Ordering::Acquire);
        let known = self.routes.iter().position(|(name, _)| name.same_allocation(topic));
        if let Some(at) = known
            && self.routes[at].1.is_valid(generation)
        {
            return self.routes[at].1.clone();
        }
        let route = Arc::new(table.resolve(topic, &mut self.matches));
        self.visited += self.matches.visited;
        if route.sessions() > CACHED_TARGETS {
            known.map(|at| self.routes.swap_remove(at));
            self.matches = Matches::default();
            return route;
        }
        let cached = (topic.clone(), route.clone());
        match known {
            Some(at) => self.routes[at] = cached,
            None if self.routes.len() < CACHED_TOPICS => self.routes.push(cached),
            None => {
                self.routes[self.next] = cached;
                self.next = (self.next + 1) % CACHED_TOPICS;
            }
        }
        route
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use braid_store::SessionId;

    use super::*;
    use crate::registry::ConnectionId;

    #[test]
    fn the_sessions_of_a_large_group_are_listed_once_for_its_members() {
        let alone: Arc<dyn Cluster> = Arc::new(crate::cluster::SingleNode);
        let registry = Arc::new(Registry::new(SessionId::new(1)));
        let table = RoutingTable::new(&[], registry.clone(), alone);
        let [shared, other] =
            ["$share/s/t", "$share/s/u"].map(|one| TopicFilter::parse(one).expect("a filter"));
        let subscribe = |filter: &TopicFilter, keys: std::ops::Range<u64>| {
            for key in keys.map(SessionKey) {
                let client_id = braid_proto::packet::ClientId::from(key.0.to_string().as_str());
                registry.insert(&Arc::new(SessionEntry::new(key, client_id, ConnectionId(1))));
                table.change(|router| router.subscribe(key, filter, Subscription::default()));
            }
        };
        let topic = TopicName::parse("t").expect("a topic");
        let find = || RouteCache::default().find(&table, &topic).groups[0].clone();
        subscribe(&shared, 0..200);
        let first = find();
        subscribe(&other, 0..40);
        assert!(Arc::ptr_eq(&first, &find()), "another connection, after a change that does not concern it");
        assert!(Arc::ptr_eq(&first, &table.group(&shared).expect("it has members")));
        subscribe(&shared, 200..201);
        let second = find();
        assert_eq!((first.entries.len(), second.entries.len()), (200, 201));
        for key in (0..201).map(SessionKey) {
            table.change(|router| router.unsubscribe(key, &shared, StreamKey::CONTROL));
        }
        assert!(table.group(&shared).is_none() && table.shared().is_empty(), "nothing is left of it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_during_a_change_stops_the_broker() {
        let alone: Arc<dyn Cluster> = Arc::new(crate::cluster::SingleNode);
        let table = RoutingTable::new(&[], Arc::new(Registry::new(SessionId::new(1))), alone);
        let _ = catch_unwind(AssertUnwindSafe(|| table.change(|_| panic!("half changed"))));
        drop(table.read());
        let limit = std::time::Duration::from_secs(1);
        tokio::time::timeout(limit, table.failed()).await.expect("the broker is told");
    }

    // A session of another node has its subscriptions before it is in the registry.
    #[test]
    fn a_route_without_a_session_that_is_about_to_be_there_is_not_kept() {
        let alone: Arc<dyn Cluster> = Arc::new(crate::cluster::SingleNode);
        let registry = Arc::new(Registry::new(SessionId::new(1)));
        let table = RoutingTable::new(&[], registry.clone(), alone);
        let (key, client_id) = (SessionKey(7), braid_proto::packet::ClientId::from("c"));
        for filter in ["a/#", "$share/s/b"] {
            let filter = TopicFilter::parse(filter).expect("a filter");
            table.change(|router| router.subscribe(key, &filter, Subscription::default()));
        }
        let shared = TopicName::parse("b").expect("a topic");
        let (mut cache, topic) = (RouteCache::default(), TopicName::parse("a/b").expect("a topic"));
        assert!(cache.find(&table, &topic).is_empty());
        assert_eq!(cache.find(&table, &shared).groups[0].entries.len(), 0);
        registry.insert(&Arc::new(SessionEntry::new(key, client_id, ConnectionId(1))));
        let route = cache.find(&table, &topic);
        assert_eq!(route.targets.len(), 1);
        assert_eq!(cache.find(&table, &shared).groups[0].entries.len(), 1);
        assert!(Arc::ptr_eq(&route, &cache.find(&table, &topic)), "kept from then on");
    }
}
