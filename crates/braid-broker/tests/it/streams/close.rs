//! Close of a connection whose client does not read, or has vanished.

use std::time::Duration;

use braid_proto::packet::{Disconnect, Packet, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_transport::quic::codes::{CLOSE_ABNORMAL, CLOSE_NORMAL};
use noq::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use tokio::time::{Instant, timeout};

use crate::support::{Client, QuicBroker, Raw, bytes, connect_v5, filter, lasting, pass, subscribe_packet};

/// Time from the decision to the end, as the client observes it. [BQ-41]
const MOST: Duration = Duration::from_secs(3);

/// One-way delay.
const LATENCY: Duration = Duration::from_millis(20);

/// A client with a subscription to bulk data and a data stream of its own, and that stream.
async fn client(broker: &QuicBroker, bulk_on: Bulk) -> (Raw, SendStream, RecvStream) {
    let mut raw = Raw::connect(broker, lasting("client")).await;
    broker.host("raw").change(|link| link.latency = LATENCY);
    let entry = SubscribeEntry::new(filter("bulk"), QoS::AtLeastOnce);
    let subscribe = bytes(&subscribe_packet(1, None, vec![entry]));
    let (mut send, mut recv) = raw.data().await;
    match bulk_on {
        Bulk::Control => {
            raw.send.write_all(&subscribe).await.expect("open");
            send.write_all(&bytes(&Packet::Pingreq)).await.expect("open");
        }
        Bulk::Data => {
            send.write_all(&subscribe).await.expect("open");
            recv.read_exact(&mut [0; 6]).await.expect("SUBACK");
        }
    }
    pass(1).await;
    (raw, send, recv)
}

#[derive(Clone, Copy)]
enum Bulk {
    Control,
    Data,
}

/// Sends more than the window of a stream holds to a client that does not read.
async fn flood(broker: &QuicBroker) {
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..200 {
        publisher.publish("bulk", vec![b'x'; 10_000], QoS::AtLeastOnce).await;
    }
    publisher.disconnect().await;
    pass(1).await;
}

/// Takes the session over by another connection, without waiting for the end of the old one.
async fn take_over(broker: &QuicBroker) -> Client {
    let start = Instant::now();
    let successor = broker.memory.resume("client").await;
    assert!(successor.connack().session_present);
    assert!(start.elapsed() < Duration::from_millis(100), "the session does not wait: {:?}", start.elapsed());
    successor
}

/// Expects the connection to be closed in time, with this code.
async fn expect_closed(connection: &Connection, code: u32, start: Instant) {
    let closed = timeout(Duration::from_secs(60), connection.closed()).await.expect("the end");
    let ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code, VarInt::from_u32(code));
    assert!(start.elapsed() <= MOST, "{:?}", start.elapsed());
}

/// [BQ-41]: STOP_SENDING carries the reason, also when DISCONNECT finds no room on the control stream.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_control_stream_learns_why_it_has_to_go() {
    let broker = QuicBroker::start();
    let (raw, send, _recv) = client(&broker, Bulk::Control).await;
    flood(&broker).await;
    let start = Instant::now();
    let _successor = take_over(&broker).await;
    let stopped = timeout(Duration::from_secs(60), send.stopped()).await.expect("STOP_SENDING");
    assert_eq!(stopped, Ok(Some(VarInt::from_u32(0x8e))));
    expect_closed(&raw.connection, CLOSE_NORMAL, start).await;
}

/// [BQ-41]: DISCONNECT comes before STOP_SENDING, and both come regardless of the bytes that wait on a data stream.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_data_stream_is_told_before_it_is_stopped() {
    let broker = QuicBroker::start();
    let (mut raw, send, _recv) = client(&broker, Bulk::Data).await;
    flood(&broker).await;
    let start = Instant::now();
    let _successor = take_over(&broker).await;
    // Only PINGRESP may have come before.
    let disconnect = bytes(&Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::SessionTakenOver))));
    let mut words = vec![0; disconnect.len()];
    raw.recv.read_exact(&mut words).await.expect("DISCONNECT");
    assert_eq!(words, disconnect);
    assert_eq!(raw.connection.stats().frame_rx.stop_sending, 0);
    assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
    expect_closed(&raw.connection, CLOSE_NORMAL, start).await;
}

/// [BQ-41], [BQ-40]: a violation ends with code 1.
#[tokio::test(start_paused = true)]
async fn a_client_that_breaks_the_rules_and_does_not_read_is_gone_in_time() {
    for bulk_on in [Bulk::Control, Bulk::Data] {
        let broker = QuicBroker::start();
        let (mut raw, send, _recv) = client(&broker, bulk_on).await;
        flood(&broker).await;
        let start = Instant::now();
        let second = bytes(&Packet::Connect(Box::new(connect_v5("client"))));
        raw.send.write_all(&second).await.expect("open");
        assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x82))));
        expect_closed(&raw.connection, CLOSE_ABNORMAL, start).await;
    }
}

/// [BQ-41]: no state is kept for a client that cannot be reached.
#[tokio::test(start_paused = true)]
async fn a_client_behind_a_cut_is_forgotten_in_time() {
    for bulk_on in [Bulk::Control, Bulk::Data] {
        let broker = QuicBroker::start();
        let (_raw, _send, _recv) = client(&broker, bulk_on).await;
        flood(&broker).await;
        broker.host("raw").change(|link| link.cut = true);
        let start = Instant::now();
        let _successor = take_over(&broker).await;
        let statistics = broker.memory.statistics();
        assert_eq!(statistics.connections(), 2, "the old one is closing");
        tokio::time::sleep_until(start + MOST).await;
        assert_eq!(statistics.connections(), 1);
    }
}
