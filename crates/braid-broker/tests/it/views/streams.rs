//! Streams of a connection: what moved, what waits, and for what.

use std::time::Duration;

use braid_broker::view::{ConnectionReport, Held, StreamView};
use braid_broker::{BrokerConfig, LimitsConfig, PriorityRule};
use braid_proto::packet::{ConnectProperties, ProtocolVersion, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::Transport;
use braid_transport::quic::QuicOptions;

use super::name;
use crate::support::{
    CONTROL, Lanes, QuicBroker, TestBroker, connect_v5, filter, lasting, pass, publish_packet, quiet, settle,
};

/// Bytes of a bulk message.
const SIZE: usize = 10_000;

async fn report(broker: &TestBroker, client_id: &str) -> ConnectionReport {
    broker.handle.streams(&name(client_id)).await.expect("it is connected")
}

fn of(report: &ConnectionReport, stream: StreamKey) -> &StreamView {
    report.streams.iter().find(|view| view.report.stream == stream).expect("it is open")
}

fn with_rules(rules: &[(&str, u16)]) -> BrokerConfig {
    let rule = |(text, priority): &(&str, u16)| PriorityRule {
        filter: filter(text),
        priority: Priority::new(*priority),
    };
    BrokerConfig { priority: rules.iter().map(rule).collect(), ..quiet() }
}

/// TCP and its like: one stream. Queue and age grow while the client does not read.
#[tokio::test(start_paused = true)]
async fn a_link_of_one_stream_shows_what_waits_and_since_when() {
    let broker = TestBroker::start_with(with_rules(&[("alarm", 200)]));
    let mut publisher = broker.v5("publisher").await;
    let mut client = broker.narrow_link(ProtocolVersion::V5, 1024).await;
    client.send_connect(connect_v5("client")).await;
    client.accepted().await;
    client.subscribe("#", QoS::AtMostOnce).await;
    client.publish("elsewhere/$", "x", QoS::AtMostOnce).await;
    client.take().await;
    settle().await;
    let idle = report(&broker, "client").await;
    assert_eq!((idle.connection.transport, idle.path, idle.gate), (Transport::Mem, None, None));
    let [view] = &idle.streams[..] else { panic!("one stream") };
    assert_eq!((view.report.publishes_received, view.report.publishes_sent), (1, 1));
    assert_eq!((view.held, view.oldest, view.report.unwritten, view.queued_messages), (None, None, 0, 0));
    let (received, sent) = (view.report.bytes_received, view.report.bytes_sent);

    for _ in 0..30 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtMostOnce).await;
    }
    pass(20).await;
    publisher.publish("alarm", "now", QoS::AtMostOnce).await;
    settle().await;
    let report_now = report(&broker, "client").await;
    let [view] = &report_now.streams[..] else { panic!("one stream") };
    assert_eq!(view.held, Some(Held::Socket));
    assert!(view.report.bytes_sent > sent && view.report.bytes_received == received);
    let oldest = view.oldest.expect("messages wait");
    assert!((Duration::from_secs(20)..Duration::from_secs(21)).contains(&oldest), "{oldest:?}");
    let [alarm, bulk] = &view.lanes[..] else { panic!("two lanes, not {:?}", view.lanes) };
    assert_eq!((alarm.priority.value(), alarm.messages, alarm.held), (200, 1, Some(Held::Outbox)));
    assert_eq!((bulk.priority, bulk.held), (Priority::DEFAULT, Some(Held::Outbox)));
    assert!(alarm.oldest < Some(Duration::from_secs(2)) && bulk.oldest > Some(Duration::from_secs(18)));
    assert_eq!(view.queued_messages, alarm.messages + bulk.messages);
    assert_eq!(view.queued_messages as u64 + view.report.publishes_sent, 1 + 31);
    assert!(view.queued_bytes > bulk.messages * SIZE && report_now.unwritten == view.report.unwritten);

    client.take_many(31).await;
    settle().await;
    let after = report(&broker, "client").await;
    assert_eq!((after.streams[0].held, after.streams[0].oldest, after.unwritten), (None, None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_acknowledge_is_held_by_its_receive_maximum() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut connect = connect_v5("client");
    connect.properties = ConnectProperties { receive_maximum: Some(2), ..connect.properties };
    let mut client = broker.connect(connect).await;
    client.subscribe("#", QoS::AtLeastOnce).await;
    for _ in 0..5 {
        publisher.publish("a", "x", QoS::AtLeastOnce).await;
    }
    pass(9).await;
    let report = report(&broker, "client").await;
    let view = &report.streams[0];
    assert_eq!((report.unacknowledged, view.queued_messages), (2, 3));
    assert_eq!((view.held, view.lanes[0].held), (Some(Held::ReceiveMaximum), Some(Held::ReceiveMaximum)));
    assert!(view.oldest >= Some(Duration::from_secs(7)), "{:?}", view.oldest);
}

async fn two_streams(broker: &QuicBroker) -> (Lanes, [StreamKey; 2]) {
    broker.host("client").change(|link| link.latency = Duration::from_millis(20));
    let mut client = broker.v5("client").await;
    let streams = [client.open().await, client.open().await];
    client.subscribe(streams[0], "bulk", QoS::AtMostOnce).await;
    client.subscribe(streams[1], "alarm", QoS::AtMostOnce).await;
    (client, streams)
}

/// [BQ-55]: only the stream that is not read is held, by its flow control.
#[tokio::test(start_paused = true)]
async fn of_several_streams_each_has_its_own_queue_and_reason() {
    let broker = QuicBroker::start_with(with_rules(&[("alarm", 200), ("bulk", 8)]));
    let (client, [bulk, alarm]) = two_streams(&broker).await;
    let up = client.open_uni().await;
    client.send(up, &publish_packet("up", "x", QoS::AtMostOnce, 0));
    client.leave_unread(bulk);
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..600 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtMostOnce).await;
        publisher.publish("alarm", "a", QoS::AtMostOnce).await;
        client.take(alarm).await;
    }
    pass(120).await;
    let report = report(&broker.memory, "client").await;
    let keys: Vec<_> = report.streams.iter().map(|view| view.report.stream).collect();
    assert_eq!(keys, [CONTROL, bulk, alarm, up]);
    let view = of(&report, bulk);
    assert_eq!((view.held, view.priority.value()), (Some(Held::FlowControl), 8));
    assert!(view.oldest >= Some(Duration::from_secs(119)), "{:?}", view.oldest);
    assert_eq!(view.lanes.iter().map(|lane| lane.messages).sum::<usize>(), view.queued_messages);
    assert_eq!(view.queued_messages as u64 + view.report.publishes_sent, 600);
    assert!(view.queued_messages > 100 && view.report.bytes_sent > 1_000_000, "{view:?}");
    let view = of(&report, alarm);
    assert_eq!((view.held, view.oldest, view.lanes.len(), view.queued_messages), (None, None, 0, 0));
    assert_eq!((view.priority.value(), view.report.publishes_sent), (200, 600));
    assert!(view.report.bytes_sent <= client.received_bytes(alarm) as u64);
    let view = of(&report, up);
    assert_eq!((view.report.publishes_received, view.report.bytes_sent), (1, 0));
    assert!(view.report.bytes_received > 5);
    let path = report.path.expect("a path");
    assert!((40..60).contains(&path.rtt.as_millis()), "{path:?}");
    assert!(path.packets_sent > 600 && path.bytes_sent > 1_000_000 && path.packets_lost == 0);
    assert!(report.gate.is_some() && (report.opening, report.omitted) == (0, 0));
    // A stream that has ended is gone, and its queue is on the control stream.
    client.reset(bulk, 0);
    pass(10).await;
    let report = self::report(&broker.memory, "client").await;
    assert!(report.streams.iter().all(|view| view.report.stream != bulk));
    assert_eq!(of(&report, CONTROL).held, None);
}

/// A path that is cut holds what is written.
#[tokio::test(start_paused = true)]
async fn a_path_that_passes_nothing_holds_all_streams() {
    let broker = QuicBroker::start();
    let (client, [bulk, _]) = two_streams(&broker).await;
    let mut publisher = broker.memory.v5("publisher").await;
    broker.host("client").change(|link| link.cut = true);
    for _ in 0..100 {
        publisher.publish("bulk", vec![b'x'; SIZE], QoS::AtMostOnce).await;
    }
    settle().await;
    let report = report(&broker.memory, "client").await;
    let held = of(&report, bulk).held;
    assert!(matches!(held, Some(Held::Path | Held::Gate)), "{held:?}");
    assert_eq!(of(&report, CONTROL).held, None);
    drop(client);
}

/// A move of the client and 0-RTT data are remembered with the connection.
#[tokio::test(start_paused = true)]
async fn moves_and_early_data_are_told() {
    let broker = QuicBroker::start();
    let connector = broker.connector("client", QuicOptions { zero_rtt: true, ..QuicOptions::client() });
    for is_early in [false, true] {
        let link = connector.connect().await.expect("the broker listens");
        let mut client = Lanes::new(link, ProtocolVersion::V5);
        client.send_connect(lasting("client"));
        client.accepted().await;
        pass(1).await;
        let before = report(&broker.memory, "client").await.connection;
        assert_eq!((before.is_early, before.moves), (is_early, 0));
        client.rebind();
        client.ping(CONTROL).await;
        pass(10).await;
        let after = report(&broker.memory, "client").await.connection;
        assert_eq!(after.moves, 1);
        assert_ne!(after.address, before.address);
        client.disconnect().await.expect("in order");
        pass(60).await;
    }
}

/// A stream is paused while its receivers cannot keep up.
#[tokio::test(start_paused = true)]
async fn a_publisher_above_its_rate_is_paused() {
    let limits = LimitsConfig { publish_bytes_per_second: 1000, ..quiet().limits };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut client = broker.v5("client").await;
    let sends: Vec<_> = (0..50).map(|_| publish_packet("a", vec![b'x'; 500], QoS::AtMostOnce, 0)).collect();
    client.send_all(sends).await;
    settle().await;
    assert!(report(&broker, "client").await.streams[0].is_paused);
    pass(60).await;
    assert!(!report(&broker, "client").await.streams[0].is_paused);
}
