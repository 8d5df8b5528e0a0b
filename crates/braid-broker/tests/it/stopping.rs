//! Graceful stop: every client is disconnected, and no client can delay it beyond the limit.

use std::time::Duration;

use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::reason::ReasonCode;
use tokio::time::Instant;

use crate::support::{DRAIN, TestBroker, lasting};

#[tokio::test(start_paused = true)]
async fn clients_are_disconnected_and_the_broker_ends_when_they_are_gone() {
    let mut broker = TestBroker::start();
    let mut five = broker.v5("five").await;
    let mut three = broker.v3("three").await;
    assert!(!broker.handle.is_stopping());
    let start = Instant::now();
    broker.handle.stop();
    assert!(broker.handle.is_stopping());
    five.expect_disconnect(ReasonCode::ServerShuttingDown).await;
    three.expect_end().await;
    drop((five, three));
    broker.ended().await;
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(broker.handle.statistics().connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_clients_stops_at_once() {
    let mut broker = TestBroker::start();
    let start = Instant::now();
    broker.handle.stop();
    broker.ended().await;
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn messages_acknowledged_before_the_stop_are_delivered() {
    let broker = TestBroker::start();
    let mut publisher = broker.v5("publisher").await;
    let mut subscriber = broker.v5("subscriber").await;
    subscriber.subscribe("t", QoS::AtMostOnce).await;
    for number in 0..100 {
        publisher.publish("t", number.to_string(), QoS::AtLeastOnce).await;
    }
    broker.handle.stop();
    for number in 0..100 {
        assert_eq!(subscriber.take().await, number.to_string());
    }
    subscriber.expect_disconnect(ReasonCode::ServerShuttingDown).await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_do_not_connect_or_read_do_not_delay_the_stop() {
    let mut broker = TestBroker::start();
    let mut silent = broker.link(ProtocolVersion::V5).await;
    let mut unread = broker.narrow_link(ProtocolVersion::V5, 256).await;
    unread.send_connect(lasting("unread")).await;
    unread.accepted().await;
    unread.subscribe("t", QoS::AtMostOnce).await;
    let mut publisher = broker.v5("publisher").await;
    publisher.publish("t", "x".repeat(100_000), QoS::AtLeastOnce).await;
    // The broker has accepted them all before it stops.
    publisher.expect_silence().await;
    let start = Instant::now();
    broker.handle.stop();
    publisher.expect_disconnect(ReasonCode::ServerShuttingDown).await;
    // A connection without CONNECT is closed at once.
    silent.expect_end().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(publisher);
    broker.ended().await;
    assert!(start.elapsed() <= DRAIN);
    drop(unread);
}
