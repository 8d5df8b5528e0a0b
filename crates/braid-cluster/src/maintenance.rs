//! Sessions that no node has: the live node with the lowest name carries out their Wills and their end, takes over
//! those of nodes that died, moves positions of the others forward, and trims the log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::Stream;
use braid_broker::node_handle::NodeHandle;
use braid_proto::packet::ClientId;
use futures_util::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::advance::{Advancer, Needs};
use crate::groups::Groups;
use crate::nodes::{NodeRecord, live_nodes};
use crate::options::Upkeep;
use crate::ordered::ordered;
use crate::record::{Record, RecordedSubscription, millis};
use crate::removals::{Removals, is_removal};
use crate::shared::group_name;
use crate::status::StreamState;
use crate::store::NodeState;
use crate::subject::parse_token;
use crate::take::Taker;

/// Longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Shortest time between two looks, of which each reads the records of all nodes.
const SHORTEST: Duration = Duration::from_millis(200);

/// Sessions that are moved forward in one look.
const ADVANCED: usize = 50;

/// Cuts of the log after which sessions are looked at again that could not be moved.
const RENEWED: u64 = 100;

/// Requests for that, of which each filter takes one in each shard. One session may take more.
const ADVANCE_REQUESTS: usize = 500;

/// Copies that are removed in one look.
const PURGED: usize = 50;

/// Copies that are removed at a time.
const PURGED_AT_ONCE: usize = 8;

/// Sessions that are taken over at a time.
const AT_ONCE: usize = 64;

/// Records that are read at a time.
const RECORDS_AT_ONCE: usize = 4096;

/// Maintenance of the streams, by one node for all.
pub(crate) struct Maintenance {
    pub(crate) state: Arc<NodeState>,
    pub(crate) nodes: Stream<()>,
    pub(crate) sessions: Stream<()>,
    pub(crate) retained: Stream<()>,
    /// Streams of the shards, by index.
    pub(crate) streams: Vec<Stream<()>>,
    pub(crate) handle: NodeHandle,
    pub(crate) taker: Taker,
    pub(crate) advancer: Advancer,
    pub(crate) upkeep: Upkeep,
}

/// Facts about a session.
struct Watched {
    owner: Option<(String, String)>,
    /// Time at which its Will or its end is due.
    due: Option<SystemTime>,
    /// Position from which on it needs the log, in each shard; none if it ends with its connection.
    done: Vec<u64>,
    /// Messages before these positions that are in flight, with the indices of their shards: retained ones, and those
    /// of shared subscriptions.
    in_flight: Vec<(usize, u64)>,
    parked_at: Option<SystemTime>,
    /// Number of its subscriptions.
    filters: usize,
    /// Names of the groups whose member it is.
    groups: Vec<String>,
    /// Message behind which it was not moved, in each shard.
    needs: Needs,
}

impl Watched {
    fn of(state: &NodeState, record: &Record) -> Self {
        let owner = record.owner.clone().map(|owner| (owner, record.run.clone()));
        let parked_at = record.parked_at().unwrap_or_else(|| state.clock.wall());
        let after = |seconds: u32| parked_at.checked_add(Duration::from_secs(seconds.into()));
        let ends = record.expiry().interval().and_then(|_| after(record.expiry));
        let will = record.will.as_ref().and_then(|will| after(will.delay));
        let due = if owner.is_some() { None } else { [ends, will].into_iter().flatten().min() };
        let done: Vec<_> = record.progress.iter().map(|progress| progress.done).collect();
        let in_flight = record.messages().filter_map(|lsn| state.layout.position(lsn));
        let is_before =
            |(index, sequence): &(usize, u64)| done.get(*index).is_some_and(|done| sequence <= done);
        let in_flight = in_flight.filter(is_before).collect();
        let filters = record.subscriptions.iter().filter_map(RecordedSubscription::read);
        let groups = filters.filter(|(filter, ..)| filter.is_shared());
        let groups = groups.map(|(filter, ..)| group_name(&filter)).collect();
        let (parked_at, filters) = (record.parked_at(), record.subscriptions.len());
        Self { owner, due, done, in_flight, parked_at, filters, groups, needs: Vec::new() }
    }

    /// Position in a shard from which on it needs the log, whose first message is `first`: one in flight that is before
    /// that cannot be read any more, and holds nothing.
    fn position(&self, index: usize, first: u64) -> Option<u64> {
        let done = *self.done.get(index)?;
        let in_flight = self.in_flight.iter().filter(|(of, sequence)| *of == index && *sequence >= first);
        let before = in_flight.map(|(_, sequence)| sequence.saturating_sub(1)).min();
        Some(before.map_or(done, |before| before.min(done)))
    }

    /// Whether its Will or its end is due, or its node is not there any more.
    fn is_due(&self, nodes: &BTreeMap<String, NodeRecord>, now: SystemTime) -> bool {
        match &self.owner {
            Some((owner, run)) => nodes.get(owner).is_none_or(|node| node.run != *run),
            None => self.due.is_some_and(|due| due <= now),
        }
    }

    /// Lowest position that can be moved, of the shards where it holds the log. `None`: there is none.
    fn behind(&self, targets: &Targets, parked_until: SystemTime) -> Option<u64> {
        if self.owner.is_some() || self.parked_at.is_none_or(|at| at > parked_until) {
            return None;
        }
        let is_movable = |index: usize| {
            let until = targets.until.get(index).copied().flatten();
            let is_held = self.needs.get(index).copied().flatten().is_some();
            let position = self.position(index, targets.first(index))?;
            (!is_held && until.is_some_and(|until| position < until)).then_some(position)
        };
        (0..self.done.len()).filter_map(is_movable).min()
    }
}

/// Positions up to which sessions are moved.
#[derive(Default)]
struct Targets {
    /// Position in each shard; `None` where the log is short enough.
    until: Vec<Option<u64>>,
    /// Positions of the nodes at the last cut of the log.
    reached: Vec<u64>,
    /// Sequence number of the first message of each shard then.
    first: Vec<u64>,
    /// Number of cuts.
    cuts: u64,
}

impl Targets {
    /// Notes positions that all nodes have reached now, and the shards whose log is long. Sessions are moved up to the
    /// positions of the time before: their messages are known to the leader of the log, even to one that a majority
    /// does not follow any more, as that does not lead for as long. Returns the positions of the time before.
    fn note(&mut self, reached: Vec<u64>, is_long: &[bool]) -> Vec<u64> {
        let before = std::mem::replace(&mut self.reached, reached);
        let until = before.iter().zip(is_long).map(|(at, is_long)| is_long.then_some(*at));
        self.until = until.collect();
        self.cuts += 1;
        before
    }

    fn first(&self, index: usize) -> u64 {
        self.first.get(index).copied().unwrap_or(0)
    }

    /// Whether it is time to look again at sessions that need a message, which may have expired.
    const fn renews(&self) -> bool {
        self.cuts.is_multiple_of(RENEWED)
    }
}

/// Sessions of all nodes.
#[derive(Default)]
struct Watch {
    sessions: HashMap<ClientId, Watched>,
    /// Time at which the next Will or end is due, or earlier.
    next_due: Option<SystemTime>,
    /// Sequence number of the last record that there was at the beginning.
    until: u64,
    /// All records of the beginning are read: before that nothing is known of what their sessions need.
    is_whole: bool,
}

impl Maintenance {
    /// Carries on for as long as the node runs.
    pub(crate) async fn run(self) {
        loop {
            if let Err(error) = self.maintain().await {
                tracing::debug!(%error, "records of sessions are read again");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Nodes that are alive, with their records.
    async fn live_nodes(&self) -> Result<BTreeMap<String, NodeRecord>, async_nats::Error> {
        let nodes = live_nodes(&self.nodes, &self.state.layout).await?;
        self.state.note_live_nodes(nodes.keys().filter_map(|name| name.parse().ok()).collect());
        Ok(nodes)
    }

    fn is_first(&self, nodes: &BTreeMap<String, NodeRecord>) -> bool {
        nodes.first_key_value().is_some_and(|(name, _)| *name == self.state.node)
    }

    /// Returns when another node is the first.
    async fn maintain(&self) -> Result<(), async_nats::Error> {
        if !self.is_first(&self.live_nodes().await?) {
            return Ok(());
        }
        let until = self.sessions.get_info().await?.state.last_sequence;
        let subject = format!("{}.s.*", self.state.layout.cluster());
        let config = ordered(subject, DeliverPolicy::LastPerSubject);
        let consumer = self.sessions.create_consumer(config).await?;
        let is_whole = consumer.cached_info().num_pending == 0;
        let mut records = consumer.messages().await?;
        let subject = format!("{}.r.>", self.state.layout.cluster());
        let config = OrderedConfig { headers_only: true, ..ordered(subject, DeliverPolicy::LastPerSubject) };
        let mut copies = self.retained.create_consumer(config).await?.messages().await?;
        let mut watch = Watch { until, is_whole, ..Watch::default() };
        let (mut removals, mut targets) = (Removals::default(), Targets::default());
        let mut groups = Groups::default();
        let mut advances: JoinSet<Vec<(ClientId, Needs)>> = JoinSet::new();
        let (mut last_look, mut trim_at) = (Instant::now(), Instant::now() + self.upkeep.trim);
        let layout = &self.state.layout;
        let prefix = format!("{}.s.", layout.cluster());
        loop {
            tokio::select! {
                record = records.next() => {
                    let Some(record) = record else { return Ok(()) };
                    watch.note(&self.state, &prefix, &record?)?;
                    for _ in 0..RECORDS_AT_ONCE {
                        let Some(Some(record)) = records.next().now_or_never() else { break };
                        watch.note(&self.state, &prefix, &record?)?;
                    }
                }
                copy = copies.next() => {
                    let Some(copy) = copy else { return Ok(()) };
                    note_copy(&mut removals, &copy?)?;
                    for _ in 0..RECORDS_AT_ONCE {
                        let Some(Some(copy)) = copies.next().now_or_never() else { break };
                        note_copy(&mut removals, &copy?)?;
                    }
                }
                Some(advanced) = advances.join_next() => watch.note_needs(advanced?),
                () = sleep_until(watch.next_look(last_look, Instant::now(), self.state.clock.wall())) => {
                    let nodes = self.live_nodes().await?;
                    if !self.is_first(&nodes) {
                        return Ok(());
                    }
                    self.adopt(&mut watch, &nodes).await;
                    last_look = Instant::now();
                    if watch.is_whole && Instant::now() >= trim_at {
                        trim_at = Instant::now() + self.upkeep.trim;
                        self.trim(&watch, &nodes, &mut targets, &mut groups).await?;
                        if targets.renews() {
                            watch.sessions.values_mut().for_each(|watched| watched.needs.clear());
                        }
                    }
                    self.remove_copies(&mut removals).await;
                    let parked_until = self.state.clock.wall().checked_sub(self.upkeep.rest);
                    let behind = watch.behind(&targets, parked_until.unwrap_or(SystemTime::UNIX_EPOCH));
                    if advances.is_empty() && !behind.is_empty() {
                        let (until, first) = (targets.until.clone(), targets.first.clone());
                        advances.spawn(self.advancer.clone().advance(behind, until, first));
                    }
                }
            }
        }
    }

    /// Takes over sessions whose Will or end is due, and those of nodes that are not there any more.
    async fn adopt(&self, watch: &mut Watch, nodes: &BTreeMap<String, NodeRecord>) {
        let now = self.state.clock.wall();
        watch.next_due =
            watch.sessions.values().filter_map(|watched| watched.due).filter(|due| *due > now).min();
        let due = watch.sessions.iter().filter(|(_, watched)| watched.is_due(nodes, now));
        let due: Vec<_> = due.map(|(client, _)| client.clone()).collect();
        let adopted = futures_util::stream::iter(due)
            .map(|client| async move {
                if let Err(reason) = self.adopt_one(&client, now).await {
                    tracing::debug!(client = client.as_str(), reason, "a session was not taken over");
                }
            })
            .buffer_unordered(AT_ONCE);
        adopted.collect::<()>().await;
    }

    /// Takes over a session, if that is due by its record and the lease of its node as they are now: a live node may
    /// have it by then.
    async fn adopt_one(&self, client: &ClientId, now: SystemTime) -> Result<(), String> {
        let is_due = |record: &Record| Watched::of(&self.state, record).due.is_some_and(|due| due <= now);
        let found = self.taker.find_absent(client, is_due).await.map_err(|error| error.to_string())?;
        if let Some(found) = found {
            self.handle.adopt_session(client, found).await.map_err(|reason| reason.to_string())?;
        }
        Ok(())
    }

    /// Removes copies of messages that have removed what was retained. A node that starts meanwhile finds those
    /// messages in the log, or nothing that they had removed.
    async fn remove_copies(&self, removals: &mut Removals) {
        let until = self.state.clock.wall().checked_sub(self.upkeep.removals);
        let until = until.map_or(0, |until| millis(until) / 1000);
        let purges =
            futures_util::stream::iter(removals.due(until, PURGED)).map(|(subject, sequence)| async move {
                // A later one of the topic stays.
                let purged = self.retained.purge().filter(subject.clone()).sequence(sequence + 1).await;
                purged
                    .inspect_err(|error| tracing::debug!(%error, "a copy was not removed"))
                    .is_ok()
                    .then_some(subject)
            });
        let purged: Vec<_> = purges.buffer_unordered(PURGED_AT_ONCE).collect().await;
        purged.into_iter().flatten().for_each(|subject| removals.forget(&subject));
    }

    /// Removes from the log what no session and no node needs.
    async fn trim(
        &self,
        watch: &Watch,
        nodes: &BTreeMap<String, NodeRecord>,
        targets: &mut Targets,
        groups: &mut Groups,
    ) -> Result<(), async_nats::Error> {
        let copies = self.retained.get_info().await?.sources;
        let layout = &self.state.layout;
        let (mut reached, mut first, mut is_long) = (Vec::new(), Vec::new(), Vec::new());
        for (index, stream) in self.streams.iter().enumerate() {
            let positions = nodes.values().map(|node| node.positions.get(index).copied().unwrap_or(0));
            reached.push(positions.min().unwrap_or(0));
            let state = StreamState::of(&stream.get_info().await?);
            first.push(state.first);
            is_long.push(state.bytes >= self.upkeep.behind);
            if let Some(problem) = state.fullness(&layout.messages_stream(layout.shard_at(index))) {
                tracing::warn!("{problem}");
            }
        }
        targets.first = first;
        let settled = targets.note(reached, &is_long);
        let wanted = watch.sessions.values().flat_map(|watched| &watched.groups);
        let wanted: HashSet<&str> = wanted.map(String::as_str).collect();
        let is_wanted = |name: &str| wanted.contains(name);
        for (index, stream) in self.streams.iter().enumerate() {
            // Messages with RETAIN are needed until the servers have copied them.
            let name = layout.messages_stream(layout.shard_at(index));
            if !copies.iter().any(|source| source.name == name && source.lag == 0) {
                continue;
            }
            let settled = settled.get(index).copied().unwrap_or(0);
            let of_groups = match groups.look(index, stream, is_wanted, settled).await {
                Ok(completed) => completed,
                Err(error) => {
                    tracing::warn!(%error, "the log is not trimmed: the consumers of shared groups cannot be read");
                    continue;
                }
            };
            let first = targets.first(index);
            let of_sessions = watch.sessions.values().filter_map(|watched| watched.position(index, first));
            // Sessions that began since then may be unknown here: they need nothing before it.
            let done = of_sessions.chain(of_groups).fold(settled, u64::min);
            if done > 0 {
                stream.purge().sequence(done + 1).await?;
            }
        }
        Ok(())
    }
}

impl Watch {
    /// Notes a record.
    fn note(&mut self, state: &NodeState, prefix: &str, message: &Message) -> Result<(), async_nats::Error> {
        if let Some(client) = message.subject.strip_prefix(prefix).and_then(parse_token) {
            self.set(ClientId::from(&*client), Record::read(&message.payload), state);
        }
        let info = message.info()?;
        self.note_read(info.stream_sequence, info.pending);
        Ok(())
    }

    /// Notes that a record is read, behind which the servers count others. Their count may stay too high where a record
    /// replaced one that was on its way, so that it alone would never say that all are read.
    const fn note_read(&mut self, sequence: u64, pending: u64) {
        self.is_whole |= pending == 0 || sequence >= self.until;
    }

    fn set(&mut self, client: ClientId, record: Option<Record>, state: &NodeState) {
        let Some(record) = record else {
            self.sessions.remove(&client);
            return;
        };
        let mut watched = Watched::of(state, &record);
        if let Some(before) = self.sessions.get_mut(&client)
            && before.owner.is_none()
            && watched.owner.is_none()
        {
            watched.needs = std::mem::take(&mut before.needs);
        }
        self.next_due = [self.next_due, watched.due].into_iter().flatten().min();
        self.sessions.insert(client, watched);
    }

    /// Time of the next look: when something is due, within the bounds of a pause.
    fn next_look(&self, last_look: Instant, now: Instant, time: SystemTime) -> Instant {
        let latest = last_look + LOOK;
        let due = self.next_due.map(|due| now + due.duration_since(time).unwrap_or_default().min(LOOK));
        due.map_or(latest, |due| due.clamp(last_look + SHORTEST, latest))
    }

    /// Notes where sessions were not moved any further.
    fn note_needs(&mut self, advanced: Vec<(ClientId, Needs)>) {
        for (client, needs) in advanced {
            if let Some(watched) = self.sessions.get_mut(&client).filter(|watched| watched.owner.is_none()) {
                watched.needs = needs;
            }
        }
    }

    /// Some sessions that hold the log and may be moved forward: the furthest behind.
    fn behind(&self, targets: &Targets, parked_until: SystemTime) -> Vec<ClientId> {
        if targets.until.iter().all(Option::is_none) {
            return Vec::new();
        }
        let behind = |(client, watched): (_, &Watched)| {
            Some((watched.behind(targets, parked_until)?, client, watched.filters * watched.done.len()))
        };
        let mut all: Vec<_> = self.sessions.iter().filter_map(behind).collect();
        if all.len() > ADVANCED {
            all.select_nth_unstable(ADVANCED - 1);
            all.truncate(ADVANCED);
        }
        all.sort_unstable();
        let mut requests = 0;
        let is_within = |(_, _, cost): &(u64, &ClientId, usize)| {
            let is_first = requests == 0;
            requests += cost;
            is_first || requests <= ADVANCE_REQUESTS
        };
        all.into_iter().take_while(is_within).map(|(_, client, _)| client.clone()).collect()
    }
}

/// Notes the copy of a message with RETAIN, which came without its payload.
fn note_copy(removals: &mut Removals, copy: &Message) -> Result<(), async_nats::Error> {
    let info = copy.info()?;
    let stored_at = u64::try_from(info.published.unix_timestamp()).unwrap_or(0);
    let is_removal = copy.headers.as_ref().is_some_and(is_removal);
    removals.note(&copy.subject, info.stream_sequence, stored_at, is_removal);
    Ok(())
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::{PacketId, QoS};
    use braid_store::{Lsn, QueueEntry, StoredDelivery};

    use super::*;
    use crate::progress::Checkpoint;
    use crate::record::RecordedDelivery;
    use crate::store::tests::{Fixture, fixture};

    #[test]
    fn a_message_in_flight_holds_the_log_for_as_long_as_it_is_there() {
        let Fixture { store, .. } = fixture();
        let state = &store.0;
        let sent = |number: u64, index, sequence| {
            let delivery = StoredDelivery::new(state.layout.lsn(index, sequence), QoS::AtLeastOnce);
            let lsn = Lsn::new(crate::layout::OWN_NUMBERS.value() + number);
            RecordedDelivery::of(lsn, &QueueEntry::Sent(PacketId::FIRST, delivery))
        };
        let progress = vec![Checkpoint { done: 100, beyond: Vec::new() }; 2];
        let queue = vec![sent(1, 0, 5), sent(2, 0, 60), sent(3, 0, 200), sent(4, 1, 7)];
        let watched = Watched::of(state, &Record { progress, queue, ..Record::default() });
        let positions = |first| [0, 1, 2].map(|index| watched.position(index, first));
        assert_eq!(positions(1), [Some(4), Some(6), None]);
        assert_eq!(positions(6), [Some(59), Some(6), None]);
        assert_eq!(positions(61), [Some(100), Some(100), None]);
    }

    #[test]
    fn records_are_read_when_the_last_one_of_the_beginning_is() {
        let read = |until: u64, records: &[(u64, u64)]| {
            let mut watch = Watch { until, ..Watch::default() };
            records.iter().for_each(|(sequence, pending)| watch.note_read(*sequence, *pending));
            watch.is_whole
        };
        assert!(!read(7, &[(5, 2), (6, 1)]));
        assert!(read(7, &[(5, 2), (7, 1)]), "a count that is too high");
        assert!(read(7, &[(5, 2), (9, 3)]), "the last one was replaced");
        assert!(read(7, &[(5, 0), (6, 4)]), "the last one is gone");
    }

    #[test]
    fn looks_are_at_the_time_that_something_is_due() {
        let (last_look, time) = (Instant::now(), SystemTime::now());
        let now = last_look + Duration::from_millis(300);
        let look_after = |next_due: Option<i64>| {
            let next_due = next_due.map(|ms| {
                let far = time + Duration::from_millis(ms.unsigned_abs());
                if ms < 0 { time - Duration::from_millis(ms.unsigned_abs()) } else { far }
            });
            let watch = Watch { next_due, ..Watch::default() };
            watch.next_look(last_look, now, time) - last_look
        };
        let cases = [(None, 1000), (Some(400), 700), (Some(0), 300), (Some(-250), 300), (Some(90_000), 1000)];
        for (due, after) in cases {
            assert_eq!(look_after(due), Duration::from_millis(after), "{due:?}");
        }
        let watch = Watch { next_due: Some(time), ..Watch::default() };
        assert_eq!(watch.next_look(last_look, last_look, time) - last_look, SHORTEST);
    }
}
