//! Takeover: a second connection with the same Client Identifier (MQTT 3.1.4) receives the session without losses.

use braid_broker::Counter;
use std::time::Duration;

use braid_proto::packet::{Connect, Disconnect, Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use tokio::task::JoinSet;

use crate::support::{Client, Receiver, TestBroker, connect_v3, connect_v5, lasting, pass, settle, texts};

// [MQTT-3.1.4-3]
#[tokio::test(start_paused = true)]
async fn the_older_connection_is_disconnected_and_closed() {
    let broker = TestBroker::start();
    let mut old = broker.resume("client").await;
    old.subscribe("t", QoS::AtLeastOnce).await;
    let mut new = broker.resume("client").await;
    assert!(new.connack().session_present);
    old.expect_disconnect(ReasonCode::SessionTakenOver).await;
    broker.v5("publisher").await.publish("t", "x", QoS::AtLeastOnce).await;
    assert_eq!(new.take().await, "x");
    // MQTT 3 has no packet for it. [MQTT3-3.1.4-2]
    let mut old = broker.v3("three").await;
    let mut new = broker.v3("three").await;
    old.expect_end().await;
    new.subscribe("t", QoS::AtMostOnce).await;
    assert!(!new.connack().session_present);
}

/// The DISCONNECT has arrived, and its connection sees the takeover first.
#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_and_comes_back_at_once_is_not_taken_over() {
    let broker = TestBroker::start();
    let mut old = broker.resume("client").await;
    let mut new = broker.link(ProtocolVersion::V5).await;
    settle().await;
    new.send_connect(lasting("client")).await;
    let disconnect = Disconnect { session_expiry: Some(0), ..Disconnect::new(ReasonCode::Success) };
    old.send(Packet::Disconnect(Box::new(disconnect))).await;
    assert!(!new.expect_connack().await.session_present);
    old.expect_end().await;
}

// [MQTT-3.1.2-4]
#[tokio::test(start_paused = true)]
async fn a_clean_start_takes_over_the_identifier_only() {
    let broker = TestBroker::start();
    let mut old = broker.resume("client").await;
    old.subscribe("t", QoS::AtLeastOnce).await;
    let mut new = broker.connect(Connect { clean_start: true, ..lasting("client") }).await;
    assert!(!new.connack().session_present);
    old.expect_disconnect(ReasonCode::SessionTakenOver).await;
    let mut publisher = broker.v5("publisher").await;
    assert_eq!(publisher.publish("t", "x", QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
    new.expect_silence().await;
    // A session that ends with its connection hands nothing over either.
    let mut old = broker.v5("other").await;
    old.subscribe("t", QoS::AtLeastOnce).await;
    let new = broker.connect(Connect { clean_start: false, ..connect_v5("other") }).await;
    old.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert!(!new.connack().session_present);
    assert_eq!(publisher.publish("t", "x", QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
}

/// Connects many clients with one identifier at once: each is accepted, all but one are disconnected.
async fn claim_all(broker: &TestBroker, connects: impl Iterator<Item = Connect>) -> Client {
    let mut claimants = JoinSet::new();
    let mut count = 0;
    for connect in connects {
        let mut client = broker.link(connect.version).await;
        count += 1;
        claimants.spawn(async move {
            client.send(Packet::Connect(Box::new(connect))).await;
            client.accepted().await;
            // The last one is not disconnected, and is returned.
            while let Ok(packet) = tokio::time::timeout(Duration::from_secs(1), client.next()).await {
                match packet {
                    Some(Packet::Publish(_)) => {}
                    Some(Packet::Disconnect(disconnect)) => {
                        assert_eq!(disconnect.reason, ReasonCode::SessionTakenOver);
                        client.expect_end().await;
                        return None;
                    }
                    None => return None,
                    other => panic!("DISCONNECT expected, not {other:?}"),
                }
            }
            Some(client)
        });
    }
    let mut left: Vec<_> = claimants.join_all().await.into_iter().flatten().collect();
    assert_eq!(left.len(), 1, "of {count}");
    left.remove(0)
}

#[tokio::test(start_paused = true)]
async fn one_of_many_concurrent_claims_keeps_the_session() {
    let broker = TestBroker::start();
    let mut first = broker.resume("client").await;
    first.subscribe("t", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t", "before", QoS::AtLeastOnce).await;
    for count in [2, 100] {
        let client = claim_all(&broker, (0..count).map(|_| lasting("client"))).await;
        assert!(client.connack().session_present);
        drop(client);
    }
    let mut client = broker.resume("client").await;
    publisher.publish("t", "after", QoS::AtLeastOnce).await;
    // The first message was not acknowledged: each takeover handed it over.
    assert_eq!(texts(&client.take_all().await), ["before", "after"]);
    settle().await;
    // The other links have ended as well, but for that of `first`, which has not been read.
    first.expect_publish().await;
    first.expect_disconnect(ReasonCode::SessionTakenOver).await;
    drop(first);
    settle().await;
    assert_eq!(broker.statistics().connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn concurrent_claims_of_every_kind_end_in_one_session() {
    let broker = TestBroker::start();
    let connects = (0..90).map(|number| match number % 3 {
        0 => lasting("client"),
        1 => connect_v5("client"),
        _ => connect_v3("client"),
    });
    let last = claim_all(&broker, connects).await;
    settle().await;
    assert_eq!(broker.statistics().connections(), 1);
    last.vanish().await;
    assert_eq!(broker.statistics().connections(), 0);
}

// On several threads a claim can come between any two steps of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claims_on_several_threads_are_all_answered() {
    let broker = TestBroker::start();
    let mut rounds = JoinSet::new();
    for task in 0..8 {
        let mut links = Vec::new();
        for _ in 0..500 {
            links.push(broker.link(ProtocolVersion::V5).await);
        }
        rounds.spawn(async move {
            for mut client in links {
                client.send_connect(lasting(&format!("client-{}", task % 2))).await;
                // A claim that was forgotten would never be answered.
                client.accepted().await;
            }
        });
    }
    rounds.join_all().await;
}

// Publisher, old and new connection have a thread each.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn takeovers_lose_no_message_that_is_published_meanwhile() {
    const COUNT: usize = 2000;
    let broker = TestBroker::start();
    let mut client = broker.resume("client").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let publishing = tokio::spawn(async move {
        for number in 0..COUNT {
            let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            publisher.publish("t", number.to_string(), qos).await;
        }
    });
    let mut receiver = Receiver::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut counts = vec![0; COUNT];
    let mut first_time = Vec::new();
    while first_time.len() < COUNT {
        for _ in 0..rng.usize(1..100) {
            if first_time.len() == COUNT {
                break;
            }
            let packet = client.next().await.expect("this connection is the newest");
            let before = receiver.messages.len();
            let answer = receiver.handle(&packet).filter(|_| rng.u8(..) > 5);
            for text in texts(&receiver.messages[before..]) {
                let number: usize = text.parse().expect("a number");
                counts[number] += 1;
                if counts[number] == 1 {
                    first_time.push(number);
                }
            }
            if let Some(answer) = answer {
                client.send(answer).await;
            }
        }
        let next = broker.resume("client").await;
        assert!(next.connack().session_present);
        client = next;
    }
    publishing.await.expect("the publisher was served");
    assert!(first_time.is_sorted());
    let once = counts.iter().skip(1).step_by(2);
    assert!(once.into_iter().all(|count| *count == 1), "QoS 2 exactly once");
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
}

/// Publishes numbered messages for a disconnected client, alternating QoS 1 and 2.
async fn publish_offline(broker: &TestBroker, count: u32) {
    let mut client = broker.resume("client").await;
    client.subscribe("t", QoS::ExactlyOnce).await;
    client.disconnect().await;
    let mut publisher = broker.v5("publisher").await;
    for number in 0..count {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        publisher.publish("t", number.to_string(), qos).await;
    }
    publisher.disconnect().await;
}

// [MQTT-4.4.0-1], [MQTT-4.3.3-10], [MQTT-4.6.0-6]
#[tokio::test(start_paused = true)]
async fn takeovers_while_ten_thousand_messages_drain_lose_and_reorder_nothing() {
    const COUNT: u32 = 10_000;
    let broker = TestBroker::start();
    publish_offline(&broker, COUNT).await;
    let mut receiver = Receiver::default();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut take_overs = 0;
    let mut client = broker.resume("client").await;
    loop {
        // Handles some of the packets, and sends the answers to some of those.
        let budget = rng.usize(100..3000);
        let mut is_done = false;
        for _ in 0..budget {
            let Some(packet) = client.next_at_once().await else {
                is_done = true;
                break;
            };
            let answer = receiver.handle(&packet);
            if let Some(answer) = answer.filter(|_| rng.u8(..) > 2) {
                client.send(answer).await;
            }
        }
        if is_done && receiver.messages.iter().any(|last| last.payload == (COUNT - 1).to_string()) {
            break;
        }
        let next = broker.resume("client").await;
        assert!(next.connack().session_present);
        drop(std::mem::replace(&mut client, next));
        take_overs += 1;
        assert!(take_overs < 1000, "it does not end");
    }
    assert!(take_overs > 5, "{take_overs}");
    // The last connection answers everything.
    let mut client = broker.resume("client").await;
    while let Some(packet) = client.next_at_once().await {
        if let Some(answer) = receiver.handle(&packet) {
            client.send(answer).await;
        }
    }
    let numbers: Vec<u32> =
        texts(&receiver.messages).iter().map(|text| text.parse().expect("a number")).collect();
    let twice: Vec<_> = numbers.iter().filter(|number| *number % 2 == 1).collect();
    assert_eq!(twice.len(), COUNT as usize / 2, "QoS 2 exactly once");
    assert!(twice.is_sorted());
    let mut first_time = Vec::new();
    let mut seen = vec![false; COUNT as usize];
    for number in numbers {
        if !std::mem::replace(&mut seen[number as usize], true) {
            first_time.push(number);
        }
    }
    assert!(first_time.is_sorted());
    assert_eq!(first_time.len(), COUNT as usize, "QoS 1 at least once");
    assert_eq!(broker.statistics().get(Counter::MessagesDropped), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_cannot_keep_its_connection() {
    let broker = TestBroker::start();
    let mut stuck = broker.narrow_link(ProtocolVersion::V5, 512).await;
    stuck.send_connect(lasting("client")).await;
    stuck.accepted().await;
    stuck.subscribe("t", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    for number in 0..100 {
        publisher.publish("t", format!("{number:0100}"), QoS::AtLeastOnce).await;
    }
    // The new connection does not wait for the old one's last bytes.
    let start = tokio::time::Instant::now();
    let mut client = broker.resume("client").await;
    assert_eq!(client.take_many(100).await.len(), 100);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(broker.statistics().connections(), 3);
    // The wait for those is limited.
    pass(6).await;
    assert_eq!(broker.statistics().connections(), 2);
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_displaced_connection_is_closed_even_if_its_client_does_not_close_it() {
    let broker = TestBroker::start();
    let old = broker.resume("client").await;
    let _new = broker.resume("client").await;
    settle().await;
    pass(6).await;
    assert_eq!(broker.statistics().connections(), 1);
    drop(old);
}
