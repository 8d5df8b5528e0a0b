//! Counts of what is acknowledged and delivered, shared by the clients and the thread that injects faults.
//!
//! They say when everything has arrived and how long nothing was acknowledged. Whether the promises were kept is
//! decided from the histories.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use braid_proto::topic::{TopicFilter, TopicName};

/// Number of a group of subscribers.
pub(crate) type GroupId = usize;

/// Subscribers that together get each message of a filter: one persistent session, or a shared subscription.
#[derive(Debug)]
struct Group {
    name: String,
    filter: TopicFilter,
    is_subscribed: bool,
    /// Messages that were acknowledged and not delivered, with the times of their acknowledgements.
    missing: HashMap<String, Instant>,
    /// Identifiers of messages that were delivered and not acknowledged.
    early: HashSet<String>,
}

/// Connection state of a long-lived client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Connected to this node.
    Node(usize),
    /// Without a connection against its will.
    Nowhere,
    /// Has left by itself, and will return by itself.
    Left,
}

/// End of a failover, for a client that is connected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// At once.
    Connected,
    /// At once, as a member of this group: others may get what waits.
    Shared(GroupId),
    /// With the last message that waits for its group.
    Queued(GroupId),
    /// With its next acknowledgement.
    Acknowledged,
}

/// Client whose node was killed.
#[derive(Debug)]
struct Interrupted {
    since: Instant,
    /// Messages that waited for the client when it was back; `None` before that.
    queued: Option<HashSet<String>>,
}

/// Counts of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundCounts {
    pub(crate) acknowledged: u64,
    pub(crate) delivered: u64,
    /// Messages that were refused: a reason code above 0x80.
    pub(crate) refused: u64,
    /// Longest time without a PUBACK or PUBCOMP of any client.
    pub(crate) longest_gap: Duration,
    /// Times from the end of a broker until each of its clients was back and had what was queued.
    pub(crate) failovers: Vec<Duration>,
}

/// Counts of all clients.
#[derive(Debug)]
pub(crate) struct Tally {
    groups: Vec<Group>,
    /// Long-lived clients.
    clients: BTreeMap<String, Place>,
    interrupted: BTreeMap<String, Interrupted>,
    /// True once all groups and clients are added.
    pub(crate) is_complete: bool,
    /// Messages without their last acknowledgement.
    pub(crate) inflight: usize,
    round: RoundCounts,
    last_acknowledged: Instant,
    /// Counts every event that brings the clients nearer to the end.
    pub(crate) progress: u64,
    /// Faults that are in no history.
    pub(crate) faults: Vec<String>,
}

impl Tally {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            groups: Vec::new(),
            clients: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            is_complete: false,
            inflight: 0,
            round: RoundCounts::default(),
            last_acknowledged: now,
            progress: 0,
            faults: Vec::new(),
        }
    }

    /// Adds a group whose subscribers will have subscribed before anything is published.
    pub(crate) fn add_group(&mut self, name: &str, filter: TopicFilter) -> GroupId {
        let (missing, early) = (HashMap::new(), HashSet::new());
        self.groups.push(Group { name: name.to_owned(), filter, is_subscribed: false, missing, early });
        self.groups.len() - 1
    }

    /// Adds a client that is connected most of the time.
    pub(crate) fn add_client(&mut self, client: &str) {
        self.clients.insert(client.to_owned(), Place::Nowhere);
    }

    // -- Events of clients -------------------------------------------------------------------------

    /// A client is connected, with its subscription.
    pub(crate) fn connected(&mut self, client: &str, node: usize, back: Back, now: Instant) {
        self.progress += 1;
        let group = match back {
            Back::Queued(group) | Back::Shared(group) => self.groups.get_mut(group),
            Back::Connected | Back::Acknowledged => None,
        };
        let queued = group.and_then(|group| {
            group.is_subscribed = true;
            matches!(back, Back::Queued(_)).then_some(&group.missing)
        });
        let Some(place) = self.clients.get_mut(client) else { return };
        *place = Place::Node(node);
        if let Some(interrupted) = self.interrupted.get_mut(client).filter(|_| back != Back::Acknowledged) {
            let queued = || queued.into_iter().flat_map(HashMap::keys).cloned().collect();
            interrupted.queued.get_or_insert_with(queued);
            self.finish_failover(client, now);
        }
    }

    /// Whether a client of a killed broker is not back, or has not got its queue.
    pub(crate) fn is_interrupted(&self, client: &str) -> bool {
        self.interrupted.contains_key(client)
    }

    /// A client has no connection. `left`: it wants none for now.
    pub(crate) fn disconnected(&mut self, client: &str, left: bool) {
        if let Some(place) = self.clients.get_mut(client) {
            *place = if left { Place::Left } else { Place::Nowhere };
        }
    }

    /// A message has its last acknowledgement.
    pub(crate) fn acknowledged(&mut self, client: &str, id: &str, topic: &TopicName, now: Instant) {
        self.due(id, topic, now);
        self.round.acknowledged += 1;
        self.round.longest_gap =
            self.round.longest_gap.max(now.saturating_duration_since(self.last_acknowledged));
        self.last_acknowledged = now;
        let is_connected = matches!(self.clients.get(client), Some(Place::Node(_)));
        if let Some(interrupted) = self.interrupted.get_mut(client).filter(|_| is_connected) {
            interrupted.queued.get_or_insert_default();
            self.finish_failover(client, now);
        }
    }

    /// A message has to be delivered.
    pub(crate) fn due(&mut self, id: &str, topic: &TopicName, now: Instant) {
        self.progress += 1;
        for group in self.groups.iter_mut().filter(|group| group.filter.matches(topic)) {
            if !group.early.remove(id) {
                group.missing.insert(id.to_owned(), now);
            }
        }
    }

    pub(crate) fn refused(&mut self) {
        self.round.refused += 1;
        self.progress += 1;
    }

    pub(crate) fn delivered(&mut self, client: &str, group: Option<GroupId>, id: &str, now: Instant) {
        self.round.delivered += 1;
        self.progress += 1;
        if let Some(group) = group.and_then(|group| self.groups.get_mut(group))
            && group.missing.remove(id).is_none()
        {
            group.early.insert(id.to_owned());
        }
        if let Some(queued) = self.interrupted.get_mut(client).and_then(|one| one.queued.as_mut()) {
            queued.remove(id);
            self.finish_failover(client, now);
        }
    }

    fn finish_failover(&mut self, client: &str, now: Instant) {
        let is_over = |one: &Interrupted| one.queued.as_ref().is_some_and(HashSet::is_empty);
        if self.interrupted.get(client).is_some_and(is_over)
            && let Some(interrupted) = self.interrupted.remove(client)
        {
            self.round.failovers.push(now.saturating_duration_since(interrupted.since));
        }
    }

    pub(crate) fn fault(&mut self, line: String) {
        self.faults.push(line);
    }

    // -- Questions of the thread with the faults ---------------------------------------------------

    /// Begins the counts of another round.
    pub(crate) fn begin_round(&mut self, now: Instant) {
        self.round = RoundCounts::default();
        self.interrupted.clear();
        self.last_acknowledged = now;
    }

    /// Counts of the round until `now`; `is_loading` if there was something to acknowledge until now.
    pub(crate) fn round(&self, is_loading: bool, now: Instant) -> RoundCounts {
        let mut round = self.round.clone();
        if is_loading {
            round.longest_gap = round.longest_gap.max(now.saturating_duration_since(self.last_acknowledged));
        }
        round
    }

    /// The broker of a node was killed: its clients are on their way to other nodes.
    pub(crate) fn node_was_killed(&mut self, node: usize, now: Instant) {
        for (client, place) in &self.clients {
            if *place == Place::Node(node) {
                self.interrupted.insert(client.clone(), Interrupted { since: now, queued: None });
            }
        }
    }

    pub(crate) fn last_acknowledged(&self) -> Instant {
        self.last_acknowledged
    }

    /// True once all clients are connected and all groups have subscribed.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_complete && self.absent().is_empty() && self.groups.iter().all(|group| group.is_subscribed)
    }

    /// True once nothing is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_ready() && self.missing() == 0 && self.inflight == 0
    }

    /// Clients that are not connected, and of those of a killed broker, the ones without their queues.
    pub(crate) fn absent(&self) -> Vec<String> {
        let is_gone = |place: &Place| *place == Place::Nowhere;
        let gone = self.clients.iter().filter(|(_, place)| is_gone(place)).map(|(client, _)| client);
        let mut absent: Vec<_> = gone.chain(self.interrupted.keys()).cloned().collect();
        absent.sort_unstable();
        absent.dedup();
        absent
    }

    /// Groups without a message that was acknowledged before `end`.
    pub(crate) fn behind(&self, end: Instant) -> impl Iterator<Item = &str> {
        let is_behind = move |group: &&Group| group.missing.values().any(|acknowledged| *acknowledged < end);
        self.groups.iter().filter(is_behind).map(|group| &*group.name)
    }

    /// Messages that were acknowledged and have not arrived, over all groups.
    pub(crate) fn missing(&self) -> usize {
        self.groups.iter().map(|group| group.missing.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    fn tally() -> (Tally, Instant, GroupId) {
        let now = Instant::now();
        let mut tally = Tally::new(now);
        let group = tally.add_group("sub", TopicFilter::parse("m/+").unwrap());
        for client in ["sub", "pub"] {
            tally.add_client(client);
        }
        tally.is_complete = true;
        (tally, now, group)
    }

    #[test]
    fn a_message_is_missing_between_its_acknowledgement_and_its_delivery() {
        let (mut tally, now, group) = tally();
        tally.acknowledged("pub", "pub:1", &topic("m/1"), now);
        assert_eq!(tally.missing(), 1);
        assert_eq!(tally.behind(now).count(), 0);
        assert_eq!(tally.behind(now + MS).collect::<Vec<_>>(), ["sub"]);
        tally.delivered("sub", Some(group), "pub:1", now);
        assert_eq!(tally.missing(), 0);
        // The delivery may come first, and a second time.
        for _ in 0..2 {
            tally.delivered("sub", Some(group), "pub:2", now);
        }
        tally.acknowledged("pub", "pub:2", &topic("m/1"), now);
        tally.acknowledged("pub", "pub:3", &topic("other"), now);
        assert_eq!(tally.missing(), 0);
        let round = tally.round(false, now);
        assert_eq!((round.acknowledged, round.delivered), (3, 3));
    }

    #[test]
    fn the_longest_gap_is_between_acknowledgements_or_until_now() {
        let (mut tally, start, _) = tally();
        tally.begin_round(start + 5 * MS);
        for at in [6, 30, 31] {
            tally.acknowledged("pub", "pub:1", &topic("m/1"), start + at * MS);
        }
        assert_eq!(tally.round(true, start + 40 * MS).longest_gap, 24 * MS);
        assert_eq!(tally.round(true, start + 100 * MS).longest_gap, 69 * MS);
        assert_eq!(tally.round(false, start + 100 * MS).longest_gap, 24 * MS);
        tally.begin_round(start + 100 * MS);
        assert_eq!(tally.round(true, start + 101 * MS).longest_gap, MS);
    }

    #[test]
    fn a_failover_ends_with_the_last_message_that_was_queued() {
        let (mut tally, start, group) = tally();
        let (queued, acknowledged) = (Back::Queued(group), Back::Acknowledged);
        assert!(!tally.is_ready());
        for (client, back) in [("sub", queued), ("pub", acknowledged)] {
            tally.connected(client, 1, back, start);
        }
        assert!(tally.is_ready());
        tally.node_was_killed(2, start);
        assert!(tally.absent().is_empty());
        tally.node_was_killed(1, start);
        for client in ["sub", "pub"] {
            tally.disconnected(client, false);
        }
        tally.acknowledged("other", "other:1", &topic("m/1"), start);
        assert_eq!(tally.absent(), ["pub", "sub"]);
        tally.connected("sub", 0, queued, start + 50 * MS);
        tally.connected("pub", 0, acknowledged, start + 50 * MS);
        tally.acknowledged("other", "other:2", &topic("m/1"), start + 60 * MS);
        assert_eq!(tally.absent(), ["pub", "sub"]);
        tally.delivered("sub", Some(group), "other:1", start + 70 * MS);
        tally.acknowledged("pub", "pub:1", &topic("m/1"), start + 80 * MS);
        assert!(tally.absent().is_empty());
        assert_eq!(tally.round(false, start).failovers, [70 * MS, 80 * MS]);
    }

    #[test]
    fn a_client_without_a_queue_is_back_when_it_is_connected() {
        let (mut tally, start, group) = tally();
        tally.acknowledged("other", "other:1", &topic("m/1"), start);
        for (client, back) in [("sub", Back::Shared(group)), ("pub", Back::Connected)] {
            tally.connected(client, 1, back, start);
            tally.node_was_killed(1, start);
            tally.disconnected(client, false);
            tally.connected(client, 0, back, start + 50 * MS);
        }
        assert!(tally.is_ready());
        assert_eq!(tally.round(false, start).failovers, [50 * MS; 2]);
    }

    #[test]
    fn a_client_that_has_left_is_not_absent() {
        let (mut tally, start, group) = tally();
        tally.connected("pub", 1, Back::Acknowledged, start);
        tally.connected("sub", 1, Back::Queued(group), start);
        tally.disconnected("sub", true);
        tally.node_was_killed(1, start);
        assert_eq!(tally.absent(), ["pub"]);
        tally.inflight = 1;
        tally.begin_round(start);
        assert!(tally.is_ready() && !tally.is_settled());
        tally.disconnected("sub", false);
        assert_eq!(tally.absent(), ["sub"]);
    }
}
