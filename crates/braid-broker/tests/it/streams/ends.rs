//! Ends of streams and connections.

use std::time::Duration;

use braid_broker::{BrokerConfig, MqttConfig};
use braid_proto::packet::{AckKind, Disconnect, Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use bytes::BytesMut;
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Ended, Lanes, QuicBroker, connect_v5, pass, publish_packet, quiet, will,
};

/// A client with a Will, and a subscriber to it.
async fn with_will(broker: &QuicBroker) -> (Lanes, Client) {
    let mut heir = broker.memory.v5("heir").await;
    heir.subscribe("will", QoS::AtMostOnce).await;
    let mut connect = connect_v5("client");
    connect.keep_alive = 60;
    connect.will = Some(will("will", "gone"));
    (broker.connect(connect).await, heir)
}

/// [BQ-30]
#[tokio::test(start_paused = true)]
async fn fin_is_answered_after_everything_that_came_before_it() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let data = client.open().await;
    for number in 1..=100 {
        client.send(data, &publish_packet("t", "x", QoS::AtLeastOnce, number));
    }
    client.finish(data);
    for number in 1..=100 {
        client.expect_ack(data, AckKind::Puback, number).await;
    }
    assert_eq!(client.expect_ended(data).await, Ended::Finished);
    client.ping(CONTROL).await;
}

/// [BQ-30]
#[tokio::test(start_paused = true)]
async fn fin_within_a_packet_is_answered_with_a_reset() {
    let broker = QuicBroker::start();
    let (client, mut heir) = with_will(&broker).await;
    let data = client.open().await;
    client.send_bytes(data, &[0x30, 10, 0, 1, b't']);
    client.finish(data);
    assert_eq!(client.expect_ended(data).await, Ended::Reset(0x81));
    client.ping(CONTROL).await;
    heir.expect_silence().await;
}

/// [BQ-34]
#[tokio::test(start_paused = true)]
async fn malformed_and_too_large_packets_end_their_stream_alone() {
    let mqtt = MqttConfig { maximum_packet_size: 10_000, ..MqttConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { mqtt, ..quiet() });
    let (mut client, mut heir) = with_will(&broker).await;
    let other = client.open().await;
    client.subscribe(other, "t", QoS::AtLeastOnce).await;
    let mut too_large = BytesMut::new();
    publish_packet("t", vec![0; 20_000], QoS::AtLeastOnce, 1).encode(ProtocolVersion::V5, &mut too_large);
    let cases: [(&[u8], u64); 5] = [
        (&[0xff, 0xff, 0xff, 0xff, 0xff], 0x81),
        // Remaining Length of five bytes.
        (&[0x30, 0x80, 0x80, 0x80, 0x80, 0x01], 0x81),
        // QoS 3.
        (&[0x36, 5, 0, 1, b't', 0, 1], 0x81),
        // A topic alias that was not set.
        (&[0x30, 6, 0, 0, 3, 0x23, 0, 9], 0x82),
        (&too_large, 0x95),
    ];
    for (bytes, code) in cases {
        let data = client.open().await;
        client.publish(data, "x", "x", QoS::AtLeastOnce).await;
        client.send_bytes(data, bytes);
        client.expect_aborted(data, code).await;
        // The stream has ended, others are not affected.
        client.publish(other, "t", "alive", QoS::AtLeastOnce).await;
        assert_eq!(client.take(other).await, "alive");
    }
    client.ping(CONTROL).await;
    heir.expect_silence().await; // No Will.
}

/// [BQ-35]
#[tokio::test(start_paused = true)]
async fn acknowledgements_of_a_dead_stream_go_nowhere_else() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let data = client.open().await;
    client.send(data, &publish_packet("t", "x", QoS::ExactlyOnce, 5));
    client.reset(data, 0);
    client.expect_silence(CONTROL).await;
}

/// [BQ-40]
#[tokio::test(start_paused = true)]
async fn a_disconnect_is_answered_with_code_0_and_without_a_will() {
    let broker = QuicBroker::start();
    let (client, mut heir) = with_will(&broker).await;
    let data = client.open().await;
    client.ping(data).await;
    assert_eq!(client.disconnect().await, Ok(()));
    assert_eq!(client.expect_ended(data).await, Ended::Finished);
    heir.expect_silence().await;
}

/// [BQ-40]: DISCONNECT with Will.
#[tokio::test(start_paused = true)]
async fn a_disconnect_may_ask_for_the_will() {
    let broker = QuicBroker::start();
    let (client, mut heir) = with_will(&broker).await;
    let disconnect = Disconnect::new(ReasonCode::DisconnectWithWill);
    client.send(CONTROL, &Packet::Disconnect(Box::new(disconnect)));
    assert_eq!(client.expect_closed().await, Ok(()));
    assert_eq!(heir.take().await, "gone");
}

/// [BQ-40]: any end of the control stream or of the connection is the end of the Network Connection.
#[tokio::test(start_paused = true)]
async fn without_a_disconnect_the_will_follows() {
    let broker = QuicBroker::start();
    for how in ["close 0", "close 1", "lost"] {
        let (client, mut heir) = with_will(&broker).await;
        client.ping(client.open().await).await;
        match how {
            "close 0" => client.close(0).await,
            "close 1" => client.close(1).await,
            _ => broker.host("client").change(|link| link.cut = true),
        }
        assert_eq!(heir.take().await, "gone", "{how}");
        heir.disconnect().await;
    }
}

/// [BQ-41]
#[tokio::test(start_paused = true)]
async fn a_take_over_says_why_on_every_stream() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let streams = [client.open().await, client.open().await];
    for stream in streams {
        client.ping(stream).await;
    }
    let start = Instant::now();
    let _second = broker.v5("client").await;
    client.expect_disconnect(ReasonCode::SessionTakenOver).await;
    for stream in streams {
        assert_eq!(client.expect_stopped(stream).await, 0x8e);
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// [BQ-41]: the close does not wait for a client that is gone.
#[tokio::test(start_paused = true)]
async fn the_end_takes_three_seconds_at_most() {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    broker.host("client").change(|link| link.cut = true);
    let mut other = broker.memory.v5("client").await;
    pass(4).await;
    assert_eq!(broker.memory.statistics().connections(), 1);
    other.publish("t", "x", QoS::AtLeastOnce).await;
    drop(client);
}

/// [BQ-41]: a violation on the control stream ends the connection.
#[tokio::test(start_paused = true)]
async fn a_violation_on_the_control_stream_ends_the_connection() {
    let broker = QuicBroker::start();
    let (client, mut heir) = with_will(&broker).await;
    let data = client.open().await;
    client.ping(data).await;
    client.send_bytes(CONTROL, &[0xff, 0xff]);
    client.expect_disconnect(ReasonCode::MalformedPacket).await;
    assert_eq!(client.expect_stopped(data).await, 0x81);
    assert_eq!(heir.take().await, "gone");
}
