//! Wake-ups that must not be lost: of a refused stream, and of timeouts while a connection has no pause.

use std::time::Duration;

use braid_broker::{BrokerConfig, LimitsConfig};
use braid_proto::packet::{Packet, Publish, QoS, SubscribeEntry};
use noq::VarInt;
use tokio::time::{Instant, timeout};

use crate::support::{
    CONTROL, QuicBroker, Raw, bytes, connect_v5, filter, message, pass, publish_packet, quiet,
    subscribe_packet,
};

fn with_streams_per_second(streams_per_second: u32) -> BrokerConfig {
    let limits = LimitsConfig { streams_per_second, ..LimitsConfig::default() };
    BrokerConfig { limits, ..quiet() }
}

/// [BQ-55]: a round with more messages than one turn may dispatch leaves every stream unread. A reason of its own
/// against reading the last of them does not delay the others.
#[tokio::test(start_paused = true)]
async fn a_full_turn_beside_a_paused_stream_delays_no_other_stream() {
    const READ_AT_ONCE: u32 = 32;
    let broker = QuicBroker::start_with(with_streams_per_second(READ_AT_ONCE - 1));
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("last", QoS::AtMostOnce).await;
    let client = broker.link("client").await;
    // One turn with more than enough messages, and then the end of its stream; one with more than a read takes; several
    // that fill the round; and one above the limit of this second.
    let first = client.open().await;
    for _ in 0..600 {
        client.send(first, &Packet::Publish(message("t", "x")));
    }
    client.finish(first);
    let large = client.open().await;
    client.send(large, &Packet::Publish(message("t", vec![b'x'; 100_000])));
    client.send(large, &Packet::Publish(message("last", "last")));
    for _ in 0..READ_AT_ONCE - 3 {
        let stream = client.open().await;
        client.send(stream, &Packet::Publish(message("t", "x")));
    }
    let late = client.open().await;
    client.send(late, &Packet::Publish(message("t", "x")));
    tokio::time::advance(Duration::from_millis(100)).await;
    let start = Instant::now();
    client.send_connect(connect_v5("client"));
    assert_eq!(watcher.take().await, "last");
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
}

/// [BQ-33], [BQ-45], [BQ-42]: STOP_SENDING for a stream that waits to be opened.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_stopped_before_its_turn_is_not_spoken_on() {
    let broker = QuicBroker::start_with(with_streams_per_second(1));
    let mut raw = Raw::connect(&broker, connect_v5("raw")).await;
    let mut opened = Vec::new();
    for _ in 0..2 {
        let (mut send, recv) = raw.data().await;
        send.write_all(&bytes(&Packet::Pingreq)).await.expect("open");
        opened.push((send, recv));
    }
    let (mut send, mut recv) = opened.pop().expect("two");
    raw.recv.read_exact(&mut [0; 2]).await.expect("PINGRESP of the first");
    recv.stop(VarInt::from_u32(0x99)).expect("open");
    let entry = SubscribeEntry::new(filter("down"), QoS::AtLeastOnce);
    send.write_all(&bytes(&subscribe_packet(1, None, vec![entry]))).await.expect("open");
    pass(3).await;
    raw.recv.read_exact(&mut [0; 2]).await.expect("PINGRESP of the second");
    // Messages of its subscriptions come on the control stream.
    let mut publisher = broker.memory.v5("publisher").await;
    publisher.publish("down", "y", QoS::AtLeastOnce).await;
    let publish = bytes(&publish_packet("down", "y", QoS::AtLeastOnce, 1));
    let mut received = vec![0; publish.len()];
    let read = timeout(Duration::from_secs(10), raw.recv.read_exact(&mut received)).await;
    read.expect("within 10 s").expect("PUBLISH");
    assert_eq!(received, publish);
}

/// [BQ-45]: the walks through retained messages that none of many filters matches leave the connection without a pause,
/// while the clock is moved by hand. A packet that stands still is ended all the same, and waiting streams begin.
#[tokio::test(start_paused = true)]
async fn timeouts_do_not_wait_for_a_pause() {
    let limits = LimitsConfig { streams_per_second: 1, partial_idle_secs: 10, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut publisher = broker.memory.v5("publisher").await;
    for number in 0..5_000 {
        let publish = Publish { retain: true, ..message(&format!("t/{number}"), "x") };
        publisher.send(Packet::Publish(publish)).await;
    }
    let client = broker.v5("client").await;
    let still = client.open().await;
    client.send_bytes(still, &[0x30, 0xfa, 0xff, 0xff, 0x7f, 0, 1, b't', 0]);
    client.ping(CONTROL).await;
    let mut waiting = Vec::new();
    for number in 1..=20 {
        let stream = client.open().await;
        client.send(stream, &publish_packet("t", "x", QoS::AtLeastOnce, number));
        waiting.push(stream);
    }
    let filters =
        (0..450).map(|number| SubscribeEntry::new(filter(&format!("t/+/{number}")), QoS::AtMostOnce));
    client.send(CONTROL, &subscribe_packet(1, None, filters.collect()));
    // Other tasks run up to 61 times between two steps of the test.
    for _ in 0..7 {
        tokio::time::advance(Duration::from_secs(3)).await;
    }
    let ended = timeout(Duration::ZERO, client.expect_stopped(still)).await;
    assert_eq!(ended.ok(), Some(0x89));
    let begun = waiting.into_iter().filter(|stream| !client.received(*stream).is_empty()).count();
    assert!(begun >= 3, "{begun} streams");
}
