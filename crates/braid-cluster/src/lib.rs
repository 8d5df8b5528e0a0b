//! Cluster of brokers on NATS JetStream.
//!
//! NATS is the log of messages, the compare-and-swap for records of sessions, and the way between nodes; MQTT stays in
//! the broker ([decision 21](../../../docs/decisions/0021-cluster-on-a-replicated-log.md)). This crate never handles an
//! MQTT packet, and without `[cluster]` in the configuration nothing of it runs.
//!
//! - [`Node::join`]: the checks before the start, the streams, and the lease of a name
//! - [`subject`]: topics and Client Identifiers as subjects
//! - [`hash`]: hash of texts that is the same on each node
//! - [`Layout`]: names and settings of the streams
//! - [`ServerFacts`]: settings of a server that would lose what was acknowledged
//! - [`import::import`]: sessions, queues and retained messages of a single broker
//! - [`ClusterStatus`]: nodes, leaders, replicas and sessions, for people and scripts

mod advance;
mod appending;
mod batch;
mod calls;
mod clock;
mod cluster;
mod commit;
mod connect;
mod error;
mod exchanges;
mod gather;
mod groups;
pub mod hash;
pub mod import;
mod interest;
mod layout;
mod lazy;
mod live;
mod log_reader;
mod log_source;
mod log_tail;
mod log_writer;
mod logged;
mod maintenance;
mod marks;
mod message;
mod name;
mod node;
mod nodes;
mod options;
mod ordered;
mod ownership;
mod position;
mod preflight;
mod progress;
mod publish;
mod reads;
mod record;
mod record_writer;
mod removals;
mod retained;
mod server_url;
mod sessions;
mod shared;
pub mod status;
mod store;
mod streams;
pub mod subject;
mod take;

pub use connect::{Connections, OVERHEAD};
pub use error::{ClusterError, Risk, UnknownRisk};
pub use layout::{Dimensions, FORMAT, LEASE, Layout, OWN_NUMBERS, Shard};
pub use message::{HEADER, LoggedMessage, Unreadable};
pub use name::{Name, NameError};
pub use node::{ClusterNode, Node, RunningNode};
pub use nodes::{Lease, LeaseLost, LeaseWatcher, NodeRecord};
pub use options::{ClusterOptions, Login, Upkeep};
pub use preflight::{OLDEST, ServerFacts, Version};
pub use progress::{Checkpoint, Progress};
pub use server_url::{ServerUrl, ServerUrlError};
pub use streams::ensure;
