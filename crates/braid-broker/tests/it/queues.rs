//! Queues of sessions that overflow or grow old: what gives way, and that nothing else does.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_broker::{Anonymous, BrokerConfig, LimitsConfig, PriorityRule, QueueOverflow};
use braid_proto::packet::{Packet, ProtocolVersion, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;
use braid_store::MemoryStore;

use crate::support::{
    Client, Seed, TestBroker, connect_v3, filter, lasting, message, pass, publish_packet, quiet, settle,
    texts,
};

/// Topics with their priorities, the usual one in the middle.
const TOPICS: [(&str, u16); 3] = [("low", 8), ("mid", 100), ("high", 200)];

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    let rule = |(text, priority)| PriorityRule { filter: filter(text), priority: Priority::new(priority) };
    BrokerConfig { limits, priority: TOPICS.map(rule).into(), ..quiet() }
}

fn limits(queued_messages: usize, queue_overflow: QueueOverflow) -> LimitsConfig {
    LimitsConfig { queued_messages, queue_overflow, ..LimitsConfig::default() }
}

/// A session that has subscribed to everything, whose client is away.
async fn absent(broker: &TestBroker, qos: QoS) {
    absent_as(broker, "client", qos).await;
}

async fn absent_as(broker: &TestBroker, client_id: &str, qos: QoS) {
    let mut client = broker.resume(client_id).await;
    client.subscribe("#", qos).await;
    client.disconnect().await;
}

/// What waits for a client, in the order of its sending, by the rules of `overflow`.
struct Model {
    cap: usize,
    overflow: QueueOverflow,
    /// By priority, the highest last, each in the order of coming.
    waiting: BTreeMap<u16, Vec<String>>,
    dropped: u64,
}

impl Model {
    fn len(&self) -> usize {
        self.waiting.values().map(Vec::len).sum()
    }

    fn push(&mut self, priority: u16, text: String) {
        // What is urgent has a reserve.
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

/// What overflows gives way by the policy and leaves the store with it: a broker that starts again finds the same, and
/// what is in the store alone gives way as what came since.
#[tokio::test(start_paused = true)]
async fn what_an_absent_client_gets_agrees_with_a_model() {
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
        // A message that is for one client alone stays in the store.
        let clients = &["client", "twin"][..rng.usize(1..3)];
        for client in clients {
            absent_as(&broker, client, QoS::ExactlyOnce).await;
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
            assert_eq!(broker.statistics().messages_overflowed(), dropped);
            assert_eq!(broker.statistics().messages_dropped(), dropped);
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

/// A start with lower caps: what was acknowledged stays unless the oldest is to give way.
#[tokio::test(start_paused = true)]
async fn a_queue_above_its_cap_is_kept_at_a_start_and_takes_nothing_more() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::Disconnect, QueueOverflow::DropOldest] {
        let store = Arc::new(MemoryStore::new());
        let start = |cap, store| {
            TestBroker::start_with_all(with_limits(limits(cap, overflow)), Anonymous::default(), store)
        };
        let mut broker = start(10, store.clone());
        absent(&broker, QoS::AtLeastOnce).await;
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
            // A quarter more is for what is urgent, and only what is more than that goes at the start.
            QueueOverflow::DropOldest => &["7", "8", "9", "new"],
            _ => &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        };
        let received = texts(&broker.resume("client").await.take_all().await);
        assert_eq!(received, expected, "{overflow:?}");
        assert_eq!(broker.statistics().messages_overflowed(), 11 - expected.len() as u64);
    }
}

/// While a returning client takes what waited, others publish: within a lane nothing overtakes, and nothing is there
/// twice or lost without being counted.
#[tokio::test(start_paused = true)]
async fn live_messages_overtake_nothing_of_their_lane_while_a_queue_drains() {
    for seed in 0..40 {
        let _seed = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let overflow = [QueueOverflow::DropNewest, QueueOverflow::DropOldest][usize::from(rng.bool())];
        let broker = TestBroker::start_with(with_limits(limits(rng.usize(10..300), overflow)));
        absent(&broker, QoS::AtLeastOnce).await;
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
        assert_eq!(received + broker.statistics().messages_dropped(), number);
    }
}

/// Counts a message that is new in its lane; what is repeated says so.
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

/// A client whose link holds little and who does not read.
async fn deaf(broker: &TestBroker, version: ProtocolVersion) -> Client {
    let mut client = broker.narrow_link(version, 1024).await;
    let mut connect = if version.is_v5() { lasting("client") } else { connect_v3("client") };
    connect.clean_start = false;
    client.send_connect(connect).await;
    client.accepted().await;
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_keep_up_gets_what_is_newest() {
    let broker = TestBroker::start_with(with_limits(limits(50, QueueOverflow::DropOldest)));
    let mut publisher = broker.v5("publisher").await;
    let mut client = deaf(&broker, ProtocolVersion::V5).await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    for number in 0..1000 {
        publisher.publish("mid", format!("{number:01000}"), QoS::AtLeastOnce).await;
    }
    settle().await;
    let numbers: Vec<usize> =
        texts(&client.take_all().await).iter().map(|text| text.parse().unwrap()).collect();
    assert!(numbers.is_sorted());
    assert_eq!(numbers[numbers.len() - 50..], (950..1000).collect::<Vec<_>>());
    let dropped = broker.statistics().messages_overflowed();
    assert_eq!(dropped, 1000 - numbers.len() as u64);
    // Beside the queue there is what was encoded, and a link.
    assert!(dropped > 1000 - 50 - 80, "{dropped}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_keep_up_is_disconnected_if_it_is_to_be() {
    for version in [ProtocolVersion::V5, ProtocolVersion::V311] {
        let broker = TestBroker::start_with(with_limits(limits(20, QueueOverflow::Disconnect)));
        let mut publisher = broker.v5("publisher").await;
        let mut client = deaf(&broker, version).await;
        client.subscribe("#", QoS::AtLeastOnce).await;
        for _ in 0..200 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        settle().await;
        assert_eq!(broker.statistics().clients_overwhelmed(), 1);
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
        // What waited is kept; while it drains the client is left alone.
        let mut client = deaf(&broker, version).await;
        for _ in 0..30 {
            publisher.publish("mid", "y", QoS::AtLeastOnce).await;
        }
        assert_eq!(broker.statistics().clients_overwhelmed(), 1);
        assert!(client.take_all().await.len() >= 20);
        // Nor is it for what came while it was away.
        client.vanish().await;
        for _ in 0..20 {
            publisher.publish("mid", "x".repeat(5000), QoS::AtLeastOnce).await;
        }
        let mut client = deaf(&broker, version).await;
        for _ in 0..100 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        assert_eq!(broker.statistics().clients_overwhelmed(), 1);
        client.take_all().await;
        // Once it has kept up again it is not left alone.
        for _ in 0..200 {
            publisher.publish("mid", "x".repeat(1000), QoS::AtLeastOnce).await;
        }
        settle().await;
        assert_eq!(broker.statistics().clients_overwhelmed(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_too_long_is_dropped_here_and_in_the_store() {
    let store = Arc::new(MemoryStore::new());
    let config = with_limits(LimitsConfig { queued_secs: 60, ..LimitsConfig::default() });
    let mut broker = TestBroker::start_with_all(config.clone(), Anonymous::default(), store.clone());
    absent(&broker, QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("mid", "old", QoS::AtLeastOnce).await;
    pass(30).await;
    publisher.publish("mid", "young", QoS::AtLeastOnce).await;
    pass(29).await;
    assert_eq!(broker.statistics().messages_outdated(), 0);
    // Nobody has to come for it.
    pass(15).await;
    assert_eq!(broker.statistics().messages_outdated(), 1);
    assert_eq!(broker.statistics().messages_dropped(), 1);
    drop(publisher);
    broker.handle.stop();
    broker.ended().await;
    let broker = TestBroker::start_with_all(config, Anonymous::default(), Arc::new(store.reopen()));
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["young"]);
}

/// A connection that cannot send does not make what waits any younger.
#[tokio::test(start_paused = true)]
async fn what_a_connection_took_and_could_not_send_grows_old_too() {
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
    assert_eq!(broker.statistics().messages_outdated(), 2);
}

#[tokio::test(start_paused = true)]
async fn qos_0_waits_for_absent_clients_only_if_it_is_to() {
    for queue_qos0 in [false, true] {
        let limits = LimitsConfig { queue_qos0, ..limits(4, QueueOverflow::DropNewest) };
        let broker = TestBroker::start_with(with_limits(limits));
        absent(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        for text in ["1", "2"] {
            publisher.publish("mid", text, QoS::AtMostOnce).await;
        }
        publisher.publish("mid", "3", QoS::AtLeastOnce).await;
        let expected: &[&str] = if queue_qos0 { &["1", "2", "3"] } else { &["3"] };
        assert_eq!(texts(&broker.resume("client").await.take_all().await), expected);
        // It makes room for what is owed.
        settle().await;
        for (text, qos) in (0..3).map(|_| ("zero", QoS::AtMostOnce)).chain([("one", QoS::AtLeastOnce); 4]) {
            publisher.publish("mid", text, qos).await;
        }
        assert_eq!(texts(&broker.resume("client").await.take_all().await), ["one"; 4]);
    }
}

/// Retained messages are no burst that a queue has to hold: they come as it has room.
#[tokio::test(start_paused = true)]
async fn retained_messages_for_a_new_subscription_overflow_nothing() {
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
        let mut client = deaf(&broker, ProtocolVersion::V5).await;
        client.subscribe("#", QoS::AtLeastOnce).await;
        settle().await;
        assert_eq!(client.take_all().await.len(), 100, "{overflow:?}");
    }
}

/// Nothing fits: nothing is delivered, and all of it is counted.
#[tokio::test(start_paused = true)]
async fn a_queue_for_no_messages_holds_none() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect] {
        let broker = TestBroker::start_with(with_limits(limits(0, overflow)));
        absent(&broker, QoS::AtLeastOnce).await;
        let mut publisher = broker.v5("publisher").await;
        for text in ["1", "2"] {
            assert_eq!(publisher.publish("high", text, QoS::AtLeastOnce).await, ReasonCode::Success);
        }
        assert_eq!(texts(&broker.resume("client").await.take_all().await), Vec::<String>::new());
        assert_eq!(broker.statistics().messages_overflowed(), 2);
    }
}

/// What the answer is to whoever asks for the numbers.
#[tokio::test(start_paused = true)]
async fn drops_are_told_below_sys() {
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
