//! Streams and subjects of a cluster, by its name
//! ([decision 21](../../../docs/decisions/0021-cluster-on-a-replicated-log.md)).

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::stream::{
    Config, DiscardPolicy, RetentionPolicy, Source, StorageType, SubjectTransform,
};
use braid_proto::packet::ClientId;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_store::Lsn;

use crate::hash::{BASIS, fnv_1a};
use crate::name::Name;
use crate::subject::{push_filter, push_text, push_topic};

/// Version of the content of all streams.
pub const FORMAT: u32 = 1;

/// Metadata of a stream: the version of its content.
pub(crate) const FORMAT_KEY: &str = "braidmq.format";

/// Metadata of a stream: the number of shards of the cluster.
pub(crate) const SHARDS_KEY: &str = "braidmq.shards";

/// First number of deliveries that are no part of the log: copies, and messages of shared subscriptions.
pub const OWN_NUMBERS: Lsn = Lsn::new(1 << 63);

/// First number of the deliveries of an imported session. Nodes count from [`OWN_NUMBERS`] on and do not come here.
pub(crate) const IMPORTED_NUMBERS: u64 = 3 << 62;

/// Time for which a node without a sign of life counts as alive.
pub const LEASE: Duration = Duration::from_secs(10);

/// Time for which a server knows the identifier of a message, and refuses to append it again.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Part of the messages: one of the shards, by their topic, or that of urgent topics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shard {
    /// Messages of the topics with this hash.
    Ordinary(u16),
    /// Messages of urgent topics.
    Urgent,
}

/// Numbers that the streams of a cluster are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Shards of messages that are not urgent. Fixed once the streams are made.
    pub shards: u16,
    /// Copies of each stream.
    pub replicas: usize,
    /// Largest size of each stream of messages, bytes; beyond it the oldest ones go.
    pub log_bytes: u64,
}

/// Names of the streams and subjects of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    cluster: Name,
    dimensions: Dimensions,
}

impl Layout {
    /// The layout of a cluster.
    #[must_use]
    pub const fn new(cluster: Name, dimensions: Dimensions) -> Self {
        Self { cluster, dimensions }
    }

    /// Name of the cluster.
    #[must_use]
    pub const fn cluster(&self) -> &Name {
        &self.cluster
    }

    /// Numbers that its streams are made with.
    #[must_use]
    pub const fn dimensions(&self) -> Dimensions {
        self.dimensions
    }

    /// Shards of messages, the urgent one last.
    pub fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.dimensions.shards).map(Shard::Ordinary).chain([Shard::Urgent])
    }

    /// Shard of the messages of a topic, by FNV-1a of its name: the same on each node, and in each version. So all
    /// messages of a topic are in one order, which all nodes see.
    #[must_use]
    pub fn shard_of(&self, topic: &TopicName, is_urgent: bool) -> Shard {
        if is_urgent {
            return Shard::Urgent;
        }
        let hash = fnv_1a(BASIS, topic.as_str().bytes());
        // The low bits of FNV depend on the low bits of the text only.
        let shard = (hash >> 32) % u64::from(self.dimensions.shards.max(1));
        Shard::Ordinary(u16::try_from(shard).unwrap_or(0))
    }

    /// Number of shards, the urgent one included.
    #[must_use]
    pub fn parts(&self) -> usize {
        usize::from(self.dimensions.shards) + 1
    }

    /// Index of a shard among all, from 0 on.
    #[must_use]
    pub fn index_of(&self, shard: Shard) -> usize {
        match shard {
            Shard::Ordinary(number) => usize::from(number),
            Shard::Urgent => usize::from(self.dimensions.shards),
        }
    }

    /// Shard with an index.
    #[must_use]
    pub fn shard_at(&self, index: usize) -> Shard {
        u16::try_from(index)
            .ok()
            .filter(|number| *number < self.dimensions.shards)
            .map_or(Shard::Urgent, Shard::Ordinary)
    }

    /// Number of a message of the store: ascends within a shard.
    #[must_use]
    pub fn lsn(&self, index: usize, sequence: u64) -> Lsn {
        Lsn::new(sequence.saturating_mul(self.parts() as u64).saturating_add(index as u64))
    }

    /// Index of the shard, and sequence number in its stream, of a message of the log; `None` for a number that is of
    /// this node only.
    #[must_use]
    pub fn position(&self, lsn: Lsn) -> Option<(usize, u64)> {
        let parts = self.parts() as u64;
        let index = usize::try_from(lsn.value() % parts).ok()?;
        (lsn < OWN_NUMBERS).then_some((index, lsn.value() / parts))
    }

    // -- Streams -----------------------------------------------------------------------------------

    /// Stream of the messages of a shard.
    #[must_use]
    pub fn messages_stream(&self, shard: Shard) -> String {
        format!("{}-m-{}", self.cluster, shard_token(shard))
    }

    /// Stream of the retained messages.
    #[must_use]
    pub fn retained_stream(&self) -> String {
        format!("{}-r", self.cluster)
    }

    /// Stream of the records of sessions.
    #[must_use]
    pub fn sessions_stream(&self) -> String {
        format!("{}-s", self.cluster)
    }

    /// Stream of the leases of nodes.
    #[must_use]
    pub fn nodes_stream(&self) -> String {
        format!("{}-n", self.cluster)
    }

    /// Settings of all streams. The retained messages come last: they are copied from the others.
    #[must_use]
    pub fn streams(&self) -> Vec<Config> {
        let cluster = &self.cluster;
        let mut streams: Vec<_> = self.shards().map(|shard| self.messages_config(shard)).collect();
        streams.push(Config {
            subjects: vec![format!("{cluster}.s.*")],
            max_messages_per_subject: 1,
            ..self.config(self.sessions_stream())
        });
        streams.push(Config {
            subjects: vec![format!("{cluster}.n.*")],
            max_messages_per_subject: 1,
            ..self.config(self.nodes_stream())
        });
        streams.push(Config {
            sources: Some(self.shards().map(|shard| self.retained_source(shard)).collect()),
            max_messages_per_subject: 1,
            ..self.config(self.retained_stream())
        });
        streams
    }

    fn messages_config(&self, shard: Shard) -> Config {
        let (cluster, token) = (&self.cluster, shard_token(shard));
        Config {
            subjects: vec![format!("{cluster}.m.{token}.>"), format!("{cluster}.q.{token}.*")],
            max_bytes: i64::try_from(self.dimensions.log_bytes).unwrap_or(i64::MAX),
            discard: DiscardPolicy::Old,
            allow_atomic_publish: true,
            ..self.config(self.messages_stream(shard))
        }
    }

    fn retained_source(&self, shard: Shard) -> Source {
        let (cluster, token) = (&self.cluster, shard_token(shard));
        let transform = SubjectTransform {
            source: format!("{cluster}.m.{token}.r.>"),
            destination: format!("{cluster}.r.>"),
        };
        Source { name: self.messages_stream(shard), subject_transforms: vec![transform], ..Source::default() }
    }

    /// Settings that all streams have.
    fn config(&self, name: String) -> Config {
        let metadata = [
            (FORMAT_KEY.to_owned(), FORMAT.to_string()),
            (SHARDS_KEY.to_owned(), self.dimensions.shards.to_string()),
        ];
        Config {
            name,
            description: Some(format!("BraidMQ, cluster {}", self.cluster)),
            max_bytes: -1,
            max_messages: -1,
            max_messages_per_subject: -1,
            max_consumers: -1,
            max_message_size: -1,
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            num_replicas: self.dimensions.replicas,
            duplicate_window: DUPLICATES,
            allow_direct: true,
            allow_message_ttl: true,
            metadata: HashMap::from(metadata),
            ..Config::default()
        }
    }

    // -- Subjects ----------------------------------------------------------------------------------

    /// Subject of a message in a shard.
    #[must_use]
    pub fn message(&self, shard: Shard, retain: bool, topic: &TopicName) -> String {
        let mut subject = format!("{}.m.{}.{}", self.cluster, shard_token(shard), retain_token(retain));
        push_topic(&mut subject, topic);
        subject
    }

    /// Subjects of the messages in a shard that a filter matches.
    #[must_use]
    pub fn messages(&self, shard: Shard, filter: &TopicFilter) -> String {
        let mut subject = format!("{}.m.{}.*", self.cluster, shard_token(shard));
        push_filter(&mut subject, filter);
        subject
    }

    /// Tokens of the topic, and whether it is with RETAIN, of a subject in the stream of a shard; `None`: it is of no
    /// message.
    #[must_use]
    pub fn parse_message<'a>(&self, subject: &'a str) -> Option<(bool, &'a str)> {
        let rest = subject.strip_prefix(self.cluster.as_str())?.strip_prefix(".m.")?;
        let (_shard, rest) = rest.split_once('.')?;
        let (retain, tokens) = rest.split_once('.')?;
        match retain {
            "r" => Some((true, tokens)),
            "n" => Some((false, tokens)),
            _ => None,
        }
    }

    /// Subject of the open exchanges of QoS 2 of a client in a shard.
    #[must_use]
    pub fn exchanges(&self, shard: Shard, client: &ClientId) -> String {
        let mut subject = format!("{}.q.{}", self.cluster, shard_token(shard));
        push_text(&mut subject, client.as_str());
        subject
    }

    /// Subject of the copy of the retained message of a topic.
    #[must_use]
    pub fn retained(&self, topic: &TopicName) -> String {
        let mut subject = format!("{}.r", self.cluster);
        push_topic(&mut subject, topic);
        subject
    }

    /// Subject of the record of a session.
    #[must_use]
    pub fn session(&self, client: &ClientId) -> String {
        let mut subject = format!("{}.s", self.cluster);
        push_text(&mut subject, client.as_str());
        subject
    }

    /// Subject of the lease of a node.
    #[must_use]
    pub fn node(&self, node: &Name) -> String {
        format!("{}.n.{node}", self.cluster)
    }

    /// Subject of calls to a node.
    #[must_use]
    pub fn calls(&self, node: &Name) -> String {
        format!("{}.c.{node}", self.cluster)
    }

    /// Subject in a shard of a message with RETAIN, by the tokens of its topic.
    #[must_use]
    pub fn retained_subject(&self, index: usize, tokens: &str) -> String {
        format!("{}.m.{}.{}.{tokens}", self.cluster, shard_token(self.shard_at(index)), retain_token(true))
    }

    /// Subject of the marks to a node, for each kind of its messages of QoS 0.
    #[must_use]
    pub fn marks(&self, node: &Name, is_urgent: bool) -> String {
        format!("{}.c.{node}.{}", self.cluster, live_token(is_urgent))
    }

    /// Subject of the answers to one request.
    #[must_use]
    pub fn answers(&self, request: u64) -> String {
        format!("{}.a.{request:016x}", self.cluster)
    }

    /// Subject of all messages of a shard.
    #[must_use]
    pub fn all_messages(&self, shard: Shard) -> String {
        format!("{}.m.{}.>", self.cluster, shard_token(shard))
    }

    /// Subject of a message of QoS 0.
    #[must_use]
    pub fn live(&self, is_urgent: bool, topic: &TopicName) -> String {
        let mut subject = format!("{}.l.{}", self.cluster, live_token(is_urgent));
        push_topic(&mut subject, topic);
        subject
    }

    /// Tokens of the topic of a message of QoS 0; `None`: it is none.
    #[must_use]
    pub fn live_topic<'a>(&self, subject: &'a str) -> Option<&'a str> {
        let rest = subject.strip_prefix(self.cluster.as_str())?.strip_prefix(".l.")?;
        rest.split_once('.').map(|(_, tokens)| tokens)
    }

    /// Subject of all messages of QoS 0.
    #[must_use]
    pub fn all_live(&self, is_urgent: bool) -> String {
        format!("{}.l.{}.>", self.cluster, live_token(is_urgent))
    }

    /// Subjects of the messages of QoS 0 that a filter matches.
    #[must_use]
    pub fn live_filter(&self, is_urgent: bool, filter: &TopicFilter) -> String {
        let mut subject = format!("{}.l.{}", self.cluster, live_token(is_urgent));
        push_filter(&mut subject, filter);
        subject
    }
}

fn shard_token(shard: Shard) -> String {
    match shard {
        Shard::Ordinary(number) => number.to_string(),
        Shard::Urgent => "u".to_owned(),
    }
}

const fn live_token(is_urgent: bool) -> &'static str {
    if is_urgent { "u" } else { "n" }
}

const fn retain_token(retain: bool) -> &'static str {
    if retain { "r" } else { "n" }
}
