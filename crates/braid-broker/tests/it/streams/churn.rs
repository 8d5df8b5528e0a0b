//! Many streams at once, and many thousands one after the other.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::{AckKind, QoS};
use tokio::time::Instant;

use crate::support::{CONTROL, Ended, Lanes, QuicBroker, allocated, pass, publish_packet, quiet, wait};

/// [BQ-5], [BQ-55]
#[tokio::test(start_paused = true)]
async fn two_hundred_streams_work_at_once() {
    let broker = QuicBroker::start();
    broker.host("client").change(|link| link.latency = Duration::from_millis(20));
    let mut client = broker.v5("client").await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        streams.push(client.open().await);
    }
    for (number, stream) in streams.iter().enumerate() {
        client.subscribe(*stream, &format!("t/{number}"), QoS::AtLeastOnce).await;
    }
    let start = Instant::now();
    for round in 1..=5 {
        for (number, stream) in streams.iter().enumerate() {
            // To the stream on the opposite side of the table.
            let topic = format!("t/{}", 199 - number);
            client.send(*stream, &publish_packet(&topic, format!("{number}"), QoS::AtLeastOnce, round));
        }
        for (number, stream) in streams.iter().enumerate() {
            client.find_ack(*stream, AckKind::Puback, round).await;
            assert_eq!(client.take(*stream).await, format!("{}", 199 - number));
        }
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// End of a stream.
#[derive(Clone, Copy)]
enum End {
    Finished,
    Reset,
    Malformed,
}

/// One stream after the other, each with a message, and every tenth with a subscription.
async fn churn(client: &mut Lanes, streams: usize, ends: &[End]) {
    for number in 0..streams {
        let stream = client.open().await;
        if number % 10 == 0 {
            client.subscribe(stream, "churn", QoS::AtLeastOnce).await;
        }
        client.publish(stream, "t", "x", QoS::AtLeastOnce).await;
        match ends[number % ends.len()] {
            End::Finished => {
                client.finish(stream);
                assert_eq!(client.expect_ended(stream).await, Ended::Finished);
            }
            End::Reset => client.reset(stream, 9),
            End::Malformed => {
                client.send_bytes(stream, &[0xff, 0xff]);
                assert_eq!(client.expect_ended(stream).await, Ended::Reset(0x81));
                client.reset(stream, 0);
            }
        }
        client.forget(stream);
    }
    pass(10).await;
}

/// Memory that 9,000 streams add after the first thousand, bytes.
async fn left_behind(ends: &[End]) -> i64 {
    let limits = LimitsConfig { streams_per_second: 100_000, ..LimitsConfig::default() };
    let broker = QuicBroker::start_with(BrokerConfig { limits, ..quiet() });
    let mut client = broker.v5("client").await;
    churn(&mut client, 1000, ends).await;
    let before = allocated();
    churn(&mut client, 9000, ends).await;
    let grown = allocated() - before;
    client.ping(CONTROL).await;
    // One subscription is left: that of the last stream which had it.
    let mut publisher = broker.memory.v5("publisher").await;
    publisher.publish("churn", "x", QoS::AtLeastOnce).await;
    assert_eq!(client.take(CONTROL).await, "x");
    client.expect_silence(CONTROL).await;
    grown
}

/// [BQ-5], [BQ-30]
#[tokio::test(start_paused = true)]
async fn ten_thousand_streams_leave_nothing_behind() {
    let grown = left_behind(&[End::Finished]).await;
    assert!(grown < 20_000, "{grown} bytes more after 9,000 streams");
}

/// [BQ-5], [BQ-32], [BQ-34]: the QUIC library keeps a few words of each reset stream, up to 4,096 streams on
/// either side.
#[tokio::test(start_paused = true)]
async fn rule_8_ten_thousand_streams_that_are_reset_leave_little_behind() {
    let grown = left_behind(&[End::Reset, End::Malformed]).await;
    assert!(grown < 2 * 4096 * 100, "{grown} bytes more after 9,000 streams");
}

/// Ended connections leave no memory either.
#[tokio::test(start_paused = true)]
async fn a_thousand_connections_leave_nothing_behind() {
    let broker = QuicBroker::start();
    let visit = async |count| {
        for number in 0..count {
            let mut client = broker.v5(&format!("client-{}", number % 10)).await;
            let stream = client.open().await;
            client.subscribe(stream, "t", QoS::AtLeastOnce).await;
            client.publish(stream, "t", "x", QoS::AtLeastOnce).await;
            if number % 2 == 0 {
                client.disconnect().await.expect("in order");
            }
        }
        pass(60).await;
    };
    visit(100).await;
    assert_eq!(broker.memory.statistics().connections(), 0);
    let before = allocated();
    visit(200).await;
    let grown = allocated() - before;
    assert!(grown < 200_000, "{grown} bytes more after 200 connections");
    assert_eq!(broker.memory.statistics().connections(), 0);
}

/// Each packet of the client comes from another address: what is kept of addresses, paths and the gate does not grow.
#[tokio::test(start_paused = true)]
async fn a_client_that_moves_with_each_packet_leaves_nothing_behind() {
    let broker = QuicBroker::start();
    let host = broker.host("client");
    let client = broker.v5("client").await;
    let roam = async |moves: usize| {
        for number in 0..moves {
            if number % 2 == 0 {
                host.rebind_nat();
            } else {
                host.rebind_nat_port();
            }
            client.send(CONTROL, &publish_packet("t", "x", QoS::AtMostOnce, 0));
            wait(Duration::from_millis(3)).await;
            // The client keeps what is not acknowledged, and shares the memory that is counted.
            if number % 50 == 49 {
                client.ping(CONTROL).await;
            }
        }
        pass(20).await;
    };
    roam(500).await;
    let before = allocated();
    roam(3000).await;
    let grown = allocated() - before;
    assert!(grown < 32_000, "{grown} bytes more after 3,000 addresses");
    let counted = |counter| broker.memory.statistics().get(counter);
    let (moves, received) = (counted(Counter::QuicMoves), counted(Counter::QuicReceived));
    assert!((1_000..=3_500).contains(&moves), "{moves}");
    assert!((3_500..=10_500).contains(&received), "{received}");
}
