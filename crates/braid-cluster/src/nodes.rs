//! Nodes of a cluster: each renews a lease, and another one of the same name is refused.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{LastRawMessageError, LastRawMessageErrorKind, Stream};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::error::ClusterError;
use crate::layout::{LEASE, Layout};
use crate::name::Name;
use crate::publish::last_message;

/// Time between two renewals. Short: a client whose node has died waits until one has failed to come.
pub(crate) const RENEW: Duration = Duration::from_secs(1);

/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(500);

/// Time before the end of a lease from which on its node does not rely on it.
const MARGIN: Duration = Duration::from_secs(1);

/// Tries to renew after which the servers count as unreachable.
const FAILURES: u32 = 4;

/// Time within which the servers remove a record whose lease has ended.
const GRACE: Duration = Duration::from_secs(5);

/// Record of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Instance, which a node keeps over restarts.
    pub instance: String,
    /// Process of that instance, at random.
    pub run: String,
    /// Version of its software.
    pub version: String,
    /// Seconds since 1970 at which it joined.
    pub since: u64,
    /// Address for clients that are told to go there; empty if it has none.
    #[serde(default)]
    pub address: String,
    /// Position of the log up to which it has delivered, in each shard.
    #[serde(default)]
    pub positions: Vec<u64>,
}

impl NodeRecord {
    /// The record of this process.
    #[must_use]
    pub fn new(instance: String, version: &str) -> Self {
        let mut run = [0; 8];
        // Without random numbers two processes of one instance could not be told apart.
        let run = getrandom::fill(&mut run).map_or_else(|_| String::new(), |()| hex(&run));
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            instance,
            run,
            version: version.to_owned(),
            since,
            address: String::new(),
            positions: Vec::new(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Lease of this node.
#[derive(Debug)]
pub struct Lease {
    jetstream: Context,
    stream: Stream<()>,
    subject: String,
    record: NodeRecord,
    /// Sequence number of the last renewal.
    revision: u64,
    /// Time until which it lasts since it was taken.
    until: Instant,
}

/// Receiver of the state of a lease.
pub trait LeaseWatcher: Sync {
    /// Position of the log up to which this node has delivered, in each shard.
    fn positions(&self) -> Vec<u64>;

    /// The lease was renewed: nodes leave this one's sessions alone until the time.
    fn note_renewed(&self, until: Instant);

    /// The lease could not be renewed for some seconds.
    fn note_unreachable(&self);
}

/// The lease has ended: another process has the name, or this one was stopped for longer than the lease. Other nodes
/// have its sessions by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLost;

/// State of the name of a node.
enum NameOwner {
    /// Its last record has this revision; 0: there is none.
    Free(u64),
    /// The process itself renewed it with this revision.
    Own(u64),
    /// An earlier process of this instance.
    Earlier(u64),
    Other(NodeRecord),
}

impl Lease {
    /// Takes the name of a node, at once from an earlier process of the same instance, and from another one when its
    /// lease has ended.
    ///
    /// # Errors
    /// Another instance is alive, or JetStream does not answer.
    pub async fn take(
        jetstream: &Context,
        layout: &Layout,
        node: &Name,
        record: NodeRecord,
    ) -> Result<Self, ClusterError> {
        let stream = jetstream.get_stream_no_info(layout.nodes_stream()).await;
        let stream = stream.map_err(|error| no_answer(&error))?;
        let (jetstream, subject) = (jetstream.clone(), layout.node(node));
        let mut lease = Self { jetstream, stream, subject, record, revision: 0, until: Instant::now() };
        let give_up = Instant::now() + LEASE + GRACE;
        loop {
            let owner = lease.owner().await;
            let problem = match owner {
                Ok(NameOwner::Own(revision)) => {
                    lease.revision = revision;
                    return Ok(lease);
                }
                Ok(NameOwner::Free(revision) | NameOwner::Earlier(revision)) => {
                    (lease.revision, lease.until) = (revision, Instant::now() + LEASE - MARGIN);
                    match lease.write().await {
                        Ok(()) => return Ok(lease),
                        Err(error) => no_answer(&error),
                    }
                }
                // Its process may be dead: then the servers remove its record soon.
                Ok(NameOwner::Other(other)) => {
                    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(other.since);
                    let age = began.elapsed().unwrap_or_default();
                    ClusterError::NameTaken { node: node.clone(), instance: other.instance, age }
                }
                Err(error) => no_answer(&error),
            };
            if Instant::now() >= give_up {
                return Err(problem);
            }
            sleep(AGAIN).await;
        }
    }

    /// Reads the owner of the name, from the leader of the stream.
    async fn owner(&self) -> Result<NameOwner, LastRawMessageError> {
        let found = match self.stream.get_last_raw_message_by_subject(&self.subject).await {
            Ok(found) => found,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                return Ok(NameOwner::Free(0));
            }
            Err(error) => return Err(error),
        };
        // One that cannot be read is of no node.
        let Ok(record) = serde_json::from_slice::<NodeRecord>(&found.payload) else {
            return Ok(NameOwner::Free(found.sequence));
        };
        Ok(match record {
            NodeRecord { ref run, .. } if *run == self.record.run => NameOwner::Own(found.sequence),
            NodeRecord { ref instance, .. } if *instance == self.record.instance => {
                NameOwner::Earlier(found.sequence)
            }
            other => NameOwner::Other(other),
        })
    }

    /// Writes the record, if the last one is that of `revision`.
    async fn write(&mut self) -> Result<(), PublishError> {
        // Four strings and a number are always JSON.
        let payload = serde_json::to_vec(&self.record).unwrap_or_default();
        let message = PublishMessage::build()
            .payload(payload.into())
            .expected_last_subject_sequence(self.revision)
            .ttl(LEASE);
        self.revision = self.jetstream.send_publish(self.subject.clone(), message).await?.await?.sequence;
        Ok(())
    }

    /// Process that has the lease.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.record.run
    }

    /// Time until which this process relies on the lease as it was taken.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Renews the lease until another process has the name, with the present positions of the node.
    pub async fn keep(&mut self, watcher: &impl LeaseWatcher) -> LeaseLost {
        let mut wait = RENEW;
        let mut failures = 0;
        loop {
            sleep(wait).await;
            self.record.positions = watcher.positions();
            let until = Instant::now() + LEASE - MARGIN;
            let Err(error) = self.write().await else {
                (wait, failures) = (RENEW, 0);
                watcher.note_renewed(until);
                continue;
            };
            if error.kind() != PublishErrorKind::WrongLastSequence {
                tracing::debug!(%error, "the lease of this node was not renewed");
                // An election of a leader takes longer than one try.
                (wait, failures) = (AGAIN, failures + 1);
                if failures >= FAILURES {
                    watcher.note_unreachable();
                }
                continue;
            }
            // A write whose answer was lost is one's own.
            match self.owner().await {
                Ok(NameOwner::Own(revision)) => self.revision = revision,
                // This process was stopped, or cut off from NATS, for longer than the lease.
                Ok(NameOwner::Free(revision)) => {
                    self.revision = revision;
                    if self.write().await.is_ok() {
                        tracing::warn!("the lease of this node had ended, and is renewed");
                        watcher.note_renewed(until);
                    }
                }
                Ok(_) => return LeaseLost,
                Err(error) => tracing::debug!(%error, "the lease of this node cannot be read"),
            }
        }
    }

    /// Gives the name back, so that another process can take it at once.
    pub async fn give_back(self) {
        // One that is not removed ends by itself.
        let _ = self.stream.purge().filter(&self.subject).await;
    }
}

/// Nodes that are alive, with their records, by name.
pub(crate) async fn live_nodes(
    stream: &Stream<()>,
    layout: &Layout,
) -> Result<BTreeMap<String, NodeRecord>, async_nats::Error> {
    let prefix = format!("{}.n.", layout.cluster());
    let subjects = stream.info_with_subjects(format!("{prefix}*")).await?;
    let subjects: Vec<(String, usize)> = subjects.try_collect().await?;
    let mut nodes = BTreeMap::new();
    for (subject, _) in subjects {
        let Some((payload, _)) = last_message(stream, &subject).await? else { continue };
        if let (Some(name), Ok(record)) = (subject.strip_prefix(&prefix), serde_json::from_slice(&payload)) {
            nodes.insert(name.to_owned(), record);
        }
    }
    Ok(nodes)
}

fn no_answer(error: &dyn std::error::Error) -> ClusterError {
    ClusterError::NoJetStream { within: LEASE + GRACE, reason: error.to_string() }
}
