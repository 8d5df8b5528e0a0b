//! Rules learnt from advisories of other brokers, one test for each that bears its name: over one stream of bytes, as
//! those of TCP, TLS and WebSocket are, and over streams of QUIC. Tests elsewhere that show more of a rule:
//!
//! | rule | tests |
//! |---|---|
//! | 1, bounds before CONNECT | `malformed.rs`, `streams/opening.rs`; a large message of WebSocket: `websocket.rs` of braid-transport |
//! | 2, QoS 2 | `streams/identifiers.rs`, after a crash too |
//! | 3, parsing | `malformed.rs`, the fuzz targets |
//! | 6, counts and lengths | frames of WebSocket: `websocket.rs` of braid-transport; answers to a client: `hostile.rs` of braid-client |
//! | 7, bounded queues | `slow.rs`, `streams/unread_streams.rs`, `streams/backpressure.rs` |
//! | 8, QUIC | `rule_8_...` in `streams/opening.rs` and `streams/churn.rs`, and in `retry.rs` of braid-transport; floods of connection ids and paths: `cargo xtask hostile` |
//! | 9, early data | `rule_9_no_publish_takes_effect_before_the_handshake_is_confirmed` and others in `streams/early.rs` |

mod advisories;
mod churn;

use std::time::Duration;

use braid_broker::{BrokerConfig, MqttConfig};
use braid_proto::packet::{
    AckKind, Connect, Disconnect, Packet, ProtocolVersion, Publish, QoS, Subscribe, SubscribeEntry,
    UserProperties,
};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicFilter;
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Ended, QuicBroker, bytes, connect_v5, filter, id, lasting, pass, publish_packet, quiet,
    settle, subscribe_packet, texts, unsubscribe_packet, wait, will,
};

/// Fixed header of a CONNECT of 64 KiB and one byte.
const TOO_LONG: [u8; 4] = [0x10, 0xFE, 0xFF, 0x03];

async fn watcher(broker: &QuicBroker) -> Client {
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    watcher
}

/// CVE-2017-7651, CVE-2023-0809
#[tokio::test(start_paused = true)]
async fn rule_1_bytes_and_time_before_connect_are_bounded() {
    let broker = QuicBroker::start();
    let mut watcher = watcher(&broker).await;
    let first_packets = [
        bytes(&Packet::Pingreq).to_vec(),
        bytes(&publish_packet("t", "x", QoS::AtLeastOnce, 1)).to_vec(),
        bytes(&subscribe_packet(1, None, vec![SubscribeEntry::new(filter("t"), QoS::AtMostOnce)])).to_vec(),
        bytes(&Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))).to_vec(),
        TOO_LONG.to_vec(),
    ];
    for packet in &first_packets {
        let start = Instant::now();
        let mut single = broker.memory.link(ProtocolVersion::V5).await;
        single.send_bytes(packet).await;
        single.expect_end().await;
        let multi = broker.link("multi").await;
        multi.send_bytes(CONTROL, packet);
        let _ = multi.expect_closed().await;
        assert!(start.elapsed() < Duration::from_secs(4), "{packet:?} after {:?}", start.elapsed());
    }
    // A byte now and then does not extend the time.
    let start = Instant::now();
    let mut connect = connect_v5("slow");
    connect.properties.user = [("a", "x".repeat(1000))].into();
    let mut single = broker.memory.link(ProtocolVersion::V5).await;
    let multi = broker.link("multi").await;
    for byte in bytes(&Packet::Connect(Box::new(connect))).chunks(1) {
        multi.send_bytes(CONTROL, byte);
        if !single.try_send_bytes(byte).await {
            break;
        }
        wait(Duration::from_millis(100)).await;
    }
    let _ = multi.expect_closed().await;
    assert!((4_900..=5_500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    // A CONNECT on a data stream is none, and other data streams are not read before it.
    let start = Instant::now();
    let multi = broker.link("multi").await;
    let [data, other] = [multi.open().await, multi.open().await];
    multi.send(data, &Packet::Connect(Box::new(connect_v5("data"))));
    multi.send(other, &publish_packet("t", "x", QoS::AtLeastOnce, 1));
    multi.send_bytes(other, &[0x30].repeat(1 << 20));
    let _ = multi.expect_closed().await;
    assert!((4_900..=9_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    watcher.expect_silence().await;
    drop((single, multi));
    // A data stream that came before CONNECT waits for it, and is read then.
    let mut multi = broker.link("multi").await;
    let data = multi.open().await;
    multi.send(data, &publish_packet("t", "early", QoS::AtLeastOnce, 1));
    pass(1).await;
    watcher.expect_silence().await;
    multi.send_connect(connect_v5("multi"));
    multi.accepted().await;
    assert_eq!(multi.expect_ack(data, AckKind::Puback, 1).await, ReasonCode::Success);
    assert_eq!(watcher.take().await, "early");
    drop(multi);
    pass(10).await;
    let statistics = broker.memory.statistics();
    assert_eq!((statistics.clients(), statistics.connections()), (1, 1));
}

/// CVE-2023-28366, CVE-2026-8741
#[tokio::test(start_paused = true)]
async fn rule_2_unreleased_identifiers_of_qos_2_are_bounded_and_each_stream_has_its_own() {
    let mqtt = MqttConfig { receive_maximum: 10, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..quiet() });
    let mut watcher = watcher(&broker).await;
    let publish = |number| publish_packet("t", "x", QoS::ExactlyOnce, number);
    // No PUBREL: the eleventh is one too many, on one stream of bytes and on one of many.
    let mut single = broker.memory.v5("single").await;
    for number in 1..=10 {
        single.send(publish(number)).await;
        assert_eq!(single.expect_ack(AckKind::Pubrec).await.packet_id, id(number));
    }
    single.send(publish(11)).await;
    single.expect_disconnect(ReasonCode::ReceiveMaximumExceeded).await;
    let multi = broker.v5("multi").await;
    let streams = [multi.open().await, multi.open().await];
    for number in 1..=10 {
        multi.send(streams[0], &publish(number));
        assert_eq!(multi.expect_ack(streams[0], AckKind::Pubrec, number).await, ReasonCode::Success);
    }
    multi.send(streams[0], &publish(11));
    multi.expect_aborted(streams[0], 0x93).await;
    settle().await;
    assert_eq!(watcher.take_all().await.len(), 20);
    // One identifier on two streams is two exchanges, and a repetition on its stream is none.
    let multi = broker.v5("again").await;
    let streams = [multi.open().await, multi.open().await];
    let Packet::Publish(first) = publish(1) else { unreachable!() };
    let repeated = Packet::Publish(Publish { dup: true, ..first });
    for _ in 0..3 {
        for stream in streams {
            multi.send(stream, &repeated);
            assert_eq!(multi.expect_ack(stream, AckKind::Pubrec, 1).await, ReasonCode::Success);
        }
    }
    let mut single = broker.memory.v5("single").await;
    for _ in 0..3 {
        single.send(repeated.clone()).await;
        assert_eq!(single.expect_ack(AckKind::Pubrec).await.packet_id, id(1));
    }
    settle().await;
    assert_eq!(watcher.take_all().await.len(), 3, "one for each stream");
}

/// Packets that break off or go wrong after a part that could have an effect: name, bytes, and the code of the refusal.
fn half_valid() -> Vec<(&'static str, Vec<u8>, ReasonCode)> {
    use ReasonCode::{MalformedPacket, ProtocolError};
    let subscribe = |rest: &[u8]| {
        let content = [&[0, 7, 0, 0, 1, b'a', 0][..], rest].concat();
        [&[0x82, u8::try_from(content.len()).expect("short")][..], &content].concat()
    };
    vec![
        ("SUBSCRIBE, reserved bits", subscribe(&[0, 1, b'b', 0xC0]), MalformedPacket),
        ("SUBSCRIBE, QoS 3", subscribe(&[0, 1, b'b', 0x03]), ProtocolError),
        ("SUBSCRIBE, a filter that is cut", subscribe(&[0, 9, b'b']), MalformedPacket),
        ("SUBSCRIBE, no options", subscribe(&[0, 1, b'b']), MalformedPacket),
        ("UNSUBSCRIBE", vec![0xA2, 11, 0, 8, 0, 0, 4, b'k', b'e', b'p', b't', 0, 9], MalformedPacket),
        ("PUBLISH, a property twice", vec![0x31, 9, 0, 1, b'a', 4, 1, 0, 1, 0, b'x'], ProtocolError),
        ("PUBLISH, another packet's property", vec![0x31, 7, 0, 1, b'a', 2, 0x24, 1, b'x'], MalformedPacket),
        ("PUBLISH, QoS 2", vec![0x34, 8, 0, 1, b'a', 0, 9, 2, 0x24, 1], MalformedPacket),
    ]
}

/// CVE-2023-3592, CVE-2021-34432
#[tokio::test(start_paused = true)]
async fn rule_3_packets_are_parsed_whole_before_they_have_an_effect() {
    let broker = QuicBroker::start();
    for (name, half, reason) in half_valid() {
        println!("{name}");
        let mut single = broker.memory.resume("single").await;
        single.subscribe("kept", QoS::AtMostOnce).await;
        single.send_bytes(&half).await;
        single.expect_disconnect(reason).await;
        let mut multi = broker.resume("multi").await;
        multi.subscribe(CONTROL, "kept", QoS::AtMostOnce).await;
        let data = multi.open().await;
        multi.send_bytes(data, &half);
        multi.expect_aborted(data, u64::from(reason.value())).await;
        // Nothing was subscribed, unsubscribed, published or retained, and no identifier is in use.
        let mut single = broker.memory.resume("single").await;
        assert!(single.connack().session_present);
        let mut other = broker.memory.v5("other").await;
        other.subscribe("a", QoS::AtMostOnce).await;
        other.publish("a", "live", QoS::AtLeastOnce).await;
        other.publish("kept", "kept", QoS::AtLeastOnce).await;
        assert_eq!(texts(&other.take_all().await), ["live"], "{name}");
        assert_eq!(texts(&single.take_all().await), ["kept"], "{name}");
        assert_eq!(multi.take(CONTROL).await, "kept", "{name}");
        multi.expect_silence(CONTROL).await;
        single.publish("b", "x", QoS::ExactlyOnce).await;
        multi.publish(CONTROL, "b", "x", QoS::ExactlyOnce).await;
        multi.disconnect().await.expect("in order");
        single.disconnect().await;
    }
    // A CONNECT with bytes behind its last field begins no session, and sets no Will.
    let mut watcher = watcher(&broker).await;
    let connect = Connect { will: Some(will("w", "will")), ..lasting("connect") };
    let mut bytes = bytes(&Packet::Connect(Box::new(connect))).to_vec();
    bytes.push(0);
    bytes[1] += 1;
    let mut single = broker.memory.link(ProtocolVersion::V5).await;
    single.send_bytes(&bytes).await;
    assert_eq!(single.expect_connack().await.reason, ReasonCode::MalformedPacket);
    let multi = broker.link("connect").await;
    multi.send_bytes(CONTROL, &bytes);
    let Packet::Connack(connack) = multi.expect(CONTROL).await else { panic!("no CONNACK") };
    assert_eq!(connack.reason, ReasonCode::MalformedPacket);
    pass(10).await;
    watcher.expect_silence().await;
    assert!(!broker.memory.resume("connect").await.connack().session_present);
}

/// Filters of all kinds, and the code for each.
fn mixed_filters() -> (Packet, Vec<ReasonCode>) {
    let invalid = |text| SubscribeEntry {
        filter: TopicFilter::parse(text),
        ..SubscribeEntry::new(filter("x"), QoS::AtMostOnce)
    };
    let entries = vec![
        SubscribeEntry::new(filter("a/+"), QoS::AtMostOnce),
        invalid("a/#/b"),
        SubscribeEntry::new(filter("$share/g/a"), QoS::AtLeastOnce),
        invalid("$share//a"),
        SubscribeEntry::new(filter("a"), QoS::ExactlyOnce),
        // A repetition: each entry has its code.
        SubscribeEntry::new(filter("a"), QoS::AtMostOnce),
    ];
    let bad = ReasonCode::TopicFilterInvalid;
    let codes = vec![
        ReasonCode::Success,
        bad,
        ReasonCode::GrantedQos1,
        bad,
        ReasonCode::GrantedQos2,
        ReasonCode::Success,
    ];
    let subscribe = Subscribe { packet_id: id(7), id: None, user: UserProperties::new(), entries };
    (Packet::Subscribe(Box::new(subscribe)), codes)
}

/// CVE-2026-25627; SUBACK with a wrong count: mosquitto 2.0.19
#[tokio::test(start_paused = true)]
async fn rule_6_codes_are_counted_and_no_length_is_trusted_beyond_the_end_of_a_stream() {
    let broker = QuicBroker::start();
    let mut watcher = watcher(&broker).await;
    let (subscribe, codes) = mixed_filters();
    let unsubscribe = unsubscribe_packet(8, &["a", "unknown", "$share/g/a", "a/+"]);
    let absent = [false, true, false, false];
    let expected = absent.map(|absent| match absent {
        true => ReasonCode::NoSubscriptionExisted,
        false => ReasonCode::Success,
    });
    let mut single = broker.memory.v5("single").await;
    single.send(subscribe.clone()).await;
    let Some(Packet::Suback(suback)) = single.next().await else { panic!("no SUBACK") };
    assert_eq!(suback.codes, codes);
    single.send(unsubscribe.clone()).await;
    assert_eq!(single.find_unsuback().await.codes, expected);
    let multi = broker.v5("multi").await;
    for stream in [multi.open().await, CONTROL, multi.open().await] {
        multi.send(stream, &subscribe);
        assert_eq!(multi.expect_suback(stream).await.codes, codes, "{stream}");
        multi.send(stream, &unsubscribe);
        assert_eq!(multi.expect_unsuback(stream).await, expected, "{stream}");
    }
    // A PUBLISH that its stream does not finish is not continued by the bytes of another stream or connection.
    let publish = bytes(&publish_packet("t", "012345\0\0\0\0", QoS::AtMostOnce, 0));
    let (start, end) = publish.split_at(publish.len() - 4);
    let streams = [multi.open().await, multi.open().await];
    multi.send_bytes(streams[0], start);
    multi.finish(streams[0]);
    multi.send_bytes(streams[1], end);
    multi.finish(streams[1]);
    for stream in streams {
        assert_eq!(multi.expect_ended(stream).await, Ended::Reset(0x81), "{stream}");
    }
    multi.ping(CONTROL).await;
    single.send_bytes(start).await;
    single.vanish().await;
    let mut single = broker.memory.v5("single").await;
    single.send_bytes(end).await;
    single.expect_disconnect(ReasonCode::MalformedPacket).await;
    watcher.expect_silence().await;
}

/// CVE-2024-48077: queues of a client that reads nothing are bounded, and flow control stops who fills them.
#[tokio::test(start_paused = true)]
async fn rule_7_what_is_not_read_is_bounded_by_flow_control() {
    const SENT: usize = 32 << 20;
    let broker = QuicBroker::start();
    // PINGREQ: the answers are not read, so no more requests are read.
    let pings = bytes(&Packet::Pingreq).repeat(1 << 16);
    let mut single = broker.memory.v5("single").await;
    let mut written = 0;
    while written < SENT
        && tokio::time::timeout(Duration::from_secs(1), single.try_send_bytes(&pings)).await.is_ok()
    {
        written += pings.len();
    }
    assert!(written < SENT, "one stream is not stopped");
    let multi = broker.v5("multi").await;
    let streams = [CONTROL, multi.open().await, multi.open().await];
    let received = |stream: StreamKey| multi.received_bytes(stream);
    streams.into_iter().for_each(|stream| multi.leave_unread(stream));
    let up = || broker.host("multi").counters(braid_transport::sim::Direction::Up).bytes;
    let before = up();
    for stream in streams {
        (0..SENT / pings.len()).for_each(|_| multi.send_bytes(stream, &pings));
    }
    pass(10).await;
    // As much as is held unread for a connection, of 96 MiB, and later little more at a time.
    let taken = up() - before;
    assert!(taken < 66 << 20, "{taken} bytes were taken");
    pass(100).await;
    assert!(up() - before < taken + 512 * 1024, "{} more", up() - before - taken);
    assert!(streams.into_iter().map(received).sum::<usize>() < SENT);
    // Others are not disturbed.
    let mut other = broker.memory.v5("other").await;
    other.send(Packet::Pingreq).await;
    assert_eq!(other.next().await, Some(Packet::Pingresp));
}
