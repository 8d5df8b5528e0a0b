//! Opening of connections and streams, and the packets that they may carry.

use std::sync::Arc;
use std::time::Duration;

use braid_auth::identity::Identity;
use braid_broker::{Authenticate, Authentication, BrokerConfig, Credentials, LimitsConfig, Refusal};
use braid_proto::packet::{AckKind, Disconnect, Packet, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_store::MemoryStore;
use braid_store::faults::FailingStore;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::Direction;
use tokio::time::Instant;

use crate::support::{
    CONTROL, QuicBroker, anyone, bytes, connect_v3, connect_v5, lasting, message, pass, publish_packet,
    quiet, subscribe_packet,
};

/// [BQ-3]: a client that opens no other stream is an ordinary client.
#[tokio::test(start_paused = true)]
async fn the_control_stream_alone_carries_every_packet() {
    let broker = QuicBroker::start();
    let mut client = broker.v5("client").await;
    client.subscribe(CONTROL, "t/#", QoS::ExactlyOnce).await;
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut publisher = broker.memory.v5("publisher").await;
        publisher.publish("t/1", format!("{qos:?}"), qos).await;
        assert_eq!(client.take(CONTROL).await, format!("{qos:?}"));
    }
    assert_eq!(client.publish(CONTROL, "x", "x", QoS::ExactlyOnce).await, ReasonCode::NoMatchingSubscribers);
    client.ping(CONTROL).await;
    assert_eq!(client.disconnect().await, Ok(()));
    broker.connect(connect_v3("three")).await;
}

/// [BQ-13], [BQ-60]
#[tokio::test(start_paused = true)]
async fn streams_that_were_opened_before_connack_are_served_after_it() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let mut client = broker.link("client").await;
    let (first, second) = (client.open().await, client.open().await);
    client.send(first, &publish_packet("a", "early", QoS::AtLeastOnce, 7));
    client.send(
        second,
        &subscribe_packet(
            8,
            None,
            vec![braid_proto::packet::SubscribeEntry::new(crate::support::filter("s"), QoS::AtMostOnce)],
        ),
    );
    client.expect_silence(first).await;
    watcher.expect_silence().await; // No effect.
    client.send_connect(connect_v5("client"));
    client.accepted().await;
    assert_eq!(client.expect_ack(first, AckKind::Puback, 7).await, ReasonCode::Success);
    assert_eq!(client.expect_suback(second).await.codes, [QoS::AtMostOnce.into()]);
    assert_eq!(watcher.take().await, "early");
}

/// [BQ-13]
#[tokio::test(start_paused = true)]
async fn streams_of_a_client_that_is_refused_have_no_effect() {
    let broker = QuicBroker::start_with_all(quiet(), QuicOptions::server(), InProcess);
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let client = broker.link("client").await;
    let data = client.open().await;
    client.send(data, &publish_packet("a", "early", QoS::AtLeastOnce, 7));
    client.send_connect(connect_v5("client"));
    match client.expect(CONTROL).await {
        Packet::Connack(connack) => assert_eq!(connack.reason, ReasonCode::NotAuthorized),
        other => panic!("CONNACK expected, not {other:?}"),
    }
    assert_eq!(client.expect_closed().await, Ok(()));
    assert!(client.received(data).is_empty());
    watcher.expect_silence().await;
}

/// [BQ-13]: a client that is refused because its session cannot be stored may send no more than before its CONNECT.
#[tokio::test(start_paused = true)]
async fn only_a_client_that_is_accepted_may_send_more() {
    for commits in [0, 1] {
        let store = Arc::new(FailingStore::after(commits, MemoryStore::new()));
        let broker = QuicBroker::start_over(quiet(), QuicOptions::server(), anyone(), store);
        broker.host("client").change(|link| link.latency = Duration::from_millis(20));
        let client = broker.link("client").await;
        let message = bytes(&publish_packet("t", vec![b'x'; 1 << 20], QoS::AtMostOnce, 1));
        let mut streams = Vec::new();
        for _ in 0..4 {
            let stream = client.open().await;
            client.send_bytes(stream, &message[..30_000]);
            streams.push(stream);
        }
        pass(1).await; // Most of the bytes that are allowed before CONNECT have arrived.
        client.send_connect(lasting("client"));
        streams.iter().for_each(|stream| client.send_bytes(*stream, &message[30_000..]));
        let Packet::Connack(connack) = client.expect(CONTROL).await else { panic!("CONNACK expected") };
        pass(3).await;
        let sent = broker.host("client").counters(Direction::Up).bytes;
        if commits == 0 {
            assert_eq!(connack.reason, ReasonCode::ServerUnavailable);
            assert!(sent < 160_000, "{sent} bytes before the CONNECT was accepted");
        } else {
            assert_eq!(connack.reason, ReasonCode::Success);
            assert!(sent > 4 << 20, "{sent} bytes");
        }
    }
}

/// Accepts clients of this process only.
struct InProcess;

impl Authenticate for InProcess {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let is_inside = credentials.peer.address.is_none();
        let refusal = || Refusal::new(ReasonCode::NotAuthorized, "not of this process");
        let answer = is_inside.then(|| Identity::anonymous().into()).ok_or_else(refusal);
        Box::pin(std::future::ready(answer))
    }
}

/// [BQ-13]: bytes before CONNACK are bounded for the connection as a whole, and none is lost.
#[tokio::test(start_paused = true)]
async fn bytes_before_connack_are_bounded_over_all_streams() {
    let broker = QuicBroker::start();
    let host = broker.host("client");
    host.change(|link| link.latency = Duration::from_millis(50));
    let large = "x".repeat(200_000);
    for speaks in [false, true] {
        let mut client = broker.link("client").await;
        let before = host.counters(Direction::Up).bytes;
        if speaks {
            client.send_connect(connect_v5("client"));
        }
        let mut streams = Vec::new();
        for number in 1..=20 {
            let stream = client.open().await;
            client.send(stream, &publish_packet("t", &large, QoS::AtLeastOnce, number));
            streams.push((stream, number));
        }
        if speaks {
            client.accepted().await;
            for (stream, number) in streams {
                let reason = client.expect_ack(stream, AckKind::Puback, number).await;
                assert_eq!(reason, ReasonCode::NoMatchingSubscribers);
            }
        } else {
            pass(4).await;
            let sent = host.counters(Direction::Up).bytes - before;
            assert!((100_000..300_000).contains(&sent), "{sent} bytes of 4,000,000");
        }
    }
}

/// [BQ-6]
#[tokio::test(start_paused = true)]
async fn a_connection_without_connect_is_closed_in_time() {
    let broker = QuicBroker::start();
    let silent = broker.link("silent").await;
    let early = broker.link("early").await;
    let data = early.open().await;
    early.send(data, &publish_packet("t", "x", QoS::AtLeastOnce, 1));
    let partial = broker.link("partial").await;
    partial.send_bytes(CONTROL, &[0x10, 0x20, 0x00]);
    let start = Instant::now();
    for client in [&silent, &early, &partial] {
        let _ = client.expect_closed().await;
        assert!((4..=9).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    }
    drop((silent, early, partial));
    pass(10).await;
    assert_eq!(broker.memory.statistics().connections(), 0);
}

/// [BQ-10]: CONNECT and other packets that are not allowed on a data stream end that stream.
#[tokio::test(start_paused = true)]
async fn other_packets_end_a_data_stream_and_nothing_else() {
    let broker = QuicBroker::start();
    let mut client = broker.v5("client").await;
    let other = client.open().await;
    client.subscribe(other, "t", QoS::AtMostOnce).await;
    let packets = [
        Packet::Connect(Box::new(connect_v5("client"))),
        Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))),
        Packet::Pingresp,
    ];
    for packet in packets {
        let data = client.open().await;
        client.send(data, &packet);
        client.expect_aborted(data, 0x82).await;
    }
    client.publish(other, "t", "alive", QoS::AtLeastOnce).await;
    assert_eq!(client.take(other).await, "alive");
}

/// A second CONNECT on the control stream, on the other hand, ends the connection. [BQ-41]
#[tokio::test(start_paused = true)]
async fn a_second_connect_ends_the_connection() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let data = client.open().await;
    client.ping(data).await;
    client.send_connect(connect_v5("client"));
    client.expect_disconnect(ReasonCode::ProtocolError).await;
    assert_eq!(client.expect_stopped(data).await, 0x82);
}

/// [BQ-11]
#[tokio::test(start_paused = true)]
async fn a_ping_on_a_data_stream_is_answered_on_the_control_stream() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let data = client.open().await;
    client.ping(data).await;
    client.expect_silence(data).await;
}

/// [BQ-12]
#[tokio::test(start_paused = true)]
async fn a_unidirectional_stream_carries_messages_of_qos_0() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let mut client = broker.v5("client").await;
    let uni = client.open_uni().await;
    assert_eq!(uni, StreamKey::uni(0));
    for text in ["one", "two"] {
        client.send(uni, &Packet::Publish(message("t", text)));
        assert_eq!(watcher.take().await, text);
    }
    client.finish(uni);
    for (packet, code) in [
        (publish_packet("t", "x", QoS::AtLeastOnce, 1), 0x9b),
        (publish_packet("t", "x", QoS::ExactlyOnce, 1), 0x9b),
        (Packet::Pingreq, 0x82),
        (subscribe_packet(1, None, vec![entry("t")]), 0x82),
    ] {
        let uni = client.open_uni().await;
        client.send(uni, &packet);
        assert_eq!(client.expect_stopped(uni).await, code);
    }
    watcher.expect_silence().await;
    // The credit comes back: there are sixteen at a time.
    for number in 0..100 {
        let uni = client.open_uni().await;
        client.send(uni, &Packet::Publish(message("t", format!("{number}"))));
        client.finish(uni);
        assert_eq!(watcher.take().await, format!("{number}"));
    }
    client.publish(CONTROL, "t", "alive", QoS::AtLeastOnce).await;
}

fn entry(text: &str) -> braid_proto::packet::SubscribeEntry {
    braid_proto::packet::SubscribeEntry::new(crate::support::filter(text), QoS::AtMostOnce)
}

/// [BQ-5]: at least a hundred at a time, and the credit of ended streams comes back.
#[tokio::test(start_paused = true)]
async fn there_is_credit_for_a_hundred_streams_and_it_comes_back() {
    let broker = QuicBroker::start();
    let mut client = broker.v5("client").await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(client.open().await);
    }
    for stream in &streams {
        client.publish(*stream, "t", "x", QoS::AtLeastOnce).await;
    }
    for round in 0..10 {
        for (number, stream) in std::mem::take(&mut streams).into_iter().enumerate() {
            // In every way that a client can end a stream.
            if (number + round) % 2 == 0 { client.finish(stream) } else { client.reset(stream, 7) }
        }
        for _ in 0..100 {
            let stream = client.open().await;
            client.publish(stream, "t", "x", QoS::AtLeastOnce).await;
            streams.push(stream);
        }
    }
    client.ping(CONTROL).await;
}

/// Streams without a byte that are ended at once.
#[tokio::test(start_paused = true)]
async fn streams_without_a_byte_are_answered_and_forgotten() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    for _ in 0..300 {
        let stream = client.open().await;
        client.finish(stream);
        assert_eq!(client.expect_ended(stream).await, crate::support::Ended::Finished); // [BQ-30]
    }
    client.ping(CONTROL).await;
}

/// [BQ-44]
#[tokio::test(start_paused = true)]
async fn every_byte_of_a_packet_that_trickles_is_a_sign_of_life() {
    let broker = QuicBroker::start();
    let mut connect = connect_v5("client");
    connect.keep_alive = 2;
    let client = broker.connect(connect).await;
    let data = client.open().await;
    let mut bytes = bytes::BytesMut::new();
    publish_packet("t", vec![b'x'; 1_000_000], QoS::AtLeastOnce, 1)
        .encode(braid_proto::packet::ProtocolVersion::V5, &mut bytes);
    // A minute for a packet, with a Keep Alive of 2 seconds.
    for part in bytes.chunks(bytes.len() / 29) {
        client.send_bytes(data, part);
        pass(2).await;
    }
    let reason = client.expect_ack(data, AckKind::Puback, 1).await;
    assert_eq!(reason, ReasonCode::NoMatchingSubscribers);
    let start = Instant::now();
    client.expect_disconnect(ReasonCode::KeepAliveTimeout).await;
    let elapsed = start.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(7)).contains(&elapsed), "{elapsed:?}");
}

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

/// [BQ-45]: ten thousand streams at once are served as fast as the limit allows, without delay for other clients.
#[tokio::test(start_paused = true)]
async fn rule_8_a_flood_of_streams_waits_for_its_turn() {
    let limits = LimitsConfig { streams_per_second: 500, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(with_limits(limits));
    let mut other = broker.v5("other").await;
    let own = other.open().await;
    other.subscribe(own, "t", QoS::AtMostOnce).await;
    let client = broker.v5("client").await;
    let start = Instant::now();
    for number in 0..10_000_u32 {
        let stream = client.open().await;
        client.finish(stream);
        if number % 1000 == 999 {
            let asked = Instant::now();
            other.publish(own, "t", "quick", QoS::AtLeastOnce).await;
            assert_eq!(other.take(own).await, "quick");
            assert!(asked.elapsed() < Duration::from_millis(50), "{:?}", asked.elapsed());
        }
    }
    let elapsed = start.elapsed().as_secs();
    assert!((18..=25).contains(&elapsed), "{elapsed} s");
    client.ping(CONTROL).await;
}

/// [BQ-45]: an incomplete packet without new bytes is ended although no other packet waits for its memory; the
/// connection lives.
#[tokio::test(start_paused = true)]
async fn a_packet_that_stands_still_is_ended_after_a_long_time() {
    let limits = LimitsConfig { partial_idle_secs: 600, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(with_limits(limits));
    let mut client = broker.v5("client").await;
    let (still, slow, done) = (client.open().await, client.open().await, client.open().await);
    let announced = [0x30, 0xfa, 0xff, 0xff, 0x7f, 0, 1, b't', 0];
    client.send_bytes(still, &announced);
    client.send_bytes(slow, &announced);
    client.publish(done, "t", "x", QoS::AtLeastOnce).await;
    let start = Instant::now();
    pass(500).await;
    client.send_bytes(slow, b"x");
    client.ping(CONTROL).await;
    for (stream, seconds) in [(still, 600), (slow, 1100)] {
        assert_eq!(client.expect_stopped(stream).await, 0x89);
        assert_eq!(start.elapsed().as_secs(), seconds);
    }
    pass(1000).await;
    client.publish(done, "t", "x", QoS::AtLeastOnce).await;
}

/// [BQ-45]: packets that are announced and never arrive.
#[tokio::test(start_paused = true)]
async fn rule_8_packets_that_never_come_are_bounded_and_reaped() {
    const PARTIAL: usize = 2_000_000;
    let limits = LimitsConfig { partial_bytes: PARTIAL, stalled_packet_secs: 30, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(with_limits(limits));
    let mut client = broker.v5("client").await;
    // PUBLISH of 268,435,455 bytes.
    let announced = [0x30, 0xfa, 0xff, 0xff, 0x7f, 0, 1, b't', 0];
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let stream = client.open().await;
        client.send_bytes(stream, &announced);
        client.send_bytes(stream, &vec![b'x'; 1_000_000]);
        stalled.push(stream);
    }
    pass(10).await;
    let sent = broker.host("client").counters(Direction::Up).bytes;
    println!("{sent} of 8,000,000 bytes were taken");
    // Small messages still pass, on any stream.
    let data = client.open().await;
    client.publish(data, "t", "x", QoS::AtLeastOnce).await;
    client.publish(CONTROL, "t", "x", QoS::AtLeastOnce).await;
    // Streams whose memory others wait for are ended, while one waits.
    let start = Instant::now();
    assert_eq!(client.expect_stopped(stalled[0]).await, 0x89);
    assert!((15..=40).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    client.publish(data, "t", "x", QoS::AtLeastOnce).await;
    client.ping(CONTROL).await;
}
