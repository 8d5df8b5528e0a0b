//! Keep Alive of a client on whose streams more bytes arrive than the broker reads.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, MqttConfig};
use braid_proto::packet::{Packet, QoS};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use tokio::time::Instant;

use crate::support::{CONTROL, Lanes, QuicBroker, connect_v5, pass, publish_packet, quiet};

/// Seconds.
const KEEP_ALIVE: u16 = 10;

/// PUBLISH of 268,435,455 bytes.
const ENDLESS: [u8; 9] = [0x30, 0xfa, 0xff, 0xff, 0x7f, 0, 1, b't', 0];

/// A client that sends no packet, while its QUIC stack sends all the time.
async fn connect(broker: &QuicBroker, options: QuicOptions) -> Lanes {
    let options = QuicOptions { keep_alive: Some(Duration::from_secs(3)), ..options };
    let mut client = broker.link_with("client", options).await;
    let mut connect = connect_v5("client");
    connect.keep_alive = KEEP_ALIVE;
    client.send_connect(connect);
    client.accepted().await;
    client
}

/// Unread bytes keep the client connected for minutes; without them Keep Alive ends the connection. [BQ-44]
async fn expect_life_and_death(broker: &QuicBroker, client: &Lanes, stream: StreamKey) {
    pass(1).await;
    let statistics = broker.memory.statistics();
    let read = statistics.get(Counter::BytesReceived);
    for _ in 0..20 {
        client.send_bytes(stream, b"x");
        pass(14).await;
        assert_eq!(statistics.clients(), 1);
    }
    client.send_bytes(stream, b"x");
    let last = Instant::now();
    assert_eq!(statistics.get(Counter::BytesReceived), read, "the broker reads nothing");
    match client.expect(CONTROL).await {
        Packet::Disconnect(disconnect) => assert_eq!(disconnect.reason, ReasonCode::KeepAliveTimeout),
        other => panic!("{other:?}"),
    }
    let silent = last.elapsed();
    assert!(Duration::from_secs(15) <= silent && silent <= Duration::from_secs(21), "{silent:?}");
}

/// [BQ-44], [BQ-45], [MQTT-3.1.2-22]: not read because of incomplete packets.
#[tokio::test(start_paused = true)]
async fn bytes_behind_the_cap_of_incomplete_packets_are_a_sign_of_life() {
    let limits =
        LimitsConfig { partial_bytes: 100_000, stalled_packet_secs: 10_000, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { limits, ..quiet() });
    let client = connect(&broker, QuicOptions::client()).await;
    let (large, held) = (client.open().await, client.open().await);
    for stream in [large, held] {
        client.send_bytes(stream, &ENDLESS);
        client.send_bytes(stream, &[b'x'; 150_000]);
        pass(1).await;
    }
    expect_life_and_death(&broker, &client, held).await;
}

/// [BQ-44], [BQ-55], [MQTT-3.1.2-22]: not read because its acknowledgements are not read.
#[tokio::test(start_paused = true)]
async fn bytes_behind_acknowledgements_that_are_not_read_are_a_sign_of_life() {
    let mqtt = MqttConfig { receive_maximum: u16::MAX, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..quiet() });
    let options = QuicOptions { stream_receive_window: 16 * 1024, ..QuicOptions::client() };
    let client = connect(&broker, options).await;
    let stream = client.open().await;
    client.leave_unread(stream);
    // Acknowledgements of 400 kB, of which the broker keeps 256 KiB before it stops reading.
    for number in 0..80_000_u32 {
        let packet_id = u16::try_from(number % 60_000).expect("small") + 1;
        client.send(stream, &publish_packet("t", "x", QoS::AtLeastOnce, packet_id));
    }
    expect_life_and_death(&broker, &client, stream).await;
}
