//! A session that goes from QUIC to a link of one stream, and back.

use braid_proto::packet::{QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;

use crate::support::{CONTROL, Client, QuicBroker, Receiver, filter, lasting, pass, subscribe_packet, texts};

async fn fill(broker: &QuicBroker, topic: &str) -> Vec<String> {
    let mut publisher = broker.memory.v5("publisher").await;
    let numbers: Vec<String> = (0..100).map(|number| format!("{number}")).collect();
    for number in &numbers {
        publisher.publish(topic, number, QoS::AtLeastOnce).await;
    }
    publisher.disconnect().await;
    numbers
}

async fn on_one_stream(broker: &QuicBroker) -> Client {
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(10);
    broker.memory.connect(connect).await
}

/// [BQ-41], [BQ-42]
#[tokio::test(start_paused = true)]
async fn a_session_goes_from_quic_to_one_stream_and_back() {
    let broker = QuicBroker::start();
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(10);
    let mut client = broker.connect(connect.clone()).await;
    let data = client.open().await;
    client.subscribe(data, "t", QoS::AtLeastOnce).await;
    let numbers = fill(&broker, "t").await;
    pass(1).await;
    assert_eq!(client.received(data).len(), 10, "the rest is queued");

    let mut single = on_one_stream(&broker).await;
    assert!(single.connack().session_present);
    client.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert_eq!(client.expect_stopped(data).await, 0x8e);
    let messages = single.take_many(100).await;
    assert_eq!(texts(&messages), numbers);
    assert_eq!(messages.iter().filter(|publish| publish.dup).count(), 10);
    single.expect_silence().await;

    let numbers = fill(&broker, "t").await;
    let client = broker.connect(connect).await;
    assert!(client.connack().session_present);
    for number in &numbers {
        assert_eq!(client.take(CONTROL).await, *number);
    }
    client.expect_silence(CONTROL).await;
}

/// [BQ-42]: again and again while messages come and acknowledgements are lost: QoS 2 exactly once and in order.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_passed_around_loses_nothing() {
    const ROUNDS: usize = 30;
    let broker = QuicBroker::start();
    let mut client = broker.resume("client").await;
    let data = client.open().await;
    client.subscribe(data, "t", QoS::ExactlyOnce).await;
    let mut publisher = broker.memory.v5("publisher").await;
    let mut receiver = Receiver::default();
    for round in 0..ROUNDS {
        for number in 0..5 {
            publisher.publish("t", format!("{}", round * 5 + number), QoS::ExactlyOnce).await;
        }
        // Some packets are looked at; the answer to the last may be lost with the connection.
        if round % 2 == 0 {
            let mut single = broker.memory.resume("client").await;
            for _ in 0..=round % 7 {
                let packet = single.next().await.expect("more");
                if let Some(answer) = receiver.handle(&packet) {
                    single.send(answer).await;
                }
            }
        } else {
            let lanes = broker.resume("client").await;
            let data = lanes.open().await;
            lanes.send(
                data,
                &subscribe_packet(1, None, vec![SubscribeEntry::new(filter("t"), QoS::ExactlyOnce)]),
            );
            for _ in 0..=round % 7 {
                let packet = lanes.expect(CONTROL).await;
                if let Some(answer) = receiver.handle(&packet) {
                    lanes.send(if round % 3 == 0 { data } else { CONTROL }, &answer);
                }
            }
        }
    }
    let mut single = broker.memory.resume("client").await;
    while let Some(packet) = single.next_at_once().await {
        if let Some(answer) = receiver.handle(&packet) {
            single.send(answer).await;
        }
    }
    let numbers: Vec<String> = (0..ROUNDS * 5).map(|number| format!("{number}")).collect();
    assert_eq!(texts(&receiver.messages), numbers);
}
