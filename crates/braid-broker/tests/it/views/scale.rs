//! Reading with ten thousand clients, and its cost.

use std::time::Instant;

use braid_broker::view::{ClientQuery, SubscriptionQuery};
use braid_broker::{BrokerConfig, LimitsConfig};
use braid_proto::packet::QoS;

use crate::support::{TestBroker, quiet, topic};

const CLIENTS: usize = 10_000;

/// Prints how long metrics and the list of all clients take. No assertion is about the time.
#[tokio::test(start_paused = true)]
async fn ten_thousand_clients_are_read() {
    let limits = LimitsConfig { connections: 2 * CLIENTS, connections_per_second: 0, ..quiet().limits };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = broker.v5(&format!("client{number}")).await;
        client.subscribe(&format!("t/{number}"), QoS::AtMostOnce).await;
        clients.push(client);
    }
    let begun = Instant::now();
    let metrics = broker.handle.metrics();
    let metrics_took = begun.elapsed();
    let value_of = |name: &str| metrics.iter().find(|one| one.name() == name).map(|one| one.value);
    assert_eq!(value_of("clients_connected"), Some(CLIENTS as u64));
    assert_eq!(value_of("subscriptions"), Some(CLIENTS as u64));
    let (mut rows, mut cursor, begun) = (0, None, Instant::now());
    loop {
        let page = broker.handle.clients(&ClientQuery::default(), cursor, 1000).await;
        rows += page.rows.len();
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    println!("metrics: {metrics_took:?}, {rows} clients: {:?}", begun.elapsed());
    assert_eq!(rows, CLIENTS);
    // The entries that are visited for a page are limited, whether they match or not.
    let unknown = ClientQuery { user: Some("unknown".to_owned()), ..ClientQuery::default() };
    let (mut pages, mut visited, mut cursor) = (0, 0, None);
    loop {
        let page = broker.handle.clients(&unknown, cursor, 1000).await;
        assert!(page.rows.is_empty() && page.visited <= 4096, "{}", page.visited);
        (pages, visited, cursor) = (pages + 1, visited + page.visited, page.next);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((pages, visited), (3, CLIENTS));
    let none = SubscriptionQuery { share_name: Some("none".to_owned()), ..SubscriptionQuery::default() };
    let (mut pages, mut cursor) = (0, None);
    loop {
        let page = broker.handle.subscriptions(&none, cursor, 1000).await;
        // A question to each session, which is visited.
        assert!(page.rows.is_empty() && page.visited <= 2 * 1024, "{}", page.visited);
        (pages, cursor) = (pages + 1, page.next);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, CLIENTS.div_ceil(1024));
    // Those that do not match a topic are not asked.
    let one = SubscriptionQuery { topic: Some(topic("t/7")), ..SubscriptionQuery::default() };
    let page = broker.handle.subscriptions(&one, None, 1000).await;
    assert_eq!((page.rows.len(), page.visited, page.next), (1, 2, None));
}
