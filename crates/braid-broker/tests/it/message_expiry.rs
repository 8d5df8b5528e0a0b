//! Messages whose Message Expiry Interval passes in a queue: they are removed, and take no room. [MQTT-3.3.2-5]

use std::sync::Arc;

use braid_broker::{Anonymous, BrokerConfig, Counter, LimitsConfig, QueueOverflow};
use braid_proto::packet::{MessageProperties, Publish, QoS};
use braid_proto::reason::ReasonCode;
use braid_store::{MemoryStore, RecoveredState, Store};

use crate::support::{Client, TestBroker, message, pass, quiet, texts, wait};

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

/// A session that has subscribed to everything, with its client offline.
async fn offline(broker: &TestBroker) {
    let mut client = broker.resume("client").await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    client.disconnect().await;
}

/// Publishes a message with a Message Expiry Interval in seconds.
async fn publish_brief(publisher: &mut Client, text: &str, qos: QoS, seconds: u32) {
    let properties = MessageProperties { message_expiry: Some(seconds), ..MessageProperties::default() };
    let publish = Publish { qos, properties: Some(Box::new(properties)), ..message("t", text) };
    assert_eq!(publisher.publish_as(publish).await, ReasonCode::Success);
}

/// Sequence numbers in the queues of all sessions, as stored.
fn stored(store: &MemoryStore) -> usize {
    let mut image = RecoveredState::default();
    store.recover(&mut image).expect("memory can be read");
    image.sessions.values().map(|session| session.queue.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn expired_messages_make_room_in_a_full_queue() {
    for overflow in [QueueOverflow::DropNewest, QueueOverflow::DropOldest, QueueOverflow::Disconnect] {
        let store = Arc::new(MemoryStore::new());
        let limits = LimitsConfig { queued_messages: 2, queue_overflow: overflow, ..LimitsConfig::default() };
        let broker = TestBroker::start_with_all(with_limits(limits), Anonymous::default(), store.clone());
        offline(&broker).await;
        let mut publisher = broker.v5("publisher").await;
        for text in ["brief", "brief too"] {
            publish_brief(&mut publisher, text, QoS::AtLeastOnce, 1).await;
        }
        // Before the periodic search.
        pass(2).await;
        for text in ["1", "2"] {
            assert_eq!(publisher.publish("t", text, QoS::AtLeastOnce).await, ReasonCode::Success);
        }
        assert_eq!(stored(&store), 2, "{overflow:?}: the store is told");
        assert_eq!(texts(&broker.resume("client").await.take_all().await), ["1", "2"], "{overflow:?}");
        let statistics = broker.statistics();
        assert_eq!(
            (statistics.get(Counter::MessagesDropped), statistics.get(Counter::MessagesOverflowed)),
            (2, 0)
        );
    }
}

/// QoS 0 is evicted first, but not while expired messages can be removed.
#[tokio::test(start_paused = true)]
async fn expired_messages_are_evicted_before_qos0() {
    let limits = LimitsConfig { queued_messages: 3, queue_qos0: true, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    offline(&broker).await;
    let mut publisher = broker.v5("publisher").await;
    publish_brief(&mut publisher, "brief", QoS::AtMostOnce, 1).await;
    publish_brief(&mut publisher, "brief", QoS::AtLeastOnce, 1).await;
    publisher.publish("t", "0", QoS::AtMostOnce).await;
    pass(2).await;
    for text in ["1", "2"] {
        publisher.publish("t", text, QoS::AtLeastOnce).await;
    }
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["0", "1", "2"]);
    assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 0);
}

/// Neither a publisher nor the client connects meanwhile.
#[tokio::test(start_paused = true)]
async fn expired_messages_leave_the_queue_and_the_store() {
    let store = Arc::new(MemoryStore::new());
    let start = |store| TestBroker::start_with_all(quiet(), Anonymous::default(), store);
    let mut broker = start(store.clone());
    offline(&broker).await;
    let mut publisher = broker.v5("publisher").await;
    publish_brief(&mut publisher, "brief", QoS::AtLeastOnce, 1).await;
    publish_brief(&mut publisher, "longer", QoS::AtLeastOnce, 30).await;
    publish_brief(&mut publisher, "long", QoS::AtLeastOnce, 1000).await;
    publisher.publish("t", "for ever", QoS::AtLeastOnce).await;
    let mut rest = broker.handle.memory_resting();
    for (seconds, left) in [(12, 3), (12, 3), (20, 2)] {
        pass(seconds).await;
        assert_eq!(stored(&store), left);
        assert_eq!(broker.statistics().get(Counter::MessagesDropped), 4 - left as u64);
        assert!(broker.handle.memory_resting() <= rest);
        rest = broker.handle.memory_resting();
    }
    // Stored entries are searched as well.
    drop(publisher);
    broker.handle.stop();
    broker.ended().await;
    let store = Arc::new(store.reopen());
    let broker = start(store.clone());
    pass(1020).await;
    assert_eq!(stored(&store), 1);
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["for ever"]);
}

/// A full queue is not searched for each message, and admits one that has room a moment later.
#[tokio::test(start_paused = true)]
async fn messages_that_expire_in_turn_make_room_in_turn() {
    let limits = LimitsConfig { queued_messages: 3, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    offline(&broker).await;
    let mut publisher = broker.v5("publisher").await;
    for (text, seconds) in [("a", 1), ("b", 2), ("c", 3)] {
        publish_brief(&mut publisher, text, QoS::AtLeastOnce, seconds).await;
    }
    for text in ["1", "2", "3"] {
        wait(std::time::Duration::from_millis(1001)).await;
        publisher.publish("t", text, QoS::AtLeastOnce).await;
    }
    publisher.publish("t", "too much", QoS::AtLeastOnce).await;
    assert_eq!(texts(&broker.resume("client").await.take_all().await), ["1", "2", "3"]);
    assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 1);
}
