//! 0-RTT through the whole broker: packets that may be early, and packets that have to wait.

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Duration;

use braid_broker::{BrokerConfig, EarlyPublishConfig, StreamsConfig};
use braid_proto::packet::{AckKind, Connect, Packet, ProtocolVersion, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Datagram, Direction};
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, bytes, connect_v5, filter, pass, publish_packet, quiet,
    subscribe_packet, will,
};

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// Two milliseconds for each direction, the precision of the network.
const SLACK: Duration = Duration::from_millis(10);

/// A broker, a connector with a ticket for it, and a subscriber to all topics.
async fn scene(early_publish: EarlyPublishConfig) -> (QuicBroker, Connector, Client) {
    let streams = StreamsConfig { early_publish, ..StreamsConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { streams, ..quiet() });
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    broker.host("client").change(|link| link.latency = ROUND_TRIP / 2);
    let options = QuicOptions { zero_rtt: true, ..QuicOptions::client() };
    let connector = broker.connector("client", options);
    let mut first = lanes(&connector).await;
    first.send_connect(connect_v5("client"));
    first.accepted().await;
    pass(1).await;
    first.disconnect().await.expect("in order");
    pass(60).await;
    (broker, connector, watcher)
}

async fn lanes(connector: &Connector) -> Lanes {
    Lanes::new(connector.connect().await.expect("the broker listens"), ProtocolVersion::V5)
}

/// CONNECT on the control stream, SUBSCRIBE and PUBLISH on data streams, all at once.
async fn first_flight(client: &Lanes) -> [StreamKey; 2] {
    client.send_connect(connect_v5("client"));
    let streams = [client.open().await, client.open().await];
    let entry = SubscribeEntry::new(filter("s"), QoS::AtMostOnce);
    client.send(streams[0], &subscribe_packet(1, None, vec![entry]));
    client.send(streams[1], &publish_packet("t", "early", QoS::AtLeastOnce, 2));
    streams
}

/// [BQ-61]
#[tokio::test(start_paused = true)]
async fn connect_and_subscribe_take_one_round_trip_and_a_publish_waits() {
    let (_broker, connector, mut watcher) = scene(EarlyPublishConfig::Hold).await;
    let start = Instant::now();
    let mut client = lanes(&connector).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "nothing is waited for");
    let [subscribed, published] = first_flight(&client).await;
    client.accepted().await;
    assert_eq!(client.expect_suback(subscribed).await.codes, [QoS::AtMostOnce.into()]);
    assert!(start.elapsed() <= ROUND_TRIP + SLACK, "{:?}", start.elapsed());
    assert_eq!(watcher.take().await, "early");
    assert!(start.elapsed() >= ROUND_TRIP * 3 / 2, "{:?}", start.elapsed());
    client.confirmed().await;
    assert_eq!(client.expect_ack(published, AckKind::Puback, 2).await, ReasonCode::Success);
    assert!(start.elapsed() <= 2 * ROUND_TRIP + SLACK, "{:?}", start.elapsed());
    watcher.expect_silence().await;
    client.publish(CONTROL, "s", "x", QoS::AtLeastOnce).await;
    assert_eq!(client.take(subscribed).await, "x");
}

/// [BQ-61]
#[tokio::test(start_paused = true)]
async fn an_early_publish_may_be_accepted_at_once() {
    let (_broker, connector, mut watcher) = scene(EarlyPublishConfig::Accept).await;
    let start = Instant::now();
    let mut client = lanes(&connector).await;
    let [_, published] = first_flight(&client).await;
    assert_eq!(watcher.take().await, "early");
    assert!(start.elapsed() <= ROUND_TRIP / 2 + SLACK, "{:?}", start.elapsed());
    client.accepted().await;
    assert_eq!(client.expect_ack(published, AckKind::Puback, 2).await, ReasonCode::Success);
    assert!(start.elapsed() <= ROUND_TRIP + SLACK, "{:?}", start.elapsed());
}

/// [BQ-61]
#[tokio::test(start_paused = true)]
async fn an_early_publish_may_be_refused() {
    let (_broker, connector, mut watcher) = scene(EarlyPublishConfig::Reject).await;
    let mut client = lanes(&connector).await;
    let [subscribed, published] = first_flight(&client).await;
    client.accepted().await;
    let reason = client.expect_ack(published, AckKind::Puback, 2).await;
    assert_eq!(reason, ReasonCode::ImplementationSpecificError);
    assert_eq!(client.expect_suback(subscribed).await.codes, [QoS::AtMostOnce.into()]);
    watcher.expect_silence().await;
    client.confirmed().await;
    client.publish(published, "t", "later", QoS::AtLeastOnce).await;
    assert_eq!(watcher.take().await, "later");
}

/// CONNECT and PUBLISH in the very first datagram.
async fn one_datagram(connector: &Connector) -> Lanes {
    let mut link = connector.connect().await.expect("the broker listens");
    let connect = Connect { will: Some(will("w", "will")), ..connect_v5("client") };
    let mut flight = bytes(&Packet::Connect(Box::new(connect)));
    flight.unsplit(bytes(&publish_packet("t", "early", QoS::AtLeastOnce, 2)));
    let slices = [IoSlice::new(&flight)];
    let written = poll_fn(|cx| link.poll_write(cx, CONTROL, &slices)).await.expect("early");
    assert_eq!(written, flight.len());
    Lanes::new(link, ProtocolVersion::V5)
}

/// Replays the packets of a host.
fn copy(broker: &QuicBroker, flight: &[Datagram]) {
    let attacker = broker.host("attacker");
    for datagram in flight.iter().filter(|datagram| datagram.direction == Direction::Up) {
        attacker.send(datagram.to, &datagram.bytes);
    }
}

/// [BQ-60], [BQ-61]: a replay of a first flight that arrived has no effect, whatever the policy for early
/// messages.
#[tokio::test(start_paused = true)]
async fn a_first_flight_that_is_sent_again_has_no_effect() {
    for early in [EarlyPublishConfig::Hold, EarlyPublishConfig::Accept] {
        let (broker, connector, mut watcher) = scene(early).await;
        let recording = broker.host("client").record();
        let mut client = one_datagram(&connector).await;
        client.accepted().await;
        assert_eq!(watcher.take().await, "early");
        copy(&broker, &recording.datagrams());
        pass(30).await;
        watcher.expect_silence().await;
        client.expect_ack(CONTROL, AckKind::Puback, 2).await;
        client.ping(CONTROL).await; // The session was not taken over either.
    }
}

/// [BQ-61]: a replay that arrives instead of the original can connect until the handshake times out, without
/// further effect: not even its Will is published.
#[tokio::test(start_paused = true)]
async fn a_replayed_first_flight_publishes_nothing() {
    for (early, publishes) in [(EarlyPublishConfig::Hold, false), (EarlyPublishConfig::Accept, true)] {
        let (broker, connector, mut watcher) = scene(early).await;
        let host = broker.host("client");
        let recording = host.record();
        host.change(|link| link.cut = true);
        let client = one_datagram(&connector).await;
        pass(1).await;
        let flight = recording.datagrams();
        drop(client);
        copy(&broker, &flight);
        pass(1).await;
        assert_eq!(broker.memory.statistics().clients(), 2, "the copy has connected");
        pass(20).await;
        assert_eq!(broker.memory.statistics().connections(), 1, "the handshake was not finished");
        if publishes {
            assert_eq!(watcher.take().await, "early", "so the attack is one");
            assert_eq!(watcher.take().await, "will");
        }
        watcher.expect_silence().await;
    }
}

/// [BQ-62]
#[tokio::test(start_paused = true)]
async fn a_client_whose_early_data_is_refused_is_told_and_nothing_of_it_counts() {
    let (broker, connector, mut watcher) = scene(EarlyPublishConfig::Accept).await;
    // With a new certificate the broker drops its tickets.
    broker.server_tls.reload().expect("the same certificate");
    let client = lanes(&connector).await;
    first_flight(&client).await;
    let reason = client.expect_closed().await.expect_err("the link is lost");
    assert!(reason.contains("0-RTT rejected"), "{reason}");
    watcher.expect_silence().await;
    let patient = broker.connector("client", QuicOptions::client());
    let mut client = lanes(&patient).await;
    let [_, published] = first_flight(&client).await;
    client.accepted().await;
    assert_eq!(watcher.take().await, "early");
    assert_eq!(client.expect_ack(published, AckKind::Puback, 2).await, ReasonCode::Success);
    watcher.expect_silence().await;
}
