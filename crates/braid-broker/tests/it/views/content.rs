//! Subscriptions and retained messages.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::view::{RetainedQuery, SubscriptionQuery};
use braid_proto::packet::{MessageProperties, Publish, QoS, SubscribeEntry};
use braid_store::MemoryStore;
use tokio::time::Instant;

use super::name;
use crate::support::{CONTROL, QuicBroker, TestBroker, filter, message, pass, topic};

async fn rows(broker: &TestBroker, query: &SubscriptionQuery, limit: usize) -> Vec<(String, String)> {
    let (mut rows, mut cursor) = (Vec::new(), None);
    loop {
        let page = broker.handle.subscriptions(query, cursor, limit).await;
        assert!(page.rows.len() <= limit);
        let names = page.rows.iter().map(|row| (row.client.client_id().to_owned(), row.filter.to_string()));
        rows.extend(names);
        cursor = page.next;
        if cursor.is_none() {
            return rows;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn subscriptions_are_listed_of_clients_connected_or_not() {
    let broker = TestBroker::start();
    let mut expected = BTreeSet::new();
    let mut clients = Vec::new();
    for (client_id, count) in [("first", 300), ("second", 1), ("third", 0), ("fourth", 700)] {
        let mut client = broker.resume(client_id).await;
        for some in (0..count).collect::<Vec<_>>().chunks(100) {
            let entry = |number: &i32| SubscribeEntry::new(filter(&format!("t/{number}")), QoS::AtMostOnce);
            client.subscribe_all(None, some.iter().map(entry).collect()).await;
            expected.extend(some.iter().map(|number| (client_id.to_owned(), format!("t/{number}"))));
        }
        clients.push(client);
    }
    for is_gone in [false, true] {
        for limit in [1000, 256, 7] {
            let found = rows(&broker, &SubscriptionQuery::default(), limit).await;
            assert_eq!(found.len(), expected.len(), "by {limit}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "by {limit}");
        }
        if !is_gone {
            clients.remove(3).vanish().await;
            clients.remove(0).vanish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queries_select_subscriptions() {
    let broker = TestBroker::start();
    let mut clients = Vec::new();
    for (client_id, filters) in [("a", ["x/#", "$share/g/x/1", "y"]), ("b", ["x/+", "$share/h/x/1", "x/1"])] {
        let mut client = broker.v5(client_id).await;
        for text in filters {
            client.subscribe(text, QoS::AtLeastOnce).await;
        }
        clients.push(client);
    }
    let none = SubscriptionQuery::default;
    for (query, expected) in [
        (SubscriptionQuery { client: Some(name("a")), ..none() }, 3),
        (SubscriptionQuery { client: Some(name("unknown")), ..none() }, 0),
        (SubscriptionQuery { filter: Some(filter("x/1")), ..none() }, 1),
        (SubscriptionQuery { filter: Some(filter("x/+")), ..none() }, 1),
        (SubscriptionQuery { filter: Some(filter("$share/h/x/1")), ..none() }, 1),
        (SubscriptionQuery { filter: Some(filter("$share/i/x/1")), ..none() }, 0),
        (SubscriptionQuery { filter: Some(filter("x/2")), ..none() }, 0),
        (SubscriptionQuery { filter: Some(filter("y")), topic: Some(topic("x/1")), ..none() }, 0),
        (SubscriptionQuery { topic: Some(topic("x/1")), ..none() }, 5),
        (SubscriptionQuery { topic: Some(topic("x/1")), share_name: Some("h".into()), ..none() }, 1),
        (SubscriptionQuery { topic: Some(topic("z")), ..none() }, 0),
        (SubscriptionQuery { topic: Some(topic("x/1")), client: Some(name("b")), ..none() }, 3),
        (SubscriptionQuery { share_name: Some("g".into()), ..none() }, 1),
    ] {
        for limit in [1, 100] {
            assert_eq!(rows(&broker, &query, limit).await.len(), expected, "{query:?}");
        }
    }
}

/// [BQ-16]: a filter on two streams is two subscriptions, and pages end between them.
#[tokio::test(start_paused = true)]
async fn a_page_may_end_between_two_streams_of_one_filter() {
    let broker = QuicBroker::start();
    let mut client = broker.v5("client").await;
    let data = client.open().await;
    for stream in [CONTROL, data] {
        client.subscribe(stream, "a", QoS::AtMostOnce).await;
    }
    let (mut streams, mut cursor) = (Vec::new(), None);
    loop {
        let page = broker.memory.handle.subscriptions(&SubscriptionQuery::default(), cursor, 1).await;
        streams.extend(page.rows.iter().map(|row| row.subscription.stream));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(streams, [CONTROL, data]);
}

fn retain(to: &str, payload: &str) -> Publish {
    Publish { retain: true, qos: QoS::AtLeastOnce, ..message(to, payload) }
}

#[tokio::test(start_paused = true)]
async fn retained_messages_are_listed_and_deleted() {
    let store = Arc::new(MemoryStore::new());
    let mut broker = TestBroker::start_over(store.clone());
    let mut publisher = broker.v5("publisher").await;
    for number in 0..600 {
        publisher.publish_as(retain(&format!("t/{number}"), "payload")).await;
    }
    let begun = Instant::now().into_std();
    pass(5).await;
    let properties = MessageProperties { message_expiry: Some(60), ..MessageProperties::default() };
    publisher.publish_as(Publish { properties: Some(Box::new(properties)), ..retain("other", "x") }).await;
    let query = |text: &str, with_payload| RetainedQuery { filter: filter(text), with_payload };
    for limit in [1000, 100, 7] {
        let (mut topics, mut after) = (Vec::new(), None);
        loop {
            let page = broker.handle.retained(&query("t/#", false), after, limit).await;
            assert!(page.rows.iter().all(|row| row.payload.is_none() && row.payload_len == 7));
            topics.extend(page.rows.into_iter().map(|row| row.topic.to_string()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((topics.len(), topics.iter().collect::<BTreeSet<_>>().len()), (600, 600), "by {limit}");
    }
    // The topics that are visited for a page are limited, whether they match or not.
    for number in 0..4000 {
        publisher.publish_as(retain(&format!("many/{number}/a"), "payload")).await;
    }
    let (mut pages, mut visited, mut after) = (0, 0, None);
    loop {
        let page = broker.handle.retained(&query("+/+/b", false), after, 1000).await;
        assert!(page.rows.is_empty() && page.visited <= 4096, "{}", page.visited);
        (pages, visited, after) = (pages + 1, visited + page.visited, page.next);
        if after.is_none() {
            break;
        }
    }
    assert!(pages == 2 && visited >= 4096, "{pages} {visited}");
    for number in 0..4000 {
        let name = topic(&format!("many/{number}/a"));
        assert_eq!(broker.handle.delete_retained(&name).await, Ok(true));
    }

    let page = broker.handle.retained(&query("other", true), None, 10).await;
    let [row] = &page.rows[..] else { panic!("one") };
    assert_eq!((row.qos, row.payload.as_deref()), (QoS::AtLeastOnce, Some(&b"x"[..])));
    assert_eq!(row.publisher, None, "everything is permitted");
    assert!(row.since.expect("known").duration_since(begun) >= Duration::from_secs(5));
    assert!(row.expires_at.expect("it expires") > row.since.expect("known") + Duration::from_secs(59));

    let mut subscriber = broker.v5("subscriber").await;
    assert_eq!(broker.handle.delete_retained(&topic("t/7")).await, Ok(true));
    assert_eq!(broker.handle.delete_retained(&topic("t/7")).await, Ok(false));
    subscriber.subscribe("t/7", QoS::AtMostOnce).await;
    subscriber.expect_silence().await;
    assert!(broker.handle.retained(&query("t/7", false), None, 10).await.rows.is_empty());
    assert_eq!(
        broker.handle.metrics().iter().find(|one| one.name() == "retained_messages").map(|one| one.value),
        Some(600)
    );
    broker.handle.stop();
    broker.ended().await;
    let again = TestBroker::start_over(store);
    let page = again.handle.retained(&query("t/+", false), None, 1000).await;
    assert_eq!(page.rows.len(), 599, "the store was told");
    assert!(page.rows.iter().all(|row| row.since.is_none()));
}
