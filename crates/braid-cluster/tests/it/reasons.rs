//! Reason codes for clients whose session moves, whose node stops, or whose node has no majority of the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_broker::command::CommandError;
use braid_cluster::{ClusterOptions, NodeRecord, Risk};
use braid_proto::message::Message;
use braid_proto::packet::{MessageProperties, Packet, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicName;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::broker::{BrokerNode, Client, PATIENCE};
use super::servers::{Servers, Settings};

/// Options of the node `b` beside those of `a`, with addresses for clients.
fn pair(servers: &Servers) -> [ClusterOptions; 2] {
    [("a", "1"), ("b", "2")].map(|(node, instance)| {
        let mut options = servers.options(node, instance);
        options.accepted = vec![Risk::Replicas];
        (options.dimensions.replicas, options.dimensions.shards) = (1, 1);
        options.address = format!("{node}.example:8883");
        options
    })
}

async fn disconnected(client: &mut Client) -> (ReasonCode, Option<Box<str>>) {
    match client.next().await {
        Packet::Disconnect(disconnect) => (disconnect.reason, disconnect.server_reference),
        other => panic!("DISCONNECT expected, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_why_their_connection_ends() {
    let mut servers = Servers::start(1, &Settings::default()).await;
    let [a, b] = pair(&servers);
    let (a, b) = (BrokerNode::start(&a).await, BrokerNode::start(&b).await);
    let (mut moves, is_present) = a.connect("moves").await;
    assert!(!is_present);
    moves.subscribe("t", QoS::AtLeastOnce).await;
    let (mut moved, is_present) = b.connect("moves").await;
    assert!(is_present);
    assert_eq!(disconnected(&mut moves).await, (ReasonCode::SessionTakenOver, None)); // [MQTT-3.1.4-3]
    let (mut publisher, _) = b.connect("publisher").await;
    publisher.publish("t", "x", false).await;
    assert_eq!(moved.text().await, "x q1 1");

    b.stop().await;
    for client in [&mut moved, &mut publisher] {
        let expected = (ReasonCode::ServerMoved, Some("a.example:8883".into()));
        assert_eq!(disconnected(client).await, expected);
    }

    // QoS 0 goes on without the servers, and nothing is acknowledged.
    let (mut publisher, _) = a.connect("publisher").await;
    let (mut subscriber, _) = a.connect("moves").await;
    assert_eq!(subscriber.text().await, "x q1 1 dup");
    subscriber.subscribe("zero", QoS::AtMostOnce).await;
    servers.kill(0);
    publisher.send_publish("zero", "y", QoS::AtMostOnce).await;
    assert_eq!(subscriber.text().await, "y q0 0");
    let monitor = a.handle.health_monitor();
    let give_up = Instant::now() + PATIENCE;
    while monitor.health().status.takes_clients() {
        assert!(Instant::now() < give_up);
        tokio::task::yield_now().await;
    }
    assert_eq!(a.refused("new").await, ReasonCode::ServerUnavailable);
    publisher.send_publish("t", "z", QoS::AtLeastOnce).await;
    assert_eq!(disconnected(&mut publisher).await, (ReasonCode::ServerBusy, None));
    drop(a);
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_no_message_of_nats_holds_are_refused() {
    let servers = Servers::start(1, &Settings::default()).await;
    let [a, _] = pair(&servers);
    let max_payload = 8 << 20;
    let node = BrokerNode::start(&a).await;
    let long = "x".repeat(5000);
    let (_, reason) = node.connect_with_will("will", &long, 0).await;
    assert_eq!(reason, ReasonCode::TopicNameInvalid);
    let (mut client, _) = node.connect("client").await;
    assert_eq!(
        client.subscribe(&format!("$share/g/{long}"), QoS::AtLeastOnce).await,
        ReasonCode::TopicFilterInvalid
    );
    assert_eq!(client.subscribe(&long, QoS::AtLeastOnce).await, ReasonCode::GrantedQos1);
    assert_eq!(client.subscribe("t", QoS::AtLeastOnce).await, ReasonCode::GrantedQos1);
    client.send_publish(&long, "", QoS::AtLeastOnce).await;
    assert_eq!(client.text().await, "Puback 1 TopicNameInvalid");
    // Each of these characters takes six bytes there.
    let mut properties = MessageProperties::default();
    for _ in 0..max_payload / 6 / 60_000 + 1 {
        properties.user.push("", &"\u{1}".repeat(60_000));
    }
    client.send_with("t", properties).await;
    assert_eq!(client.text().await, "Puback 1 ImplementationSpecificError");
    let message = Message::new(TopicName::parse(&long).unwrap(), "", QoS::AtLeastOnce, false);
    let refused = node.handle.publish_durably(message).await;
    assert_eq!(refused.map(drop), Err(CommandError::Refused(ReasonCode::TopicNameInvalid)));
    client.send_publish("t", "x", QoS::AtLeastOnce).await;
    // In either order.
    let mut answers = [client.text().await, client.text().await];
    answers.sort_unstable();
    assert!(answers[0].starts_with("Puback 1 "), "{answers:?}");
    assert_eq!(answers[1], "x q1 1", "the shard goes on");
    node.stop().await;
}

// The other node finds an exchange in the log or not, and the client repeats it there: it must not be in the log twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_exchange_of_a_session_that_another_node_has_is_refused() {
    let servers = Servers::start(1, &Settings::default()).await;
    let [a, _] = pair(&servers);
    let node = BrokerNode::start(&a).await;
    let jetstream = async_nats::jetstream::new(async_nats::connect(servers.url(0)).await.unwrap());
    let publish = async |subject: String, payload: &'static str| {
        jetstream.publish(subject, payload.into()).await.unwrap().await.unwrap();
    };
    let (mut own, _) = node.connect("own").await;
    own.send_publish("t", "x", QoS::ExactlyOnce).await;
    assert!(own.text().await.starts_with("Pubrec 1 "));
    for (client, exchanges) in [("without", None), ("with", Some(r#"{"r":"other","p":[]}"#))] {
        let (mut publisher, _) = node.connect(client).await;
        // Another node claims the session, and fences its exchanges in the second case.
        publish(format!("test.s.{client}"), r#"{"o":"z","r":"other","e":3600}"#).await;
        if let Some(exchanges) = exchanges {
            publish(format!("test.q.0.{client}"), exchanges).await;
        }
        publisher.send_publish("t", "x", QoS::ExactlyOnce).await;
        assert_eq!(disconnected(&mut publisher).await, (ReasonCode::SessionTakenOver, None), "{client}");
    }
    let log = jetstream.get_stream("test-m-0").await.unwrap();
    assert_eq!(log.cached_info().state.messages, 3, "a message and its exchange, and that of the other node");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_release_a_session_is_asked_again_after_a_pause() {
    let servers = Servers::start(1, &Settings::default()).await;
    let [a, _] = pair(&servers);
    let node = BrokerNode::start(&a).await;
    let nats = async_nats::connect(servers.url(0)).await.unwrap();
    let other = NodeRecord::new("9".to_owned(), "1.0");
    let session = format!(r#"{{"o":"z","r":"{}","e":3600}}"#, other.run);
    let jetstream = async_nats::jetstream::new(nats.clone());
    for (subject, payload) in
        [("test.n.z", serde_json::to_vec(&other).unwrap()), ("test.s.c", session.into_bytes())]
    {
        jetstream.publish(subject, payload.into()).await.unwrap().await.unwrap();
    }
    let mut calls = nats.subscribe("test.c.z").await.unwrap();
    let counted = Arc::new(AtomicUsize::new(0));
    let (count, of_calls) = (counted.clone(), nats.clone());
    let busy = tokio::spawn(async move {
        while let Some(call) = calls.next().await {
            count.fetch_add(1, Ordering::Relaxed);
            of_calls.publish(call.reply.unwrap(), r#"{"done":false}"#.into()).await.unwrap();
        }
    });
    assert_eq!(node.refused("c").await, ReasonCode::ServerUnavailable);
    let count = counted.load(Ordering::Relaxed);
    assert!((2..50).contains(&count), "{count} calls");
    // NATS knows no connection of it, and its lease is not renewed.
    busy.abort();
    assert!(busy.await.is_err());
    let (_client, is_present) = node.connect("c").await;
    assert!(is_present);
    node.stop().await;
}
