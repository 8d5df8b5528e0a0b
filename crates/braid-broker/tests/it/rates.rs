//! Rate limits: fast publishers are slowed and not disconnected, connections above their rate are refused.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, MqttConfig};
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

/// Messages beyond the rate and its burst: those of one read, which is counted afterwards.
const READ_AHEAD: u64 = 300;

/// [MQTT-3.1.2-22]: a client that is not read is not silent.
#[tokio::test(start_paused = true)]
async fn all_messages_of_a_fast_client_arrive_at_its_rate() {
    // At the low rate, one read takes longer to be paid than the Keep Alive lasts.
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
        while statistics.get(Counter::MessagesReceived) < count.into() {
            let seconds = start.elapsed().as_secs();
            let received = statistics.get(Counter::MessagesReceived);
            assert!(received <= rate * (seconds + 1) + READ_AHEAD, "{received} in {seconds} s");
            assert!(received >= (rate * seconds).saturating_sub(1), "{received} in {seconds} s");
            pass(1).await;
        }
        let mut fast = flood.await.expect("no disconnect");
        while fast.next().await != Some(Packet::Pingresp) {}
        assert_eq!(statistics.get(Counter::MessagesDropped), 0);
        fast.publish("t", "x", QoS::AtLeastOnce).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_fast_client_arrive_at_its_rate() {
    const RATE: u64 = 50_000;
    let limits = LimitsConfig { publish_bytes_per_second: RATE, ..LimitsConfig::default() };
    // The broker delays the incomplete packet, not the client.
    let mqtt = MqttConfig { strict_keepalive: true, ..MqttConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { mqtt, ..with_limits(limits) });
    let mut connect = connect_v5("fast");
    connect.keep_alive = KEEP_ALIVE;
    let mut fast = broker.connect(connect).await;
    let mut other = broker.v5("other").await;
    let statistics = broker.statistics();
    let (start, before) = (Instant::now(), statistics.get(Counter::BytesReceived));
    let flood = tokio::spawn(async move {
        fast.publish("t", "x".repeat(1_000_000), QoS::AtLeastOnce).await;
        fast
    });
    while statistics.get(Counter::MessagesReceived) == 0 {
        let seconds = start.elapsed().as_secs();
        let received = statistics.get(Counter::BytesReceived) - before;
        // A burst, and one read that is counted afterwards.
        assert!(received <= RATE * (seconds + 2), "{received} in {seconds} s");
        assert!(!flood.is_finished(), "it is disconnected");
        pass(1).await;
    }
    let took = start.elapsed();
    assert!(Duration::from_secs(18) < took && took < Duration::from_secs(22), "{took:?}");
    drop(flood.await.expect("no disconnect"));
    // Each client has its own rate.
    other.publish("t", "x".repeat(50_000), QoS::AtLeastOnce).await;
}

/// All streams are slowed except the control stream, which has no messages.
#[tokio::test(start_paused = true)]
async fn fast_client_is_slowed_on_each_stream_but_the_control_stream() {
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
    while statistics.get(Counter::MessagesReceived) < 1500 {
        let seconds = start.elapsed().as_secs();
        let received = statistics.get(Counter::MessagesReceived);
        assert!(received <= RATE * (seconds + 1) + 2 * READ_AHEAD, "{received} in {seconds} s");
        client.send(CONTROL, &Packet::Pingreq);
        let asked = Instant::now();
        assert_eq!(client.expect(CONTROL).await, Packet::Pingresp);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        // A stream that is opened meanwhile is slowed as well.
        let late = client.open().await;
        client.send(late, &publish_packet("t", "x", QoS::AtMostOnce, 1));
        client.finish(late);
        pass(1).await;
    }
    assert!(start.elapsed() >= Duration::from_secs(1500 / RATE - 8), "{:?}", start.elapsed());
    assert_eq!(statistics.clients(), 1);
    // Messages on the control stream are slowed as well.
    let before = statistics.get(Counter::MessagesReceived);
    (0..1000).for_each(|_| client.send(CONTROL, &publish_packet("t", "x", QoS::AtMostOnce, 1)));
    pass(2).await;
    let received = statistics.get(Counter::MessagesReceived) - before;
    assert!(received <= RATE * 3 + READ_AHEAD, "{received}");
}

#[tokio::test(start_paused = true)]
async fn connections_above_their_rate_are_refused() {
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
        // MQTT 3.1.1 has return code 3 for all of it.
        let (v5, v3) = (ReasonCode::ConnectionRateExceeded, ReasonCode::ServerUnavailable);
        let accepted = Some(ReasonCode::Success);
        assert_eq!(answers[..6], [accepted, accepted, accepted, Some(v3), Some(v5), Some(v3)]);
        assert_eq!(answers[6..], [None; 4]);
        assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 7 * round);
        wait(Duration::from_secs(2)).await;
    }
}
