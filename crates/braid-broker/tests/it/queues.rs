//! Overflow and ageing of session queues.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig, PriorityRule, QueueOverflow};
use braid_proto::packet::{Packet, ProtocolVersion, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;
use braid_store::MemoryStore;

use crate::support::{
    Client, Seed, TestBroker, connect_v3, filter, lasting, message, pass, publish_packet, quiet, settle,
    texts,
};

/// Topics with their priorities, the default one in the middle.
const TOPICS: [(&str, u16); 3] = [("low", 8), ("mid", 100), ("high", 200)];

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    let rule = |(text, priority)| PriorityRule { filter: filter(text), priority: Priority::new(priority) };
    BrokerConfig { limits, priority: TOPICS.map(rule).into(), ..quiet() }
}

fn limits(queued_messages: usize, queue_overflow: QueueOverflow) -> LimitsConfig {
    LimitsConfig { queued_messages, queue_overflow, ..LimitsConfig::default() }
}

/// A session that has subscribed to everything, with its client offline.
async fn offline(broker: &TestBroker, qos: QoS) {
    offline_as(broker, "client", qos).await;
}

async fn offline_as(broker: &TestBroker, client_id: &str, qos: QoS) {
    let mut client = broker.resume(client_id).await;
    client.subscribe("#", qos).await;
    client.disconnect().await;
}

/// Model of an offline queue with the policy `overflow`.
struct Model {
    cap: usize,
    overflow: QueueOverflow,
    /// By ascending priority, each in the order of arrival.
    waiting: BTreeMap<u16, Vec<String>>,
    dropped: u64,
}

impl Model {
    fn len(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    fn push(&mut self, priority: u16, text: String) {
        // Urgent messages have a reserve.
        let cap = if priority > 100 { self.cap + self.cap / 4 } else { self.cap };
        if self.len() >= cap {
            self.dropped += 1;
            let least = self.waiting.iter_mut().find(|(_, lane)| !lane.is_empty());
            match least {
                Some((least, lane)) if self.overflow == QueueOverflow::DropOldest && *least <= priority => {
                    lane.remove(0);
                }
                _ => return,
            }
        }
        self.waiting.entry(priority).or_default().push(text);
    }

    fn in_order(&self) -> Vec<String> {
        self.waiting.values().rev().flatten().cloned().collect()
    }
}

/// Evicted messages leave the store as well: after a restart the queue is the same. Stored entries are evicted like
/// messages in memory.
#[tokio::test(start_paused = true)]
async fn offline_queue_agrees_with_a_model() {
    for seed in 0..90 {
        let _seed = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let overflow = [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect]
            [usize::try_from(seed % 3).expect("small")];
        let cap = rng.usize(1..30);
        let mut store = Arc::new(MemoryStore::new());
        let config = with_limits(limits(cap, overflow));
        let start = |store| TestBroker::start_with_all(config.clone(), Anonymous::default(), store);
        let mut broker = start(store.clone());
        // A message for one client alone stays in the store.
        let clients = &["client", "twin"][..rng.usize(1..3)];
        for client in clients {
            offline_as(&broker, client, QoS::ExactlyOnce).await;
        }
        let mut model = Model { cap, overflow, waiting: BTreeMap::new(), dropped: 0 };
        // One topic alone, or several.
        let topics = if rng.bool() { 1..2 } else { 0..3 };
        for life in 0..rng.usize(1..4) {
            let mut publisher = broker.v5("publisher").await;
            model.dropped = 0;
            for number in 0..rng.usize(0..60) {
                let (topic, priority) = TOPICS[rng.usize(topics.clone())];
                let text = format!("{topic} {life} {number}");
                let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][rng.usize(0..2)];
                assert_eq!(publisher.publish(topic, &text, qos).await, ReasonCode::Success);
                model.push(priority, text);
            }
            let dropped = model.dropped * clients.len() as u64;
            assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), dropped);
            assert_eq!(broker.statistics().get(Counter::MessagesDropped), dropped);
            drop(publisher);
            broker.handle.stop();
            broker.ended().await;
            store = Arc::new(store.reopen());
            broker = start(store.clone());
        }
        for client in clients {
            assert_eq!(texts(&broker.resume(client).await.take_all().await), model.in_order());
        }
    }
}

/// A restart with lower limits keeps acknowledged messages, except with drop-oldest.
#[tokio::test(start_paused = true)]
async fn queue_above_a_lowered_limit_is_kept_and_takes_nothing_more() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::Disconnect, QueueOverflow::DropOldest] {
        let store = Arc::new(MemoryStore::new());
        let start = |cap, store| {
            TestBroker::start_with_all(with_limits(limits(cap, overflow)), Anonymous::default(), store)
        };
        let mut broker = start(10, store.clone());
        offline(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        for number in 0..10 {
            publisher.publish("mid", number.to_string(), QoS::AtLeastOnce).await;
        }
        drop(publisher);
        broker.handle.stop();
        broker.ended().await;
        let broker = start(4, Arc::new(store.reopen()));
        broker.v5("publisher").await.publish("mid", "new", QoS::AtLeastOnce).await;
        let expected: &[&str] = match overflow {
            // The reserve is a quarter; only messages beyond it are evicted at the start.
            QueueOverflow::DropOldest => &["7", "8", "9", "new"],
            _ => &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        };
        let received = texts(&broker.resume("client").await.take_all().await);
        assert_eq!(received, expected, "{overflow:?}");
        assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 11 - expected.len() as u64);
    }
}

/// Publishers go on while a resumed client drains its queue: the order of each lane is kept, and each message is
/// delivered once or counted as dropped.
#[tokio::test(start_paused = true)]
async fn live_messages_keep_the_order_of_their_lane_while_a_queue_drains() {
    for seed in 0..40 {
        let _seed = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let overflow = [QueueOverflow::DropNewest, QueueOverflow::DropOldest][usize::from(rng.bool())];
        let broker = TestBroker::start_with(with_limits(limits(rng.usize(10..300), overflow)));
        offline(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        let mut number = 0_u64;
        let mut publish = async |count: usize, rng: &mut fastrand::Rng| {
            for _ in 0..count {
                let (topic, _) = TOPICS[rng.usize(0..3)];
                let packet_id = publisher.next_id();
                let text = format!("{number:08}{}", "x".repeat(rng.usize(0..2000)));
                publisher.send(publish_packet(topic, text, QoS::AtLeastOnce, packet_id)).await;
                number += 1;
            }
            publisher.next_at_once().await;
        };
        publish(200, &mut rng).await;
        let mut last = BTreeMap::new();
        let mut received = 0;
        for _ in 0..3 {
            let mut connect = lasting("client");
            connect.properties.receive_maximum = Some(rng.u16(1..20));
            let mut client = broker.narrow_link(ProtocolVersion::V5, 2048).await;
            client.send_connect(connect).await;
            client.accepted().await;
            for _ in 0..rng.usize(10..60) {
                publish(rng.usize(0..6), &mut rng).await;
                let Some(Packet::Publish(publish)) = client.next_at_once().await else { continue };
                received += note(&mut last, &publish);
                client.acknowledge(&publish).await;
            }
            client.vanish().await;
        }
        let mut client = broker.resume("client").await;
        for publish in client.take_all().await {
            received += note(&mut last, &publish);
        }
        assert_eq!(received + broker.statistics().get(Counter::MessagesDropped), number);
    }
}

/// Counts a message that is new in its lane. Repeated ones have DUP set.
fn note(last: &mut BTreeMap<String, u64>, publish: &Publish) -> u64 {
    let topic = publish.topic.as_ref().expect("no aliases").as_str().to_owned();
    let text = String::from_utf8_lossy(&publish.payload[..8]);
    let number: u64 = text.parse().expect("a number");
    let is_new = last.get(&topic).is_none_or(|last| *last < number);
    assert!(is_new || publish.dup, "{topic} {number} comes after {last:?}");
    if is_new {
        last.insert(topic, number);
    }
    u64::from(is_new)
}

/// A subscriber with a small link that does not read.
async fn unread_subscriber(broker: &TestBroker, version: ProtocolVersion) -> Client {
    let mut client = broker.narrow_link(version, 1024).await;
    let mut connect = if version.is_v5() { lasting("client") } else { connect_v3("client") };
    connect.clean_start = false;
    client.send_connect(connect).await;
    client.accepted().await;
    client
}

#[tokio::test(start_paused = true)]
async fn drop_oldest_keeps_the_newest_for_a_slow_client() {
    let broker = TestBroker::start_with(with_limits(limits(50, QueueOverflow::DropOldest)));
    let mut publisher = broker.v5("publisher").await;
    let mut client = unread_subscriber(&broker, ProtocolVersion::V5).await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    for number in 0..1000 {
        publisher.publish("mid", format!("{number:01000}"), QoS::AtLeastOnce).await;
    }
    settle().await;
    let numbers: Vec<usize> =
        texts(&client.take_all().await).iter().map(|text| text.parse().unwrap()).collect();
    assert!(numbers.is_sorted());
    assert_eq!(numbers[numbers.len() - 50..], (950..1000).collect::<Vec<_>>());
    let dropped = broker.statistics().get(Counter::MessagesOverflowed);
    assert_eq!(dropped, 1000 - numbers.len() as u64);
    // The outbox and the link hold messages as well.
    assert!(dropped > 1000 - 50 - 80, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn disconnect_policy_closes_a_slow_client() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let broker = TestBroker::start_with(with_limits(limits(20, QueueOverflow::Disconnect)));
        let mut publisher = broker.v5("publisher").await;
        let mut client = unread_subscriber(&broker, version).await;
        client.subscribe("#", QoS::AtLeastOnce).await;
        for _ in 0..200 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        settle().await;
        assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 1);
        assert_eq!(broker.statistics().clients(), 1);
        loop {
            match client.next().await {
                Some(Packet::Publish(_)) => {}
                Some(Packet::Disconnect(disconnect)) if version.is_v5() => {
                    assert_eq!(disconnect.reason, ReasonCode::QuotaExceeded);
                    client.expect_end().await;
                    break;
                }
                None if !version.is_v5() => break,
                other => panic!("{other:?}"),
            }
        }
        // The queue is kept, and the client is not disconnected while it drains.
        let mut client = unread_subscriber(&broker, version).await;
        for _ in 0..30 {
            publisher.publish("mid", "y", QoS::AtLeastOnce).await;
        }
        assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 1);
        assert!(client.take_all().await.len() >= 20);
        // Messages from its time offline do not disconnect it either.
        client.vanish().await;
        for _ in 0..20 {
            publisher.publish("mid", "x".repeat(5000), QoS::AtLeastOnce).await;
        }
        let mut client = unread_subscriber(&broker, version).await;
        for _ in 0..100 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 1);
        client.take_all().await;
        // Once it has kept up it is disconnected again.
        for _ in 0..200 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        settle().await;
        assert_eq!(broker.statistics().get(Counter::ClientsOverwhelmed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn aged_messages_leave_the_queue_and_the_store() {
    let store = Arc::new(MemoryStore::new());
    let config = with_limits(LimitsConfig { queued_secs: 60, ..LimitsConfig::default() });
    let mut broker = TestBroker::start_with_all(config.clone(), Anonymous::default(), store.clone());
    offline(&broker, QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("mid", "old", QoS::AtLeastOnce).await;
    pass(30).await;
    publisher.publish("mid", "young", QoS::AtLeastOnce).await;
    pass(29).await;
    assert_eq!(broker.statistics().get(Counter::MessagesOutdated), 0);
    // No client has to connect for it.
    pass(15).await;
    assert_eq!(broker.statistics().get(Counter::MessagesOutdated), 1);
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
    drop(publisher);
    broker.handle.stop();
    broker.ended().await;
    let broker = TestBroker::start_with_all(config, Anonymous::default(), Arc::new(store.reopen()));
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["young"]);
}

/// The age of a message goes on in a connection that cannot send.
#[tokio::test(start_paused = true)]
async fn messages_taken_by_a_connection_age_too() {
    let config = with_limits(LimitsConfig { queued_secs: 60, ..LimitsConfig::default() });
    let broker = TestBroker::start_with(config);
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(1);
    let mut client = broker.connect(connect).await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    for text in ["on its way", "waits", "waits too"] {
        publisher.publish("mid", text, QoS::AtLeastOnce).await;
    }
    pass(62).await;
    publisher.publish("mid", "new", QoS::AtLeastOnce).await;
    assert_eq!(texts(&client.take_all().await), ["on its way", "new"]);
    assert_eq!(broker.statistics().get(Counter::MessagesOutdated), 2);
}

#[tokio::test(start_paused = true)]
async fn qos0_is_queued_for_offline_clients_if_configured() {
    for queue_qos0 in [false, true] {
        let limits = LimitsConfig { queue_qos0, ..limits(4, QueueOverflow::DropNewest) };
        let broker = TestBroker::start_with(with_limits(limits));
        offline(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        for text in ["1", "2"] {
            publisher.publish("mid", text, QoS::AtMostOnce).await;
        }
        publisher.publish("mid", "3", QoS::AtLeastOnce).await;
        let expected: &[&str] = if queue_qos0 { &["1", "2", "3"] } else { &["3"] };
        assert_eq!(texts(&broker.resume("client").await.take_all().await), expected);
        // QoS 0 is evicted for QoS 1.
        settle().await;
        for (text, qos) in (0..3).map(|_| ("zero", QoS::AtMostOnce)).chain([("one", QoS::AtLeastOnce); 4]) {
            publisher.publish("mid", text, qos).await;
        }
        assert_eq!(texts(&broker.resume("client").await.take_all().await), ["one"; 4]);
    }
}

/// Retained messages are sent while the queue has room.
#[tokio::test(start_paused = true)]
async fn retained_messages_do_not_overflow_the_queue() {
    for (overflow, qos) in [
        (QueueOverflow::DropNewest, QoS::AtMostOnce),
        (QueueOverflow::DropOldest, QoS::AtLeastOnce),
        (QueueOverflow::Disconnect, QoS::AtLeastOnce),
    ] {
        let broker = TestBroker::start_with(with_limits(limits(10, overflow)));
        let mut publisher = broker.v5("publisher").await;
        for number in 0..100 {
            let retained = Publish { retain: true, qos, ..message(&format!("r/{number}"), "x".repeat(500)) };
            publisher.publish_as(retained).await;
        }
        let mut client = unread_subscriber(&broker, ProtocolVersion::V5).await;
        client.subscribe("#", QoS::AtLeastOnce).await;
        settle().await;
        assert_eq!(client.take_all().await.len(), 100, "{overflow:?}");
    }
}

/// Nothing is delivered, and all of it is counted.
#[tokio::test(start_paused = true)]
async fn limit_of_zero_messages_holds_none() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect] {
        let broker = TestBroker::start_with(with_limits(limits(0, overflow)));
        offline(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        for text in ["1", "2"] {
            assert_eq!(publisher.publish("high", text, QoS::AtLeastOnce).await, ReasonCode::Success);
        }
        assert_eq!(texts(&broker.resume("client").await.take_all().await), Vec::<String>::new());
        assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn drops_are_published_below_sys() {
    let limits = LimitsConfig { queued_secs: 20, ..limits(2, QueueOverflow::DropOldest) };
    let mut config = with_limits(limits);
    config.sys.interval_secs = 5;
    let broker = TestBroker::start_with(config);
    let mut client = broker.resume("client").await;
    client.subscribe("mid", QoS::AtLeastOnce).await;
    client.disconnect().await;
    let mut publisher = broker.v5("publisher").await;
    for _ in 0..5 {
        publisher.publish("mid", "x", QoS::AtLeastOnce).await;
    }
    pass(60).await;
    let mut reader = broker.v5("reader").await;
    for (name, expected) in [("overflow", "3"), ("age", "2")] {
        reader.subscribe(&format!("$SYS/broker/messages/dropped/{name}"), QoS::AtMostOnce).await;
        assert_eq!(reader.take().await, expected, "{name}");
    }
}
