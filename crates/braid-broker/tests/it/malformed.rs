//! Malformed and unexpected bytes: the connection is closed with the right code, without effect on other clients.

use braid_broker::Counter;
use braid_proto::packet::{Ack, AckKind, Disconnect, Packet, ProtocolVersion, QoS, SubscribeEntry, Will};
use braid_proto::reason::ReasonCode;
use bytes::BytesMut;

use crate::support::{
    Client, Seed, TestBroker, connect_v3, connect_v5, filter, id, lasting, publish_packet, settle,
    subscribe_packet, will,
};

/// Two clients that exchange messages during the test.
struct Witnesses {
    publisher: Client,
    subscriber: Client,
    count: u32,
}

impl Witnesses {
    async fn new(broker: &TestBroker) -> Self {
        let publisher = broker.v5("witness publisher").await;
        let mut subscriber = broker.v5("witness subscriber").await;
        subscriber.subscribe("witness", QoS::ExactlyOnce).await;
        Self { publisher, subscriber, count: 0 }
    }

    async fn talk(&mut self) {
        self.count += 1;
        let text = self.count.to_string();
        self.publisher.publish("witness", &text, QoS::ExactlyOnce).await;
        assert_eq!(self.subscriber.take().await, text);
        self.subscriber.expect_silence().await;
    }
}

/// One packet of each kind that a client may send in a connection.
fn life(version: ProtocolVersion) -> Vec<Packet> {
    let is_v5 = version.is_v5();
    let mut connect = if is_v5 { lasting("victim") } else { connect_v3("victim") };
    connect.will = Some(Will { qos: QoS::AtLeastOnce, ..will("life", "will") });
    let entries =
        ["life", "life/+/x", "$share/g/life"].map(|text| SubscribeEntry::new(filter(text), QoS::ExactlyOnce));
    vec![
        Packet::Connect(Box::new(connect)),
        subscribe_packet(1, is_v5.then_some(7), entries.into()),
        publish_packet("life/1", "zero", QoS::AtMostOnce, 0),
        publish_packet("life/2", "one", QoS::AtLeastOnce, 2),
        publish_packet("life/3", "two", QoS::ExactlyOnce, 3),
        Packet::Ack(Ack::new(AckKind::Pubrel, id(3), ReasonCode::Success)),
        Packet::Ack(Ack::new(AckKind::Puback, id(9), ReasonCode::Success)),
        Packet::Ack(Ack::new(AckKind::Pubrec, id(9), ReasonCode::Success)),
        Packet::Pingreq,
        crate::support::unsubscribe_packet(4, &["life", "life/+/x", "$share/g/life"]),
        Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))),
    ]
}

fn bytes_of(packets: &[Packet], version: ProtocolVersion) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    for packet in packets {
        packet.encode(version, &mut bytes);
    }
    bytes.to_vec()
}

/// Answers of the broker to the pieces of a connection.
async fn answers(broker: &TestBroker, version: ProtocolVersion, pieces: &[&[u8]]) -> Vec<Packet> {
    let mut client = broker.link(version).await;
    for piece in pieces {
        client.send_bytes(piece).await;
        settle().await;
    }
    // In one read with DISCONNECT the answers could not be sent any more.
    client.send(life(version).remove(10)).await;
    let mut all = Vec::new();
    while let Some(packet) = client.next().await {
        all.push(packet);
    }
    // PINGRESP and PUBREL may overtake acknowledgements, which keep their order among themselves.
    all.sort_by_key(|packet| !is_immediate(packet));
    all
}

fn is_immediate(packet: &Packet) -> bool {
    matches!(packet, Packet::Pingresp) || matches!(packet, Packet::Ack(ack) if ack.kind == AckKind::Pubrel)
}

#[tokio::test(start_paused = true)]
async fn packets_may_be_cut_anywhere() {
    let broker = TestBroker::start();
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let bytes = bytes_of(&life(version)[..10], version);
        // One session for all: its state is the same after each life.
        answers(&broker, version, &[&bytes]).await;
        let whole = answers(&broker, version, &[&bytes]).await;
        assert_eq!(whole.len(), 8, "{whole:?}");
        for cut in 1..bytes.len() {
            let (start, end) = bytes.split_at(cut);
            assert_eq!(answers(&broker, version, &[start, end]).await, whole, "cut at {cut}");
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(answers(&broker, version, &single).await, whole);
    }
}

// [MQTT3-4.8.0-2]
#[tokio::test(start_paused = true)]
async fn a_life_may_end_anywhere() {
    let broker = TestBroker::start();
    let mut witnesses = Witnesses::new(&broker).await;
    for version in [ProtocolVersion::V311, ProtocolVersion::V5] {
        let bytes = bytes_of(&life(version), version);
        for end in 0..bytes.len() {
            let mut client = broker.link(version).await;
            client.send_bytes(&bytes[..end]).await;
            client.vanish().await;
            assert_eq!(broker.statistics().connections(), 2, "ended at {end}");
        }
        witnesses.talk().await;
    }
}

#[tokio::test(start_paused = true)]
async fn random_bytes_do_not_disturb_other_clients() {
    let broker = TestBroker::start();
    let mut witnesses = Witnesses::new(&broker).await;
    for seed in 0..500 {
        let _named = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let version = if rng.bool() { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
        let mut client = broker.link(version).await;
        if rng.bool() {
            let connect = if version.is_v5() { connect_v5("random") } else { connect_v3("random") };
            client.send_connect(connect).await;
        }
        let len = rng.usize(1..2000);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        client.try_send_bytes(&bytes).await;
        client.vanish().await;
        witnesses.talk().await;
        assert_eq!(broker.statistics().connections(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn packets_with_wrong_bits_do_not_disturb_other_clients() {
    let broker = TestBroker::start();
    let mut witnesses = Witnesses::new(&broker).await;
    for seed in 0..2000 {
        let _named = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let version = if rng.bool() { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
        let packets = life(version);
        let connect = bytes_of(&packets[..1], version);
        let mut rest = packets[1..].to_vec();
        rng.shuffle(&mut rest);
        let mut bytes = connect.clone();
        bytes.extend(bytes_of(&rest, version));
        // The CONNECT mostly stays intact, otherwise nothing behind it would be parsed.
        let from = if rng.u8(..) < 200 { connect.len() } else { 0 };
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(from..bytes.len());
            bytes[at] ^= 1 << rng.u8(0..8);
        }
        let mut client = broker.link(version).await;
        client.try_send_bytes(&bytes).await;
        client.vanish().await;
        if seed % 20 == 0 {
            witnesses.talk().await;
        }
    }
    witnesses.talk().await;
    assert_eq!(broker.statistics().connections(), 2);
}

// [MQTT-4.13.1-1], [MQTT3-4.8.0-1]
#[tokio::test(start_paused = true)]
async fn every_violation_is_answered_with_its_code() {
    use ReasonCode::{MalformedPacket as Malformed, ProtocolError, TopicNameInvalid};
    let broker = TestBroker::start();
    let mut witnesses = Witnesses::new(&broker).await;
    let cases: [(&str, &[u8], ReasonCode); 24] = [
        ("packet type 0", &[0x00, 0], Malformed),
        ("flags of PINGREQ", &[0xC1, 0], Malformed), // [MQTT-2.1.3-1]
        ("flags of PUBREL", &[0x60, 2, 0, 1], Malformed), // [MQTT-3.6.1-1]
        ("flags of SUBSCRIBE", &[0x80, 7, 0, 1, 0, 0, 1, b'a', 0], Malformed), // [MQTT-3.8.1-1]
        ("flags of UNSUBSCRIBE", &[0xA0, 6, 0, 1, 0, 0, 1, b'a'], Malformed), // [MQTT-3.10.1-1]
        ("flags of DISCONNECT", &[0xE1, 0], Malformed), // [MQTT-3.14.1-1]
        ("length of five bytes", &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], Malformed),
        ("length not minimal", &[0xC0, 0x80, 0x00], Malformed), // [MQTT-1.5.5-1]
        ("topic beyond the packet", &[0x30, 3, 0, 9, b'a'], Malformed),
        ("bytes behind PINGREQ", &[0xC0, 1, 0], Malformed),
        ("properties beyond the packet", &[0x30, 4, 0, 1, b'a', 9], Malformed),
        ("QoS 3", &[0x36, 6, 0, 1, b'a', 0, 1, 0], Malformed), // [MQTT-3.3.1-4]
        ("DUP with QoS 0", &[0x38, 4, 0, 1, b'a', 0], Malformed), // [MQTT-3.3.1-2]
        ("packet identifier 0", &[0x32, 6, 0, 1, b'a', 0, 0, 0], Malformed), // [MQTT-2.2.1-3]
        ("UTF-8", &[0x30, 4, 0, 1, 0xFF, 0], Malformed),       // [MQTT-1.5.4-1]
        ("a surrogate", &[0x30, 6, 0, 3, 0xED, 0xA0, 0x80, 0], Malformed),
        ("U+0000", &[0x30, 4, 0, 1, 0, 0], Malformed), // [MQTT-1.5.4-2]
        ("a wildcard", &[0x30, 4, 0, 1, b'#', 0], TopicNameInvalid), // [MQTT-3.3.2-2], [MQTT-4.7.0-1]
        ("no topic", &[0x30, 3, 0, 0, 0], ProtocolError),
        ("subscription identifier", &[0x30, 6, 0, 1, b'a', 2, 0x0B, 1], ProtocolError), // [MQTT-3.3.4-6]
        ("CONNACK", &[0x20, 3, 0, 0, 0], ProtocolError),
        ("PINGRESP", &[0xD0, 0], ProtocolError),
        ("AUTH", &[0xF0, 0], ProtocolError), // [MQTT-4.12.0-7]
        ("expiry twice", &[0x30, 14, 0, 1, b'a', 10, 2, 0, 0, 0, 1, 2, 0, 0, 0, 1], ProtocolError),
    ];
    for (name, bytes, reason) in cases {
        println!("{name}");
        let mut client = broker.v5("client").await;
        client.send_bytes(bytes).await;
        client.expect_disconnect(reason).await;
        witnesses.talk().await;
    }
    for bytes in
        [&[0xF0, 0][..], &[0x00, 0], &[0x36, 5, 0, 1, b'a', 0, 1], &[0x30, 3, 0, 1, b'#'], &[0x30, 2, 0, 0]]
    {
        let mut client = broker.v3("client").await;
        client.send_bytes(bytes).await;
        client.expect_end().await;
    }
}

// [MQTT-3.1.0-1], [MQTT-3.1.4-1]
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_begin_with_connect_gets_no_answer() {
    let broker = TestBroker::start();
    let disconnect = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)));
    for packet in [Packet::Pingreq, publish_packet("t", "x", QoS::AtLeastOnce, 1), disconnect] {
        let mut client = broker.link(ProtocolVersion::V311).await;
        client.send(packet).await;
        client.expect_end().await;
    }
    for text in ["GET / HTTP/1.1\r\n\r\n", "\u{16}\u{3}\u{1}\u{2}", "SSH-2.0-x\r\n"] {
        let mut client = broker.link(ProtocolVersion::V311).await;
        client.send_bytes(text.as_bytes()).await;
        client.expect_end().await;
    }
    assert_eq!(broker.statistics().get(Counter::MessagesReceived), 0);
}

#[tokio::test(start_paused = true)]
async fn a_connect_packet_is_limited_in_size_and_time() {
    let broker = TestBroker::start();
    // CONNECT of 64 KiB and one byte: its header alone is refused.
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_bytes(&[0x10, 0xFE, 0xFF, 0x03]).await;
    client.expect_end().await;
    let mut connect = connect_v5("x");
    connect.properties.user = [("a", "x".repeat(65_500))].into();
    broker.connect(connect.clone()).await;
    // Single bytes do not extend the time limit.
    let bytes = bytes_of(&[Packet::Connect(Box::new(connect))], ProtocolVersion::V5);
    let mut client = broker.link(ProtocolVersion::V5).await;
    let start = tokio::time::Instant::now();
    let mut sent = 0;
    while client.try_send_bytes(&bytes[sent..=sent]).await {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        sent += 1;
    }
    let elapsed = start.elapsed().as_millis();
    assert!((4_900..=5_200).contains(&elapsed), "{elapsed} ms");
}
