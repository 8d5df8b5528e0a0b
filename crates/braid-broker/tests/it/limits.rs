//! Counters of limits. Each limit is reached in a broker of its own, where no other counter of a limit may move.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use braid_broker::{
    Authenticate, Authentication, BrokerConfig, Counter, Credentials, Limit, ListenerPolicy, PriorityRule,
    SecurityAction, Statistics,
};
use braid_proto::message::Message;
use braid_proto::packet::{Packet, ProtocolVersion, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::proxy::ProxyOptions;
use braid_transport::quic::QuicOptions;
use braid_transport::{EndpointHealth, ListenOptions, Listener, ListenerKind};
use tokio::net::TcpStream;

use crate::admission::answer;
use crate::support::{
    CONTROL, Client, Ended, Lanes, QuicBroker, TestBroker, anyone, connect_v3, connect_v5, filter, message,
    pass, publish_packet, quiet, settle, topic, will,
};

/// Counters of a broker that was brought to a limit, and how often that is.
type Reached = (Arc<Statistics>, u64);

/// Fixed header and first bytes of a PUBLISH of 1 MiB.
const BEGUN: &[u8] = &[0x30, 0x80, 0x80, 0x40, 0, 1, b't', 0];

const OK: Option<ReasonCode> = Some(ReasonCode::Success);

fn config(change: impl FnOnce(&mut BrokerConfig)) -> BrokerConfig {
    let mut config = quiet();
    change(&mut config);
    config
}

#[tokio::test(start_paused = true)]
async fn each_limit_has_a_counter_of_its_own() {
    let mut wrong = Vec::new();
    for (limit, _) in Limit::TOPICS {
        let (statistics, count) = reach(limit).await;
        for (other, _) in Limit::TOPICS {
            let expected = if other == limit { count } else { 0 };
            let reached = statistics.reached(other);
            if reached != expected {
                wrong.push(format!("{limit:?} is reached: {other:?} is {reached}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

async fn reach(limit: Limit) -> Reached {
    match limit {
        Limit::Connections
        | Limit::ListenerRate
        | Limit::AddressConnections
        | Limit::AddressRate
        | Limit::Bans
        | Limit::Sessions => refuse_connections(limit).await,
        Limit::HandshakeWait => turn_away().await,
        Limit::ListenerConnections => crowd_a_listener().await,
        Limit::MemoryHigh => refuse_above_the_high_watermark().await,
        Limit::ConnectTimeout => connect_too_late().await,
        Limit::AuthenticationTimeout => authenticate_too_late().await,
        Limit::Subscriptions => subscribe(config(|config| config.limits.subscriptions = 1)).await,
        // Each costs 384 bytes, and its text twice.
        Limit::SubscriptionBytes => subscribe(config(|config| config.limits.subscription_bytes = 400)).await,
        Limit::RetainedMessages => retain(config(|config| config.limits.retained_messages = 1)).await,
        Limit::RetainedBytes => retain(config(|config| config.limits.retained_bytes = 1000)).await,
        Limit::TopicLevels => exceed_levels().await,
        Limit::ConnectSize => send_a_large_connect().await,
        Limit::PacketSize => send_a_large_packet().await,
        Limit::TopicAliasBytes => define_long_aliases().await,
        Limit::ReceiveMaximum => exceed_receive_maximum().await,
        Limit::Unreleased => release_nothing().await,
        Limit::StalledPackets => stall().await,
        Limit::StuckClients => take_nothing().await,
        Limit::Unacknowledged => outrun_acknowledgements().await,
        Limit::PartialBytes => begin_large_packets().await,
        Limit::Unwritten => read_no_answer().await,
        Limit::ControlUnwritten => read_no_answer_on_the_control_stream().await,
        Limit::PublishRate => {
            let config = config(|config| config.limits.publishes_per_second = 5);
            publish_all(config, vec![publish_packet("t", "x", QoS::AtMostOnce, 1); 20]).await
        }
        Limit::PublishByteRate => {
            let config = config(|config| config.limits.publish_bytes_per_second = 2000);
            publish_all(config, vec![publish_packet("t", [0; 5000], QoS::AtMostOnce, 1)]).await
        }
        Limit::UrgentByteRate => {
            let config = config(|config| {
                config.limits.urgent_bytes_per_second = 1000;
                config.priority = vec![PriorityRule { filter: filter("t"), priority: Priority::new(200) }];
            });
            publish_all(config, vec![publish_packet("t", [0; 5000], QoS::AtMostOnce, 1)]).await
        }
        Limit::MemoryLow => publish_above_the_low_watermark().await,
        Limit::StreamRate => open_streams_fast().await,
    }
}

// -- Connections that are refused ------------------------------------------------------------------

async fn refuse_connections(limit: Limit) -> Reached {
    use ReasonCode::{Banned, ConnectionRateExceeded, QuotaExceeded};
    let config = config(|BrokerConfig { limits, .. }| match limit {
        Limit::Connections => limits.connections = 1,
        Limit::ListenerRate => limits.connections_per_second = 1,
        Limit::AddressConnections => limits.connections_per_address = 1,
        Limit::AddressRate => limits.connects_per_address_per_second = 1,
        Limit::Bans => limits.flapping_connects = 1,
        _ => limits.sessions = 1,
    });
    let expected = match limit {
        Limit::Connections | Limit::AddressConnections => [OK, None, None],
        Limit::ListenerRate | Limit::AddressRate => [OK, Some(ConnectionRateExceeded), None],
        Limit::Bans => [OK, Some(Banned), Some(Banned)],
        _ => [OK, Some(QuotaExceeded), Some(QuotaExceeded)],
    };
    let broker = TestBroker::start_with_rule(config, anyone());
    let mut events = broker.handle.security_events();
    let (mut answers, mut links) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let name = if limit == Limit::Bans { String::from("one") } else { number.to_string() };
        let (answer, link) = answer(&broker, "10.0.0.1", connect_v5(&name)).await;
        answers.push(answer);
        links.push(link);
    }
    assert_eq!(answers, expected, "{limit:?}");
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2, "{limit:?}");
    for _ in 0..if matches!(limit, Limit::Connections | Limit::Sessions) { 2 } else { 0 } {
        let event = events.try_recv().expect("a security event");
        assert_eq!(event.action, SecurityAction::Limited, "{limit:?}");
    }
    (broker.statistics(), 2)
}

/// One connection is the limit of this listener, and not of another.
/// An endpoint reports two clients that it has turned away.
async fn turn_away() -> Reached {
    let broker = TestBroker::start_with(quiet());
    for turned_away in [1, 2] {
        broker.fail_accept(EndpointHealth { turned_away, ..EndpointHealth::default() }).await;
    }
    // The listener pauses after an accept that failed.
    drop(broker.v5("client").await);
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2);
    (broker.statistics(), 2)
}

async fn crowd_a_listener() -> Reached {
    let policy = ListenerPolicy { connections: Some(1), ..ListenerPolicy::default() };
    let (broker, entrance) = TestBroker::start_with_policy(quiet(), policy);
    let first = entrance.connect(connect_v5("first")).await;
    for _ in 0..2 {
        entrance.link(ProtocolVersion::V5).await.expect_end().await;
    }
    let _beside = broker.v5("beside").await;
    first.disconnect().await;
    settle().await;
    let _next = entrance.connect(connect_v5("next")).await;
    assert_eq!(broker.statistics().get(Counter::ConnectionsRefused), 2);
    (broker.statistics(), 2)
}

/// A CONNECT, a handshake, and a client that does not take its time.
async fn connect_too_late() -> Reached {
    let proxy = Some(ProxyOptions { trusted: vec!["127.0.0.0/8".parse().expect("a network")] });
    let options = ListenOptions { proxy, ..ListenOptions::default() };
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Listener::bind(ListenerKind::Tcp, loopback, &options).expect("bind");
    let to = listener.local_addr().expect("an address");
    let broker = TestBroker::start_listening(quiet(), vec![listener.into()]);
    let _without_header = TcpStream::connect(to).await.expect("connect");
    let mut silent = broker.link(ProtocolVersion::V5).await;
    let _in_time = broker.v5("client").await;
    pass(6).await;
    silent.expect_end().await;
    (broker.statistics(), 2)
}

async fn authenticate_too_late() -> Reached {
    struct Slow;
    impl Authenticate for Slow {
        fn authenticate<'a>(&'a self, _: &'a Credentials<'a>) -> Authentication<'a> {
            Box::pin(std::future::pending())
        }
    }
    let broker = TestBroker::start_with_rule(quiet(), Slow);
    let (answer, _link) = answer(&broker, "10.0.0.1", connect_v5("client")).await;
    assert_eq!(answer, Some(ReasonCode::ServerUnavailable));
    (broker.statistics(), 1)
}

/// A broker with 300 kB for a client that takes none of them.
async fn pressed(low: usize, high: usize) -> (TestBroker, Client) {
    let config = config(|config| (config.limits.memory_low, config.limits.memory_high) = (low, high));
    let broker = TestBroker::start_with_rule(config, anyone());
    let mut connect = connect_v5("stuck");
    connect.properties.receive_maximum = Some(1);
    let mut stuck = broker.connect(connect).await;
    stuck.subscribe("bulk", QoS::AtLeastOnce).await;
    for _ in 0..3 {
        let payload = vec![0; 100_000];
        broker.handle.publish(Message::new(topic("bulk"), payload, QoS::AtLeastOnce, false));
    }
    settle().await;
    (broker, stuck)
}

async fn refuse_above_the_high_watermark() -> Reached {
    let (broker, _stuck) = pressed(100_000, 200_000).await;
    let mut events = broker.handle.security_events();
    for _ in 0..2 {
        let refused = answer(&broker, "10.0.0.1", connect_v5("client")).await.0;
        assert_eq!(refused, Some(ReasonCode::QuotaExceeded));
        let event = events.try_recv().expect("a security event");
        assert_eq!(
            (&event.action, event.cause.as_ref()),
            (&SecurityAction::Limited, "memory is above its limit")
        );
    }
    (broker.statistics(), 2)
}

async fn publish_above_the_low_watermark() -> Reached {
    let (broker, _stuck) = pressed(200_000, 1 << 30).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.send(publish_packet("t", "x", QoS::AtMostOnce, 1)).await;
    settle().await;
    (broker.statistics(), 1)
}

async fn take_nothing() -> Reached {
    let (broker, _stuck) = pressed(200_000, 1 << 30).await;
    pass(60).await;
    assert_eq!(broker.statistics().clients(), 0);
    (broker.statistics(), 1)
}

// -- Requests that are refused ---------------------------------------------------------------------

/// One subscription has room; it may be replaced.
async fn subscribe(config: BrokerConfig) -> Reached {
    let broker = TestBroker::start_with(config);
    let mut client = broker.v5("client").await;
    let entries = ["a", "b", "a", "c"].map(|text| SubscribeEntry::new(filter(text), QoS::AtMostOnce));
    let codes = client.subscribe_all(None, entries.into()).await.codes;
    use ReasonCode::{QuotaExceeded, Success};
    assert_eq!(codes, [Success, QuotaExceeded, Success, QuotaExceeded]);
    (broker.statistics(), 2)
}

/// One message has room; it may be replaced. A Will is refused like a PUBLISH.
async fn retain(config: BrokerConfig) -> Reached {
    let broker = TestBroker::start_with(config);
    let mut connect = connect_v5("client");
    connect.will = Some(braid_proto::packet::Will { retain: true, ..will("c", &"x".repeat(700)) });
    let mut client = broker.connect(connect).await;
    for (to, expected) in [("a", 0x10), ("b", 0x97), ("a", 0x10)] {
        let publish = Publish { retain: true, qos: QoS::AtLeastOnce, ..message(to, "x".repeat(700)) };
        assert_eq!(client.publish_as(publish).await.value(), expected, "{to}");
    }
    client.vanish().await;
    (broker.statistics(), 2)
}

/// 201 levels in a filter to subscribe to, in one to unsubscribe from, and in a Topic Name.
async fn exceed_levels() -> Reached {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    let packet = |head: &[u8], tail: &[u8]| [head, &[0, 200], &[b'/'; 200], tail].concat();
    client.send_bytes(&packet(&[0x82, 0xce, 0x01, 0, 1, 0], &[0])).await;
    client.send_bytes(&packet(&[0xa2, 0xcd, 0x01, 0, 2, 0], &[])).await;
    assert!(matches!(client.next().await, Some(Packet::Suback(suback)) if suback.codes[0].value() == 0x8f));
    assert_eq!(client.find_unsuback().await.codes, [ReasonCode::TopicFilterInvalid]);
    client.send_bytes(&packet(&[0x30, 0xcb, 0x01], &[0])).await;
    client.expect_disconnect(ReasonCode::TopicNameInvalid).await;
    (broker.statistics(), 3)
}

// -- Connections and streams that are ended --------------------------------------------------------

async fn send_a_large_connect() -> Reached {
    let broker = TestBroker::start();
    let mut client = broker.link(ProtocolVersion::V5).await;
    client.send_bytes(&[0x10, 0xf0, 0xa2, 0x04]).await; // 70,000 bytes.
    client.expect_end().await;
    (broker.statistics(), 1)
}

async fn send_a_large_packet() -> Reached {
    let broker = TestBroker::start_with(config(|config| config.mqtt.maximum_packet_size = 1000));
    let mut client = broker.v5("client").await;
    client.send_bytes(BEGUN).await;
    client.expect_disconnect(ReasonCode::PacketTooLarge).await;
    (broker.statistics(), 1)
}

async fn exceed_receive_maximum() -> Reached {
    let broker = TestBroker::start_with(config(|config| config.mqtt.receive_maximum = 2));
    let mut client = broker.v5("client").await;
    client.send_all((1..=3).map(|id| publish_packet("t", "x", QoS::ExactlyOnce, id))).await;
    settle().await;
    while !matches!(client.next().await.expect("DISCONNECT"), Packet::Disconnect(_)) {}
    (broker.statistics(), 1)
}

/// The aliases of all streams count together, and those of a stream that has ended no more.
async fn define_long_aliases() -> Reached {
    let broker = QuicBroker::start();
    let client = broker.v5("client").await;
    let publish = |alias| {
        let Packet::Publish(publish) = publish_packet(&"t".repeat(60_000), "", QoS::AtMostOnce, 1) else {
            unreachable!()
        };
        Packet::Publish(Publish { topic_alias: NonZeroU16::new(alias), ..publish })
    };
    let (first, second) = (client.open().await, client.open().await);
    for stream in [first, second] {
        (1..=30).for_each(|alias| client.send(stream, &publish(alias)));
        client.ping(stream).await;
    }
    client.finish(first);
    assert_eq!(client.expect_ended(first).await, Ended::Finished);
    let third = client.open().await;
    (1..=40).for_each(|alias| client.send(third, &publish(alias)));
    client.expect_aborted(third, 0x97).await;
    client.ping(CONTROL).await;
    let statistics = broker.memory.statistics();
    assert_eq!(statistics.get(Counter::MessagesReceived), 60 + 39);
    (statistics, 1)
}

/// On one stream there are not more Packet Identifiers than are allowed.
async fn release_nothing() -> Reached {
    let broker = QuicBroker::start();
    let client = broker.connect(connect_v3("client")).await;
    let (all, one_more) = (client.open().await, client.open().await);
    for id in 1..=u16::MAX {
        client.send(all, &publish_packet("t", "x", QoS::ExactlyOnce, id));
    }
    let statistics = broker.memory.statistics();
    while statistics.get(Counter::MessagesReceived) < u16::MAX.into() {
        pass(1).await;
    }
    client.send(one_more, &publish_packet("t", "x", QoS::ExactlyOnce, 1));
    client.expect_aborted(one_more, 0x97).await;
    (statistics, 1)
}

/// A data stream is ended, and its connection is not.
async fn stall() -> Reached {
    let broker = QuicBroker::start_with(config(|config| config.limits.partial_idle_secs = 5));
    let client = broker.v5("client").await;
    let stream = client.open().await;
    client.send_bytes(stream, BEGUN);
    client.expect_aborted(stream, 0x89).await;
    client.ping(CONTROL).await;
    (broker.memory.statistics(), 1)
}

// -- Streams that are not read ---------------------------------------------------------------------

/// The acknowledgement of a message waits for a subscriber that cannot keep up.
async fn outrun_acknowledgements() -> Reached {
    let broker = TestBroker::start_with(config(|config| {
        config.mqtt.receive_maximum = 1;
        config.limits.queued_messages = 8;
    }));
    let mut connect = connect_v5("subscriber");
    connect.properties.receive_maximum = Some(1);
    let mut subscriber = broker.connect(connect).await;
    subscriber.subscribe("t", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    let mut acknowledged = 0;
    loop {
        publisher.send(publish_packet("t", "x", QoS::AtLeastOnce, 1)).await;
        settle().await;
        if publisher.next_at_once().await.is_none() {
            break;
        }
        acknowledged += 1;
    }
    assert!((1..8).contains(&acknowledged), "{acknowledged}");
    (broker.statistics(), 1)
}

/// Two streams with an incomplete packet, of which one may go on, and another with small packets.
async fn begin_large_packets() -> Reached {
    let broker = QuicBroker::start_with(config(|config| config.limits.partial_bytes = 100 * 1024));
    let client = broker.v5("client").await;
    let part = [b'x'; 80 * 1024];
    let [first, second, small] = [client.open().await, client.open().await, client.open().await];
    for stream in [first, second] {
        client.send_bytes(stream, BEGUN);
        client.send_bytes(stream, &part);
        pass(1).await;
    }
    for _ in 0..3 {
        client.send_bytes(second, &part);
        client.ping(small).await;
        pass(1).await;
    }
    (broker.memory.statistics(), 1)
}

/// A client that reads no answer is not read any more.
async fn read_no_answer() -> Reached {
    let broker = TestBroker::start();
    let mut client = broker.v5("client").await;
    let flood = [0xc0, 0].repeat(400 * 1024);
    let flood = tokio::spawn(async move { client.try_send_bytes(&flood).await });
    pass(1).await;
    assert!(!flood.is_finished());
    (broker.statistics(), 1)
}

/// PINGREQ on a data stream is answered on the control stream.
async fn read_no_answer_on_the_control_stream() -> Reached {
    let broker = QuicBroker::start();
    let options = QuicOptions { stream_receive_window: 64 * 1024, ..QuicOptions::client() };
    let mut client = broker.link_with("client", options).await;
    client.send_connect(connect_v5("client"));
    client.accepted().await;
    client.leave_unread(CONTROL);
    let [ping, idle]: [StreamKey; 2] = [client.open().await, client.open().await];
    client.send_bytes(ping, &[0xc0, 0].repeat(1024 * 1024));
    pass(10).await;
    assert!(is_held(&client, idle).await);
    (broker.memory.statistics(), 2)
}

/// Sends a message on a stream, which is not read.
async fn is_held(client: &Lanes, stream: StreamKey) -> bool {
    client.send(stream, &publish_packet("t", "x", QoS::AtLeastOnce, 1));
    pass(1).await;
    client.received(stream).is_empty()
}

/// Packets of one read, or of more than a second.
async fn publish_all(config: BrokerConfig, packets: Vec<Packet>) -> Reached {
    let broker = TestBroker::start_with(config);
    let mut client = broker.v5("client").await;
    client.send_all(packets).await;
    settle().await;
    (broker.statistics(), 1)
}

async fn open_streams_fast() -> Reached {
    let broker = QuicBroker::start_with(config(|config| config.limits.streams_per_second = 2));
    let client = broker.v5("client").await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let stream = client.open().await;
        client.send(stream, &Packet::Pingreq);
        streams.push(stream);
    }
    for _ in streams {
        assert_eq!(client.expect(CONTROL).await, Packet::Pingresp);
    }
    (broker.memory.statistics(), 3)
}
