//! A session that moves from QUIC to a link of one stream, and back.

use std::net::SocketAddr;
use std::time::Duration;

use braid_proto::packet::{AckKind, Connect, Packet, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, Receiver, filter, id, lasting, pass, publish_packet,
    subscribe_packet, texts,
};

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

/// [BQ-42]: repeatedly, while messages come and acknowledgements are lost: QoS 2 exactly once and in order.
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
        // Some packets are read; the answer to the last may be lost with the connection.
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

/// Messages of each topic in each of the three parts.
const PART: usize = 20;

fn connect_few() -> Connect {
    let mut connect = lasting("client");
    connect.properties.receive_maximum = Some(20);
    connect
}

async fn publish_part(publisher: &mut Client, part: usize) {
    for number in part * PART..(part + 1) * PART {
        publisher.publish("one", number.to_string(), QoS::AtLeastOnce).await;
        publisher.publish("two", number.to_string(), QoS::ExactlyOnce).await;
    }
}

/// Takes packets of a stream, and answers there, until `count` messages of a topic were taken.
async fn take_until(
    lanes: &Lanes,
    stream: StreamKey,
    receiver: &mut Receiver,
    is_enough: impl Fn(&Receiver) -> bool,
) {
    while !is_enough(receiver) {
        let packet = lanes.expect(stream).await;
        if let Some(answer) = receiver.handle(&packet) {
            lanes.send(stream, &answer);
        }
    }
}

/// The distinct messages of a topic, in the order of their first arrival.
fn taken(receiver: &Receiver, topic: &str) -> Vec<String> {
    let mut taken = Vec::new();
    for publish in receiver
        .messages
        .iter()
        .filter(|publish| publish.topic.as_ref().is_some_and(|of| of.as_str() == topic))
    {
        let text = String::from_utf8_lossy(&publish.payload).into_owned();
        if !taken.contains(&text) {
            taken.push(text);
        }
    }
    taken
}

/// A QoS 2 message of the client that the broker has received, and whose PUBREL is not sent yet.
async fn publish_half(client: &mut Client, packet_id: u16) {
    client.send(publish_packet("mine", packet_id.to_string(), QoS::ExactlyOnce, packet_id)).await;
    assert_eq!(client.find_ack(AckKind::Pubrec, id(packet_id)).await.reason, ReasonCode::Success);
}

/// [BQ-41], [BQ-42], [BQ-20]: from QUIC to TLS and back, with messages in flight both ways on many streams. TLS needs
/// a socket and therefore the real clock; nothing depends on its speed.
#[tokio::test]
async fn a_session_goes_from_quic_to_tls_and_back_with_messages_in_flight() {
    let (broker, tls) = QuicBroker::start_with_tls();
    let there_and_back = go_there_and_back(&broker, tls);
    tokio::time::timeout(Duration::from_secs(60), there_and_back).await.expect("nothing is lost");
}

async fn go_there_and_back(broker: &QuicBroker, tls: SocketAddr) {
    let mut publisher = broker.memory.v5("publisher").await;
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("mine", QoS::ExactlyOnce).await;
    let mut receiver = Receiver::default();

    let mut first = broker.connect(connect_few()).await;
    let [one, two] = [first.open().await, first.open().await];
    first.subscribe(one, "one", QoS::AtLeastOnce).await;
    first.subscribe(two, "two", QoS::ExactlyOnce).await;
    publish_part(&mut publisher, 0).await;
    take_until(&first, one, &mut receiver, |receiver| taken(receiver, "one").len() == 3).await;
    take_until(&first, two, &mut receiver, |receiver| taken(receiver, "two").len() == 3).await;
    first.send(two, &publish_packet("mine", "500", QoS::ExactlyOnce, 500));
    assert_eq!(first.find_ack(two, AckKind::Pubrec, 500).await, ReasonCode::Success);

    let mut second = broker.connect_tls(tls, connect_few()).await;
    assert!(second.connack().session_present);
    first.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert_eq!([first.expect_stopped(one).await, first.expect_stopped(two).await], [0x8e; 2]);
    second.send_ack(AckKind::Pubrel, id(500)).await;
    assert_eq!(second.find_ack(AckKind::Pubcomp, id(500)).await.reason, ReasonCode::Success);
    publish_part(&mut publisher, 1).await;
    while taken(&receiver, "one").len() < PART + 3 || taken(&receiver, "two").len() < PART + 3 {
        let packet = second.next().await.expect("the connection lives");
        if let Some(answer) = receiver.handle(&packet) {
            second.send(answer).await;
        }
    }
    publish_half(&mut second, 501).await;

    let mut third = broker.connect(connect_few()).await;
    assert!(third.connack().session_present);
    assert_eq!(last_word(&mut second).await, Some(ReasonCode::SessionTakenOver));
    let [one, two] = [third.open().await, third.open().await];
    third.subscribe(one, "one", QoS::AtLeastOnce).await;
    third.subscribe(two, "two", QoS::ExactlyOnce).await;
    third.send_ack(two, AckKind::Pubrel, id(501));
    assert_eq!(third.find_ack(two, AckKind::Pubcomp, 501).await, ReasonCode::Success);
    take_until(&third, CONTROL, &mut receiver, |receiver| {
        let has_all = ["one", "two"].iter().all(|topic| taken(receiver, topic).len() == 2 * PART);
        has_all && receiver.is_settled()
    })
    .await;
    publish_part(&mut publisher, 2).await;
    take_until(&third, one, &mut receiver, |receiver| taken(receiver, "one").len() == 3 * PART).await;
    take_until(&third, two, &mut receiver, |receiver| taken(receiver, "two").len() == 3 * PART).await;

    let numbers: Vec<String> = (0..3 * PART).map(|number| number.to_string()).collect();
    assert_eq!(taken(&receiver, "one"), numbers);
    let is_two =
        |publish: &&_| matches!(publish, Publish { topic: Some(topic), .. } if topic.as_str() == "two");
    let two: Vec<_> = receiver.messages.iter().filter(is_two).cloned().collect();
    assert_eq!(texts(&two), numbers, "exactly once");
    assert_eq!([watcher.take().await, watcher.take().await], ["500", "501"]);
    publisher.publish("mine", "last", QoS::ExactlyOnce).await;
    assert_eq!(watcher.take().await, "last", "each of them once");
}

/// Reason of the DISCONNECT that ends a connection.
async fn last_word(client: &mut Client) -> Option<ReasonCode> {
    let mut last = None;
    while let Some(packet) = client.next().await {
        last = Some(packet);
    }
    match last {
        Some(Packet::Disconnect(disconnect)) => Some(disconnect.reason),
        _ => None,
    }
}
