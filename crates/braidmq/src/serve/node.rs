//! Node of a cluster beside the broker of the process.

use std::sync::Arc;

use braid_broker::cluster::Cluster;
use braid_broker::node_handle::NodeHandle;
use braid_cluster::{ClusterNode, RunningNode};
use braid_store::Store;

use super::StartError;
use crate::config::Config;

/// Joins the cluster of the configuration; `None` without one.
pub(super) async fn join(config: &Config) -> Result<Option<ClusterNode>, StartError> {
    let Some(options) = config.cluster_options()? else { return Ok(None) };
    let node = ClusterNode::join(&options, env!("CARGO_PKG_VERSION")).await?;
    let (cluster, node_name) = (options.cluster.as_str(), options.node.as_str());
    tracing::info!(cluster, node = node_name, "joined the cluster");
    Ok(Some(node))
}

/// Configuration for the broker, and what it has of its node.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) storage: Option<(Arc<dyn Store>, Arc<dyn Cluster>)>,
}

impl Shared {
    /// Shares store and cluster of a node, if there is one. The largest packet is lowered to what NATS takes.
    pub(super) fn of(config: &Config, node: Option<&ClusterNode>) -> Self {
        let mut config = config.clone();
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
pub(super) struct Member(Option<RunningNode>);

impl Member {
    pub(super) fn start(node: Option<ClusterNode>, handle: &NodeHandle) -> Self {
        Self(node.map(|node| node.start(handle)))
    }

    /// Waits until another process has the name of this node.
    pub(super) async fn lost(&mut self) {
        match &mut self.0 {
            Some(node) => {
                node.lost().await;
                tracing::error!(
                    "another process has the name of this node: the broker stops. Give each node a name of its own in cluster.node"
                );
                self.0 = None;
            }
            None => std::future::pending().await,
        }
    }

    /// Finds other nodes for the clients of this one, which is about to stop.
    pub(super) async fn find_successors(&self) {
        if let Some(node) = &self.0 {
            node.find_successors().await;
        }
    }

    /// Leaves the cluster, when all clients are disconnected.
    pub(super) async fn leave(self) {
        if let Some(node) = self.0 {
            node.leave().await;
        }
    }
}
