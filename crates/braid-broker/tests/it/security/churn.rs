//! Takeovers of one Client Identifier while its subscriptions change and its messages arrive.

use std::collections::BTreeSet;

use braid_proto::packet::{AckKind, Packet, Publish, QoS, SubscribeEntry};

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, filter, pass, settle, subscribe_packet, texts, unsubscribe_packet,
};

const ROUNDS: u16 = 300;

/// Filters that come and go.
const CHURNED: [&str; 4] = ["churn/a", "churn/+", "$share/g/churn/b", "churn/#"];

/// Numbers of the messages that arrived, in the order of their first arrival.
#[derive(Default)]
struct Arrived {
    all: BTreeSet<u32>,
    in_order: Vec<u32>,
}

impl Arrived {
    fn note(&mut self, publish: &Publish) {
        if publish.topic.as_ref().is_some_and(|topic| topic.as_str() == "kept") {
            let number = texts(std::slice::from_ref(publish))[0].parse().expect("a number");
            if self.all.insert(number) {
                self.in_order.push(number);
            }
        }
    }
}

/// A subscription and its end, unanswered by the time of the next takeover.
fn changes(rng: &mut fastrand::Rng) -> [Packet; 2] {
    let some = |rng: &mut fastrand::Rng| CHURNED[rng.usize(..CHURNED.len())];
    let entry = SubscribeEntry::new(filter(some(rng)), QoS::AtLeastOnce);
    [subscribe_packet(1000, None, vec![entry]), unsubscribe_packet(1001, &[some(rng)])]
}

/// Takes the session over on one stream, and reads some of what comes.
async fn take_single(broker: &QuicBroker, rng: &mut fastrand::Rng, arrived: &mut Arrived) -> Client {
    let mut client = broker.memory.resume("contended").await;
    assert!(client.connack().session_present);
    for packet in changes(rng) {
        client.send(packet).await;
    }
    for _ in 0..rng.usize(..20) {
        match client.next_at_once().await {
            Some(Packet::Publish(publish)) => {
                arrived.note(&publish);
                if let Some(id) = publish.packet_id.filter(|_| rng.bool()) {
                    client.send_ack(AckKind::Puback, id).await;
                }
            }
            Some(_) => {}
            None => break,
        }
    }
    client
}

/// Takes the session over on several streams of QUIC.
async fn take_multi(broker: &QuicBroker, rng: &mut fastrand::Rng, arrived: &mut Arrived) -> Lanes {
    let client = broker.resume("contended").await;
    assert!(client.connack().session_present);
    let data = client.open().await;
    let [subscribe, unsubscribe] = changes(rng);
    client.send(data, &subscribe);
    client.send(if rng.bool() { CONTROL } else { data }, &unsubscribe);
    if rng.bool() {
        client.finish(data);
    }
    settle().await;
    for stream in [CONTROL, data] {
        for packet in client.received(stream) {
            let Packet::Publish(publish) = packet else { continue };
            arrived.note(&publish);
            if let Some(id) = publish.packet_id.filter(|_| rng.bool()) {
                client.send_ack(CONTROL, AckKind::Puback, id);
            }
        }
    }
    client
}

/// CVE-2026-22040: publishing, takeovers and changes of subscriptions at the same time.
#[tokio::test(start_paused = true)]
async fn rule_7_takeovers_under_load_while_subscriptions_change_lose_nothing() {
    let broker = QuicBroker::start();
    let mut first = broker.memory.resume("contended").await;
    first.subscribe("kept", QoS::AtLeastOnce).await;
    let mut publisher = broker.memory.v5("publisher").await;
    let (mut rng, mut arrived) = (fastrand::Rng::with_seed(1), Arrived::default());
    let mut held = (Some(first), None);
    let mut sent = 0;
    for _ in 0..ROUNDS {
        for _ in 0..rng.u32(..4) {
            publisher.publish("kept", sent.to_string(), QoS::AtLeastOnce).await;
            publisher.publish(["churn/a", "churn/b"][rng.usize(..2)], "x", QoS::AtLeastOnce).await;
            sent += 1;
        }
        // The connection before it is displaced, or has vanished.
        if rng.bool() {
            held = (None, None);
        }
        if rng.bool() {
            held.0 = Some(take_single(&broker, &mut rng, &mut arrived).await);
        } else {
            held.1 = Some(take_multi(&broker, &mut rng, &mut arrived).await);
        }
    }
    let mut last = broker.memory.resume("contended").await;
    drop(held);
    last.send(unsubscribe_packet(1002, &CHURNED)).await;
    last.find_unsuback().await;
    publisher.publish("churn/a", "after the end of its subscriptions", QoS::AtLeastOnce).await;
    while let Some(packet) = last.next_at_once().await {
        let Packet::Publish(publish) = packet else { continue };
        assert!(!texts(std::slice::from_ref(&publish))[0].starts_with("after"));
        arrived.note(&publish);
        last.acknowledge(&publish).await;
    }
    assert!(sent > 300, "{sent}");
    assert_eq!(arrived.in_order, (0..sent).collect::<Vec<_>>(), "each once, and in order");
    pass(30).await;
    assert_eq!(broker.memory.statistics().connections(), 2, "the last one and the publisher");
    last.publish("t", "x", QoS::ExactlyOnce).await;
}
