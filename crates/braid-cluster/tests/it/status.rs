//! State of a cluster, and the permissions that its nodes need.

use std::fs;
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::Context;
use braid_cluster::status::{ClusterStatus, Stage};
use braid_cluster::{ClusterOptions, Layout, Node, Upkeep};
use braid_proto::packet::{AckKind, ClientId, QoS};
use futures_util::TryStreamExt;
use tokio::time::Instant;

use super::broker::{BrokerNode, PATIENCE};
use super::certificates::Authority;
use super::servers::{ServerPorts, Servers};

async fn ask(options: &ClusterOptions) -> ClusterStatus {
    ClusterStatus::ask(options, &|_| {}).await.unwrap()
}

/// Writes the record of a session.
async fn write(jetstream: &Context, layout: &Layout, client: &str, record: &'static str) {
    let subject = layout.session(&ClientId::from(client));
    jetstream.publish(subject, record.into()).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn the_state_is_that_of_nodes_streams_and_sessions() {
    let mut servers = Servers::three().await;
    let mut options = servers.options("a", "1");
    let status = ask(&options).await;
    assert_eq!((status.is_missing(), status.problems().len()), (true, 2), "no node, and no stream");

    options.address = "mqtt-1.example:8883".to_owned();
    let first = Node::join(&options, "1.0").await.unwrap();
    let _second = Node::join(&servers.options("b", "2"), "1.1").await.unwrap();
    let (jetstream, layout) = (&first.connections.ordinary, &first.layout);
    for (client, record) in [
        ("c1", r#"{"o":"a","x":[1]}"#),
        ("c2", r#"{"o":"b"}"#),
        ("c3", r#"{"o":"b"}"#),
        ("c4", "{}"),
        ("c5", ""),
        ("c6", "no record"),
        ("c7", r#"{"o":"a"}"#),
        ("c7", r#"{"o":null}"#),
    ] {
        write(jetstream, layout, client, record).await;
    }
    // Without the right number of shards, which the streams tell.
    options.dimensions.shards = 9;
    let stages = std::sync::Mutex::new(Vec::new());
    let status = ClusterStatus::ask(&options, &|stage| stages.lock().unwrap().push(stage)).await.unwrap();
    assert_eq!(stages.into_inner().unwrap().last(), Some(&Stage::Sessions(7, 7)));
    assert_eq!(status.problems(), ["1 records of sessions are of another version or damaged"]);
    let nodes = status.nodes.unwrap();
    let found: Vec<_> =
        nodes.iter().map(|node| (&*node.name, &*node.record.version, &*node.record.address)).collect();
    assert_eq!(found, [("a", "1.0", "mqtt-1.example:8883"), ("b", "1.1", "")]);
    assert!(nodes.iter().all(|node| node.renewed < Duration::from_secs(60)));
    let sessions = status.sessions.unwrap();
    let by_node: Vec<_> = sessions.by_node.iter().map(|(node, count)| (&**node, *count)).collect();
    assert_eq!((by_node, sessions.unowned), (vec![("a", 1), ("b", 2)], 2));
    let names: Vec<_> = status.streams.iter().map(|stream| &*stream.name).collect();
    assert_eq!(names, ["test-m-0", "test-m-1", "test-m-u", "test-s", "test-n", "test-r"]);
    let records = status.streams[3].state.as_ref().unwrap();
    assert_eq!((records.messages, records.last, records.wanted, records.replicas.len()), (7, 8, 3, 2));
    assert!(records.leader.is_some() && records.bytes > 0);
    assert!(status.servers.iter().all(|server| server.syncs_always == Some(true)));

    // A node starts while one of three is gone.
    servers.kill(1);
    let give_up = Instant::now() + Duration::from_secs(60);
    while let Err(error) = Node::join(&servers.options("c", "3"), "1.1").await {
        assert!(Instant::now() < give_up, "{error}");
    }
    servers.kill(2);
    let error = Node::join(&servers.options("d", "4"), "1.1").await.map(drop).unwrap_err().to_string();
    assert!(error.starts_with("cluster.monitor: "), "{error}");
    let give_up = Instant::now() + Duration::from_secs(60);
    options.servers.truncate(1);
    loop {
        let status = ask(&options).await;
        let problems = status.problems();
        let servers = problems.iter().filter(|problem| problem.contains("does not answer: ")).count();
        assert_eq!(servers, 2, "{problems:?}");
        let without = |stream: &str| {
            problems.iter().any(|problem| problem.starts_with(&format!("the stream {stream}")))
        };
        if names.iter().all(|name| without(name)) && status.nodes.is_err() && status.sessions.is_err() {
            break;
        }
        assert!(Instant::now() < give_up, "{problems:?}");
    }
}

/// The configuration in `deploy/nats`, with addresses and files of the test.
fn deployed(of: &ServerPorts<'_>, authority: &Authority) -> String {
    let ServerPorts { index, port, monitor, routes, store } = of;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nats");
    let mut text = fs::read_to_string(folder.join("nats.conf")).unwrap();
    let mut replace = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    };
    replace("server_name: nats-1", &format!("server_name: n{index}"));
    replace("0.0.0.0:4222", &format!("127.0.0.1:{port}"));
    replace("nats-1.example:4222", &format!("127.0.0.1:{port}"));
    replace("0.0.0.0:8222", &format!("127.0.0.1:{monitor}"));
    replace("0.0.0.0:6222", &format!("127.0.0.1:{}", routes[*index]));
    for (number, route) in routes.iter().enumerate() {
        replace(&format!("nats-{}.example:6222", number + 1), &format!("localhost:{route}"));
    }
    replace("/var/lib/nats", &store.display().to_string());
    replace("/etc/nats/tls", &authority.path("").display().to_string());
    replace("include \"account.conf\"", &fs::read_to_string(folder.join("account.conf")).unwrap());
    text
}

/// A broker with a shared group, an absent session and a retained message that goes: the log is trimmed.
async fn serve(options: &ClusterOptions, jetstream: &Context) {
    let upkeep = Upkeep {
        trim: Duration::from_millis(500),
        removals: Duration::from_secs(1),
        behind: 1,
        record_after: 1,
        rest: Duration::ZERO,
    };
    let options = ClusterOptions { upkeep, ..options.clone() };
    let node = BrokerNode::start(&options).await;
    let (mut absent, _) = node.connect("absent").await;
    absent.subscribe("idle", QoS::AtLeastOnce).await;
    drop(absent);
    let (mut member, _) = node.connect("member").await;
    member.subscribe("$share/g/t", QoS::AtLeastOnce).await;
    let (mut publisher, _) = node.connect("publisher").await;
    publisher.publish("r", "x", true).await;
    publisher.publish("r", "", true).await;
    publisher.publish("t", "y", false).await;
    assert_eq!(member.text().await, "y q1 1");
    member.acknowledge(AckKind::Puback, 1).await;
    member.unsubscribe("$share/g/t").await;
    let give_up = Instant::now() + PATIENCE;
    let stream = |name: &'static str| async move { jetstream.get_stream(name).await.unwrap() };
    loop {
        let log = stream("braidmq-m-0").await;
        let groups: Vec<String> = log.consumer_names().try_collect().await.unwrap();
        let has_groups = groups.iter().any(|name| name.starts_with("g-"));
        let (log, copies) = (log.cached_info().state.clone(), stream("braidmq-r").await);
        if log.first_sequence == 4 && copies.cached_info().state.messages == 0 && !has_groups {
            break;
        }
        assert!(Instant::now() < give_up, "{log:?} {has_groups}");
        tokio::task::yield_now().await;
    }
    node.stop().await;
}

/// The servers of `deploy/nats` accept a node with its certificate, permit what it needs, and nothing that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_servers_permits_a_node_what_it_needs() {
    let authority = Authority::new();
    authority.issue("nats", "nats", &["127.0.0.1", "localhost"]);
    let node = authority.issue("node", "braidmq-node", &[]);
    let foreign = authority.issue("foreign", "foreign", &[]);
    let servers = Servers::run(3, |of| deployed(&of, &authority));
    let mut options = servers.options("a", "1");
    options.cluster = "braidmq".parse().unwrap();
    options.servers.iter_mut().for_each(|url| *url = url.replace("nats:", "tls:"));
    options.monitors.iter_mut().for_each(|url| *url = url.replace("http:", "https:"));
    options.ca_files = vec![authority.ca()];
    options.certificate = Some(node);
    options.largest_packet = 8_323_072;
    let give_up = Instant::now() + Duration::from_secs(60);
    let joined = loop {
        match Node::join(&options, "1.0").await {
            Ok(node) => break node,
            Err(error) => assert!(Instant::now() < give_up, "{error}\n{}", servers.log(0)),
        }
        tokio::task::yield_now().await;
    };
    let (jetstream, layout) = (&joined.connections.ordinary, &joined.layout);
    write(jetstream, layout, "c1", r#"{"o":"a"}"#).await;
    let status = ask(&options).await;
    assert_eq!(status.problems(), Vec::<String>::new());
    assert_eq!(status.sessions.unwrap().by_node.get("a"), Some(&1));
    joined.lease.give_back().await;
    assert_eq!(ask(&options).await.problems(), ["no node is running"], "the purge is permitted");
    serve(&options, jetstream).await;

    // Refused: what removes or changes a stream.
    assert!(jetstream.delete_stream(layout.sessions_stream()).await.is_err());
    let mut changed = layout.streams().remove(0);
    changed.max_bytes = 5 << 20;
    assert!(jetstream.update_stream(&changed).await.is_err());
    assert!(jetstream.get_stream(layout.sessions_stream()).await.is_ok(), "it is there");

    options.certificate = Some(foreign);
    let error = Node::join(&options, "1.0").await.map(drop).unwrap_err().to_string();
    assert!(error.contains("refuses this node"), "{error}");
}
