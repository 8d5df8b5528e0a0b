//! The list of clients, and the details of one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::view::{ClientCursor, ClientName, ClientQuery, ClientRow, ViewError};
use braid_broker::{Anonymous, BrokerConfig, LimitsConfig, PermitAll};
use braid_proto::packet::{Packet, ProtocolVersion, QoS};
use braid_proto::session::SessionExpiry;
use braid_store::MemoryStore;
use braid_transport::Transport;
use tokio::time::Instant;

use super::name;
use crate::support::{
    Seed, TestBroker, UserNames, connect_v3, connect_v5, lasting, named, pass, publish_packet, quiet, settle,
    will,
};

async fn all(broker: &TestBroker, query: &ClientQuery) -> Vec<ClientRow> {
    let page = broker.handle.clients(query, None, 1000).await;
    assert_eq!(page.next, None);
    page.rows
}

fn ids(rows: &[ClientRow]) -> Vec<&str> {
    rows.iter().map(|row| row.name.client_id()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_row_has_the_session_and_its_connection() {
    let limits = LimitsConfig { queued_messages: 10, ..quiet().limits };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = broker.v3("publisher").await;
    let connected_at = Instant::now().into_std();
    let mut connect = lasting("client");
    connect.keep_alive = 30;
    let mut client = broker.connect(connect).await;
    client.subscribe("a", QoS::AtLeastOnce).await;
    client.subscribe("b/#", QoS::ExactlyOnce).await;
    for _ in 0..3 {
        publisher.publish("a", "x", QoS::AtLeastOnce).await;
    }
    settle().await;
    let rows = all(&broker, &ClientQuery::default()).await;
    assert_eq!(ids(&rows), ["publisher", "client"]);
    let [publisher_row, row] = &rows[..] else { panic!("{rows:?}") };
    let connection = row.connection.as_ref().expect("connected");
    assert_eq!((connection.version, connection.transport), (ProtocolVersion::V5, Transport::Mem));
    assert_eq!((connection.since, connection.keep_alive), (connected_at, 30));
    assert!(!connection.clean_start && !connection.session_present && !connection.is_early);
    assert_eq!((row.subscriptions, row.inflight, row.queued_messages, row.dropped), (2, 3, 0, 0));
    assert_eq!((row.expiry.as_secs(), row.disconnected_since), (3600, None));
    let connection = publisher_row.connection.as_ref().expect("connected");
    assert!(connection.version == ProtocolVersion::V311 && connection.clean_start);
    assert_eq!(publisher_row.expiry, SessionExpiry::WITH_CONNECTION);

    pass(7).await;
    client.vanish().await;
    let gone_at = Instant::now().into_std();
    for _ in 0..12 {
        publisher.publish("a", "x", QoS::AtLeastOnce).await;
    }
    let rows = all(&broker, &ClientQuery { is_connected: Some(false), ..ClientQuery::default() }).await;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.name.client_id(), &row.connection), ("client", &None));
    let gone = row.disconnected_since.expect("it was connected");
    assert!(gone_at.duration_since(gone) <= Duration::from_millis(2));
    assert_eq!((row.subscriptions, row.inflight, row.queued_messages, row.dropped), (2, 3, 10, 2));
    assert!(row.queued_bytes > 10);

    let mut client = broker.resume("client").await;
    let detail = broker.handle.client(&name("client")).await.expect("it has a session");
    assert!(detail.row.connection.as_ref().is_some_and(|connection| connection.session_present));
    assert_eq!((detail.row.dropped, detail.row.disconnected_since), (2, None));
    client.take().await;
}

#[tokio::test(start_paused = true)]
async fn queries_select_by_user_name_address_and_state() {
    let broker = TestBroker::start_with_rule(quiet(), UserNames);
    let (near, far): (SocketAddr, SocketAddr) =
        ("127.0.0.9:1".parse().expect("an address"), "127.0.1.9:1".parse().expect("an address"));
    let mut clients = Vec::new();
    for (id, user, address) in [("a1", "ann", near), ("a2", "bob", far), ("b1", "ann", far)] {
        let mut client = broker.link_from(address, ProtocolVersion::V5).await;
        client.send(Packet::Connect(Box::new(named(user, lasting(id))))).await;
        client.accepted().await;
        clients.push(client);
    }
    clients.pop().expect("b1").vanish().await;
    let none = ClientQuery::default;
    for (query, expected) in [
        (none(), &["a1", "a2", "b1"][..]),
        (ClientQuery { user: Some("ann".into()), ..none() }, &["a1", "b1"]),
        (ClientQuery { user: Some("an".into()), ..none() }, &[]),
        (ClientQuery { client_id_prefix: Some("a".into()), ..none() }, &["a1", "a2"]),
        (ClientQuery { addresses: Some("127.0.0.0/24".parse().expect("a net")), ..none() }, &["a1"]),
        // The address of a disconnected client is not known.
        (ClientQuery { addresses: Some("0.0.0.0/0".parse().expect("a net")), ..none() }, &["a1", "a2"]),
        (ClientQuery { transport: Some(Transport::Mem), ..none() }, &["a1", "a2"]),
        (ClientQuery { transport: Some(Transport::Quic), ..none() }, &[]),
        (ClientQuery { is_connected: Some(true), ..none() }, &["a1", "a2"]),
        (ClientQuery { is_connected: Some(false), user: Some("ann".into()), ..none() }, &["b1"]),
    ] {
        assert_eq!(ids(&all(&broker, &query).await), expected, "{query:?}");
    }
    let rows = all(&broker, &none()).await;
    assert_eq!(rows[0].user.as_deref(), Some("ann"));
    assert_eq!(rows[0].connection.as_ref().and_then(|connection| connection.address), Some(near));
}

/// Pages while sessions begin and end: those that stay come once, in one order.
#[tokio::test(start_paused = true)]
async fn paging_meets_each_client_that_stays_once() {
    let seed = Seed(fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed.0);
    let broker = TestBroker::start();
    let mut clients = BTreeMap::new();
    for number in 0..700 {
        let id = format!("c{number}");
        clients.insert(id.clone(), broker.connect(connect_v5(&id)).await);
    }
    let before: BTreeSet<String> = clients.keys().cloned().collect();
    let (mut gone, mut seen, mut cursor, mut next_id) = (BTreeSet::new(), Vec::new(), None, 700);
    loop {
        let page = broker.handle.clients(&ClientQuery::default(), cursor, random.usize(1..60)).await;
        seen.extend(page.rows.iter().map(|row| row.name.client_id().to_owned()));
        cursor = page.next.map(|cursor| ClientCursor::new(cursor.value()));
        if cursor.is_none() {
            break;
        }
        for _ in 0..random.usize(..6) {
            let id = clients.keys().nth(random.usize(..clients.len())).cloned().expect("some are left");
            clients.remove(&id).expect("it is there").vanish().await;
            gone.insert(id.clone());
            // Some come back, which is another session.
            let id = if random.bool() { id } else { format!("c{next_id}") };
            next_id += 1;
            let client = broker.connect(connect_v5(&id)).await;
            clients.insert(id, client);
        }
    }
    for stays in before.difference(&gone) {
        assert_eq!(seen.iter().filter(|id| *id == stays).count(), 1, "{stays}");
    }
    assert!(seen.len() > 600 && gone.len() > 10);
}

/// Clients with most to get are found among more sessions than a piece has, whenever they began.
#[tokio::test(start_paused = true)]
async fn the_clients_with_most_to_get_are_first() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    for number in 0..400 {
        let mut client = broker.connect(lasting(&format!("c{number:03}"))).await;
        client.subscribe(&format!("t/{number}"), QoS::AtLeastOnce).await;
        client.vanish().await;
    }
    for (number, messages) in [(399, 3), (7, 1), (300, 2), (301, 2)] {
        for _ in 0..messages {
            publisher.publish(&format!("t/{number}"), "x", QoS::AtLeastOnce).await;
        }
    }
    let query = ClientQuery::default();
    for limit in [1, 3, 5] {
        let page = broker.handle.most_queued_clients(&query, limit).await;
        let expected = ["c399", "c300", "c301", "c007", "publisher"];
        assert_eq!((ids(&page.rows), page.next, page.visited), (expected[..limit].to_vec(), None, 401));
    }
    let query = ClientQuery { client_id_prefix: Some("c3".to_owned()), ..query };
    let page = broker.handle.most_queued_clients(&query, 4).await;
    assert_eq!(ids(&page.rows), ["c399", "c300", "c301", "c302"]);
}

#[tokio::test(start_paused = true)]
async fn details_are_those_of_the_owner_connected_or_not() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut connect = lasting("client");
    connect.will = Some(will("gone", "bye!"));
    connect.will.as_mut().expect("it has one").delay = 500;
    let mut client = broker.connect(connect).await;
    client.subscribe("a", QoS::AtLeastOnce).await;
    publisher.publish("a", "x", QoS::AtLeastOnce).await;
    client.send(publish_packet("up", "x", QoS::ExactlyOnce, 9)).await;
    settle().await;
    for is_connected in [true, false] {
        let detail = broker.handle.client(&name("client")).await.expect("it has a session");
        assert_eq!(detail.row.connection.is_some(), is_connected);
        let will = detail.pending.will.expect("a Will");
        assert_eq!((will.topic.as_str(), will.payload_len, will.delay), ("gone", 4, 500));
        assert_eq!((detail.pending.outbound, detail.pending.inbound), (1, 1), "{is_connected}");
        let [(filter, subscription)] = &detail.subscriptions[..] else { panic!("one") };
        assert_eq!((filter.as_str(), subscription.qos), ("a", QoS::AtLeastOnce));
        if is_connected {
            client = {
                client.vanish().await;
                broker.v5("other").await
            };
        }
    }
    assert_eq!(broker.handle.client(&name("unknown")).await, Err(ViewError::NotFound));
    pass(3601).await;
    assert_eq!(broker.handle.client(&name("client")).await, Err(ViewError::NotFound));
}

#[tokio::test(start_paused = true)]
async fn a_client_below_a_mountpoint_is_found_by_both_names() {
    let (store, rules) = (Arc::new(MemoryStore::new()), Arc::new(PermitAll));
    let (broker, [entrance]) =
        TestBroker::start_mounted(quiet(), Anonymous::default(), rules, store, ["t1/"]);
    let _inside = entrance.connect(connect_v5("client")).await;
    let _outside = broker.connect(connect_v3("client")).await;
    let rows =
        all(&broker, &ClientQuery { client_id_prefix: Some("cl".into()), ..ClientQuery::default() }).await;
    let found: Vec<_> = rows.iter().map(|row| (row.name.mountpoint(), row.name.client_id())).collect();
    assert_eq!(found, [(Some("t1/"), "client"), (None, "client")]);
    for row in &rows {
        let name = ClientName::new(row.name.mountpoint(), "client");
        assert_eq!(broker.handle.client(&name).await.expect("it has a session").row, *row);
    }
}

/// A connection that is waiting for its authenticator does not answer, and one that ends does not either.
#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_has_an_end() {
    let broker = TestBroker::start_with_rule(quiet(), Anonymous::default());
    let client = broker.v5("client").await;
    let handle = broker.handle.clone();
    let asked = async { handle.streams(&name("client")).await };
    // The link is dropped in the same instant: whichever comes first, there is an answer or an error at once.
    let start = Instant::now();
    let (answer, ()) = tokio::join!(asked, async { drop(client) });
    assert!(matches!(answer, Ok(_) | Err(ViewError::Vanished)), "{answer:?}");
    assert!(start.elapsed() < Duration::from_millis(10));
    settle().await;
    assert_eq!(broker.handle.streams(&name("client")).await.unwrap_err(), ViewError::NotFound);
    drop(broker.resume("client").await);
    settle().await;
    assert_eq!(broker.handle.streams(&name("client")).await.unwrap_err(), ViewError::NotConnected);
}

// On several threads the question can come between any two steps of the end of a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_leaves_has_details_or_no_session() {
    let broker = TestBroker::start();
    for round in 0..300 {
        let client = broker.v5("client").await;
        let handle = broker.handle.clone();
        let asking = tokio::spawn(async move {
            for _ in 0..20 {
                let answer = handle.client(&name("client")).await;
                assert!(matches!(answer, Ok(_) | Err(ViewError::NotFound)), "{answer:?} in round {round}");
            }
        });
        drop(client);
        asking.await.expect("each question is answered");
    }
}
