//! Node of a cluster, from its checks to its lease.

use std::time::SystemTime;

use crate::connect::Connections;
use crate::error::{ClusterError, Risk};
use crate::layout::Layout;
use crate::nodes::{Lease, NodeRecord};
use crate::options::ClusterOptions;
use crate::preflight::{ServerFacts, unchecked};
use crate::streams::ensure;

/// Node that has joined its cluster.
#[derive(Debug)]
pub struct Node {
    /// Connections to NATS.
    pub connections: Connections,
    /// Streams and subjects.
    pub layout: Layout,
    /// Lease of its name, to be kept.
    pub lease: Lease,
}

impl Node {
    /// Joins the cluster: connects, checks the servers, makes or checks the streams, and takes the name.
    ///
    /// # Errors
    /// Every [`ClusterError`].
    pub async fn join(options: &ClusterOptions, version: &str) -> Result<Self, ClusterError> {
        let connections = Connections::open(options).await?;
        check_servers(options).await?;
        let layout = Layout::new(options.cluster.clone(), options.dimensions);
        ensure(&connections.ordinary, &layout).await?;
        let record = NodeRecord::new(options.instance.clone(), version);
        let lease = Lease::take(&connections.ordinary, &layout, &options.node, record).await?;
        Ok(Self { connections, layout, lease })
    }
}

/// Checks the servers whose monitoring ports are known.
async fn check_servers(options: &ClusterOptions) -> Result<(), ClusterError> {
    if options.monitors.is_empty() && !options.accepted.contains(&Risk::Unchecked) {
        return Err(unchecked());
    }
    for monitor in &options.monitors {
        let facts = ServerFacts::ask(monitor).await?;
        facts.check(options.dimensions.replicas, SystemTime::now(), &options.accepted)?;
        tracing::debug!(server = facts.server, version = facts.version, "checked a NATS server");
    }
    Ok(())
}
