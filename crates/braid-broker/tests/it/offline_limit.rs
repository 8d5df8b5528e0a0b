//! Limit of the queues of all offline clients together.

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig, PriorityRule, QueueOverflow};
use braid_proto::packet::{Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::Priority;

use crate::disk::Disk;
use crate::support::{Client, TestBroker, filter, lasting, message, pass, quiet, settle, texts};

/// The limit, bytes.
const LIMIT: usize = 200_000;

/// Bytes of a payload.
const SIZE: usize = 1000;

/// Upper bound of the bytes of a message and a delivery beside the payload.
const OVERHEAD: usize = 800;

fn config(queue_overflow: QueueOverflow) -> BrokerConfig {
    let limits = LimitsConfig { resting_bytes: LIMIT, queue_overflow, ..LimitsConfig::default() };
    let priority = vec![PriorityRule { filter: filter("alarms/#"), priority: Priority::new(200) }];
    BrokerConfig { limits, priority, ..quiet() }
}

fn start(disk: &Disk, queue_overflow: QueueOverflow) -> TestBroker {
    TestBroker::start_with_all(config(queue_overflow), Anonymous::default(), disk.open())
}

/// A session that has subscribed, with its client offline.
async fn offline(broker: &TestBroker, client_id: &str, text: &str) {
    let mut client = broker.resume(client_id).await;
    client.subscribe(text, QoS::AtLeastOnce).await;
    client.disconnect().await;
}

/// Publishes messages that begin with their numbers.
async fn publish(publisher: &mut Client, topic: &str, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let reason = publisher.publish(topic, text(number), QoS::AtLeastOnce).await;
        assert_eq!(reason, ReasonCode::Success);
    }
}

fn text(number: usize) -> String {
    format!("{number:0SIZE$}")
}

fn queued(broker: &TestBroker) -> usize {
    usize::try_from(broker.handle.memory_queued()).expect("small")
}

#[tokio::test(start_paused = true)]
async fn offline_queues_have_a_limit_together() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect] {
        let broker = TestBroker::start_with(config(overflow));
        let mut live = broker.v5("live").await;
        live.subscribe("#", QoS::AtLeastOnce).await;
        offline(&broker, "a", "a").await;
        offline(&broker, "b", "b").await;
        let mut publisher = broker.v5("publisher").await;
        publish(&mut publisher, "a", 0..100).await;
        assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
        // Far less than the limit of either queue.
        publish(&mut publisher, "b", 0..300).await;
        assert_eq!(live.take_many(400).await.len(), 400, "an online client gets everything");
        settle().await;
        let (queued, statistics) = (queued(&broker), broker.statistics());
        assert!(queued <= LIMIT && queued > LIMIT - 2 * (SIZE + OVERHEAD), "{queued}");
        let dropped = statistics.get(Counter::MessagesDropped);
        assert!(dropped > 100, "{dropped}");
        assert_eq!(statistics.get(Counter::MessagesOverflowed), dropped);
        assert_eq!(statistics.get(Counter::MessagesCrowdedOut), dropped);
        let a = texts(&broker.resume("a").await.take_all().await);
        assert_eq!(a, (0..100).map(text).collect::<Vec<_>>(), "no queue loses messages to another");
        settle().await;
        // There is room again.
        publish(&mut publisher, "b", 300..310).await;
        assert_eq!(broker.statistics().get(Counter::MessagesDropped), dropped);
        let left = 300 - usize::try_from(dropped).expect("small");
        let oldest = if overflow == QueueOverflow::DropOldest { 300 - left..300 } else { 0..left };
        let b = texts(&broker.resume("b").await.take_all().await);
        assert_eq!(b, oldest.chain(300..310).map(text).collect::<Vec<_>>(), "{overflow:?}");
        settle().await;
        assert_eq!(broker.handle.memory_queued(), 0);
    }
}

/// A queue that cannot make up for a message rejects it, and loses nothing.
#[tokio::test(start_paused = true)]
async fn message_evicts_nothing_if_that_frees_too_little() {
    let broker = TestBroker::start_with(config(QueueOverflow::DropOldest));
    offline(&broker, "a", "a").await;
    offline(&broker, "b", "b").await;
    let mut publisher = broker.v5("publisher").await;
    publish(&mut publisher, "b", 0..2).await;
    publish(&mut publisher, "a", 0..300).await;
    publisher.publish("b", [0; 10 * SIZE], QoS::AtLeastOnce).await;
    assert_eq!(texts(&broker.resume("b").await.take_all().await), [text(0), text(1)]);
}

#[tokio::test(start_paused = true)]
async fn urgent_messages_have_a_reserve() {
    let broker = TestBroker::start_with(config(QueueOverflow::DropNewest));
    offline(&broker, "client", "#").await;
    let mut publisher = broker.v5("publisher").await;
    publish(&mut publisher, "bulk", 0..300).await;
    let dropped = broker.statistics().get(Counter::MessagesDropped);
    publish(&mut publisher, "alarms/fire", 0..10).await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), dropped);
    assert!(queued(&broker) > LIMIT);
    publish(&mut publisher, "alarms/fire", 10..100).await;
    assert!(queued(&broker) <= LIMIT + LIMIT / 4);
    assert!(broker.statistics().get(Counter::MessagesDropped) > dropped);
}

/// A message counts once and each delivery a little. Retained messages have a limit of their own.
#[tokio::test(start_paused = true)]
async fn shared_and_retained_messages_count_once() {
    let broker = TestBroker::start_with(config(QueueOverflow::DropNewest));
    for number in 0..20 {
        offline(&broker, &format!("client-{number}"), "#").await;
    }
    let mut publisher = broker.v5("publisher").await;
    publish(&mut publisher, "t", 0..10).await;
    assert!(
        queued(&broker) > 10 * SIZE && queued(&broker) < 10 * (SIZE + 20 * OVERHEAD),
        "{}",
        queued(&broker)
    );
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
    let broker = TestBroker::start_with(config(QueueOverflow::DropNewest));
    let mut publisher = broker.v5("publisher").await;
    for (topic, size) in [("r/1", LIMIT), ("r/2", LIMIT), ("r/1", 2 * LIMIT), ("r/2", 0)] {
        let retained = Publish { retain: true, ..message(topic, vec![0; size]) };
        publisher.publish_as(retained).await;
    }
    settle().await;
    assert_eq!(broker.handle.memory_queued(), 0);
    assert!(broker.handle.memory_resting() > LIMIT as u64);
    offline(&broker, "client", "t").await;
    publish(&mut publisher, "t", 0..10).await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
}

/// Stored messages count with their bytes in memory: few for one offline client alone. None of them is dropped at the
/// start.
#[tokio::test(start_paused = true)]
async fn stored_queues_count_after_a_start() {
    for clients in [&["client"][..], &["client", "twin"]] {
        let disk = Disk::new_file();
        let broker = start(&disk, QueueOverflow::DropNewest);
        for client in clients {
            offline(&broker, client, "#").await;
        }
        let mut publisher = broker.v5("publisher").await;
        publish(&mut publisher, "t", 0..300).await;
        let (before, dropped) = (queued(&broker), broker.statistics().get(Counter::MessagesDropped));
        // One is inflight.
        let mut connect = lasting("client");
        connect.properties.receive_maximum = Some(1);
        let mut client = broker.connect(connect).await;
        client.expect_publish().await;
        client.vanish().await;
        let disk = disk.after_crash();
        let broker = start(&disk, QueueOverflow::DropNewest);
        let (after, is_alone) = (queued(&broker), clients.len() == 1);
        let in_store = || 299 - usize::try_from(dropped).expect("small");
        let least = if is_alone { SIZE + 48 * in_store() } else { before - SIZE - OVERHEAD };
        let most = if is_alone { before / 10 } else { before };
        assert!((least..=most).contains(&after), "{after} of {before}");
        assert_eq!(broker.handle.memory_used(), 0);
        let mut publisher = broker.v5("publisher").await;
        publish(&mut publisher, "t", 300..310).await;
        let crowded = broker.statistics().get(Counter::MessagesCrowdedOut);
        assert!(if is_alone { crowded == 0 } else { crowded > 15 }, "{crowded}");
        let mut received = 0;
        for client in clients {
            received += broker.resume(client).await.take_all().await.len() as u64;
        }
        assert_eq!(received, 310 * clients.len() as u64 - dropped - crowded);
        settle().await;
        assert_eq!((broker.handle.memory_queued(), broker.handle.memory_resting()), (0, 0));
    }
}

/// An eviction would free hardly any memory.
#[tokio::test(start_paused = true)]
async fn stored_entries_are_not_evicted_for_memory() {
    let disk = Disk::new_file();
    let broker = start(&disk, QueueOverflow::DropOldest);
    offline(&broker, "a", "a").await;
    offline(&broker, "b", "b").await;
    publish(&mut broker.v5("publisher").await, "a", 0..20).await;
    let disk = disk.after_crash();
    let broker = start(&disk, QueueOverflow::DropOldest);
    let mut publisher = broker.v5("publisher").await;
    publish(&mut publisher, "a", 20..22).await;
    publish(&mut publisher, "b", 0..300).await;
    publish(&mut publisher, "a", 22..24).await;
    let a = texts(&broker.resume("a").await.take_all().await);
    assert_eq!(a, (0..20).chain(22..24).map(text).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn offline_limit_is_published_below_sys() {
    let mut config = config(QueueOverflow::DropNewest);
    config.sys.interval_secs = 5;
    let broker = TestBroker::start_with(config);
    offline(&broker, "client", "t").await;
    let mut publisher = broker.v5("publisher").await;
    publish(&mut publisher, "t", 0..300).await;
    pass(6).await;
    let mut reader = broker.v5("reader").await;
    let dropped = broker.statistics().get(Counter::MessagesCrowdedOut);
    for (name, expected) in
        [("messages/dropped/resting", dropped), ("memory/queued", broker.handle.memory_queued())]
    {
        reader.subscribe(&format!("$SYS/broker/{name}"), QoS::AtMostOnce).await;
        assert_eq!(reader.take().await, expected.to_string(), "{name}");
    }
}
