//! Publication, delay and deletion of Wills (MQTT 5, 3.1.2.5, 3.1.3.2.2).

use std::time::Duration;

use braid_proto::packet::{Connect, Disconnect, MessageProperties, Packet, QoS, Will};
use braid_proto::reason::ReasonCode;
use tokio::time::Instant;

use crate::support::{Client, TestBroker, connect_v3, connect_v5, lasting, pass, settle, will};

/// Subscriber to the Wills below `will/`.
async fn observer(broker: &TestBroker) -> Client {
    let mut observer = broker.v5("observer").await;
    observer.subscribe("will/#", QoS::ExactlyOnce).await;
    observer
}

fn with_will(connect: Connect, will: Will) -> Connect {
    Connect { will: Some(will), ..connect }
}

fn delayed(seconds: u32) -> Will {
    Will { delay: seconds, ..will("will/delayed", "late") }
}

fn disconnect(reason: ReasonCode) -> Packet {
    Packet::Disconnect(Box::new(Disconnect::new(reason)))
}

// [MQTT-3.1.2-7], [MQTT-3.1.2-8], [MQTT-3.1.2-14]
#[tokio::test(start_paused = true)]
async fn a_lost_link_publishes_the_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    for connect in [connect_v3("client"), connect_v5("client")] {
        let will = Will { qos: QoS::ExactlyOnce, ..will("will/a", "gone") };
        broker.connect(with_will(connect, will)).await.vanish().await;
        let publish = observer.expect_publish().await;
        assert_eq!((publish.qos, publish.retain), (QoS::ExactlyOnce, false));
        assert_eq!(publish.payload, "gone");
        observer.acknowledge(&publish).await;
    }
    // The Will was not retained, and nothing of it is left. [MQTT-3.1.2-10]
    observer.subscribe("will/a", QoS::AtMostOnce).await;
    observer.expect_silence().await;
}

// [MQTT-3.1.2-10], [MQTT-3.14.4-3]
#[tokio::test(start_paused = true)]
async fn a_normal_disconnect_deletes_the_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    for connect in [connect_v3("client"), connect_v5("client"), lasting("client")] {
        broker.connect(with_will(connect, delayed(5))).await.disconnect().await;
    }
    pass(10_000).await;
    observer.expect_silence().await;
}

// MQTT 5, 3.14.2.1: Disconnect with Will Message.
#[tokio::test(start_paused = true)]
async fn disconnect_0x04_publishes_the_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    let mut client = broker.connect(with_will(connect_v5("client"), will("will/a", "gone"))).await;
    client.send(disconnect(ReasonCode::DisconnectWithWill)).await;
    client.expect_end().await;
    assert_eq!(observer.take().await, "gone");
}

#[tokio::test(start_paused = true)]
async fn a_keep_alive_timeout_publishes_the_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    let connect = Connect { keep_alive: 10, ..with_will(connect_v5("client"), will("will/a", "silent")) };
    let mut client = broker.connect(connect).await;
    let start = Instant::now();
    assert_eq!(observer.take().await, "silent");
    assert_eq!(start.elapsed(), Duration::from_secs(15)); // [MQTT-3.1.2-22]
    client.expect_disconnect(ReasonCode::KeepAliveTimeout).await;
}

#[tokio::test(start_paused = true)]
async fn a_violation_publishes_the_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    let mut client = broker.connect(with_will(connect_v5("client"), will("will/a", "wrong"))).await;
    client.send_bytes(&[0x00, 0x00]).await;
    client.expect_disconnect(ReasonCode::MalformedPacket).await;
    assert_eq!(observer.take().await, "wrong");
}

// [MQTT-3.1.4-3]
#[tokio::test(start_paused = true)]
async fn a_takeover_publishes_a_will_without_delay() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    for clean_start in [false, true] {
        let connect = Connect { clean_start, ..with_will(lasting("client"), will("will/a", "taken over")) };
        let mut old = broker.connect(connect.clone()).await;
        let new = broker.connect(Connect { clean_start, ..lasting("client") }).await;
        old.expect_disconnect(ReasonCode::SessionTakenOver).await;
        assert_eq!(observer.take().await, "taken over");
        new.disconnect().await;
        observer.expect_silence().await;
    }
}

// [MQTT-3.1.3-9]
#[tokio::test(start_paused = true)]
async fn a_delayed_will_is_published_after_its_delay() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    broker.connect(with_will(lasting("client"), delayed(30))).await.vanish().await;
    let start = Instant::now();
    assert_eq!(observer.take().await, "late");
    assert_eq!(start.elapsed().as_millis().div_ceil(1000), 30);
    assert!(broker.resume("client").await.connack().session_present);
}

// [MQTT-3.1.3-9]
#[tokio::test(start_paused = true)]
async fn a_resumed_session_cancels_the_delayed_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    broker.connect(with_will(lasting("client"), delayed(30))).await.vanish().await;
    pass(29).await;
    // Disconnected again, without a Will: the timer of the first disconnection is void.
    broker.resume("client").await.vanish().await;
    pass(1000).await;
    observer.expect_silence().await;
    // A takeover cancels it as well.
    let mut old = broker.connect(with_will(lasting("client"), delayed(30))).await;
    let _new = broker.resume("client").await;
    old.expect_disconnect(ReasonCode::SessionTakenOver).await;
    pass(1000).await;
    observer.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_session_publishes_a_delayed_will() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    // By its expiry.
    let mut connect = with_will(lasting("client"), delayed(500));
    connect.properties.session_expiry = Some(20);
    broker.connect(connect.clone()).await.vanish().await;
    let start = Instant::now();
    assert_eq!(observer.take().await, "late");
    assert_eq!(start.elapsed().as_millis().div_ceil(1000), 20);
    // By a Clean Start.
    broker.connect(connect.clone()).await.vanish().await;
    let _clean = broker.v5("client").await;
    assert_eq!(observer.take().await, "late");
    // By a take-over with Clean Start.
    let mut old = broker.connect(connect.clone()).await;
    let _clean = broker.v5("client").await;
    old.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert_eq!(observer.take().await, "late");
    // By its end with the connection.
    connect.properties.session_expiry = None;
    broker.connect(connect).await.vanish().await;
    assert_eq!(observer.take().await, "late");
    pass(1000).await;
    observer.expect_silence().await;
}

// [MQTT-3.1.2-15]
#[tokio::test(start_paused = true)]
async fn a_retained_will_is_retained() {
    let broker = TestBroker::start();
    let will = Will { retain: true, ..will("will/a", "kept") };
    broker.connect(with_will(connect_v3("client"), will)).await.vanish().await;
    let mut observer = observer(&broker).await;
    let publish = observer.expect_publish().await;
    assert!(publish.retain);
    assert_eq!(publish.payload, "kept");
}

// [MQTT-3.1.3-10]
#[tokio::test(start_paused = true)]
async fn the_properties_of_a_will_are_published_with_it() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    let properties = MessageProperties {
        payload_format: Some(true),
        message_expiry: Some(60),
        content_type: Some("text/plain".into()),
        response_topic: Some(crate::support::topic("answers")),
        correlation_data: Some(bytes::Bytes::from_static(b"7")),
        user: [("z", "1"), ("a", "2")].into(),
    };
    let will = Will { properties: Some(Box::new(properties.clone())), ..delayed(10) };
    broker.connect(with_will(lasting("client"), will)).await.vanish().await;
    // The interval begins to run with the publication, not with the CONNECT.
    assert_eq!(observer.expect_publish().await.properties.as_deref(), Some(&properties));
}

// [MQTT-3.8.3-3]
#[tokio::test(start_paused = true)]
async fn no_local_holds_for_the_will_of_the_same_client() {
    let broker = TestBroker::start();
    let own = Will { qos: QoS::AtLeastOnce, ..will("will/a", "own") };
    let mut client = broker.connect(with_will(lasting("client"), own)).await;
    let mut entry =
        braid_proto::packet::SubscribeEntry::new(crate::support::filter("will/#"), QoS::AtLeastOnce);
    entry.no_local = true;
    client.subscribe_all(None, vec![entry]).await;
    let mut observer = observer(&broker).await;
    client.vanish().await;
    assert_eq!(observer.take().await, "own");
    let mut client = broker.resume("client").await;
    client.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn many_wills_at_once_all_arrive() {
    let broker = TestBroker::start();
    let mut observer = observer(&broker).await;
    let mut clients = Vec::new();
    for number in 0..200_u32 {
        let will = Will { delay: 1 + number % 5, ..will("will/a", &format!("{number}")) };
        clients.push(broker.connect(with_will(lasting(&format!("client-{number}")), will)).await);
    }
    drop(clients);
    settle().await;
    pass(10).await;
    let mut seen: Vec<u32> = observer
        .take_all()
        .await
        .iter()
        .map(|publish| String::from_utf8_lossy(&publish.payload).parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}
