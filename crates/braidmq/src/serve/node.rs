//! Node of a cluster beside the broker of the process.

use std::fs::File;
use std::sync::Arc;

use braid_broker::cluster::Cluster;
use braid_broker::node_handle::NodeHandle;
use braid_cluster::{ClusterNode, RunningNode};
use braid_store::Store;

use super::StartError;
use crate::cluster::lock_instance;
use crate::config::Config;

/// Node that has joined its cluster.
pub(super) struct Joined {
    node: ClusterNode,
    /// Lock of the data directory.
    lock: File,
}

/// Joins the cluster of the configuration; `None` without one.
pub(super) async fn join(config: &Config) -> Result<Option<Joined>, StartError> {
    let Some(options) = config.cluster_options()? else { return Ok(None) };
    let lock = lock_instance(&config.data_dir)?;
    let node = ClusterNode::join(&options, env!("CARGO_PKG_VERSION")).await?;
    let (cluster, node_name) = (options.cluster.as_str(), options.node.as_str());
    tracing::info!(cluster, node = node_name, "joined the cluster");
    Ok(Some(Joined { node, lock }))
}

/// Configuration for the broker, and what it has of its node.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) storage: Option<(Arc<dyn Store>, Arc<dyn Cluster>)>,
}

impl Shared {
    /// Shares store and cluster of a node, if there is one. The largest packet is lowered to what NATS takes.
    pub(super) fn of(config: &Config, joined: Option<&Joined>) -> Self {
        let mut config = config.clone();
        let node = joined.map(|joined| &joined.node);
        if let Some(node) = node {
            lower_limits(&mut config, node);
        }
        Self { config, storage: node.map(|node| (node.store(), node.cluster())) }
    }
}

fn lower_limits(config: &mut Config, node: &ClusterNode) {
    let most = u32::try_from(node.largest_packet()).unwrap_or(u32::MAX);
    if config.mqtt.maximum_packet_size > most {
        tracing::info!(
            bytes = most,
            "mqtt.maximum_packet_size is lowered to what NATS takes: raise max_payload in the configuration of its \
             servers for more"
        );
        config.mqtt.maximum_packet_size = most;
    }
}

/// Membership in the cluster, if the broker is a node of one.
#[derive(Default)]
pub(super) struct Member {
    running: Option<RunningNode>,
    _lock: Option<File>,
    /// Another process has the name of the node.
    pub(super) is_lost: bool,
}

impl Member {
    pub(super) fn start(joined: Option<Joined>, handle: &NodeHandle) -> Self {
        let Some(Joined { node, lock }) = joined else { return Self::default() };
        Self { running: Some(node.start(handle)), _lock: Some(lock), is_lost: false }
    }

    /// Waits until another process has the name of this node.
    pub(super) async fn lost(&mut self) {
        match self.running.as_mut().filter(|_| !self.is_lost) {
            Some(node) => node.lost().await,
            None => std::future::pending().await,
        }
        self.is_lost = true;
    }

    /// Finds other nodes for the clients of this one, which is about to stop.
    pub(super) async fn find_successors(&self) {
        if let Some(node) = &self.running {
            node.find_successors().await;
        }
    }

    /// Leaves the cluster, when all clients are disconnected.
    pub(super) async fn leave(self) {
        if let Some(node) = self.running {
            node.leave().await;
        }
    }
}
