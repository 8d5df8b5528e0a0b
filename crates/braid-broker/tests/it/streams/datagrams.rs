//! Messages of QoS 0 in datagrams: chapter 9.

use std::num::NonZeroU16;
use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, PriorityRule};
use braid_proto::connection::{DATAGRAMS_PROPERTY, DATAGRAMS_VALUE};
use braid_proto::packet::{Connect, Packet, ProtocolVersion, Publish, QoS};
use braid_proto::stream::Priority;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Shaper};
use bytes::BytesMut;
use tokio::time::Instant;

use crate::support::{
    CONTROL, Lanes, QuicBroker, anyone, connect_v3, connect_v5, filter, message, pass, publish_packet, quiet,
    subscribe_packet, topic, wait, will,
};

fn start(config: BrokerConfig) -> QuicBroker {
    let quic = QuicOptions { datagrams: true, ..QuicOptions::server() };
    QuicBroker::start_with_all(config, quic, anyone())
}

fn permitting() -> QuicOptions {
    QuicOptions { datagrams: true, ..QuicOptions::client() }
}

fn asking(mut connect: Connect) -> Connect {
    connect.properties.user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE);
    connect
}

async fn connected(broker: &QuicBroker, connect: Connect, options: QuicOptions) -> Lanes {
    let connector = broker.connector(connect.client_id.as_str(), options);
    let mut lanes = Lanes::new(connector.connect().await.expect("the broker listens"), connect.version);
    lanes.send_connect(connect);
    lanes.accepted().await;
    lanes
}

async fn client(broker: &QuicBroker, name: &str) -> Lanes {
    let lanes = connected(broker, asking(connect_v5(name)), permitting()).await;
    let granted: Vec<_> = lanes.connack().properties.user.iter().collect();
    assert_eq!(granted, [(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE)]);
    lanes
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut out = BytesMut::new();
    packet.encode(ProtocolVersion::V5, &mut out);
    out.to_vec()
}

fn count(broker: &QuicBroker, counter: Counter) -> u64 {
    broker.memory.statistics().get(counter)
}

/// [BQ-81], [BQ-83]
#[tokio::test(start_paused = true)]
async fn qos_0_goes_in_datagrams_both_ways_and_the_rest_on_streams() {
    let broker = start(quiet());
    let (mut subscriber, publisher) = (client(&broker, "sub").await, client(&broker, "pub").await);
    let stream = subscriber.open().await;
    subscriber.subscribe(stream, "t", QoS::ExactlyOnce).await;
    publisher.send_datagram(&encoded(&publish_packet("t", "quick", QoS::AtMostOnce, 0)));
    let quick = subscriber.expect_datagram().await;
    assert_eq!(
        (quick.topic, &quick.payload[..], quick.qos),
        (Some(topic("t")), &b"quick"[..], QoS::AtMostOnce)
    );
    publisher.send(CONTROL, &publish_packet("t", "safe", QoS::AtLeastOnce, 7));
    let safe = subscriber.expect_publish(stream).await;
    assert_eq!((&safe.payload[..], safe.qos), (&b"safe"[..], QoS::AtLeastOnce));
    // Too large for a packet of QUIC.
    publisher.send(CONTROL, &publish_packet("t", [b'x'; 3000], QoS::AtMostOnce, 0));
    assert_eq!(subscriber.expect_publish(stream).await.payload.len(), 3000);
    // Retained ones answer the SUBSCRIBE.
    publisher.send(CONTROL, &Packet::Publish(Publish { retain: true, ..message("r", "kept") }));
    pass(1).await;
    subscriber.subscribe(stream, "r", QoS::AtMostOnce).await;
    assert!(subscriber.expect_publish(stream).await.retain);
    pass(1).await;
    assert_eq!(subscriber.datagrams(), 0, "nothing comes twice");
    let counts = [
        (Counter::DatagramsSent, 1),
        (Counter::DatagramsReceived, 1),
        (Counter::DatagramsFallenBack, 1),
        (Counter::DatagramsRefused, 0),
        (Counter::DatagramsDropped, 0),
    ];
    for (counter, expected) in counts {
        assert_eq!(count(&broker, counter), expected, "{counter:?}");
    }
}

/// [BQ-80], [BQ-81]
#[tokio::test(start_paused = true)]
async fn without_an_agreement_all_goes_on_streams() {
    let permitted = start(quiet());
    let refusing = QuicBroker::start();
    let other = {
        let mut connect = connect_v5("other");
        connect.properties.user.push(DATAGRAMS_PROPERTY, "yes");
        connect
    };
    for (broker, connect, options) in [
        (&permitted, connect_v5("does-not-ask"), permitting()),
        (&permitted, other, permitting()),
        (&permitted, asking(connect_v5("takes-none")), QuicOptions::client()),
        (&permitted, connect_v3("version-3"), permitting()),
        (&refusing, asking(connect_v5("not-granted")), permitting()),
    ] {
        let (name, version) = (connect.client_id.clone(), connect.version);
        let mut client = connected(broker, connect, options).await;
        assert!(client.connack().properties.user.is_empty(), "{name:?}");
        if version.is_v5() {
            client.subscribe(CONTROL, "t", QoS::AtMostOnce).await;
            broker.memory.v5("publisher").await.publish("t", "m", QoS::AtMostOnce).await;
            assert_eq!(client.take(CONTROL).await, "m", "{name:?}");
        }
        assert_eq!(client.datagrams(), 0, "{name:?}");
    }
}

/// [BQ-82], [BQ-85]: what is no message has no effect, and neither the connection nor its Will is concerned.
#[tokio::test(start_paused = true)]
async fn hostile_datagrams_are_dropped_and_counted() {
    let broker = start(quiet());
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let connector = broker.connector("client", permitting());
    let mut client = Lanes::new(connector.connect().await.expect("a link"), ProtocolVersion::V5);
    let good = encoded(&publish_packet("t", "good", QoS::AtMostOnce, 0));
    client.send_datagram(&good);
    pass(1).await;
    client.send_connect(Connect { will: Some(will("will", "w")), ..asking(connect_v5("client")) });
    client.accepted().await;
    pass(1).await;
    assert_eq!(count(&broker, Counter::DatagramsRefused), 1, "before CONNECT");
    let retained = encoded(&Packet::Publish(Publish { retain: true, ..message("t", "m") }));
    let alias =
        encoded(&Packet::Publish(Publish { topic_alias: Some(NonZeroU16::MIN), ..message("t", "m") }));
    let hostile: [&[u8]; 12] = [
        b"",
        b"\x30",
        &good[..good.len() - 1],
        &[&good[..], b"x"].concat(),
        &[&good[..], &good].concat(),
        &encoded(&publish_packet("t", "m", QoS::AtLeastOnce, 7)),
        &retained,
        &alias,
        &encoded(&subscribe_packet(1, None, Vec::new())),
        &encoded(&Packet::Pingreq),
        &encoded(&Packet::Connect(Box::new(connect_v5("other")))),
        &[0xFF; 1000],
    ];
    for datagram in hostile {
        client.send_datagram(datagram);
    }
    pass(1).await;
    // The library sends no empty one.
    assert_eq!(count(&broker, Counter::DatagramsRefused), 1 + 12);
    client.send_datagram(&good);
    assert_eq!(watcher.take().await, "good", "and nothing before it");
    client.ping(CONTROL).await;
    for _ in 0..10_000 {
        client.send_datagram(b"\x30");
    }
    pass(5).await;
    client.ping(CONTROL).await;
    watcher.expect_silence().await;
}

/// [BQ-85]: a client that asked for none gets no message through.
#[tokio::test(start_paused = true)]
async fn a_datagram_without_an_agreement_has_no_effect() {
    let broker = start(quiet());
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("#", QoS::AtMostOnce).await;
    let client = connected(&broker, connect_v5("client"), permitting()).await;
    client.send_datagram(&encoded(&publish_packet("t", "m", QoS::AtMostOnce, 0)));
    pass(1).await;
    assert_eq!(count(&broker, Counter::DatagramsRefused), 1);
    watcher.expect_silence().await;
    client.ping(CONTROL).await;
}

/// [BQ-86]
#[tokio::test(start_paused = true)]
async fn a_flood_to_a_slow_subscriber_is_dropped_and_alarms_are_in_time() {
    let rule = |text, priority| PriorityRule { filter: filter(text), priority: Priority::new(priority) };
    let broker = start(BrokerConfig { priority: vec![rule("alarm", 200), rule("flood", 8)], ..quiet() });
    let mut subscriber = client(&broker, "sub").await;
    let stream = subscriber.open().await;
    subscriber.subscribe(CONTROL, "flood", QoS::AtMostOnce).await;
    subscriber.subscribe(stream, "alarm", QoS::AtLeastOnce).await;
    let host = broker.host("sub");
    host.change(|link| link.latency = Duration::from_millis(20));
    host.change_one(Direction::Down, |link| link.shaper = Some(Shaper { rate: 100.0, queue: 100 }));
    let (mut flood, mut alarms) = (broker.memory.v5("flood").await, broker.memory.v5("alarms").await);
    let mut delays = Vec::new();
    for turn in 0..2000 {
        for _ in 0..4 {
            flood.publish("flood", [b'x'; 1000], QoS::AtMostOnce).await;
        }
        if turn % 20 == 0 {
            let start = Instant::now();
            alarms.publish("alarm", "!", QoS::AtLeastOnce).await;
            let alarm = subscriber.expect_publish(stream).await;
            subscriber.acknowledge(stream, &alarm).await;
            delays.push(start.elapsed());
        }
        wait(Duration::from_millis(10)).await;
    }
    let mut delays = delays.split_off(20);
    delays.sort_unstable();
    assert!(delays[delays.len() * 9 / 10] <= Duration::from_millis(60), "{delays:?}");
    let [sent, dropped] = [Counter::DatagramsSent, Counter::DatagramsDropped].map(|of| count(&broker, of));
    assert!(sent > 1000 && dropped > 4000, "{sent} sent, {dropped} dropped");
    assert!(subscriber.datagrams() > 1000);
    assert_eq!(count(&broker, Counter::MessagesDropped), dropped);
}
