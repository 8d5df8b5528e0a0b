//! Clients that are faster than they may be: slowed down, never disconnected. Connections that come too fast: told so.

use std::time::Duration;

use braid_broker::{BrokerConfig, LimitsConfig, MqttConfig};
use braid_proto::packet::{Packet, ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use tokio::time::Instant;

use crate::support::{
    CONTROL, QuicBroker, TestBroker, connect_v3, connect_v5, pass, publish_packet, quiet, settle, wait,
};

/// Seconds.
const KEEP_ALIVE: u16 = 4;

fn with_limits(limits: LimitsConfig) -> BrokerConfig {
    BrokerConfig { limits, ..quiet() }
}

/// What may come beside the rate and its burst: that which was read before it was counted.
const READ_AHEAD: u64 = 300;

/// [MQTT-3.1.2-22]: what it sends and nobody reads is no silence.
#[tokio::test(start_paused = true)]
async fn messages_of_a_fast_client_come_at_its_rate_and_all_of_them() {
    // Of the slow one a read takes longer to be paid for than its Keep Alive lasts.
    for (rate, qos, strict_keepalive) in [
        (100, QoS::AtMostOnce, false),
        (100, QoS::AtLeastOnce, false),
        (10, QoS::AtMostOnce, false),
        (10, QoS::AtMostOnce, true),
    ] {
        let limits = LimitsConfig { publishes_per_second: rate, ..LimitsConfig::default() };
        let mqtt = MqttConfig { strict_keepalive, ..MqttConfig::default() };
        let broker = TestBroker::start_with(BrokerConfig { mqtt, ..with_limits(limits) });
        let mut connect = connect_v5("fast");
        connect.keep_alive = KEEP_ALIVE;
        let mut fast = broker.connect(connect).await;
        let statistics = broker.statistics();
        let (start, count) = (Instant::now(), u16::try_from(50 * rate).expect("small"));
        let flood = tokio::spawn(async move {
            fast.send_all((1..=count).map(|number| publish_packet("t", "x", qos, number))).await;
            fast.send(Packet::Pingreq).await;
            fast
        });
        while statistics.messages_received() < count.into() {
            let seconds = start.elapsed().as_secs();
            let received = statistics.messages_received();
            assert!(received <= rate * (seconds + 1) + READ_AHEAD, "{received} in {seconds} s");
            assert!(received >= (rate * seconds).saturating_sub(1), "{received} in {seconds} s");
            pass(1).await;
        }
        let mut fast = flood.await.expect("nobody disconnects it");
        while fast.next().await != Some(Packet::Pingresp) {}
        assert_eq!(statistics.messages_dropped(), 0);
        fast.publish("t", "x", QoS::AtLeastOnce).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_fast_client_come_at_their_rate() {
    const RATE: u64 = 50_000;
    let limits = LimitsConfig { publish_bytes_per_second: RATE, ..LimitsConfig::default() };
    // That the packet takes so long to come whole is not the client's doing.
    let mqtt = MqttConfig { strict_keepalive: true, ..MqttConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { mqtt, ..with_limits(limits) });
    let mut connect = connect_v5("fast");
    connect.keep_alive = KEEP_ALIVE;
    let mut fast = broker.connect(connect).await;
    let mut other = broker.v5("other").await;
    let statistics = broker.statistics();
    let (start, before) = (Instant::now(), statistics.bytes_received());
    let flood = tokio::spawn(async move {
        fast.publish("t", "x".repeat(1_000_000), QoS::AtLeastOnce).await;
        fast
    });
    while statistics.messages_received() == 0 {
        let seconds = start.elapsed().as_secs();
        let received = statistics.bytes_received() - before;
        // A burst, and a read before it was counted.
        assert!(received <= RATE * (seconds + 2), "{received} in {seconds} s");
        assert!(!flood.is_finished(), "it is disconnected");
        pass(1).await;
    }
    let took = start.elapsed();
    assert!(Duration::from_secs(18) < took && took < Duration::from_secs(22), "{took:?}");
    drop(flood.await.expect("nobody disconnects it"));
    // Each has its own.
    other.publish("t", "x".repeat(50_000), QoS::AtLeastOnce).await;
}

/// Every stream waits but the control stream, on which there is nothing to pay for.
#[tokio::test(start_paused = true)]
async fn a_fast_client_of_many_streams_is_slowed_down_on_each_and_heard() {
    const RATE: u64 = 50;
    let limits = LimitsConfig { publishes_per_second: RATE, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(with_limits(limits));
    let mut connect = connect_v5("fast");
    connect.keep_alive = KEEP_ALIVE;
    let mut client = broker.link("fast").await;
    client.send_connect(connect);
    client.accepted().await;
    let statistics = broker.memory.statistics();
    let start = Instant::now();
    for _ in 0..3 {
        let stream = client.open().await;
        (0..500).for_each(|_| client.send(stream, &publish_packet("t", "x", QoS::AtMostOnce, 1)));
    }
    while statistics.messages_received() < 1500 {
        let seconds = start.elapsed().as_secs();
        let received = statistics.messages_received();
        assert!(received <= RATE * (seconds + 1) + 2 * READ_AHEAD, "{received} in {seconds} s");
        client.send(CONTROL, &Packet::Pingreq);
        let asked = Instant::now();
        assert_eq!(client.expect(CONTROL).await, Packet::Pingresp);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        // A stream that is opened meanwhile is not read before its time.
        let late = client.open().await;
        client.send(late, &publish_packet("t", "x", QoS::AtMostOnce, 1));
        client.finish(late);
        pass(1).await;
    }
    assert!(start.elapsed() >= Duration::from_secs(1500 / RATE - 8), "{:?}", start.elapsed());
    assert_eq!(statistics.clients(), 1);
    // What is published on the control stream waits as well.
    let before = statistics.messages_received();
    (0..1000).for_each(|_| client.send(CONTROL, &publish_packet("t", "x", QoS::AtMostOnce, 1)));
    pass(2).await;
    let received = statistics.messages_received() - before;
    assert!(received <= RATE * 3 + READ_AHEAD, "{received}");
}

#[tokio::test(start_paused = true)]
async fn connections_that_come_too_fast_are_told_so_and_then_turned_away() {
    let limits = LimitsConfig { connections_per_second: 3, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(with_limits(limits));
    for round in 1..=3 {
        let mut answers = Vec::new();
        for number in 0..10 {
            let is_v5 = number % 2 == 0;
            let version = if is_v5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
            let name = format!("client-{number}");
            let connect = if is_v5 { connect_v5(&name) } else { connect_v3(&name) };
            let mut client = broker.link(version).await;
            let mut bytes = bytes::BytesMut::new();
            Packet::Connect(Box::new(connect)).encode(version, &mut bytes);
            client.try_send_bytes(&bytes).await;
            settle().await;
            match client.next().await {
                Some(Packet::Connack(connack)) => answers.push(Some(connack.reason)),
                None => answers.push(None),
                other => panic!("{other:?}"),
            }
            if answers.last() != Some(&Some(ReasonCode::Success)) && answers.last() != Some(&None) {
                client.expect_end().await;
            }
        }
        // MQTT 3.1.1 has one word for all of it: return code 3.
        let (v5, v3) = (ReasonCode::ConnectionRateExceeded, ReasonCode::ServerUnavailable);
        let accepted = Some(ReasonCode::Success);
        assert_eq!(answers[..6], [accepted, accepted, accepted, Some(v3), Some(v5), Some(v3)]);
        assert_eq!(answers[6..], [None; 4]);
        assert_eq!(broker.statistics().connections_refused(), 7 * round);
        wait(Duration::from_secs(2)).await;
    }
}
