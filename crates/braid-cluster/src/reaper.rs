//! Sessions that no node has: the live node with the lowest name carries out their Wills and their end, takes over
//! those of nodes that died, and trims the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::Stream;
use braid_broker::node_handle::NodeHandle;
use braid_proto::packet::ClientId;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::layout::Layout;
use crate::nodes::{NodeRecord, live_nodes};
use crate::record::Record;
use crate::store::NodeState;
use crate::subject::parse_token;

/// Longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Shortest time between two looks, of which each reads the records of all nodes.
const SHORTEST: Duration = Duration::from_millis(200);

/// Time between two cuts of the log.
const TRIM: Duration = Duration::from_secs(30);

/// Sessions that are taken over at a time.
const AT_ONCE: usize = 64;

/// Records that are read at a time.
const RECORDS_AT_ONCE: usize = 4096;

/// Caretaker of sessions without a node.
pub(crate) struct Reaper {
    pub(crate) state: Arc<NodeState>,
    pub(crate) nodes: Stream<()>,
    pub(crate) sessions: Stream<()>,
    pub(crate) retained: Stream<()>,
    /// Streams of the shards, by their place.
    pub(crate) streams: Vec<Stream<()>>,
    pub(crate) handle: NodeHandle,
}

/// Facts about a session.
struct Watched {
    owner: Option<(String, String)>,
    /// Time at which its Will or its end is due.
    due: Option<SystemTime>,
    /// Position from which on it needs the log, in each shard; none if it ends with its connection.
    done: Vec<u64>,
}

impl Watched {
    fn of(layout: &Layout, record: &Record) -> Self {
        let owner = record.owner.clone().map(|owner| (owner, record.run.clone()));
        let parked_at = record.parked_at().unwrap_or_else(SystemTime::now);
        let after = |seconds: u32| parked_at.checked_add(Duration::from_secs(seconds.into()));
        let ends = record.expiry().interval().and_then(|_| after(record.expiry));
        let will = record.will.as_ref().and_then(|will| after(will.delay));
        let due = if owner.is_some() { None } else { [ends, will].into_iter().flatten().min() };
        let mut done: Vec<_> = record.progress.iter().map(|progress| progress.done).collect();
        // Messages in flight may be before that: retained ones, and those of shared subscriptions.
        for (index, sequence) in record.messages().filter_map(|lsn| layout.position(lsn)) {
            if let Some(done) = done.get_mut(index) {
                *done = (*done).min(sequence.saturating_sub(1));
            }
        }
        Self { owner, due, done }
    }
}

/// Sessions of all nodes.
#[derive(Default)]
struct Watch {
    sessions: HashMap<ClientId, Watched>,
    /// Time at which the next Will or end is due, or earlier.
    next_due: Option<SystemTime>,
}

impl Reaper {
    /// Takes care for as long as the node runs.
    pub(crate) async fn run(self) {
        loop {
            if let Err(error) = self.take_care().await {
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
    async fn take_care(&self) -> Result<(), async_nats::Error> {
        if !self.is_first(&self.live_nodes().await?) {
            return Ok(());
        }
        let config = OrderedConfig {
            filter_subject: format!("{}.s.*", self.state.layout.cluster()),
            deliver_policy: DeliverPolicy::LastPerSubject,
            ..OrderedConfig::default()
        };
        let mut records = self.sessions.create_consumer(config).await?.messages().await?;
        let mut watch = Watch::default();
        let (mut last_look, mut trim_at) = (Instant::now(), Instant::now() + TRIM);
        let layout = &self.state.layout;
        let prefix = format!("{}.s.", layout.cluster());
        loop {
            tokio::select! {
                record = records.next() => {
                    let Some(record) = record else { return Ok(()) };
                    watch.note(layout, &prefix, &record?.message);
                    for _ in 0..RECORDS_AT_ONCE {
                        let Some(Some(record)) = records.next().now_or_never() else { break };
                        watch.note(layout, &prefix, &record?.message);
                    }
                }
                () = sleep_until(watch.next_look(last_look, Instant::now(), SystemTime::now())) => {
                    let nodes = self.live_nodes().await?;
                    if !self.is_first(&nodes) {
                        return Ok(());
                    }
                    self.adopt(&mut watch, &nodes).await;
                    last_look = Instant::now();
                    if Instant::now() >= trim_at {
                        trim_at = Instant::now() + TRIM;
                        self.trim(&watch, &nodes).await?;
                    }
                }
            }
        }
    }

    /// Takes over sessions whose Will or end is due, and those of nodes that are not there any more.
    async fn adopt(&self, watch: &mut Watch, nodes: &BTreeMap<String, NodeRecord>) {
        let now = SystemTime::now();
        watch.next_due =
            watch.sessions.values().filter_map(|watched| watched.due).filter(|due| *due > now).min();
        let is_due = |watched: &Watched| match &watched.owner {
            Some((owner, run)) => nodes.get(owner).is_none_or(|node| node.run != *run),
            None => watched.due.is_some_and(|due| due <= now),
        };
        let due =
            watch.sessions.iter().filter(|(_, watched)| is_due(watched)).map(|(client, _)| client.clone());
        let due: Vec<_> = due.collect();
        let adopted = futures_util::stream::iter(due)
            .map(|client| async move {
                if let Err(reason) = self.handle.adopt_session(&client).await {
                    tracing::debug!(client = client.as_str(), %reason, "a session was not taken over");
                }
            })
            .buffer_unordered(AT_ONCE);
        adopted.collect::<()>().await;
    }

    /// Removes from the log what no session and no node needs.
    async fn trim(
        &self,
        watch: &Watch,
        nodes: &BTreeMap<String, NodeRecord>,
    ) -> Result<(), async_nats::Error> {
        let copies = self.retained.get_info().await?.sources;
        let layout = &self.state.layout;
        for (index, stream) in self.streams.iter().enumerate() {
            // Messages with RETAIN are needed until the servers have copied them.
            let name = layout.messages_stream(layout.shard_at(index));
            if !copies.iter().any(|source| source.name == name && source.lag == 0) {
                continue;
            }
            let of_nodes = nodes.values().map(|node| node.positions.get(index).copied().unwrap_or(0));
            let of_sessions = watch.sessions.values().filter_map(|watched| watched.done.get(index).copied());
            let Some(done) = of_nodes.chain(of_sessions).min() else { continue };
            if done > 0 {
                stream.purge().sequence(done + 1).await?;
            }
        }
        Ok(())
    }
}

impl Watch {
    fn note(&mut self, layout: &Layout, prefix: &str, message: &async_nats::Message) {
        let token = message.subject.strip_prefix(prefix).and_then(parse_token);
        let Some(client) = token.map(|text| ClientId::from(&*text)) else { return };
        match Record::read(&message.payload) {
            Some(record) => {
                let watched = Watched::of(layout, &record);
                self.next_due = [self.next_due, watched.due].into_iter().flatten().min();
                self.sessions.insert(client, watched);
            }
            None => drop(self.sessions.remove(&client)),
        }
    }

    /// Time of the next look: when something is due, within the bounds of a pause.
    fn next_look(&self, last_look: Instant, now: Instant, time: SystemTime) -> Instant {
        let latest = last_look + LOOK;
        let due = self.next_due.map(|due| now + due.duration_since(time).unwrap_or_default().min(LOOK));
        due.map_or(latest, |due| due.clamp(last_look + SHORTEST, latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
