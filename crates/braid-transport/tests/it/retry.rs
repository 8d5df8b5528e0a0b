//! A flood from forged addresses: who has to prove its address, and what it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Host, Network, Recording};
use braid_transport::{ConnectError, HandshakeError, ListenOptions, Listener};
use tokio::time::{Instant, sleep};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::noq_peer;
use crate::sim::client_config;
use crate::support::{Pki, address};

fn listen(network: &Network, pki: &Pki, retry_above: usize) -> Listener {
    let quic = QuicOptions { retry_above, ..QuicOptions::server() };
    network.listen(pki.server(), &ListenOptions { quic, ..ListenOptions::default() }).expect("listen")
}

/// Shakes hands with all clients, sends back a byte, and keeps the links. Returns their number so far.
fn serve(mut listener: Listener) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut link = Link::from(incoming.handshake().await?);
                let byte = read(&mut link).await?;
                write(&mut link, &[byte]).await?;
                std::future::pending::<Result<(), HandshakeError>>().await
            });
        }
    });
    count
}

/// Connects, and waits for a byte to come back. How long the former took.
async fn visit(device: &Host, pki: &Pki, server: std::net::SocketAddr) -> (Link, Duration) {
    let start = Instant::now();
    let connector = device.connector(server, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    let took = start.elapsed();
    write(&mut link, b"!").await.expect("write");
    assert_eq!(read(&mut link).await.expect("read"), b'!');
    (link, took)
}

/// The lengths of what came down, and whether each was a Retry: a long header of type 3 (RFC 9000, 17.2.5).
fn answers(recording: &Recording) -> Vec<(usize, bool)> {
    recording
        .datagrams()
        .iter()
        .filter(|datagram| datagram.direction == Direction::Down)
        .map(|datagram| (datagram.bytes.len(), datagram.bytes[0] & 0xF0 == 0xF0))
        .collect()
}

fn retries(recording: &Recording) -> usize {
    answers(recording).iter().filter(|(_, is_retry)| *is_retry).count()
}

// [BQ-71]
#[tokio::test(start_paused = true)]
async fn rule_8_a_flood_from_forged_addresses_is_asked_to_prove_them() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = listen(&network, &pki, 8);
    let server = address(&listener);
    let begun = serve(listener);
    let mut endpoints = Vec::new();
    let mut recordings = Vec::new();
    for n in 0..40 {
        let forger = network.host(&format!("forger {n}"));
        forger.change_one(Direction::Down, |link| link.cut = true);
        recordings.push(forger.record());
        let endpoint = noq_peer::endpoint(&forger, None);
        let connecting = endpoint.connect_with(client_config(&pki), server, "localhost").expect("connect");
        endpoints.push((endpoint, connecting));
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(begun.load(Ordering::Relaxed), 8, "no more handshakes than that are begun");
    for recording in &recordings[8..] {
        let answers = answers(recording);
        assert!(!answers.is_empty());
        assert!(answers.iter().all(|(length, is_retry)| *is_retry && *length < 200), "{answers:?}");
    }
    assert!(recordings[..8].iter().all(|recording| retries(recording) == 0));

    let device = network.host("device");
    let recording = device.record();
    visit(&device, &pki, server).await;
    assert_eq!(retries(&recording), 1, "who can be reached comes in");
    assert_eq!(begun.load(Ordering::Relaxed), 9);
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_up_count_no_more() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = listen(&network, &pki, 1);
    let server = address(&listener);
    serve(listener);
    let mut links = Vec::new();
    for n in 0..3 {
        let device = network.host(&format!("device {n}"));
        let recording = device.record();
        links.push(visit(&device, &pki, server).await);
        assert_eq!(retries(&recording), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn proving_an_address_takes_one_more_round_trip() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = listen(&network, &pki, 0);
    let server = address(&listener);
    serve(listener);
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(50));
    let recording = device.record();
    let (_link, took) = visit(&device, &pki, server).await;
    assert_eq!((retries(&recording), took), (1, Duration::from_millis(200)));
}

// [BQ-7]
#[tokio::test(start_paused = true)]
async fn a_server_without_room_refuses_at_once() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut listener = listen(&network, &pki, 8);
    let device = network.host("device");
    let endpoint = noq_peer::endpoint(&device, None);
    let connecting =
        endpoint.connect_with(client_config(&pki), address(&listener), "localhost").expect("connect");
    listener.accept().await.expect("accept").refuse();
    let Err(noq::ConnectionError::ConnectionClosed(close)) = connecting.await else { panic!("not refused") };
    assert_eq!(close.error_code, noq::TransportErrorCode::CONNECTION_REFUSED);
    assert_eq!(u64::from(close.error_code), 2, "RFC 9000, 20.1");

    let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
    let (refused, ()) = tokio::join!(connector.connect(), async {
        listener.accept().await.expect("accept").refuse();
    });
    let Err(ConnectError::Unreachable { kind, reason, .. }) = refused else { panic!("not refused") };
    assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    assert!(reason.ends_with("takes no more connections now"), "{reason}");
}

/// GHSA-vr26-jcq5-fjj8: a copy of the Initial of a validated connection that has not been decided about, from whatever
/// port, did not end well when that connection was refused or dropped.
#[tokio::test(start_paused = true)]
async fn a_second_initial_after_retry_is_harmless_whatever_becomes_of_the_first() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut listener = listen(&network, &pki, 0);
    let server = address(&listener);
    let client = network.host("client");
    for outcome in ["refused", "dropped", "accepted"] {
        let recording = client.record();
        let endpoint = noq_peer::endpoint(&client, None);
        let connecting = endpoint.connect_with(client_config(&pki), server, "localhost").expect("connect");
        let incoming = listener.accept().await.expect("accept");
        assert!(retries(&recording) > 0, "its address is validated");
        let up = recording.datagrams();
        let up: Vec<_> = up.iter().filter(|datagram| datagram.direction == Direction::Up).collect();
        assert!(up.len() >= 2, "one Initial without and one with the token");
        for datagram in up.iter().chain(&up) {
            client.send(server, &datagram.bytes);
        }
        sleep(Duration::from_millis(20)).await;
        match outcome {
            "refused" => {
                incoming.refuse();
                connecting.await.expect_err("refused");
            }
            "dropped" => {
                drop(incoming);
                connecting.await.expect_err("dropped");
            }
            _ => {
                let (link, connection) = tokio::join!(incoming.handshake(), async {
                    let connection = connecting.await.expect("accepted");
                    let (mut send, recv) = connection.open_bi().await.expect("credit");
                    send.write_all(b"!").await.expect("open");
                    (connection, send, recv)
                });
                assert_eq!(read(&mut link.expect("accepted").into()).await.expect("read"), b'!');
                drop(connection);
            }
        }
    }
    // The copies have made no connection that anyone answers for, and the endpoint goes on.
    serve(listener);
    visit(&network.host("device"), &pki, server).await;
}
