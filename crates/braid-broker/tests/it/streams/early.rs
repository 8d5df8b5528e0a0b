//! 0-RTT through the whole broker: packets that may be early, and packets that have to wait.

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Duration;

use braid_auth::identity::Identity;
use braid_broker::{
    Authenticate, Authentication, BrokerConfig, Counter, Credentials, EarlyPublishConfig, LimitsConfig,
    StreamsConfig,
};
use braid_proto::packet::{
    AckKind, Connect, Disconnect, Packet, ProtocolVersion, Publish, QoS, SubscribeEntry, Will,
};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Connector, Datagram, Direction};
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, anyone, bytes, connect_v5, filter, lasting, pass, publish_packet,
    quiet, subscribe_packet, texts, wait, will,
};

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// Two milliseconds for each direction, the precision of the network.
const SLACK: Duration = Duration::from_millis(10);

/// A broker, a connector with a ticket for it, and a subscriber to all topics.
async fn scene(early_publish: EarlyPublishConfig) -> (QuicBroker, Connector, Client) {
    scene_with(early_publish, anyone()).await
}

async fn scene_with(
    early_publish: EarlyPublishConfig,
    rule: impl Authenticate,
) -> (QuicBroker, Connector, Client) {
    let streams = StreamsConfig { early_publish, ..StreamsConfig::default() };
    scene_in(BrokerConfig { streams, ..quiet() }, rule).await
}

async fn scene_in(config: BrokerConfig, rule: impl Authenticate) -> (QuicBroker, Connector, Client) {
    let broker = QuicBroker::start_with_all(config, QuicOptions::server(), rule);
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

/// Rule 9 of those that `security/mod.rs` tests; [BQ-61]: on no stream and with no QoS.
#[tokio::test(start_paused = true)]
async fn rule_9_no_publish_takes_effect_before_the_handshake_is_confirmed() {
    for policy in [EarlyPublishConfig::Hold, EarlyPublishConfig::Reject] {
        let (broker, connector, mut watcher) = scene(policy).await;
        let start = Instant::now();
        let mut client = lanes(&connector).await;
        client.send_connect(connect_v5("client"));
        let streams = [client.open().await, CONTROL, client.open().await, client.open_uni().await];
        let all = [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::AtMostOnce, QoS::AtMostOnce];
        for (number, (stream, qos)) in streams.into_iter().zip(all).enumerate() {
            let Packet::Publish(publish) = publish_packet("t", number.to_string(), qos, 1) else {
                unreachable!()
            };
            client.send(stream, &Packet::Publish(Publish { retain: true, ..publish }));
        }
        client.accepted().await;
        wait(ROUND_TRIP / 2 - SLACK - start.elapsed().saturating_sub(ROUND_TRIP)).await;
        watcher.expect_silence().await;
        let mut late = broker.memory.v5("late").await;
        late.subscribe("t", QoS::AtMostOnce).await;
        late.expect_silence().await;
        client.confirmed().await;
        pass(1).await;
        let mut arrived = texts(&watcher.take_all().await);
        arrived.sort();
        let expected: &[&str] = if policy == EarlyPublishConfig::Hold { &["0", "1", "2", "3"] } else { &[] };
        assert_eq!(arrived, expected, "{policy:?}");
    }
}

/// [BQ-61]: also in the bytes of one read.
#[tokio::test(start_paused = true)]
async fn a_publish_and_a_disconnect_behind_an_early_connect_have_their_effect() {
    for reason in [ReasonCode::Success, ReasonCode::DisconnectWithWill] {
        let (broker, connector, mut watcher) = scene(EarlyPublishConfig::Hold).await;
        let connect = Connect { will: Some(will("w", "will")), ..lasting("client") };
        let disconnect = Packet::Disconnect(Box::new(Disconnect::new(reason)));
        let publish = publish_packet("t", "early", QoS::AtMostOnce, 1);
        let packets = [Packet::Connect(Box::new(connect)), publish, disconnect];
        let client = in_one_datagram(&connector, &packets).await;
        pass(5).await;
        let expected: &[&str] = if reason == ReasonCode::Success { &["early"] } else { &["early", "will"] };
        assert_eq!(texts(&watcher.take_all().await), expected);
        drop(client);
        let client = patient(&broker, lasting("client")).await;
        assert!(client.connack().session_present);
    }
}

/// [BQ-61]: nor is the session lost, or the Will, if DISCONNECT is all that follows.
#[tokio::test(start_paused = true)]
async fn a_disconnect_behind_an_early_connect_leaves_the_session_and_the_will() {
    let (broker, connector, mut watcher) = scene(EarlyPublishConfig::Hold).await;
    let connect = Connect { will: Some(will("w", "will")), ..lasting("client") };
    let disconnect = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::DisconnectWithWill)));
    let client = in_one_datagram(&connector, &[Packet::Connect(Box::new(connect)), disconnect]).await;
    pass(5).await;
    assert_eq!(texts(&watcher.take_all().await), ["will"]);
    drop(client);
    let client = patient(&broker, lasting("client")).await;
    assert!(client.connack().session_present);
}

/// CONNECT and PUBLISH in the very first datagram.
async fn one_datagram(connector: &Connector) -> Lanes {
    let connect = Connect { will: Some(will("w", "will")), ..connect_v5("client") };
    let publish = publish_packet("t", "early", QoS::AtLeastOnce, 2);
    in_one_datagram(connector, &[Packet::Connect(Box::new(connect)), publish]).await
}

async fn in_one_datagram(connector: &Connector, packets: &[Packet]) -> Lanes {
    let mut link = connector.connect().await.expect("the broker listens");
    let flight: Vec<u8> = packets.iter().flat_map(bytes).collect();
    let slices = [IoSlice::new(&flight)];
    let written = poll_fn(|cx| {
        let written = link.poll_write(cx, CONTROL, &slices);
        let _ = link.poll_flush(cx);
        written
    });
    assert_eq!(written.await.expect("early"), flight.len());
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

// -- CONNECT of a client with a session -------------------------------------------------------------

/// A first flight that an attacker records and never lets pass: CONNECT, and SUBSCRIBE behind it.
async fn held_flight(broker: &QuicBroker, connect: Connect) -> Vec<Datagram> {
    let host = broker.host("held back");
    let recording = host.record();
    host.change(|link| link.cut = true);
    let options = QuicOptions { zero_rtt: true, ..QuicOptions::client() };
    let entry = SubscribeEntry::new(filter("late"), QoS::AtLeastOnce);
    let subscribe = subscribe_packet(1, None, vec![entry]);
    let flight = [Packet::Connect(Box::new(connect)), subscribe];
    let _client = in_one_datagram(&broker.connector("held back", options), &flight).await;
    pass(1).await;
    recording.datagrams()
}

/// Replays a flight, and waits until its CONNECT has been read.
async fn replay(broker: &QuicBroker, flight: &[Datagram]) {
    let received = || broker.memory.statistics().get(Counter::BytesReceived);
    let before = received();
    copy(broker, flight);
    wait(SLACK).await;
    assert!(received() > before, "the early data of the copy has arrived");
}

async fn patient(broker: &QuicBroker, connect: Connect) -> Lanes {
    let mut client = lanes(&broker.connector("client", QuicOptions::client())).await;
    client.send_connect(connect);
    client.accepted().await;
    client
}

/// [BQ-61]: a CONNECT that an attacker held back, and sends later, neither closes the connection of its client nor ends
/// the session, whatever the policy for early messages.
#[tokio::test(start_paused = true)]
async fn a_replayed_connect_leaves_a_connected_client_alone() {
    for early in [EarlyPublishConfig::Hold, EarlyPublishConfig::Accept] {
        for connect in [connect_v5("client"), lasting("client")] {
            let (broker, _connector, _watcher) = scene(early).await;
            let flight = held_flight(&broker, connect).await;
            let mut client = patient(&broker, lasting("client")).await;
            client.subscribe(CONTROL, "t", QoS::AtLeastOnce).await;
            replay(&broker, &flight).await;
            assert_eq!(broker.memory.statistics().connections(), 3);
            client.ping(CONTROL).await;
            pass(20).await;
            assert_eq!(broker.memory.statistics().connections(), 2, "the handshake was not finished");
            client.publish(CONTROL, "t", "x", QoS::AtMostOnce).await;
            client.publish(CONTROL, "late", "x", QoS::AtMostOnce).await;
            assert_eq!(client.take(CONTROL).await, "x");
            client.expect_silence(CONTROL).await;
        }
    }
}

/// [BQ-61]: nor does it resume or end the session of a client that is disconnected, or void its delayed Will.
#[tokio::test(start_paused = true)]
async fn a_replayed_connect_leaves_a_disconnected_session_alone() {
    for connect in [connect_v5("client"), lasting("client")] {
        let (broker, _connector, mut watcher) = scene(EarlyPublishConfig::Hold).await;
        let flight = held_flight(&broker, connect).await;
        let will = Will { delay: 30, ..will("w", "will") };
        let client = patient(&broker, Connect { will: Some(will), ..lasting("client") }).await;
        drop(client);
        pass(1).await;
        replay(&broker, &flight).await;
        pass(20).await;
        watcher.expect_silence().await;
        pass(10).await;
        assert_eq!(watcher.take().await, "will", "30 s after its connection was lost");
        let client = patient(&broker, lasting("client")).await;
        assert!(client.connack().session_present);
    }
}

/// [BQ-61]: a session that a replay begins ends with it, and takes no messages of its subscriptions along.
#[tokio::test(start_paused = true)]
async fn a_session_that_a_replay_began_ends_with_it() {
    let (broker, _connector, _watcher) = scene(EarlyPublishConfig::Hold).await;
    let flight = held_flight(&broker, lasting("client")).await;
    replay(&broker, &flight).await;
    assert_eq!(broker.memory.statistics().clients(), 2, "the copy has connected");
    pass(20).await;
    let client = patient(&broker, lasting("client")).await;
    assert!(!client.connack().session_present);
}

/// [BQ-61]: a client that has a session is answered when its handshake is confirmed, as without 0-RTT. A session that
/// began in early data goes on even if DISCONNECT comes with the confirmation.
#[tokio::test(start_paused = true)]
async fn an_early_connect_continues_a_session_once_the_handshake_is_confirmed() {
    let (_broker, connector, _watcher) = scene(EarlyPublishConfig::Hold).await;
    let (mut last, mut is_present) = (None, false);
    for round_trips in [1, 2, 2, 2] {
        let start = Instant::now();
        let mut client = lanes(&connector).await;
        client.send_connect(lasting("client"));
        client.accepted().await;
        let at_least = ROUND_TRIP * round_trips;
        assert!((at_least..at_least + SLACK).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!(client.connack().session_present, is_present);
        if is_present {
            last = Some(client); // Taken over by the next one.
        } else {
            client.disconnect().await.expect("in order");
        }
        is_present = true;
        pass(5).await;
    }
    drop(last);
}

/// Authenticator that takes a second for a client from the network.
struct Slow;

impl Authenticate for Slow {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let wait = Duration::from_secs(credentials.peer.address.map_or(0, |_| 1));
        Box::pin(async move {
            crate::support::wait(wait).await;
            Ok(Identity::anonymous().into())
        })
    }
}

/// [BQ-61]: also if that session begins while the early CONNECT is authenticated.
#[tokio::test(start_paused = true)]
async fn a_session_that_begins_during_the_authentication_is_left_alone_too() {
    let (broker, connector, _watcher) = scene_with(EarlyPublishConfig::Hold, Slow).await;
    let flight = held_flight(&broker, connect_v5("client")).await;
    replay(&broker, &flight).await;
    let mut client = broker.memory.resume("client").await;
    pass(20).await;
    assert_eq!(broker.memory.statistics().connections(), 2, "the handshake was not finished");
    client.expect_silence().await;
    // From its client the session continues, after one authentication.
    patient(&broker, lasting("client")).await.disconnect().await.expect("in order");
    let start = Instant::now();
    let mut again = lanes(&connector).await;
    again.send_connect(lasting("client"));
    again.accepted().await;
    assert!(again.connack().session_present);
    assert!(start.elapsed() <= Duration::from_secs(1) + 2 * ROUND_TRIP + SLACK, "{:?}", start.elapsed());
}

/// An early CONNECT that waits for the confirmation after its authentication is one connect.
#[tokio::test(start_paused = true)]
async fn an_early_connect_counts_once_for_flapping() {
    let limits = LimitsConfig { flapping_connects: 1, ..LimitsConfig::default() };
    let (broker, connector, _watcher) = scene_in(BrokerConfig { limits, ..quiet() }, Slow).await;
    let mut again = lanes(&connector).await;
    again.send_connect(lasting("client"));
    wait(Duration::from_millis(500)).await;
    let mut other = broker.memory.resume("client").await;
    again.accepted().await;
    assert!(again.connack().session_present);
    other.expect_disconnect(ReasonCode::SessionTakenOver).await;
    assert!(broker.memory.handle.bans().is_empty());
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
    assert!(reason.contains("rejected the early data"), "{reason}");
    watcher.expect_silence().await;
    let patient = broker.connector("client", QuicOptions::client());
    let mut client = lanes(&patient).await;
    let [_, published] = first_flight(&client).await;
    client.accepted().await;
    assert_eq!(watcher.take().await, "early");
    assert_eq!(client.expect_ack(published, AckKind::Puback, 2).await, ReasonCode::Success);
    watcher.expect_silence().await;
}
