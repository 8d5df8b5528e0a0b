//! Sessions that outlive their connection (MQTT 4.1, 3.1.2.4, 3.1.2.11.2): their state and their expiry.

use braid_broker::Counter;
use braid_proto::packet::{AckKind, Connect, Disconnect, Packet, Publish, QoS, Will};
use braid_proto::reason::ReasonCode;

use crate::support::{
    Client, TestBroker, connect_v3, connect_v5, id, lasting, pass, publish_packet, texts, will,
};

/// The session of an MQTT 3 client with Clean Session 0.
async fn resume_v3(broker: &TestBroker, client_id: &str) -> Client {
    broker.connect(Connect { clean_start: false, ..connect_v3(client_id) }).await
}

// [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.2.2-2], [MQTT-3.2.2-3], [MQTT-4.1.0-1], [MQTT-4.5.0-1]
// [MQTT-3.1.4-4]
#[tokio::test(start_paused = true)]
async fn a_session_keeps_subscriptions_and_messages_until_a_clean_start() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.resume("client").await;
    assert!(!client.connack().session_present);
    client.subscribe("t", QoS::ExactlyOnce).await;
    client.disconnect().await;
    let all: Vec<_> = (0..500).map(|number| number.to_string()).collect();
    for (text, qos) in all.iter().zip([QoS::AtLeastOnce, QoS::ExactlyOnce].iter().cycle()) {
        publisher.publish("t", text, *qos).await;
    }
    publisher.publish("t", "not kept", QoS::AtMostOnce).await;
    publisher.expect_silence().await;
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 1);
    let mut client = broker.resume("client").await;
    assert!(client.connack().session_present);
    assert_eq!(texts(&client.take_many(500).await), all);
    client.expect_silence().await;
    client.disconnect().await;
    publisher.publish("t", "lost", QoS::AtLeastOnce).await;
    let mut client = broker.connect(Connect { clean_start: true, ..lasting("client") }).await;
    assert!(!client.connack().session_present);
    publisher.publish("t", "unsubscribed", QoS::AtLeastOnce).await;
    client.expect_silence().await;
}

#[tokio::test(start_paused = true)]
async fn clean_session_0_of_mqtt_3_keeps_the_session_forever() {
    let broker = TestBroker::start();
    let mut publisher = broker.v3("publisher").await;
    let mut client = resume_v3(&broker, "client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    publisher.publish("t", "kept", QoS::AtLeastOnce).await;
    pass(3 * 24 * 3600).await;
    // Another version may resume it.
    let mut client = broker.resume("client").await;
    assert!(client.connack().session_present);
    assert_eq!(client.take().await, "kept");
    client.disconnect().await;
    publisher.publish("t", "kept", QoS::AtLeastOnce).await;
    let mut client = resume_v3(&broker, "client").await;
    assert!(client.connack().session_present);
    assert_eq!(client.take().await, "kept");
    client.disconnect().await;
    // Clean Session 1 ends the old session at its beginning and its own at its end.
    for _ in 0..2 {
        let client = broker.v3("client").await;
        assert!(!client.connack().session_present);
        client.vanish().await;
    }
    assert!(!resume_v3(&broker, "client").await.connack().session_present);
}

// [MQTT-4.4.0-1], [MQTT-3.3.1-1], [MQTT-3.3.1-3], [MQTT-4.3.3-6], [MQTT-4.6.0-1], [MQTT-4.3.2-3]
#[tokio::test(start_paused = true)]
async fn inflight_messages_are_sent_again_first_and_in_order() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(5);
    let mut client = broker.connect(connect.clone()).await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    for number in 1..=8 {
        let qos = if number % 2 == 0 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        publisher.publish("t", number.to_string(), qos).await;
    }
    let mut sent = Vec::new();
    for _ in 0..5 {
        sent.push(client.expect_publish().await);
    }
    client.expect_silence().await;
    assert_eq!(texts(&sent), ["1", "2", "3", "4", "5"]);
    // 3 is complete, which makes room for 6; 4 was received and waits for its PUBCOMP.
    client.acknowledge(&sent[2]).await;
    assert_eq!(client.expect_publish().await.packet_id, Some(id(6)));
    client.send_ack(AckKind::Pubrec, id(4)).await;
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, id(4));
    client.vanish().await;
    let mut client = broker.connect(connect).await;
    assert_eq!(client.expect_ack(AckKind::Pubrel).await.packet_id, id(4));
    for number in [1_u16, 2, 5, 6] {
        let publish = client.expect_publish().await;
        assert_eq!((publish.packet_id, publish.dup), (Some(id(number)), true));
        assert_eq!(publish.payload, number.to_string());
    }
    client.expect_silence().await;
    // The quota of the new connection counts all five.
    client.send_ack(AckKind::Pubcomp, id(4)).await;
    let publish = client.expect_publish().await;
    assert_eq!((&publish.payload[..], publish.dup), (&b"7"[..], false));
    client.send_ack(AckKind::Puback, id(1)).await;
    assert_eq!(client.take().await, "8");
}

// [MQTT-4.3.3-10], [MQTT-4.3.3-12], [MQTT-4.3.3-13]
#[tokio::test(start_paused = true)]
async fn qos_2_messages_sent_again_on_the_next_connection_are_not_published_twice() {
    let broker = TestBroker::start();
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::ExactlyOnce).await;
    let mut publisher = broker.resume("publisher").await;
    publisher.send(publish_packet("t", "once", QoS::ExactlyOnce, 5)).await;
    publisher.expect_ack(AckKind::Pubrec).await;
    publisher.vanish().await;
    let mut publisher = broker.resume("publisher").await;
    let Packet::Publish(again) = publish_packet("t", "once", QoS::ExactlyOnce, 5) else { unreachable!() };
    publisher.send(Packet::Publish(Publish { dup: true, ..again })).await;
    assert_eq!(publisher.expect_ack(AckKind::Pubrec).await.packet_id, id(5));
    publisher.vanish().await;
    let mut publisher = broker.resume("publisher").await;
    publisher.send_ack(AckKind::Pubrel, id(5)).await;
    assert_eq!(publisher.expect_ack(AckKind::Pubcomp).await.reason, ReasonCode::Success);
    assert_eq!(texts(&subscriber.take_all().await), ["once"]);
    // The end of the session frees the identifiers too.
    publisher.send(publish_packet("t", "first", QoS::ExactlyOnce, 5)).await;
    publisher.expect_ack(AckKind::Pubrec).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "second", QoS::ExactlyOnce, 5)).await;
    publisher.expect_ack(AckKind::Pubrec).await;
    assert_eq!(texts(&subscriber.take_all().await), ["first", "second"]);
}

// [MQTT-3.1.2-23], [MQTT-4.1.0-2]
#[tokio::test(start_paused = true)]
async fn a_session_expires_after_its_expiry_interval() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut connect = lasting("client");
    connect.properties.session_expiry = Some(100);
    let mut client = broker.connect(connect.clone()).await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    for _ in 0..3 {
        // Every disconnection restarts the interval.
        client.vanish().await;
        pass(90).await;
        assert_eq!(publisher.publish("t", "x", QoS::AtLeastOnce).await, ReasonCode::Success);
        client = broker.connect(connect.clone()).await;
        assert!(client.connack().session_present);
        client.take().await;
        // The interval does not run while the client is connected.
        pass(1000).await;
    }
    client.vanish().await;
    pass(101).await;
    assert_eq!(publisher.publish("t", "x", QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
    let mut client = broker.connect(connect).await;
    assert!(!client.connack().session_present);
    client.expect_silence().await;
}

async fn leave_with(mut client: Client, session_expiry: u32) {
    let disconnect =
        Disconnect { session_expiry: Some(session_expiry), ..Disconnect::new(ReasonCode::Success) };
    client.send(Packet::Disconnect(Box::new(disconnect))).await;
    client.expect_end().await;
}

// The timer of the first disconnection is void in the second.
#[tokio::test(start_paused = true)]
async fn each_disconnection_has_the_whole_expiry_interval() {
    let broker = TestBroker::start();
    let mut connect = lasting("client");
    connect.properties.session_expiry = Some(100);
    connect.will = Some(Will { delay: 80, ..will("will", "late") });
    let mut mourner = broker.v5("mourner").await;
    mourner.subscribe("will", QoS::AtMostOnce).await;
    for _ in 0..10 {
        let client = broker.connect(connect.clone()).await;
        client.vanish().await;
        pass(60).await;
    }
    mourner.expect_silence().await;
    pass(21).await;
    assert_eq!(mourner.take().await, "late");
    assert!(broker.connect(connect).await.connack().session_present);
}

#[tokio::test(start_paused = true)]
async fn disconnect_may_change_an_expiry_interval_but_not_set_a_first_one() {
    let broker = TestBroker::start();
    leave_with(broker.resume("client").await, 10).await;
    pass(11).await;
    let client = broker.resume("client").await;
    assert!(!client.connack().session_present);
    leave_with(client, 10_000).await;
    pass(9_999).await;
    let client = broker.resume("client").await;
    assert!(client.connack().session_present);
    leave_with(client, 0).await;
    assert!(!broker.resume("client").await.connack().session_present);
    let mut client = broker.v5("ephemeral").await;
    let disconnect = Disconnect { session_expiry: Some(10), ..Disconnect::new(ReasonCode::Success) };
    client.send(Packet::Disconnect(Box::new(disconnect))).await;
    client.expect_disconnect(ReasonCode::ProtocolError).await;
}

// [MQTT-3.1.3-2], [MQTT-3.1.3-5]
#[tokio::test(start_paused = true)]
async fn sessions_of_different_clients_do_not_mix() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let names = ["a", "A", "0123456789abcdefghijklmnopqrstuvwxyz", "ä/#+$", "x\u{feff}"];
    for name in names {
        let mut client = broker.resume(name).await;
        assert!(!client.connack().session_present, "{name}");
        client.subscribe(&format!("to/{}", name.len()), QoS::AtLeastOnce).await;
        client.disconnect().await;
    }
    publisher.publish("to/1", "both", QoS::AtLeastOnce).await;
    for name in names {
        let mut client = broker.resume(name).await;
        assert!(client.connack().session_present, "{name}");
        assert_eq!(client.take_all().await.len(), usize::from(name.len() == 1), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_expiry_ends_with_its_connection() {
    let broker = TestBroker::start();
    for clean_start in [false, true] {
        let mut client = broker.connect(Connect { clean_start, ..connect_v5("client") }).await;
        assert!(!client.connack().session_present);
        client.subscribe("t", QoS::AtLeastOnce).await;
        client.vanish().await;
    }
    let mut publisher = broker.v5("publisher").await;
    assert_eq!(publisher.publish("t", "x", QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
}
