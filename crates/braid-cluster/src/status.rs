//! State of a cluster, asked without joining it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{Context, ContextBuilder};
use futures_util::StreamExt;
use serde::Deserialize;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connect::connect;
use crate::error::ClusterError;
use crate::layout::{Dimensions, Layout, SHARDS_KEY};
use crate::name::Name;
use crate::nodes::NodeRecord;
use crate::options::ClusterOptions;
use crate::preflight::ServerFacts;
use crate::streams::NOT_FOUND;

/// Time for an answer of JetStream. Servers without a leader answer after half a second.
const ANSWER: Duration = Duration::from_secs(2);

/// Questions for the state of a stream: one may meet an election.
const TRIES: usize = 2;

/// Time after which a replica that its leader has not seen counts as gone.
const UNSEEN: Duration = Duration::from_secs(10);

/// Operations by which a replica may be behind under load.
const LAG: u64 = 1000;

/// Percentage of its bytes from which on a stream is nearly full.
const FULL: u64 = 90;

/// State of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub cluster: Name,
    /// Nodes with a lease, by name; the reason if they cannot be read.
    pub nodes: Result<Vec<NodeStatus>, String>,
    /// Streams, in the order of the layout.
    pub streams: Vec<StreamStatus>,
    /// Sessions; the reason if they cannot be read.
    pub sessions: Result<SessionCounts, String>,
    /// Servers of NATS: those whose monitoring ports are known, or else the one that answered.
    pub servers: Vec<ServerStatus>,
}

/// Node with a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its record.
    pub record: NodeRecord,
    /// Time since the last renewal of its lease.
    pub renewed: Duration,
}

/// Stream of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: Result<StreamState, StreamProblem>,
}

/// Reason for which a stream has no state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamProblem {
    /// No stream has this name.
    #[error("it does not exist, and other streams of the cluster do: it was removed")]
    Missing,
    /// The servers do not tell.
    #[error("{0}")]
    NoAnswer(String),
}

/// State of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Server that leads it.
    pub leader: Option<String>,
    /// The other servers that have it.
    pub replicas: Vec<Replica>,
    /// Number of servers that are to have it, the leader included.
    pub wanted: usize,
    /// Messages in it.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Bytes beyond which the oldest messages go; `None`: it is not bounded.
    pub most_bytes: Option<u64>,
    /// Sequence number of the oldest message.
    pub first: u64,
    /// Sequence number of the last message.
    pub last: u64,
    /// Messages that it has not copied from its sources yet.
    pub uncopied: u64,
}

/// Copy of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Server that has it.
    pub server: String,
    /// Everything that is acknowledged is in it.
    pub is_current: bool,
    /// The servers know that its server is down.
    pub is_offline: bool,
    /// Time since the leader has heard of it.
    pub seen: Duration,
    /// Operations that it has not stored yet.
    pub lag: u64,
}

impl Replica {
    /// True if its server takes part.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.is_offline && self.seen < UNSEEN
    }

    /// True if it is farther behind than load explains.
    #[must_use]
    pub fn is_lagging(&self) -> bool {
        self.is_live() && !self.is_current && self.lag > LAG
    }
}

/// Numbers of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Sessions that nodes have, by the node's name.
    pub by_node: BTreeMap<String, u64>,
    /// Sessions that no node has: their clients are away.
    pub unowned: u64,
    /// Records that are of no session.
    pub unreadable: u64,
}

/// Server of NATS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its monitoring port; empty for the server of this connection.
    pub monitor: String,
    /// Its name, if it answered.
    pub name: Option<String>,
    /// Its version, if it answered.
    pub version: Option<String>,
    /// Whether it syncs each write, if its monitoring port told.
    pub syncs_always: Option<bool>,
    /// Reason for which it does not answer, or a node would not start with it.
    pub problem: Option<String>,
}

/// Step of [`ClusterStatus::ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Connects.
    Connecting,
    /// Asks the monitoring ports.
    Servers,
    /// Asks the leaders of the streams.
    Streams,
    /// Reads the records of nodes.
    Nodes,
    /// Reads the records of sessions: so many of so many.
    Sessions(u64, u64),
}

impl ClusterStatus {
    /// Asks for the state. The name and instance of the node in `options` have no meaning, and its dimensions are used
    /// only if there is no stream.
    ///
    /// # Errors
    /// No server takes the connection.
    pub async fn ask(
        options: &ClusterOptions,
        progress: &(dyn Fn(Stage) + Sync),
    ) -> Result<Self, ClusterError> {
        progress(Stage::Connecting);
        let client = connect(options, " status").await?;
        let connected = client.server_info();
        let jetstream = ContextBuilder::new().timeout(ANSWER).build(client);
        progress(Stage::Servers);
        let mut servers = Vec::new();
        for monitor in &options.monitors {
            servers.push(ServerStatus::ask(monitor, options).await);
        }
        if servers.is_empty() {
            let (name, version) = (Some(connected.server_name), Some(connected.version));
            servers.push(ServerStatus { name, version, ..ServerStatus::default() });
        }
        progress(Stage::Streams);
        let streams = streams(&jetstream, &options.cluster, options.dimensions).await;
        let layout = Layout::new(options.cluster.clone(), options.dimensions);
        let is_missing = |name: &str| {
            streams.iter().any(|stream| stream.name == name && stream.state == Err(StreamProblem::Missing))
        };
        progress(Stage::Nodes);
        let nodes = match is_missing(&layout.nodes_stream()) {
            true => Ok(Vec::new()),
            false => nodes(&jetstream, &layout).await,
        };
        let counted = |done, of| progress(Stage::Sessions(done, of));
        let sessions = match is_missing(&layout.sessions_stream()) {
            true => Ok(SessionCounts::default()),
            false => sessions_by_node(&jetstream, &layout, &counted).await,
        };
        Ok(Self { cluster: options.cluster.clone(), nodes, streams, sessions, servers })
    }

    /// True if there is no stream of this cluster.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.streams.iter().all(|stream| stream.state == Err(StreamProblem::Missing))
    }

    /// Everything that is not as it should be, one line each; empty: all is well.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match &self.nodes {
            Ok(nodes) if nodes.is_empty() => problems.push("no node is running".to_owned()),
            Ok(_) => {}
            Err(reason) => problems.push(format!("the nodes cannot be read: {reason}")),
        }
        if self.is_missing() {
            let cluster = &self.cluster;
            problems.push(format!(
                "the cluster {cluster} has no streams: no node has started yet, or cluster.name is another one"
            ));
        }
        for StreamStatus { name, state } in self.streams.iter().filter(|_| !self.is_missing()) {
            match state {
                Ok(state) => state.problems(name, &mut problems),
                Err(reason) => problems.push(format!("the stream {name}: {reason}")),
            }
        }
        match &self.sessions {
            Ok(SessionCounts { unreadable: 0, .. }) => {}
            Ok(counts) => {
                problems.push(format!(
                    "{} records of sessions are of another version or damaged",
                    counts.unreadable
                ));
            }
            Err(reason) => problems.push(format!("the sessions cannot be read: {reason}")),
        }
        problems.extend(self.servers.iter().filter_map(|server| server.problem.clone()));
        problems
    }
}

impl StreamState {
    /// A line about a stream that is nearly full.
    pub(crate) fn fullness(&self, name: &str) -> Option<String> {
        let most = self.most_bytes.filter(|most| self.bytes >= most / 100 * FULL)?;
        Some(format!(
            "the stream {name} has {} of {most} bytes, beyond which the oldest messages go, also those that sessions have not \
             got: let sessions expire sooner, or raise max_bytes of the stream and cluster.log_bytes",
            self.bytes
        ))
    }

    fn problems(&self, name: &str, problems: &mut Vec<String>) {
        problems.extend(self.fullness(name));
        if self.leader.is_none() {
            problems.push(format!("the stream {name} has no leader: a majority of its servers must run"));
        } else {
            let live = 1 + self.replicas.iter().filter(|replica| replica.is_live()).count();
            if live < self.wanted {
                problems.push(format!("the stream {name} has {live} live replicas of {}", self.wanted));
            }
        }
        for replica in self.replicas.iter().filter(|replica| replica.is_lagging()) {
            let Replica { server, lag, .. } = replica;
            problems.push(format!("the replica of {name} at {server} is {lag} operations behind"));
        }
        if self.uncopied > LAG {
            problems
                .push(format!("the stream {name} is {} messages behind those that it copies", self.uncopied));
        }
    }
}

impl ServerStatus {
    async fn ask(monitor: &str, options: &ClusterOptions) -> Self {
        let monitor = monitor.to_owned();
        match ServerFacts::ask(&monitor, &options.ca_files).await {
            Ok(facts) => {
                let checked = facts.check(options.dimensions.replicas, SystemTime::now(), &options.accepted);
                let problem = checked.err().map(|error| error.to_string());
                let ServerFacts { server, version, syncs_always, .. } = facts;
                let (name, version) = (Some(server), Some(version));
                Self { monitor, name, version, syncs_always: Some(syncs_always), problem }
            }
            Err(error) => {
                let problem = Some(format!("the server with {monitor} does not answer: {error}"));
                Self { monitor, problem, ..Self::default() }
            }
        }
    }
}

/// The streams of a cluster: as many shards as it was made with.
async fn streams(jetstream: &Context, cluster: &Name, dimensions: Dimensions) -> Vec<StreamStatus> {
    let layout = Layout::new(cluster.clone(), dimensions);
    let (_, shards) = stream(jetstream, &layout.sessions_stream()).await;
    let dimensions = Dimensions { shards: shards.unwrap_or(dimensions.shards), ..dimensions };
    let layout = Layout::new(cluster.clone(), dimensions);
    let mut asked = JoinSet::new();
    for (at, config) in layout.streams().into_iter().enumerate() {
        let jetstream = jetstream.clone();
        asked.spawn(async move {
            let (state, _) = stream(&jetstream, &config.name).await;
            (at, StreamStatus { name: config.name, state })
        });
    }
    let mut streams = asked.join_all().await;
    streams.sort_by_key(|(at, _)| *at);
    streams.into_iter().map(|(_, stream)| stream).collect()
}

/// State of a stream, and the number of shards of its cluster.
async fn stream(jetstream: &Context, name: &str) -> (Result<StreamState, StreamProblem>, Option<u16>) {
    let mut problem = String::new();
    for _ in 0..TRIES {
        let error = match jetstream.get_stream(name).await {
            Ok(stream) => {
                let info = stream.cached_info();
                let shards = info.config.metadata.get(SHARDS_KEY);
                return (Ok(StreamState::of(info)), shards.and_then(|shards| shards.parse().ok()));
            }
            Err(error) => error,
        };
        problem = match error.kind() {
            GetStreamErrorKind::JetStream(problem) if problem.error_code().0 == NOT_FOUND => {
                return (Err(StreamProblem::Missing), None);
            }
            GetStreamErrorKind::JetStream(problem) => problem.to_string(),
            GetStreamErrorKind::Request => "no server answers for it".to_owned(),
            kind => kind.to_string(),
        };
    }
    (Err(StreamProblem::NoAnswer(problem)), None)
}

impl StreamState {
    pub(crate) fn of(info: &Info) -> Self {
        let state = &info.state;
        let mut found = Self {
            wanted: info.config.num_replicas,
            messages: state.messages,
            bytes: state.bytes,
            most_bytes: u64::try_from(info.config.max_bytes).ok().filter(|most| *most > 0),
            first: state.first_sequence,
            last: state.last_sequence,
            uncopied: info.sources.iter().map(|source| source.lag).sum(),
            ..Self::default()
        };
        if let Some(cluster) = &info.cluster {
            found.leader = cluster.leader.clone().filter(|leader| !leader.is_empty());
            let replicas = cluster.replicas.iter().map(|peer| Replica {
                server: peer.name.clone(),
                is_current: peer.current,
                is_offline: peer.offline,
                seen: peer.active,
                lag: peer.lag.unwrap_or(0),
            });
            found.replicas = replicas.collect();
            found.replicas.sort_by(|one, other| one.server.cmp(&other.server));
        }
        found
    }
}

/// Nodes whose lease has not ended, by name.
async fn nodes(jetstream: &Context, layout: &Layout) -> Result<Vec<NodeStatus>, String> {
    let now = SystemTime::now();
    let mut nodes = Vec::new();
    let stream = jetstream.get_stream(layout.nodes_stream()).await.map_err(|error| error.to_string())?;
    walk(&stream, |subject, payload, at| {
        let name = subject.rsplit('.').next().unwrap_or_default().to_owned();
        // One that cannot be read is of no node.
        if let Ok(record) = serde_json::from_slice(payload) {
            let renewed = now.duration_since(at).unwrap_or_default();
            nodes.push(NodeStatus { name, record, renewed });
        }
    })
    .await?;
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(nodes)
}

/// Part of the record of a session.
#[derive(Deserialize)]
struct SessionOwner {
    /// Node that has it.
    #[serde(rename = "o", default)]
    owner: Option<String>,
}

/// Counts the sessions of each node, by the records in the stream of sessions. `progress` gets the number of records
/// that have been read, and that of all.
///
/// # Errors
/// The stream cannot be read to its end.
pub async fn sessions_by_node(
    jetstream: &Context,
    layout: &Layout,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<SessionCounts, String> {
    let mut counts = SessionCounts::default();
    let stream = jetstream.get_stream(layout.sessions_stream()).await.map_err(|error| error.to_string())?;
    let (mut done, of) = (0, stream.cached_info().state.messages);
    walk(&stream, |_, payload, _| {
        done += 1;
        progress(done, of);
        match serde_json::from_slice::<SessionOwner>(payload) {
            Ok(SessionOwner { owner: Some(node) }) => *counts.by_node.entry(node).or_default() += 1,
            Ok(SessionOwner { owner: None }) => counts.unowned += 1,
            // A record that was removed.
            Err(_) if payload.is_empty() => {}
            Err(_) => counts.unreadable += 1,
        }
    })
    .await?;
    Ok(counts)
}

/// Reads the messages that a stream has now: subject, payload and time.
async fn walk(stream: &Stream, mut each: impl FnMut(&str, &[u8], SystemTime)) -> Result<(), String> {
    let consumer = stream.create_consumer(OrderedConfig::default()).await;
    let mut consumer = consumer.map_err(|error| error.to_string())?;
    let pending = consumer.info().await.map_err(|error| error.to_string())?.num_pending;
    if pending == 0 {
        return Ok(());
    }
    let mut messages = consumer.messages().await.map_err(|error| error.to_string())?;
    loop {
        let next = timeout(ANSWER * 2, messages.next()).await;
        let message = match next {
            Ok(Some(message)) => message.map_err(|error| error.to_string())?,
            Ok(None) => return Ok(()),
            Err(_) => return Err(format!("nothing came for {} s", (ANSWER * 2).as_secs())),
        };
        let info = message.info().map_err(|error| error.to_string())?;
        each(&message.subject, &message.payload, info.published.into());
        if info.pending == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(server: &str) -> Replica {
        let (is_current, is_offline, seen, lag) = (true, false, Duration::from_millis(300), 0);
        Replica { server: server.to_owned(), is_current, is_offline, seen, lag }
    }

    fn stream() -> StreamStatus {
        let (leader, replicas) = (Some("n1".to_owned()), vec![replica("n2"), replica("n3")]);
        let state = StreamState { leader, replicas, wanted: 3, ..StreamState::default() };
        StreamStatus { name: "x-m-0".to_owned(), state: Ok(state) }
    }

    fn status() -> ClusterStatus {
        let record = NodeRecord::new("1".to_owned(), "1.0");
        let node = NodeStatus { name: "a".to_owned(), record, renewed: Duration::from_secs(1) };
        let (nodes, streams, servers) = (Ok(vec![node]), vec![stream()], vec![ServerStatus::default()]);
        let sessions = Ok(SessionCounts::default());
        ClusterStatus { cluster: Name::of_braidmq(), nodes, streams, sessions, servers }
    }

    #[test]
    fn each_problem_is_one_line() {
        assert_eq!(status().problems(), Vec::<String>::new());
        type Change = fn(&mut ClusterStatus);
        fn state(status: &mut ClusterStatus) -> &mut StreamState {
            status.streams[0].state.as_mut().unwrap()
        }
        let cases: [(Change, &[&str]); 15] = [
            (|status| status.nodes = Ok(Vec::new()), &["no node is running"]),
            (|status| status.nodes = Err("x".to_owned()), &["the nodes cannot be read: x"]),
            (
                |status| status.streams[0].state = Err(StreamProblem::Missing),
                &[
                    "the cluster braidmq has no streams: no node has started yet, or cluster.name is another one",
                ],
            ),
            (
                |status| {
                    status.streams.push(stream());
                    status.streams[0].state = Err(StreamProblem::Missing);
                },
                &["the stream x-m-0: it does not exist, and other streams of the cluster do: it was removed"],
            ),
            (
                |status| state(status).leader = None,
                &["the stream x-m-0 has no leader: a majority of its servers must run"],
            ),
            (|status| drop(state(status).replicas.pop()), &["the stream x-m-0 has 2 live replicas of 3"]),
            (
                |status| state(status).replicas[0].is_offline = true,
                &["the stream x-m-0 has 2 live replicas of 3"],
            ),
            (
                |status| state(status).replicas[1].seen = UNSEEN,
                &["the stream x-m-0 has 2 live replicas of 3"],
            ),
            (
                |status| {
                    let replica = &mut state(status).replicas[1];
                    (replica.is_current, replica.lag) = (false, 1001);
                },
                &["the replica of x-m-0 at n3 is 1001 operations behind"],
            ),
            (
                |status| state(status).uncopied = 1001,
                &["the stream x-m-0 is 1001 messages behind those that it copies"],
            ),
            (|status| (state(status).most_bytes, state(status).bytes) = (Some(1000), 899), &[]),
            (
                |status| (state(status).most_bytes, state(status).bytes) = (Some(1000), 900),
                &[
                    "the stream x-m-0 has 900 of 1000 bytes, beyond which the oldest messages go, also those that sessions have \
                     not got: let sessions expire sooner, or raise max_bytes of the stream and cluster.log_bytes",
                ],
            ),
            (
                |status| status.sessions.as_mut().unwrap().unreadable = 2,
                &["2 records of sessions are of another version or damaged"],
            ),
            (|status| status.sessions = Err("x".to_owned()), &["the sessions cannot be read: x"]),
            (|status| status.servers[0].problem = Some("n1 is old".to_owned()), &["n1 is old"]),
        ];
        for (change, expected) in cases {
            let mut status = status();
            change(&mut status);
            assert_eq!(status.problems(), expected);
        }
    }

    /// Under load a replica is some operations behind, which is no problem.
    #[test]
    fn a_small_lag_is_no_problem() {
        let mut status = status();
        let state = status.streams[0].state.as_mut().unwrap();
        state.uncopied = LAG;
        (state.replicas[0].is_current, state.replicas[0].lag) = (false, LAG);
        assert_eq!(status.problems(), Vec::<String>::new());
    }
}
