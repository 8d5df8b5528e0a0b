//! Codes on the wire, observed by a plain QUIC client.

use std::time::Duration;

use braid_proto::packet::{Disconnect, Packet, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use noq::{Connection, ConnectionError, ReadError, VarInt, WriteError};
use tokio::time::timeout;

use crate::support::{
    QuicBroker, Raw, bytes, connect_v5, filter, pass, publish_packet, subscribe_packet, will,
};

/// Application code with which the broker closes the connection.
async fn close_code(connection: &Connection) -> u64 {
    let closed = timeout(Duration::from_secs(60), connection.closed()).await;
    match closed.expect("it closes the connection within a minute") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("closed by the broker, not {other}"),
    }
}

/// [BQ-32]
#[tokio::test(start_paused = true)]
async fn a_reset_is_answered_with_both_halves_and_the_same_code() {
    let broker = QuicBroker::start();
    let raw = Raw::connect(&broker, connect_v5("raw")).await;
    let (mut send, mut recv) = raw.data().await;
    send.write_all(&bytes(&subscribe_packet(1, None, vec![entry("t")]))).await.expect("open");
    let mut suback = [0; 6];
    recv.read_exact(&mut suback).await.expect("SUBACK");
    send.reset(VarInt::from_u32(0x1234)).expect("open");
    assert_eq!(recv.read(&mut suback).await, Err(ReadError::Reset(VarInt::from_u32(0x1234))));
}

/// [BQ-33], [BQ-35], [BQ-42]: packets on a stream after STOP_SENDING for its other half still count.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_stopped_still_carries_what_the_client_says() {
    let broker = QuicBroker::start();
    let mut watcher = broker.memory.v5("watcher").await;
    watcher.subscribe("up", QoS::AtMostOnce).await;
    let mut raw = Raw::connect(&broker, connect_v5("raw")).await;
    let (mut send, mut recv) = raw.data().await;
    send.write_all(&bytes(&subscribe_packet(1, None, vec![entry("down")]))).await.expect("open");
    recv.read_exact(&mut [0; 6]).await.expect("SUBACK");
    recv.stop(VarInt::from_u32(0x99)).expect("open");
    pass(1).await;
    send.write_all(&bytes(&publish_packet("up", "x", QoS::AtLeastOnce, 2))).await.expect("open");
    assert_eq!(watcher.take().await, "x");
    // No PUBACK comes on another stream; messages for the stream do.
    watcher.publish("down", "y", QoS::AtMostOnce).await;
    let publish = bytes(&publish_packet("down", "y", QoS::AtMostOnce, 0));
    let mut received = vec![0; publish.len()];
    raw.recv.read_exact(&mut received).await.expect("PUBLISH");
    assert_eq!(received, publish);
    send.finish().expect("open");
    let stopped = timeout(Duration::from_secs(10), send.stopped()).await.expect("an end");
    assert_eq!(stopped, Ok(None), "it was read to its end");
}

/// [BQ-34]
#[tokio::test(start_paused = true)]
async fn a_violation_has_its_reason_on_both_halves() {
    let broker = QuicBroker::start();
    let raw = Raw::connect(&broker, connect_v5("raw")).await;
    let (mut send, mut recv) = raw.data().await;
    send.write_all(&[0xff, 0xff]).await.expect("open");
    let stopped = timeout(Duration::from_secs(10), send.stopped()).await.expect("STOP_SENDING");
    assert_eq!(stopped, Ok(Some(VarInt::from_u32(0x81))));
    assert_eq!(recv.read(&mut [0; 9]).await, Err(ReadError::Reset(VarInt::from_u32(0x81))));
    assert_eq!(send.write(b"x").await, Err(WriteError::Stopped(VarInt::from_u32(0x81))));
    assert!(raw.connection.close_reason().is_none());
}

/// [BQ-40]
#[tokio::test(start_paused = true)]
async fn the_connection_closes_with_0_after_a_disconnect_and_with_1_otherwise() {
    let broker = QuicBroker::start();
    for (how, code, wills) in [
        ("disconnect", 0, false),
        ("fin", 1, true),
        ("reset", 1, true),
        ("stop", 1, true),
        ("malformed", 1, true),
    ] {
        let mut heir = broker.memory.v5("heir").await;
        heir.subscribe("will", QoS::AtMostOnce).await;
        let mut connect = connect_v5("raw");
        connect.will = Some(will("will", how));
        let mut raw = Raw::connect(&broker, connect).await;
        match how {
            "disconnect" => {
                let disconnect = Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)));
                raw.send.write_all(&bytes(&disconnect)).await.expect("open");
            }
            "fin" => raw.send.finish().expect("open"),
            "reset" => raw.send.reset(VarInt::from_u32(3)).expect("open"),
            "stop" => {
                raw.recv.stop(VarInt::from_u32(3)).expect("open");
                // The broker notices when it sends.
                raw.send.write_all(&bytes(&Packet::Pingreq)).await.expect("open");
            }
            _ => raw.send.write_all(&[0xff, 0xff]).await.expect("open"),
        }
        assert_eq!(close_code(&raw.connection).await, code, "{how}");
        if wills {
            assert_eq!(heir.take().await, how);
        }
        heir.expect_silence().await;
    }
}

/// [BQ-41]: DISCONNECT arrives, then STOP_SENDING with the reason, FIN, and the close, within 3 seconds.
#[tokio::test(start_paused = true)]
async fn a_take_over_ends_in_order() {
    let broker = QuicBroker::start();
    let mut raw = Raw::connect(&broker, connect_v5("client")).await;
    let (mut send, mut recv) = raw.data().await;
    send.write_all(&bytes(&Packet::Pingreq)).await.expect("open");
    let mut pingresp = [0; 2];
    raw.recv.read_exact(&mut pingresp).await.expect("PINGRESP");
    let _other = broker.memory.v5("client").await;
    let said = raw.recv.read_to_end(1000).await.expect("DISCONNECT and FIN");
    assert_eq!((said[0], said[2]), (0xe0, 0x8e), "DISCONNECT, Session taken over");
    assert_eq!(raw.send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
    assert_eq!(send.stopped().await, Ok(Some(VarInt::from_u32(0x8e))));
    assert!(recv.read_to_end(1000).await.expect("FIN").is_empty());
    let closed = timeout(Duration::from_secs(3), close_code(&raw.connection)).await;
    assert_eq!(closed.expect("in time"), 0);
}

/// [BQ-4]
#[tokio::test(start_paused = true)]
async fn the_broker_opens_no_stream() {
    let broker = QuicBroker::start();
    let raw = Raw::connect(&broker, connect_v5("raw")).await;
    let (mut send, _recv) = raw.data().await;
    send.write_all(&bytes(&subscribe_packet(1, None, vec![entry("t")]))).await.expect("open");
    send.write_all(&bytes(&publish_packet("t", "x", QoS::AtLeastOnce, 2))).await.expect("open");
    tokio::select! {
        Ok(_) = raw.connection.accept_bi() => panic!("a stream"),
        Ok(_) = raw.connection.accept_uni() => panic!("a stream"),
        () = pass(20) => {}
    }
    assert!(raw.connection.close_reason().is_none());
}

fn entry(text: &str) -> SubscribeEntry {
    SubscribeEntry::new(filter(text), QoS::AtMostOnce)
}
