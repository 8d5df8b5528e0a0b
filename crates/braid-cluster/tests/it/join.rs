//! Checks before a node joins its cluster, and its lease.

use std::time::Duration;

use braid_cluster::{
    ClusterError, ClusterNode, ClusterOptions, Layout, Lease, LeaseWatcher, Login, Node, NodeRecord, Risk,
};
use tokio::time::{Instant, timeout};

use super::servers::{Servers, Settings};

async fn refused(options: &ClusterOptions) -> String {
    let error = Node::join(options, "1.0").await.map(|_| "joined").unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[tokio::test]
async fn a_node_joins_and_what_does_not_fit_is_refused() {
    let servers = Servers::three().await;
    let options = servers.options("a", "1");
    let node = Node::join(&options, "1.0").await.unwrap();

    let mut other = servers.options("b", "2");
    other.dimensions.shards = 3;
    let error = refused(&other).await;
    assert!(error.starts_with("the stream test-m-0 has cluster.shards 2, and this node wants 3"), "{error}");
    let mut other = servers.options("b", "2");
    other.dimensions.log_bytes = 5 << 20;
    let error = refused(&other).await;
    assert!(error.contains("max_bytes 104857600, and this node wants 5242880"), "{error}");
    let mut other = servers.options("b", "2");
    other.largest_packet = 8 << 20;
    let error = refused(&other).await;
    assert!(
        error.contains(
            "maximum_packet_size = 8388608: lower that key to 8323072, or set max_payload: 8454144 "
        ),
        "{error}"
    );
    let mut other = servers.options("b", "2");
    other.monitors.clear();
    let error = refused(&other).await;
    assert!(
        error.contains("cluster.monitor") && error.contains("--accept-cluster-risk unchecked"),
        "{error}"
    );
    other.monitors = vec![servers.url(0).replace("nats:", "http:")];
    let error = refused(&other).await;
    assert!(error.starts_with("cluster.monitor: http://127.0.0.1:"), "{error}");
    other.monitors = vec![servers.monitor(0) + "/nothing"];
    let error = refused(&other).await;
    assert!(error.contains("is no monitoring port of NATS: status 404"), "{error}");

    // Two clusters in one account.
    let jetstream = &node.connections.ordinary;
    let mut beside = servers.options("a", "3");
    beside.cluster = "other".parse().unwrap();
    drop(Node::join(&beside, "1.0").await.unwrap());
    let foreign = async_nats::jetstream::stream::Config { name: "third-s".to_owned(), ..Default::default() };
    jetstream.create_stream(foreign).await.unwrap();
    beside.cluster = "third".parse().unwrap();
    let error = refused(&beside).await;
    assert!(error.starts_with("the stream third-s exists and is not of BraidMQ"), "{error}");
}

#[tokio::test]
async fn servers_that_may_lose_messages_are_refused() {
    let settings = Settings { sync_interval: "2m", more: "authorization { user: u, password: p }" };
    let servers = Servers::start(1, &settings).await;
    let mut options = servers.options("a", "1");
    let error = refused(&options).await;
    assert!(error.contains("refuses this node") && error.contains("cluster.user"), "{error}");
    options.login = Login::Password { user: "u".into(), password: "p".into() };
    let error = refused(&options).await;
    assert!(error.contains("max_payload"), "{error}");
    options.largest_packet = 100_000;
    let error = refused(&options).await;
    assert!(error.contains("n0 acknowledges before its disk has the message"), "{error}");
    options.accepted = vec![Risk::Unsynced];
    let error = refused(&options).await;
    assert!(error.contains("n0 is one of 1 servers: run three"), "{error}");
    options.accepted = vec![Risk::Unsynced, Risk::Replicas];
    let error = refused(&options).await;
    assert!(
        error.starts_with("the stream test-m-0 cannot be made: "),
        "three replicas on one server: {error}"
    );
    options.dimensions.replicas = 1;
    drop(Node::join(&options, "1.0").await.unwrap());

    options.servers = vec!["nats://127.0.0.1:1".to_owned()];
    let error = refused(&options).await;
    assert!(error.starts_with("no NATS server answers at nats://127.0.0.1:1: "), "{error}");
}

/// Node without positions.
struct Unwatched;

impl LeaseWatcher for Unwatched {
    fn positions(&self) -> Vec<u64> {
        Vec::new()
    }

    fn note_renewed(&self, _until: Instant) {}

    fn note_unreachable(&self) {}
}

#[tokio::test]
async fn a_name_belongs_to_one_process() {
    let servers = Servers::three().await;
    let options = servers.options("a", "1");
    let mut node = Node::join(&options, "1.0").await.unwrap();
    let layout = Layout::new(options.cluster.clone(), options.dimensions);
    let jetstream = node.connections.ordinary.clone();
    let take = |instance: &str| {
        let record = NodeRecord::new(instance.to_owned(), "1.0");
        let (jetstream, node) = (jetstream.clone(), options.node.clone());
        let layout = layout.clone();
        async move { Lease::take(&jetstream, &layout, &node, record).await }
    };
    // Another instance waits for the end of the lease, which is renewed meanwhile.
    let mut kept = std::pin::pin!(node.lease.keep(&Unwatched));
    let error = tokio::select! {
        taken = take("2") => taken.unwrap_err(),
        _ = &mut kept => panic!("the lease is lost"),
    };
    assert!(matches!(&error, ClusterError::NameTaken { instance, .. } if instance == "1"), "{error}");
    // A later process of the instance takes it at once, and the earlier one learns of it.
    let again = take("1").await.unwrap();
    timeout(Duration::from_secs(30), kept).await.expect("it is lost");
    // Nothing renews it: its end makes the name free.
    drop(again);
    let other = take("2").await.unwrap();
    other.give_back().await;
    take("3").await.unwrap();
}

// Reading what is retained, and the start of the broker, may take longer than a lease lasts.
#[tokio::test]
async fn a_lease_is_renewed_before_the_broker_begins() {
    let servers = Servers::start(1, &Settings::default()).await;
    let mut options = servers.options("a", "1");
    options.accepted = vec![Risk::Replicas];
    options.dimensions.replicas = 1;
    let joined = ClusterNode::join(&options, "1.0").await.unwrap();
    let layout = Layout::new(options.cluster.clone(), options.dimensions);
    let jetstream = async_nats::jetstream::new(async_nats::connect(servers.url(0)).await.unwrap());
    let take = async || {
        Lease::take(&jetstream, &layout, &options.node, NodeRecord::new("2".to_owned(), "1.0")).await
    };
    let error = take().await.unwrap_err();
    assert!(matches!(&error, ClusterError::NameTaken { instance, .. } if instance == "1"), "{error}");
    // A start that fails gives the name back.
    drop(joined);
    take().await.unwrap();
}
