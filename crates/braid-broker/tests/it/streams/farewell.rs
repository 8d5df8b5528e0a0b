//! How the broker ends a connection whose client does not read.

use std::time::Duration;

use braid_proto::packet::{Packet, QoS, SubscribeEntry};
use noq::{ConnectionError, VarInt};
use tokio::time::{Instant, timeout};

use crate::support::{QuicBroker, Raw, bytes, filter, lasting, pass, subscribe_packet};

/// [BQ-41]: STOP_SENDING says why within 3 seconds, also when DISCONNECT finds no room on the control stream.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_control_stream_learns_why_it_has_to_go() {
    let broker = QuicBroker::start();
    let mut raw = Raw::connect(&broker, lasting("client")).await;
    broker.host("raw").change(|link| link.latency = Duration::from_millis(20));
    let entry = SubscribeEntry::new(filter("bulk"), QoS::AtLeastOnce);
    raw.send.write_all(&bytes(&subscribe_packet(1, None, vec![entry]))).await.expect("open");
    let (mut send, _recv) = raw.data().await;
    send.write_all(&bytes(&Packet::Pingreq)).await.expect("open");
    pass(1).await;
    // More than the window of a stream holds.
    let mut publisher = broker.memory.v5("publisher").await;
    for _ in 0..200 {
        publisher.publish("bulk", vec![b'x'; 10_000], QoS::AtLeastOnce).await;
    }
    pass(1).await;
    let start = Instant::now();
    let successor = broker.memory.resume("client").await;
    assert!(successor.connack().session_present);
    assert!(start.elapsed() < Duration::from_millis(100), "the session does not wait: {:?}", start.elapsed());
    let stopped = timeout(Duration::from_secs(60), send.stopped()).await.expect("STOP_SENDING");
    assert_eq!(stopped, Ok(Some(VarInt::from_u32(0x8e))));
    assert!(start.elapsed() <= Duration::from_secs(3), "{:?}", start.elapsed());
    let closed = timeout(Duration::from_secs(60), raw.connection.closed()).await.expect("the end");
    assert!(matches!(closed, ConnectionError::ApplicationClosed(_)), "{closed}");
}
