//! SUBSCRIBE, UNSUBSCRIBE and what overlapping subscriptions receive (MQTT 3.8 to 3.11, 3.3.4).

use braid_broker::{BrokerConfig, LimitsConfig};
use braid_proto::packet::{Packet, QoS, Subscribe, SubscribeEntry, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::TopicFilter;

use crate::support::{
    Client, TestBroker, filter, id, publish_packet, quiet, subscribe_packet, texts, unsubscribe_packet,
};

fn entry(text: &str, qos: QoS) -> SubscribeEntry {
    SubscribeEntry { filter: TopicFilter::parse(text), ..SubscribeEntry::new(filter("x"), qos) }
}

async fn subscribe_with_id(client: &mut Client, number: u32, text: &str, qos: QoS) {
    client.subscribe_all(Some(number), vec![entry(text, qos)]).await;
}

// [MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-4]
#[tokio::test(start_paused = true)]
async fn overlapping_subscriptions_of_mqtt_5_become_one_publish() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.v5("client").await;
    subscribe_with_id(&mut client, 1, "a/#", QoS::AtMostOnce).await;
    subscribe_with_id(&mut client, 2, "a/b", QoS::ExactlyOnce).await;
    subscribe_with_id(&mut client, 3, "+/b", QoS::AtLeastOnce).await;
    client.subscribe("#", QoS::AtMostOnce).await;
    for (published, expected) in [
        (QoS::ExactlyOnce, QoS::ExactlyOnce),
        (QoS::AtLeastOnce, QoS::AtLeastOnce),
        (QoS::AtMostOnce, QoS::AtMostOnce),
    ] {
        publisher.publish("a/b", "x", published).await;
        let publish = client.expect_publish().await;
        assert_eq!(publish.qos, expected);
        let mut numbers: Vec<_> = publish.subscription_ids.iter().map(|number| number.get()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3]);
        client.acknowledge(&publish).await;
        client.expect_silence().await;
    }
}

// [MQTT-3.3.4-5]
#[tokio::test(start_paused = true)]
async fn overlapping_subscriptions_of_mqtt_3_become_one_publish_each() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.v3("client").await;
    client.subscribe("a/#", QoS::AtMostOnce).await;
    client.subscribe("a/b", QoS::ExactlyOnce).await;
    client.subscribe("+/b", QoS::AtLeastOnce).await;
    publisher.publish("a/b", "x", QoS::ExactlyOnce).await;
    let mut granted: Vec<_> = client.take_many(3).await.iter().map(|publish| publish.qos).collect();
    granted.sort_unstable();
    assert_eq!(granted, [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
    client.expect_silence().await;
}

// [MQTT-3.8.3-3]
#[tokio::test(start_paused = true)]
async fn no_local_keeps_a_clients_own_messages_from_it() {
    let broker = TestBroker::start();
    let mut other = broker.v5("other").await;
    let mut client = broker.resume("client").await;
    client
        .subscribe_all(None, vec![SubscribeEntry { no_local: true, ..entry("a/#", QoS::AtLeastOnce) }])
        .await;
    client.publish("a/1", "own", QoS::AtLeastOnce).await;
    client.expect_silence().await;
    other.publish("a/1", "theirs", QoS::AtLeastOnce).await;
    assert_eq!(client.take().await, "theirs");
    // A resumed session counts as the same client.
    client.disconnect().await;
    let mut client = broker.resume("client").await;
    client.publish("a/1", "own", QoS::AtLeastOnce).await;
    client.expect_silence().await;
    // An overlapping subscription without No Local still wants it.
    client.subscribe("a/1", QoS::AtMostOnce).await;
    client.publish("a/1", "own", QoS::AtLeastOnce).await;
    assert_eq!(client.expect_publish().await.qos, QoS::AtMostOnce);
    client.expect_silence().await;
}

// [MQTT-3.8.4-3]
#[tokio::test(start_paused = true)]
async fn a_repeated_filter_replaces_the_subscription() {
    let broker = TestBroker::start();
    let mut client = broker.v3("client").await;
    client.subscribe("t", QoS::AtMostOnce).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.publish("t", "x", QoS::ExactlyOnce).await;
    assert_eq!(client.take_many(1).await[0].qos, QoS::AtLeastOnce);
    client.expect_silence().await;
}

// [MQTT-3.8.4-5], [MQTT-3.8.4-6], [MQTT-3.8.4-7], [MQTT-3.9.3-1]
#[tokio::test(start_paused = true)]
async fn each_filter_of_a_subscribe_has_its_own_reason_code() {
    let broker = TestBroker::start();
    let entries = || {
        vec![
            entry("good/1", QoS::AtMostOnce),
            entry("bad/#/filter", QoS::AtLeastOnce),
            entry("$share//t", QoS::AtLeastOnce),
            entry("good/2", QoS::ExactlyOnce),
        ]
    };
    let mut client = broker.v5("five").await;
    // Invalid filters are encoded as an empty text, which is invalid as well.
    let suback = client.subscribe_all(None, entries()).await;
    use ReasonCode::{GrantedQos2, Success, TopicFilterInvalid};
    assert_eq!(suback.codes, [Success, TopicFilterInvalid, TopicFilterInvalid, GrantedQos2]);
    client.publish("good/2", "x", QoS::AtLeastOnce).await;
    assert_eq!(client.take().await, "x");
    let mut client = broker.v3("three").await;
    let suback = client.subscribe_all(None, entries()).await;
    let bytes: Vec<_> = suback.codes.iter().map(|code| code.value()).collect();
    assert_eq!(bytes, [0, 0x80, 0x80, 2]); // [MQTT3-3.9.3-2]
}

/// Raw SUBSCRIBE with a text that no `TopicFilter` can hold.
fn raw_subscribe(text: &[u8], is_v5: bool) -> Vec<u8> {
    let mut body = vec![0, 1];
    if is_v5 {
        body.push(0);
    }
    body.extend(u16::try_from(text.len()).expect("a short text").to_be_bytes());
    body.extend(text);
    body.push(1);
    let mut packet = vec![0x82];
    let mut len = body.len();
    while len >= 128 {
        packet.push(u8::try_from(len % 128).expect("less than 128") | 0x80);
        len /= 128;
    }
    packet.push(u8::try_from(len).expect("less than 128"));
    packet.extend(body);
    packet
}

#[tokio::test(start_paused = true)]
async fn a_filter_of_65535_slashes_is_refused_and_not_executed() {
    let broker = TestBroker::start();
    for (mut client, code) in [
        (broker.v5("five").await, ReasonCode::TopicFilterInvalid),
        (broker.v3("three").await, ReasonCode::UnspecifiedError),
    ] {
        let is_v5 = client.version.is_v5();
        for text in [vec![b'/'; 65_535], "+/".repeat(32_767).into_bytes(), b"a/##".to_vec(), Vec::new()] {
            client.send_bytes(&raw_subscribe(&text, is_v5)).await;
            match client.next().await {
                Some(Packet::Suback(suback)) => assert_eq!(suback.codes, [code]),
                other => panic!("SUBACK expected, not {other:?}"),
            }
        }
        client.subscribe("t", QoS::AtMostOnce).await;
    }
}

// [MQTT-3.10.4-1], [MQTT-3.10.4-2], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6], [MQTT-3.11.3-1]
#[tokio::test(start_paused = true)]
async fn unsuback_has_a_code_for_each_filter() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.v5("client").await;
    client.subscribe("a", QoS::AtLeastOnce).await;
    client.subscribe("b/+", QoS::AtLeastOnce).await;
    client.subscribe("c", QoS::AtLeastOnce).await;
    client.send(unsubscribe_packet(7, &["a", "b/1", "b/+", "b/+", "#/"])).await;
    let Some(Packet::Unsuback(unsuback)) = client.next().await else { panic!("UNSUBACK expected") };
    assert_eq!(unsuback.packet_id, id(7));
    use ReasonCode::{NoSubscriptionExisted, Success, TopicFilterInvalid};
    assert_eq!(
        unsuback.codes,
        [Success, NoSubscriptionExisted, Success, NoSubscriptionExisted, TopicFilterInvalid]
    );
    for topic in ["a", "b/1", "c"] {
        publisher.publish(topic, topic, QoS::AtLeastOnce).await;
    }
    assert_eq!(texts(&client.take_all().await), ["c"]);
    let mut old = broker.v3("old").await;
    old.send(unsubscribe_packet(8, &["never/had"])).await;
    let Some(Packet::Unsuback(unsuback)) = old.next().await else { panic!("UNSUBACK expected") };
    assert_eq!((unsuback.packet_id, unsuback.codes.len()), (id(8), 0));
}

// [MQTT-3.10.4-3]
#[tokio::test(start_paused = true)]
async fn inflight_messages_are_completed_after_an_unsubscribe() {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    client.publish("t", "x", QoS::ExactlyOnce).await;
    let publish = client.expect_publish().await;
    client.send(unsubscribe_packet(9, &["t"])).await;
    assert!(matches!(client.next().await, Some(Packet::Unsuback(_))));
    client.acknowledge(&publish).await;
    client.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_cached_route_follows_each_change_of_the_subscriptions() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut clients = Vec::new();
    for number in 0..5 {
        // The publisher's connection caches the route of the topic, which must change each time.
        publisher.publish("t", format!("{number}"), QoS::AtMostOnce).await;
        publisher.expect_silence().await;
        let mut client = broker.v5(&format!("client-{number}")).await;
        client.subscribe("t", QoS::AtMostOnce).await;
        clients.push(client);
    }
    publisher.publish("t", "all", QoS::AtMostOnce).await;
    for (number, client) in clients.iter_mut().enumerate() {
        let expected: Vec<_> =
            (number + 1..5).map(|number| number.to_string()).chain(["all".into()]).collect();
        assert_eq!(texts(&client.take_all().await), expected);
    }
    clients.remove(2).disconnect().await;
    clients.remove(0).vanish().await;
    assert_eq!(publisher.publish("t", "some", QoS::AtLeastOnce).await, ReasonCode::Success);
    for client in &mut clients {
        assert_eq!(client.take().await, "some");
    }
    drop(clients);
    publisher.expect_silence().await;
    let reason = publisher.publish("t", "none", QoS::AtLeastOnce).await;
    assert_eq!(reason, ReasonCode::NoMatchingSubscribers);
}

#[tokio::test(start_paused = true)]
async fn subscriptions_have_a_limit() {
    let limits = LimitsConfig { subscriptions: 2, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut client = broker.v5("client").await;
    let entries = ["a", "b", "c", "a"].map(|text| entry(text, QoS::AtMostOnce));
    let codes = client.subscribe_all(None, entries.into()).await.codes;
    use ReasonCode::{QuotaExceeded, Success};
    assert_eq!(codes, [Success, Success, QuotaExceeded, Success]);
}

/// Also after a resume, and with the bytes of removed filters released.
#[tokio::test(start_paused = true)]
async fn the_filters_of_a_session_have_a_limit_in_bytes() {
    // Each costs 384 bytes, and its text twice.
    let limits = LimitsConfig { subscription_bytes: 3 * 384 + 2 * 10, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut client = broker.resume("client").await;
    let entries = ["aaaa", "bbbbb", "cc", "d", "aaaa"].map(|text| entry(text, QoS::AtMostOnce));
    let codes = client.subscribe_all(None, entries.into()).await.codes;
    use ReasonCode::{QuotaExceeded, Success, UnspecifiedError};
    assert_eq!(codes, [Success, Success, QuotaExceeded, Success, Success]);
    client.vanish().await;
    let mut client = broker.resume("client").await;
    let one = |text: &str| vec![entry(text, QoS::AtMostOnce)];
    assert_eq!(client.subscribe_all(None, one("e")).await.codes, [QuotaExceeded]);
    client.send(unsubscribe_packet(9, &["bbbbb"])).await;
    assert_eq!(client.find_unsuback().await.codes, [Success]);
    assert_eq!(client.subscribe_all(None, one("eeeee")).await.codes, [Success]);
    // MQTT 3 has one code for it, and each session has its own limit.
    let mut client = broker.v3("other").await;
    let long = client.subscribe_all(None, one(&"x".repeat(395))).await.codes;
    assert_eq!(long, [UnspecifiedError]);
    assert_eq!(client.subscribe_all(None, one(&"x".repeat(394))).await.codes, [Success]);
}

// The subscription must not depend on how the bytes are split into reads.
#[tokio::test(start_paused = true)]
async fn a_subscribe_right_before_disconnect_takes_effect() {
    let broker = TestBroker::start();
    let mut client = broker.resume("client").await;
    let disconnect = braid_proto::packet::Disconnect::new(ReasonCode::Success);
    let subscribe = subscribe_packet(1, None, vec![entry("t", QoS::AtLeastOnce)]);
    let last = publish_packet("t", "own", QoS::AtLeastOnce, 2);
    client.send_all([subscribe, last, Packet::Disconnect(Box::new(disconnect))]).await;
    client.expect_end().await;
    broker.v5("publisher").await.publish("t", "theirs", QoS::AtLeastOnce).await;
    let mut client = broker.resume("client").await;
    assert_eq!(texts(&client.take_all().await), ["own", "theirs"]);
}

#[tokio::test(start_paused = true)]
async fn violations_of_subscribe_close_the_connection() {
    let broker = TestBroker::start();
    let shared = SubscribeEntry { no_local: true, ..entry("$share/g/t", QoS::AtMostOnce) };
    let none = Subscribe { packet_id: id(1), id: None, user: UserProperties::new(), entries: Vec::new() };
    for packet in [
        subscribe_packet(1, None, vec![shared]), // [MQTT-3.8.3-4]
        Packet::Subscribe(Box::new(none)),       // [MQTT-3.8.3-2]
        unsubscribe_packet(1, &[]),              // [MQTT-3.10.3-2]
    ] {
        let mut client = broker.v5("client").await;
        client.send(packet).await;
        client.expect_disconnect(ReasonCode::ProtocolError).await; // [MQTT-4.13.1-1]
    }
}
