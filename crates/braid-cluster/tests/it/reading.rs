//! Reading of the log: where its consumers are, and how it goes on when they are gone.

use std::collections::BTreeMap;

use async_nats::jetstream::Context;
use braid_cluster::{ClusterOptions, Dimensions, Risk};
use braid_proto::packet::QoS;
use futures_util::TryStreamExt;
use tokio::time::Instant;

use super::broker::{BrokerNode, PATIENCE};
use super::servers::Servers;

/// Shards of the log.
const STREAMS: [&str; 3] = ["test-m-0", "test-m-1", "test-m-u"];

/// Options of a node that is connected to one server only.
fn at_server(servers: &Servers, index: usize) -> ClusterOptions {
    let name = format!("b{index}");
    ClusterOptions { servers: vec![servers.url(index)], ..servers.options(&name, &name) }
}

/// Consumers of a stream by name, with the server that has them.
async fn consumers(jetstream: &Context, stream: &str) -> BTreeMap<String, Option<String>> {
    let stream = jetstream.get_stream(stream).await.unwrap();
    let found = stream.consumers().try_collect::<Vec<_>>().await.unwrap_or_default();
    found.into_iter().map(|info| (info.name, info.cluster.and_then(|cluster| cluster.leader))).collect()
}

/// Waits until the consumers of a stream are at these servers.
async fn until_at(jetstream: &Context, stream: &str, servers: &[&str]) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let found = consumers(jetstream, stream).await;
        let mut at: Vec<_> = found.values().flatten().collect();
        at.sort();
        if at == servers {
            return;
        }
        assert!(Instant::now() < give_up, "{found:?}");
        tokio::task::yield_now().await;
    }
}

/// Removes the consumers that a stream has now. A node may have replaced one meanwhile.
async fn remove_consumers(jetstream: &Context, stream: &str) {
    let stream = jetstream.get_stream(stream).await.unwrap();
    let found = stream.consumers().try_collect::<Vec<_>>().await.unwrap();
    let mut removed = 0;
    for name in found.into_iter().map(|info| info.name) {
        match stream.delete_consumer(&name).await {
            Ok(_) => removed += 1,
            Err(error) if error.to_string().contains("consumer not found") => (),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    assert!(removed > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_reads_at_its_own_server_and_goes_on_without_its_consumer() {
    let servers = Servers::three().await;
    let mut nodes = Vec::new();
    for index in 0..3 {
        nodes.push(BrokerNode::start(&at_server(&servers, index)).await);
    }
    let jetstream = async_nats::jetstream::new(async_nats::connect(servers.url(0)).await.unwrap());
    let (mut subscriber, _) = nodes[1].connect("subscriber").await;
    subscriber.subscribe("#", QoS::AtMostOnce).await;
    let (mut publisher, _) = nodes[0].connect("publisher").await;
    // More than one burst, by number and by size.
    let large = "x".repeat(900_000);
    let payload = |number: usize| {
        if number.is_multiple_of(20) { format!("{number} {large}") } else { number.to_string() }
    };
    for round in 0..2 {
        for stream in STREAMS {
            until_at(&jetstream, stream, &["n0", "n1", "n2"]).await;
        }
        for number in 0..600 {
            publisher.send_publish("t", payload(number), QoS::AtLeastOnce).await;
        }
        for number in 0..600 {
            assert_eq!(subscriber.text().await, format!("{} q0 0", payload(number)), "round {round}");
            assert!(publisher.text().await.starts_with("Puback 1 "));
        }
        for stream in STREAMS {
            remove_consumers(&jetstream, stream).await;
        }
        publisher.publish("t", "after", false).await;
        assert_eq!(subscriber.text().await, "after q0 0");
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_at_its_own_server_as_soon_as_that_has_a_replica() {
    let servers = Servers::three().await;
    let mut nodes = Vec::new();
    for index in 0..3 {
        let options = at_server(&servers, index);
        let dimensions = Dimensions { replicas: 1, ..options.dimensions };
        let accepted = vec![Risk::Replicas];
        nodes.push(BrokerNode::start(&ClusterOptions { dimensions, accepted, ..options }).await);
    }
    let jetstream = async_nats::jetstream::new(async_nats::connect(servers.url(0)).await.unwrap());
    for name in STREAMS {
        let info = jetstream.get_stream(name).await.unwrap().get_info().await.unwrap();
        let leader = info.cluster.unwrap().leader.unwrap();
        until_at(&jetstream, name, &[&*leader; 3]).await;
        let mut config = info.config;
        config.num_replicas = 3;
        jetstream.update_stream(config).await.unwrap();
    }
    for name in STREAMS {
        until_at(&jetstream, name, &["n0", "n1", "n2"]).await;
    }
    for node in nodes {
        node.stop().await;
    }
}
