//! A peer that stalls its handshake delays no other.

use braid_transport::{ListenerKind, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::quic::raw_client;
use crate::support::{Pki, accept, address, bind, carry, pair};

#[tokio::test]
async fn a_silent_peer_does_not_hold_the_next_one() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        if matches!(kind, ListenerKind::Tcp | ListenerKind::Quic(_)) {
            continue;
        }
        let mut listener = bind(kind);
        let silent = TcpStream::connect(address(&listener)).await.expect("connect");
        let stalled = accept(&mut listener).await;
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        carry(&mut client, &mut server, b"not held up").await;
        assert!(!stalled.is_finished(), "{}", server.peer.transport);
        drop(silent);
        assert!(stalled.await.expect("join").is_err(), "it left without a word");
    }
}

#[tokio::test]
async fn a_quic_peer_without_a_control_stream_does_not_hold_the_next_one() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    let silent = tokio::spawn(raw_client(&pki, address(&listener), "mqtt"));
    let stalled = accept(&mut listener).await;
    let (endpoint, connection) = silent.await.expect("join").expect("handshake");
    let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
    carry(&mut client, &mut server, b"not held up").await;
    assert_eq!(server.peer.transport, Transport::Quic);
    assert!(!stalled.is_finished());
    connection.close(0_u32.into(), b"");
    let error = stalled.await.expect("join").expect_err("it never opened its control stream");
    assert!(error.to_string().contains("control stream"), "{error}");
    drop(endpoint);
}

#[tokio::test]
async fn garbage_fails_alone() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind.clone());
        let bytes: Vec<u8> = (0..2000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        match kind {
            // Plain TCP has no handshake to fail.
            ListenerKind::Tcp => continue,
            ListenerKind::Quic(_) => {
                let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("bind");
                for length in [0, 1, 20, 1200] {
                    socket.send_to(&bytes[..length], address(&listener)).await.expect("send");
                }
            }
            _ => {
                let mut socket = TcpStream::connect(address(&listener)).await.expect("connect");
                let server = accept(&mut listener).await;
                socket.write_all(&bytes).await.expect("write");
                socket.shutdown().await.expect("shutdown");
                server.await.expect("join").expect_err("garbage");
            }
        }
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        carry(&mut client, &mut server, b"unharmed").await;
    }
}
