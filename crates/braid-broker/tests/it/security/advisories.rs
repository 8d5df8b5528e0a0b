//! Mistakes of other brokers that no other test shows to be absent; `docs/advisories.md` names them.

use braid_broker::Anonymous;
use braid_proto::packet::{Connect, Packet, ProtocolVersion, QoS};
use bytes::BytesMut;

use crate::disk::Disk;
use crate::support::{TestBroker, allocated, connect_v3, connect_v5, lasting, quiet, texts, will};

/// CONNECT packets that are refused at different depths of the decoder and of the broker, with the CONNACK or without.
fn refused() -> Vec<(ProtocolVersion, Vec<u8>)> {
    let encode = |connect: Connect| {
        let (version, mut bytes) = (connect.version, BytesMut::new());
        Packet::Connect(Box::new(connect)).encode(version, &mut bytes);
        (version, bytes.to_vec())
    };
    // Larger than all that a packet of one byte more or less could explain.
    let text = || "x".repeat(900).into_boxed_str();
    let mut connect = lasting("client");
    connect.will = Some(will("w", &text()));
    connect.user_name = Some(text());
    connect.password = Some(text().into_string().into());
    connect.properties.user = [("a", text())].into();
    let (v5, whole) = encode(connect.clone());
    let changed = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|window| window == from).expect("it is there");
        (v5, [&whole[..at], to, &whole[at + from.len()..]].concat())
    };
    let mut method = connect.clone();
    method.properties.authentication_method = Some(text());
    let old = Connect { client_id: "".into(), clean_start: false, will: connect.will, ..connect_v3("") };
    // The Will's properties are empty: their length, and the Will Topic behind it.
    let will_topic: &[u8] = &[0, 0, 1, b'w'];
    vec![
        encode(method),
        encode(old),
        // A Will with properties of another packet, twice the same one, and one that is cut. CVE-2023-3592
        changed(&[will_topic, &[3, 132]].concat(), &[2, 0x24, 1, 0, 1, b'w', 3, 130]),
        changed(&[will_topic, &[3, 132]].concat(), &[4, 1, 0, 1, 0, 0, 1, b'w', 3, 128]),
        changed(&[will_topic, &[3, 132]].concat(), &[9, 0x26, 0, 1, b'w', 3, 132, b'x', b'x']),
        // A Will Topic with a wildcard, text that is not UTF-8, the reserved flag, another protocol.
        changed(will_topic, &[0, 0, 1, b'#']),
        changed(will_topic, &[0, 0, 1, 0xFF]),
        changed(b"MQTT\x05\xC4", b"MQTT\x05\xC5"),
        changed(b"MQTT", b"MQTR"),
        changed(b"MQTT\x05", b"MQTT\x07"),
        // Cut in the middle: the client goes.
        (v5, whole[..whole.len() / 2].to_vec()),
    ]
}

/// CVE-2017-7654, CVE-2021-34431, CVE-2023-3592, CVE-2024-42649
#[tokio::test(start_paused = true)]
async fn refused_connects_leave_no_memory() {
    const ROUNDS: usize = 1000;
    let broker = TestBroker::start();
    let packets = refused();
    let mut before = 0;
    for round in 0..ROUNDS + 100 {
        if round == 100 {
            before = allocated(); // Buffers have their size by now.
        }
        for (version, packet) in &packets {
            let mut client = broker.link(*version).await;
            client.try_send_bytes(packet).await;
            if let Some(answer) = client.next_at_once().await {
                let Packet::Connack(connack) = answer else { panic!("{answer:?}") };
                assert!(connack.reason.is_error(), "{connack:?}");
            }
            client.vanish().await;
        }
    }
    let statistics = broker.statistics();
    assert_eq!((statistics.connections(), statistics.clients()), (0, 0));
    let left = allocated() - before;
    let count = ROUNDS * packets.len();
    assert!(left < 10_000, "{left} bytes after {count} packets");
}

/// CVE-2018-12543: a topic that begins with `$` is an ordinary one, except `$SYS` and those below; wildcards at the
/// beginning of a filter do not match it. [MQTT-4.7.2-1]
#[tokio::test(start_paused = true)]
async fn topics_that_begin_with_a_dollar_are_ordinary() {
    let broker = TestBroker::start();
    let topics = ["$", "$x", "$/", "$x/y", "$SYSTEM/x", "$sys/x", "$share", "$share/g"];
    let mut everything = broker.v5("everything").await;
    everything.subscribe("#", QoS::AtMostOnce).await;
    everything.subscribe("+/#", QoS::AtMostOnce).await;
    for connect in [connect_v5("client"), connect_v3("client")] {
        let mut client = broker.connect(connect).await;
        for topic in topics {
            // A filter with this first level is a shared subscription, and names no such topic.
            let is_subscribable = !topic.starts_with("$share");
            if is_subscribable {
                client.subscribe(topic, QoS::AtMostOnce).await;
            }
            let code = client.publish(topic, topic, QoS::AtLeastOnce).await;
            assert!(!code.is_error(), "{topic}: {code}");
            let expected: &[&str] = if is_subscribable { &[topic] } else { &[] };
            assert_eq!(texts(&client.take_all().await), expected);
        }
        client.disconnect().await;
    }
    assert_eq!(texts(&everything.take_all().await), [] as [&str; 0]);
}

/// CVE-2026-95847: the queues of clients whose identifiers contain, continue or look like each other, or the keys of a
/// store, stay apart over a restart.
#[tokio::test(start_paused = true)]
async fn queues_of_similar_client_identifiers_stay_apart_in_the_store() {
    let long = "a".repeat(300);
    let clients = [
        "a",
        "aa",
        "A",
        "a/",
        "a/b",
        "a/#",
        "+",
        "#",
        "a:1",
        "a.1",
        "a\u{1}",
        "a ",
        " a",
        "1",
        "01",
        "../a",
        "a\u{e4}",
        "\u{10ffff}",
        &long,
        &long[1..],
    ];
    let disk = Disk::new_file();
    let mut broker = TestBroker::start_with_all(quiet(), Anonymous::default(), disk.open());
    for (number, client_id) in clients.iter().enumerate() {
        let mut client = broker.resume(client_id).await;
        client.subscribe(&format!("to/{number}"), QoS::AtLeastOnce).await;
        client.disconnect().await;
    }
    let mut publisher = broker.v5("publisher").await;
    for round in 0..3 {
        for (number, _) in clients.iter().enumerate() {
            publisher.publish(&format!("to/{number}"), format!("{number} {round}"), QoS::AtLeastOnce).await;
        }
    }
    // One session ends: what is removed is its own.
    broker.connect(connect_v5(clients[0])).await.disconnect().await;
    publisher.disconnect().await;
    broker.handle.stop();
    broker.ended().await;
    let broker = TestBroker::start_with_all(quiet(), Anonymous::default(), disk.after_crash().open());
    for (number, client_id) in clients.iter().enumerate() {
        let mut client = broker.resume(client_id).await;
        assert_eq!(client.connack().session_present, number > 0, "{client_id:?}");
        let expected: Vec<_> =
            (0..3).map(|round| format!("{number} {round}")).filter(|_| number > 0).collect();
        assert_eq!(texts(&client.take_all().await), expected, "{client_id:?}");
        client.disconnect().await;
    }
}
