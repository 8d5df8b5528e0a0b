//! Links in memory, on the paused clock.

use std::time::Duration;

use braid_transport::{EndpointHealth, Transport, mem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Wire, carry, drain, pattern};

#[tokio::test(start_paused = true)]
async fn a_pair_works_while_time_stands_still() {
    let (left, right) = mem::pair(64);
    let (mut left, mut right) = (Wire::from(left), Wire::from(right));
    let start = Instant::now();
    carry(&mut left, &mut right, &pattern(10_000)).await;
    carry(&mut right, &mut left, &pattern(10_000)).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    left.io.shutdown().await.expect("shutdown");
    assert!(drain(&mut right).await.is_empty());
    assert_eq!((left.peer.transport, left.peer.address), (Transport::Mem, None));
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_when_the_capacity_is_used() {
    let (left, right) = mem::pair(8);
    let (mut left, mut right) = (Wire::from(left), Wire::from(right));
    left.io.write_all(b"12345678").await.expect("fits");
    let blocked = timeout(Duration::from_secs(3600), left.io.write_all(b"9")).await;
    assert!(blocked.is_err(), "no byte was read");
    right.io.read_exact(&mut [0; 8]).await.expect("read");
    left.io.write_all(b"9").await.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn a_listener_accepts_in_memory() {
    let (mut listener, connector) = mem::listener();
    assert_eq!((listener.local_addr(), listener.transport()), (None, Transport::Mem));
    for _ in 0..3 {
        let mut client = Wire::from(connector.connect().await.expect("connect"));
        let incoming = listener.accept().await.expect("accept");
        assert_eq!(incoming.peer_address(), None);
        let mut server = Wire::from(incoming.handshake().await.expect("handshake"));
        sleep(Duration::from_secs(60)).await;
        carry(&mut client, &mut server, b"through the listener").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connector_without_its_listener_refuses() {
    let (listener, connector) = mem::listener();
    listener.close().await;
    let error = connector.connect().await.expect_err("there is no listener");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
async fn a_listener_fails_and_reports_health_on_behalf_of_a_test() {
    let (mut listener, connector) = mem::listener();
    let _client = connector.connect().await.expect("connect");
    for health in [
        EndpointHealth { restarts: 0, is_available: false, turned_away: 0 },
        EndpointHealth { restarts: 1, is_available: true, turned_away: 0 },
    ] {
        let before = listener.endpoint_health();
        connector.fail_accept(std::io::Error::other("on purpose"), health).await.expect("it is there");
        if before == EndpointHealth::default() {
            listener.accept().await.expect("the connection before");
        }
        assert_eq!(listener.endpoint_health(), before, "it has not failed yet");
        let error = listener.accept().await.expect_err("it fails");
        assert_eq!((error.to_string().as_str(), listener.endpoint_health()), ("on purpose", health));
    }
    let _client = connector.connect().await.expect("connect");
    listener.accept().await.expect("it accepts again");
}
