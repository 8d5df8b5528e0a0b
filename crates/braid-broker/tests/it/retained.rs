//! Retained messages (MQTT 3.3.1.3) as subscribers see them.

use braid_broker::{BrokerConfig, LimitsConfig};
use braid_proto::packet::{MessageProperties, ProtocolVersion, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::session::RetainHandling;

use crate::support::{Client, TestBroker, filter, lasting, message, pass, quiet, texts, unsubscribe_packet};

fn retained(topic: &str, payload: &str) -> Publish {
    Publish { qos: QoS::AtLeastOnce, retain: true, ..message(topic, payload) }
}

/// Retained messages that a new subscriber receives, sorted.
async fn seen(broker: &TestBroker, text: &str) -> Vec<String> {
    let mut client = broker.v5("looker").await;
    client.subscribe(text, QoS::ExactlyOnce).await;
    let publishes = client.take_all().await;
    assert!(publishes.iter().all(|publish| publish.retain && !publish.dup)); // [MQTT3-3.3.1-8]
    client.disconnect().await;
    let mut texts = texts(&publishes);
    texts.sort_unstable();
    texts
}

// [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-7], [MQTT-3.3.1-8]
#[tokio::test(start_paused = true)]
async fn retained_messages_are_set_replaced_and_cleared() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    publisher.publish_as(retained("a/1", "one")).await;
    publisher.publish_as(retained("a/2", "two")).await;
    assert_eq!(seen(&broker, "a/+").await, ["one", "two"]);
    publisher.publish_as(retained("a/1", "uno")).await;
    // Without RETAIN nothing changes.
    publisher.publish("a/1", "passing", QoS::AtLeastOnce).await;
    publisher.publish("a/2", "", QoS::AtLeastOnce).await;
    assert_eq!(seen(&broker, "#").await, ["two", "uno"]);
    assert_eq!(seen(&broker, "a/1").await, ["uno"]);
    // QoS 0 replaces too. [MQTT3-3.3.1-7]
    publisher.publish_as(Publish { qos: QoS::AtMostOnce, ..retained("a/1", "eins") }).await;
    assert_eq!(seen(&broker, "a/1").await, ["eins"]);
    let mut live = broker.v5("live").await;
    live.subscribe("a/2", QoS::AtMostOnce).await;
    assert_eq!(live.take().await, "two");
    publisher.publish_as(retained("a/2", "")).await;
    // The clearing message itself is delivered, without the flag. [MQTT-3.3.1-12]
    let publish = live.expect_publish().await;
    assert_eq!((publish.payload.len(), publish.retain), (0, false));
    assert_eq!(seen(&broker, "a/#").await, ["eins"]);
}

async fn subscribe_with(client: &mut Client, handling: RetainHandling) -> usize {
    let entry =
        SubscribeEntry { retain_handling: handling, ..SubscribeEntry::new(filter("a/+"), QoS::AtMostOnce) };
    client.subscribe_all(None, vec![entry]).await;
    client.take_all().await.len()
}

// [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11], [MQTT-3.8.4-4], [MQTT-3.8.4-3]
#[tokio::test(start_paused = true)]
async fn retain_handling_decides_whether_retained_messages_are_sent() {
    use RetainHandling::{DoNotSend, SendAlways, SendIfNew};
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    publisher.publish_as(retained("a/1", "one")).await;
    publisher.publish_as(retained("a/2", "two")).await;
    for (first, second, replays) in [
        (SendAlways, SendAlways, (2, 2)),
        (SendIfNew, SendIfNew, (2, 0)),
        (DoNotSend, DoNotSend, (0, 0)),
        (DoNotSend, SendIfNew, (0, 0)),
        (DoNotSend, SendAlways, (0, 2)),
    ] {
        let mut client = broker.v5("client").await;
        let first = subscribe_with(&mut client, first).await;
        let second = subscribe_with(&mut client, second).await;
        assert_eq!((first, second), replays);
    }
    // A resumed session has its subscription already.
    let mut client = broker.resume("resumed").await;
    assert_eq!(subscribe_with(&mut client, SendIfNew).await, 2);
    client.disconnect().await;
    let mut client = broker.resume("resumed").await;
    assert_eq!(subscribe_with(&mut client, SendIfNew).await, 0);
}

// [MQTT-3.3.1-12], [MQTT-3.3.1-13]
#[tokio::test(start_paused = true)]
async fn retain_as_published_keeps_the_flag() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    for keeps in [false, true] {
        let mut client = broker.v5("client").await;
        let entry = SubscribeEntry {
            retain_as_published: keeps,
            ..SubscribeEntry::new(filter("t"), QoS::AtMostOnce)
        };
        client.subscribe_all(None, vec![entry]).await;
        client.take_all().await;
        publisher.publish_as(retained("t", "x")).await;
        assert_eq!(client.expect_publish().await.retain, keeps);
        publisher.publish("t", "x", QoS::AtLeastOnce).await;
        assert!(!client.expect_publish().await.retain);
        // A retained message for a new subscription has the flag in any case.
        client.subscribe("t", QoS::AtMostOnce).await;
        assert!(client.expect_publish().await.retain);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retained_message_expires() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let properties = MessageProperties { message_expiry: Some(60), ..MessageProperties::default() };
    publisher.publish_as(Publish { properties: Some(Box::new(properties)), ..retained("t", "x") }).await;
    pass(20).await;
    let mut client = broker.v5("client").await;
    client.subscribe("t", QoS::AtMostOnce).await;
    let left = client.expect_publish().await.properties.and_then(|properties| properties.message_expiry);
    assert!(matches!(left, Some(39..=40)), "{left:?}"); // [MQTT-3.3.2-6]
    pass(41).await;
    client.subscribe("t", QoS::AtMostOnce).await;
    client.expect_silence().await;
    // MQTT 3 sees the same without the property. [MQTT-3.3.2-5]
    let mut old = broker.v3("old").await;
    old.subscribe("t", QoS::AtMostOnce).await;
    old.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn retained_messages_have_the_lower_qos_and_the_subscription_identifier() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    publisher.publish_as(Publish { qos: QoS::ExactlyOnce, ..retained("t", "x") }).await;
    let mut client = broker.v5("client").await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        client.subscribe_all(Some(42), vec![SubscribeEntry::new(filter("t"), qos)]).await;
        let publish = client.expect_publish().await;
        assert_eq!(publish.qos, qos);
        assert_eq!(publish.subscription_ids.iter().map(|id| id.get()).collect::<Vec<_>>(), [42]);
        client.acknowledge(&publish).await;
    }
}

// [MQTT3-3.1.2-7]
#[tokio::test(start_paused = true)]
async fn retained_messages_outlive_their_publisher_and_have_a_limit() {
    let limits = LimitsConfig { retained_messages: 2, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = broker.v5("publisher").await;
    for (topic, reason) in [
        ("a", ReasonCode::NoMatchingSubscribers),
        ("b", ReasonCode::NoMatchingSubscribers),
        ("c", ReasonCode::QuotaExceeded),
        ("a", ReasonCode::NoMatchingSubscribers),
    ] {
        assert_eq!(publisher.publish_as(retained(topic, topic)).await, reason, "{topic}");
    }
    publisher.disconnect().await;
    assert_eq!(seen(&broker, "#").await, ["a", "b"]);
    // A cleared message makes room.
    let mut publisher = broker.v5("publisher").await;
    publisher.publish_as(retained("a", "")).await;
    publisher.publish_as(retained("c", "c")).await;
    assert_eq!(seen(&broker, "#").await, ["b", "c"]);
}

/// A limit of 0 refuses every message with RETAIN.
#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_retains_nothing() {
    for (retained_messages, retained_bytes) in [(0, 1 << 20), (10, 0)] {
        let limits = LimitsConfig { retained_messages, retained_bytes, ..LimitsConfig::default() };
        let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
        let mut live = broker.v5("live").await;
        live.subscribe("#", QoS::AtMostOnce).await;
        let mut publisher = broker.v5("publisher").await;
        assert_eq!(publisher.publish_as(retained("a", "a")).await, ReasonCode::QuotaExceeded);
        publisher.publish("a", "passing", QoS::AtLeastOnce).await;
        assert_eq!(live.take().await, "passing", "the refused one reaches no subscriber");
        assert_eq!(seen(&broker, "#").await, Vec::<String>::new());
    }
}

/// Retains `count` messages of 1,000 bytes below `a/`, and returns their texts, sorted.
async fn retain_many(broker: &TestBroker, count: usize) -> Vec<String> {
    let mut publisher = broker.v5("publisher").await;
    let mut texts: Vec<_> = (0..count).map(|number| format!("{number:01000}")).collect();
    for (number, text) in texts.iter().enumerate() {
        publisher.publish_as(retained(&format!("a/{number}"), text)).await;
    }
    publisher.disconnect().await;
    texts.sort_unstable();
    texts
}

/// Client that receives the first of many retained messages and acknowledges none.
async fn stuck(broker: &TestBroker) -> Client {
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(lasting("client")).await;
    client.accepted().await;
    client
}

// [MQTT-3.3.1-9]
#[tokio::test(start_paused = true)]
async fn pending_retained_messages_are_sent_after_a_resume() {
    const COUNT: usize = 1000;
    let broker = TestBroker::start();
    let all = retain_many(&broker, COUNT).await;
    let mut client = stuck(&broker).await;
    client.subscribe("a/+", QoS::AtLeastOnce).await;
    client.vanish().await;
    // The client vanishes again before it has all, and later another connection takes over.
    let mut client = stuck(&broker).await;
    let mut seen = texts(&client.take_many(300).await);
    client.vanish().await;
    let client = stuck(&broker).await;
    let mut last = broker.resume("client").await;
    seen.extend(texts(&last.take_all().await));
    drop(client);
    seen.sort_unstable();
    seen.dedup(); // Inflight messages are sent again.
    assert!(seen == all, "{} of {COUNT} came", seen.len());
    // No retained message is sent twice.
    last.vanish().await;
    broker.resume("client").await.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn pending_retained_messages_end_with_their_subscription() {
    let broker = TestBroker::start();
    retain_many(&broker, 1000).await;
    let mut client = stuck(&broker).await;
    client.subscribe("a/+", QoS::AtMostOnce).await;
    client.vanish().await;
    let mut client = stuck(&broker).await;
    client.send(unsubscribe_packet(9, &["a/+"])).await;
    // Messages that were already taken from the index come before the UNSUBACK.
    client.find_unsuback().await;
    assert!(client.take_all().await.len() < 600);
    // A new session has nothing pending.
    client.subscribe("a/+", QoS::AtMostOnce).await;
    client.vanish().await;
    let mut client = broker.v5("client").await;
    client.expect_silence().await;
    client.disconnect().await;
}

// MQTT 5, 4.8.2: a new shared subscription receives no retained messages.
#[tokio::test(start_paused = true)]
async fn a_shared_subscription_receives_no_retained_messages() {
    let broker = TestBroker::start();
    broker.v5("publisher").await.publish_as(retained("t", "x")).await;
    assert_eq!(seen(&broker, "$share/g/t").await, Vec::<String>::new());
    assert_eq!(seen(&broker, "t").await, ["x"]);
}
