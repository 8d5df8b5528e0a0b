//! Node of a cluster, from its checks to its end.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Stream;
use braid_broker::cluster::Cluster;
use braid_broker::node_handle::NodeHandle;
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_store::Store;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::advance::Advancer;
use crate::calls;
use crate::clock::Readings;
use crate::cluster::NatsCluster;
use crate::connect::Connections;
use crate::error::{ClusterError, Risk};
use crate::interest::Interest;
use crate::layout::{Layout, Shard};
use crate::live::{LiveOutlet, LiveQueues, LiveReader};
use crate::log_reader::LogReader;
use crate::log_source::LogSource;
use crate::log_writer::{Command, LogWriter, Owner};
use crate::maintenance::Maintenance;
use crate::marks::answer_marks;
use crate::nodes::{Lease, NodeRecord, live_nodes};
use crate::options::{ClusterOptions, Upkeep};
use crate::ownership::KeptLease;
use crate::position::ReadPosition;
use crate::preflight::{ServerFacts, unchecked};
use crate::reads::MessageReader;
use crate::record_writer::RecordWriter;
use crate::retained;
use crate::shared::SharedGroups;
use crate::store::{ClusterStore, NodeState, Outlets, ReadRequest, SessionEvent, SharedOutcome};
use crate::streams::ensure;
use crate::take::Taker;

/// Time between two tries to give a session back, and the longest, where tries fail.
const AGAIN: Duration = Duration::from_secs(2);
const RARELY: Duration = Duration::from_secs(60);

/// Time to find other nodes before this one stops.
const SUCCESSORS: Duration = Duration::from_secs(1);

/// Node that has joined its cluster, without its broker.
#[derive(Debug)]
pub struct Node {
    /// Connections to NATS.
    pub connections: Connections,
    /// Streams and subjects.
    pub layout: Layout,
    /// Lease of its name, to be kept.
    pub lease: Lease,
    /// Clocks of the servers when they were checked.
    pub(crate) readings: Readings,
}

impl Node {
    /// Joins the cluster: connects, checks the servers, makes or checks the streams, and takes the name.
    ///
    /// # Errors
    /// Every [`ClusterError`].
    pub async fn join(options: &ClusterOptions, version: &str) -> Result<Self, ClusterError> {
        let (connections, layout, readings) = prepare(options).await?;
        let mut record = NodeRecord::new(options.instance.clone(), version);
        record.address.clone_from(&options.address);
        let lease = Lease::take(&connections.ordinary, &layout, &options.node, record).await?;
        Ok(Self { connections, layout, lease, readings })
    }
}

/// Connects, checks the servers, and makes or checks the streams.
pub(crate) async fn prepare(
    options: &ClusterOptions,
) -> Result<(Connections, Layout, Readings), ClusterError> {
    let connections = Connections::open(options).await?;
    let layout = Layout::new(options.cluster.clone(), options.dimensions);
    let readings = check_servers(options, &layout).await?;
    ensure(&connections.ordinary, &layout).await?;
    Ok((connections, layout, readings))
}

/// Checks the servers whose monitoring ports are known.
async fn check_servers(options: &ClusterOptions, layout: &Layout) -> Result<Readings, ClusterError> {
    if options.monitors.is_empty() && !options.accepted.contains(&Risk::Unchecked) {
        return Err(unchecked());
    }
    let (mut silent, mut first_error, mut readings) = (0, None, Readings::default());
    for monitor in &options.monitors {
        let began = std::time::Instant::now();
        let facts = match ServerFacts::ask(monitor, &options.ca_files).await {
            Ok(facts) => facts,
            // One server may be down when a node starts.
            Err(ClusterError::Monitor(error)) => {
                tracing::warn!(monitor, %error, "a NATS server does not answer, and is not checked");
                silent += 1;
                first_error.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        facts.check(options.dimensions.replicas, SystemTime::now(), &options.accepted)?;
        facts.check_room(layout)?;
        readings.note(&facts, began);
        tracing::debug!(server = facts.server, version = facts.version, "checked a NATS server");
    }
    match first_error {
        // Without a majority there is no JetStream either.
        Some(error) if silent * 2 >= options.monitors.len() => Err(error.into()),
        _ => Ok(readings),
    }
}

/// Receivers of what the store and the cluster of a node send.
struct Inlets {
    due: UnboundedReceiver<braid_store::SessionId>,
    events: UnboundedReceiver<SessionEvent>,
    shared: UnboundedReceiver<SharedOutcome>,
    reads: UnboundedReceiver<ReadRequest>,
    writers: Vec<UnboundedReceiver<Command>>,
    interest: UnboundedReceiver<Interest>,
    live: LiveQueues,
}

/// Node with the store and the cluster for its broker.
pub struct ClusterNode {
    connections: Connections,
    layout: Layout,
    lease: KeptLease,
    state: Arc<NodeState>,
    cluster: Arc<NatsCluster>,
    streams: NodeStreams,
    inlets: Inlets,
    upkeep: Upkeep,
    monitors: Vec<String>,
    ca_files: Vec<PathBuf>,
}

/// Streams of a cluster.
#[derive(Clone)]
pub(crate) struct NodeStreams {
    pub(crate) nodes: Stream<()>,
    pub(crate) sessions: Stream<()>,
    pub(crate) retained: Stream<()>,
    /// Streams of the shards, by index.
    pub(crate) messages: Vec<Stream<()>>,
}

impl std::fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterNode").field("node", &self.state.node).finish_non_exhaustive()
    }
}

impl ClusterNode {
    /// Joins the cluster and reads the retained messages.
    ///
    /// # Errors
    /// Every [`ClusterError`].
    pub async fn join(options: &ClusterOptions, version: &str) -> Result<Self, ClusterError> {
        let Node { connections, layout, lease, readings } = Node::join(options, version).await?;
        let run = Arc::from(lease.run());
        // Retained messages may take longer to read than the lease lasts.
        let lease = KeptLease::keep(lease);
        let max_payload = connections.ordinary.client().max_payload();
        let streams = NodeStreams::open(&connections, &layout).await?;
        let client = connections.ordinary.client();
        let log =
            LogSource { client: client.clone(), layout: layout.clone(), streams: streams.messages.clone() };
        let snapshot = retained::load(&log, &streams.retained).await?;
        let ((due, from_due), (events, from_events)) = (unbounded_channel(), unbounded_channel());
        let ((shared, from_shared), (reads, from_reads)) = (unbounded_channel(), unbounded_channel());
        let (writers, from_writers) = (0..layout.parts()).map(|_| unbounded_channel()).unzip();
        let (interest, from_interest) = unbounded_channel();
        let (live, from_live) = LiveOutlet::new();
        let outlets = Outlets { due, events, shared, reads, interest, writers };
        let positions = snapshot.positions.iter().map(|at| ReadPosition::new(*at)).collect();
        let name = options.node.to_string();
        let state = NodeState::new(layout.clone(), name, run, outlets, positions, snapshot.into_messages());
        let (monitors, ca_files) = (options.monitors.clone(), options.ca_files.clone());
        state.clock.set_to_median(&readings, monitors.len());
        let state = Arc::new(state);
        let messages = streams.messages.clone();
        let taker = Taker {
            state: state.clone(),
            client,
            sessions: streams.sessions.clone(),
            nodes: streams.nodes.clone(),
            streams: messages,
        };
        let reader = MessageReader { state: state.clone(), log };
        let cluster = Arc::new(NatsCluster { state: state.clone(), taker, reader, live, max_payload });
        let inlets = Inlets {
            due: from_due,
            events: from_events,
            shared: from_shared,
            reads: from_reads,
            writers: from_writers,
            interest: from_interest,
            live: from_live,
        };
        let upkeep = options.upkeep;
        Ok(Self { connections, layout, lease, state, cluster, streams, inlets, upkeep, monitors, ca_files })
    }

    /// Largest packet of MQTT that fits into a message of NATS, in bytes.
    #[must_use]
    pub const fn largest_packet(&self) -> usize {
        self.connections.largest_packet
    }

    /// Store for the broker of this node.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(ClusterStore(self.state.clone()))
    }

    /// Other nodes, for the broker of this node.
    #[must_use]
    pub fn cluster(&self) -> Arc<dyn Cluster> {
        self.cluster.clone()
    }

    /// Begins to serve the broker of this node.
    #[must_use]
    pub fn start(self, handle: &NodeHandle) -> RunningNode {
        let Self { connections, layout, lease, state, cluster, streams, inlets, upkeep, monitors, ca_files } =
            self;
        let mut tasks = JoinSet::new();
        for (index, commands) in inlets.writers.into_iter().enumerate() {
            let shard = layout.shard_at(index);
            let (node, run) = (state.node.clone(), state.run.clone());
            let writer = LogWriter::new(
                connections.of(shard).clone(),
                streams.messages[index].clone(),
                layout.clone(),
                shard,
                Owner { node, run, sessions: streams.sessions.clone() },
                state.clone(),
            );
            tasks.spawn(writer.run(commands));
            let stream = streams.messages[index].clone();
            let client = connections.of(shard).client();
            let reader = LogReader { state: state.clone(), client, stream, index, handle: handle.clone() };
            tasks.spawn(reader.run());
        }
        let client = connections.ordinary.client();
        let records = RecordWriter {
            state: state.clone(),
            client: client.clone(),
            stream: streams.sessions.clone(),
            record_after: upkeep.record_after,
        };
        tasks.spawn(records.run(inlets.due));
        tasks.spawn(cluster.reader.clone().run(inlets.reads));
        let taker = &cluster.taker;
        tasks.spawn(handle_events(state.clone(), handle.clone(), taker.clone(), inlets.events));
        let urgent = connections.urgent.client();
        tasks.spawn(inlets.live.run(state.clone(), client.clone(), urgent.clone()));
        let mut interests = Vec::new();
        for (is_urgent, client) in [(false, client.clone()), (true, urgent)] {
            let (changes, from_changes) = unbounded_channel();
            interests.push(changes);
            if let Ok(name) = state.node.parse() {
                tasks.spawn(answer_marks(client.clone(), layout.marks(&name, is_urgent)));
            }
            let reader = LiveReader { client, state: state.clone(), is_urgent, handle: handle.clone() };
            tasks.spawn(reader.run(from_changes));
        }
        let (changes, from_changes) = unbounded_channel();
        interests.push(changes);
        let groups = connections.groups.client();
        let groups = SharedGroups::new(state.clone(), groups, streams.messages.clone(), handle.clone());
        tasks.spawn(groups.run(from_changes, inlets.shared));
        tasks.spawn(distribute(inlets.interest, interests));
        let (of_calls, of_handle) = (state.clone(), handle.clone());
        let advancer = Advancer {
            state: state.clone(),
            client: client.clone(),
            sessions: streams.sessions.clone(),
            streams: streams.messages.clone(),
        };
        tasks.spawn(async move {
            if let Err(error) = calls::answer(of_calls, client, of_handle).await {
                tracing::error!(%error, "calls of other nodes are not answered");
            }
        });
        let nodes = streams.nodes;
        let maintenance = Maintenance {
            state: state.clone(),
            nodes: nodes.clone(),
            sessions: streams.sessions,
            retained: streams.retained,
            streams: streams.messages,
            handle: handle.clone(),
            taker: taker.clone(),
            advancer,
            upkeep,
        };
        tasks.spawn(maintenance.run());
        let with_clock = state.clone();
        tasks.spawn(async move { with_clock.clock.keep_synchronized(&monitors, &ca_files).await });
        lease.renewals.begin(state.clone(), handle.clone());
        tasks.spawn(lease.renewals.clone().watch_connection(connections.ordinary.client()));
        RunningNode { state, handle: handle.clone(), nodes, lease, tasks }
    }
}

impl NodeStreams {
    pub(crate) async fn open(connections: &Connections, layout: &Layout) -> Result<Self, ClusterError> {
        let mut messages = Vec::new();
        for index in 0..layout.parts() {
            let shard = layout.shard_at(index);
            messages.push(stream(connections.of(shard), layout.messages_stream(shard)).await?);
        }
        let nodes = stream(&connections.ordinary, layout.nodes_stream()).await?;
        let sessions = stream(&connections.ordinary, layout.sessions_stream()).await?;
        let retained = stream(&connections.ordinary, layout.retained_stream()).await?;
        Ok(Self { nodes, sessions, retained, messages })
    }
}

async fn stream(jetstream: &Context, name: String) -> Result<Stream<()>, ClusterError> {
    let stream = jetstream.get_stream_no_info(&name).await;
    stream.map_err(|error| ClusterError::Stream { stream: name, reason: error.to_string() })
}

impl Connections {
    /// Connection for the messages of a shard.
    const fn of(&self, shard: Shard) -> &Context {
        match shard {
            Shard::Ordinary(_) => &self.ordinary,
            Shard::Urgent => &self.urgent,
        }
    }
}

/// Passes interest on to all that have subscriptions at NATS.
async fn distribute(mut changes: UnboundedReceiver<Interest>, to: Vec<UnboundedSender<Interest>>) {
    while let Some(change) = changes.recv().await {
        to.iter().for_each(|one| drop(one.send(change.clone())));
    }
}

/// Tells the broker of sessions that it has to forget.
async fn handle_events(
    state: Arc<NodeState>,
    handle: NodeHandle,
    taker: Taker,
    mut events: UnboundedReceiver<SessionEvent>,
) {
    let returning = Arc::new(Mutex::new(HashSet::new()));
    let give_back = |client_id| {
        let one = GiveBack { taker: taker.clone(), handle: handle.clone(), returning: returning.clone() };
        tokio::spawn(one.run(client_id));
    };
    while let Some(event) = events.recv().await {
        let (state, handle) = (state.clone(), handle.clone());
        match event {
            SessionEvent::Parked(id) => {
                tokio::spawn(async move {
                    if handle.forget_session(id).await {
                        state.drop_session(id);
                    }
                });
            }
            SessionEvent::Lost(id) => {
                handle.lose_session(id, ReasonCode::SessionTakenOver);
                state.drop_session(id);
            }
            SessionEvent::Unavailable(id) => {
                handle.lose_session(id, ReasonCode::ServerBusy);
                state.drop_session(id).into_iter().for_each(give_back);
            }
            SessionEvent::Unclaimed(client_id) => give_back(client_id),
            SessionEvent::Verified(told) => drop(told.send(())),
        }
    }
}

/// Return of sessions whose record may name this process, which nothing would change until the client comes back.
struct GiveBack {
    taker: Taker,
    handle: NodeHandle,
    /// Clients whose sessions are being given back.
    returning: Arc<Mutex<HashSet<ClientId>>>,
}

impl GiveBack {
    async fn run(self, client_id: ClientId) {
        let returning = || self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        if !returning().insert(client_id.clone()) {
            return;
        }
        let (mut pause, mut is_elsewhere) = (AGAIN, false);
        loop {
            match self.taker.find_own(&client_id).await {
                Ok(Some(found)) => {
                    if self.handle.adopt_session(&client_id, found).await == Ok(true) {
                        break;
                    }
                    // Such as a record that cannot be read: each try costs writes.
                    pause = (pause * 2).min(RARELY);
                }
                // Twice: a write of this process may be on its way.
                Ok(None) if is_elsewhere => break,
                Ok(None) => is_elsewhere = true,
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
        }
        returning().remove(&client_id);
    }
}

/// Node whose broker runs.
pub struct RunningNode {
    state: Arc<NodeState>,
    handle: NodeHandle,
    nodes: Stream<()>,
    lease: KeptLease,
    tasks: JoinSet<()>,
}

impl std::fmt::Debug for RunningNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningNode").field("node", &self.state.node).finish_non_exhaustive()
    }
}

impl RunningNode {
    /// Waits until another process has the name of the node.
    pub async fn lost(&mut self) {
        self.lease.lost().await;
    }

    /// Tells the broker the addresses of the other nodes, to which its clients are sent when it stops.
    pub async fn find_successors(&self) {
        let live = timeout(SUCCESSORS, live_nodes(&self.nodes, &self.state.layout)).await;
        let Ok(Ok(live)) = live else { return };
        let others = live.into_iter().filter(|(name, _)| *name != self.state.node);
        let addresses = others.map(|(_, record)| record.address).filter(|address| !address.is_empty());
        self.handle.set_successors(addresses.collect());
    }

    /// Leaves the cluster: writes what is due, and gives the name back.
    pub async fn leave(mut self) {
        self.state.settle().await;
        self.lease.give_back().await;
        self.tasks.shutdown().await;
    }
}
