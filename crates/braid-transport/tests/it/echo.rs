//! Duties of every transport.

use std::io::IoSlice;

use braid_transport::{ListenerKind, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Pki, bind, carry, drain, pair, pattern};

/// [MQTT-4.2.0-1]
#[tokio::test]
async fn bytes_arrive_both_ways_unchanged() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        for length in [1, 127, 65_537, 1 << 20] {
            carry(&mut client, &mut server, &pattern(length)).await;
            carry(&mut server, &mut client, &pattern(length)).await;
        }
    }
}

#[tokio::test]
async fn both_ends_know_each_other() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let transport = kind.transport();
        let mut listener = bind(kind);
        let (server, client) = pair(&mut listener, &pki.client()).await;
        assert_eq!((server.peer.transport, client.peer.transport), (transport, transport));
        assert_eq!(client.peer.address, listener.local_addr());
        assert!(server.peer.address.is_some_and(|address| address.ip().is_loopback()));
        assert_eq!(server.peer.tls_version.is_some(), transport.is_encrypted());
        assert_eq!(client.peer.certificate.is_some(), transport.is_encrypted());
        assert!(server.peer.certificate.is_none(), "no client certificate was asked for");
        let alpn = match transport {
            Transport::Quic => Some("mqtt"),
            Transport::Wss => Some("http/1.1"),
            _ => None,
        };
        assert_eq!(server.peer.alpn.as_deref(), alpn);
    }
}

#[tokio::test]
async fn vectored_writes_keep_their_order() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two "), IoSlice::new(b"three")];
        assert_eq!(server.io.write_vectored(&parts).await.expect("write"), 13);
        server.io.flush().await.expect("flush");
        let mut received = [0; 13];
        client.io.read_exact(&mut received).await.expect("read");
        assert_eq!(&received, b"one two three");
    }
}

#[tokio::test]
async fn shutdown_delivers_the_last_bytes() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        let last = pattern(300_000);
        let close = async {
            server.io.write_all(&last).await.expect("write");
            server.io.shutdown().await.expect("shutdown");
        };
        // The client answers the end with its own, as a client of MQTT does.
        let (received, ()) = tokio::join!(
            async {
                let received = drain(&mut client).await;
                client.io.shutdown().await.expect("shutdown");
                received
            },
            close
        );
        assert!(received == last, "{}: {} of {} bytes", client.peer.transport, received.len(), last.len());
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_the_end_of_the_stream() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        let leave = async {
            client.io.write_all(b"the end").await.expect("write");
            client.io.shutdown().await.expect("shutdown");
        };
        let ((), received) = tokio::join!(leave, drain(&mut server));
        assert_eq!(received, b"the end", "{}", server.peer.transport);
    }
}

#[tokio::test]
async fn reader_and_writer_of_a_single_stream_may_be_two_tasks() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        if matches!(kind, ListenerKind::Quic(_)) {
            // A link of many streams is polled by one task.
            continue;
        }
        let mut listener = bind(kind);
        let (server, client) = pair(&mut listener, &pki.client()).await;
        let bytes = pattern(3 << 20);
        let (mut from_client, mut to_client) = tokio::io::split(server.io);
        let (mut from_server, mut to_server) = tokio::io::split(client.io);
        let echo = tokio::spawn(async move {
            let mut buffer = vec![0; 10_000];
            loop {
                match from_client.read(&mut buffer).await.expect("read") {
                    0 => return,
                    length => to_client.write_all(&buffer[..length]).await.expect("write"),
                }
                to_client.flush().await.expect("flush");
            }
        });
        let sent = bytes.clone();
        let send = tokio::spawn(async move {
            to_server.write_all(&sent).await.expect("write");
            to_server.flush().await.expect("flush");
            to_server
        });
        let mut received = vec![0; bytes.len()];
        from_server.read_exact(&mut received).await.expect("read");
        assert!(received == bytes);
        drop((send.await.expect("join"), from_server));
        echo.abort();
    }
}
