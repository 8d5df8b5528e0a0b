//! MQTT over QUIC, against a raw client of the QUIC library.

use std::net::SocketAddr;
use std::sync::Arc;

use braid_transport::quic::{Congestion, QuicOptions, codes};
use braid_transport::{
    ConnectError, ConnectOptions, HandshakeError, ListenOptions, Listener, ListenerKind, connect,
};
use futures_util::FutureExt;
use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

use crate::support::{Pki, Wire, accept, address, bind, carry, drain, loopback, pair, target};

/// Configuration of a raw client that offers `alpn`.
pub(crate) fn raw_config(pki: &Pki, alpn: &str) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.ca()).expect("ca")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).expect("config")))
}

/// A QUIC connection that offers `alpn` and has opened no stream.
pub(crate) fn raw_client(
    pki: &Pki,
    address: SocketAddr,
    alpn: &str,
) -> impl Future<Output = Result<(Endpoint, Connection), ConnectionError>> + Send + use<> {
    let config = raw_config(pki, alpn);
    async move {
        let endpoint = Endpoint::client(loopback()).expect("endpoint");
        let connection = endpoint.connect_with(config, address, "localhost").expect("connect").await?;
        Ok((endpoint, connection))
    }
}

struct Raw {
    server: Wire,
    connection: Connection,
    _send: SendStream,
    recv: RecvStream,
    _endpoint: Endpoint,
    listener: Listener,
}

/// A raw client whose control stream is our server's link; one byte has gone from it.
async fn raw_pair() -> Raw {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    let client = tokio::spawn(raw_client(&pki, address(&listener), "mqtt"));
    let server = accept(&mut listener).await;
    let (endpoint, connection) = client.await.expect("join").expect("handshake");
    let (mut send, recv) = connection.open_bi().await.expect("open");
    send.write_all(b"!").await.expect("write");
    let mut server = Wire::from(server.await.expect("join").expect("handshake"));
    assert_eq!(server.io.read_u8().await.expect("read"), b'!');
    Raw { server, connection, _send: send, recv, _endpoint: endpoint, listener }
}

#[tokio::test]
async fn a_hundred_streams_are_granted_at_once() {
    let raw = raw_pair().await;
    let open: Vec<_> = (0..100).map_while(|_| raw.connection.open_bi().now_or_never()?.ok()).collect();
    assert_eq!(open.len(), 100);
}

#[tokio::test]
async fn shutdown_sends_the_end_of_the_stream_after_the_last_data_and_closes_with_0() {
    let mut raw = raw_pair().await;
    let before = raw.connection.stats().frame_rx.stream;
    let close = async {
        // No task runs between the two, so an end that did not wait would share the data's frame.
        raw.server.io.write_all(b"DISCONNECT").await.expect("write");
        raw.server.io.shutdown().await.expect("shutdown");
    };
    let ((), received) = tokio::join!(close, raw.recv.read_to_end(1000));
    assert_eq!(received.expect("read"), b"DISCONNECT");
    assert_eq!(
        raw.connection.stats().frame_rx.stream - before,
        2,
        "one frame of data, one that ends the stream"
    );
    let ConnectionError::ApplicationClosed(close) = raw.connection.closed().await else {
        panic!("not closed")
    };
    assert_eq!(close.error_code, VarInt::from_u32(codes::CLOSE_NORMAL));
}

#[tokio::test]
async fn dropping_a_link_delivers_the_last_bytes_as_well() {
    let mut raw = raw_pair().await;
    raw.server.io.write_all(b"DISCONNECT").await.expect("write");
    drop(raw.server);
    assert_eq!(raw.recv.read_to_end(1000).await.expect("read"), b"DISCONNECT");
    let ConnectionError::ApplicationClosed(close) = raw.connection.closed().await else {
        panic!("not closed")
    };
    assert_eq!(close.error_code, VarInt::from_u32(codes::CLOSE_NORMAL));
}

#[tokio::test]
async fn a_client_that_closes_the_connection_is_the_end_of_the_stream() {
    let mut raw = raw_pair().await;
    raw.connection.close(codes::CLOSE_NORMAL.into(), b"");
    assert!(drain(&mut raw.server).await.is_empty());
}

#[tokio::test]
async fn a_client_that_closes_abnormally_is_an_error() {
    let mut raw = raw_pair().await;
    raw.connection.close(codes::CLOSE_ABNORMAL.into(), b"");
    raw.server.io.read_u8().await.expect_err("abnormal");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_peer_that_is_gone() {
    let mut raw = raw_pair().await;
    raw.connection.close(codes::CLOSE_NORMAL.into(), b"");
    assert!(drain(&mut raw.server).await.is_empty());
    raw.server.io.shutdown().await.expect("shutdown");
}

#[tokio::test]
async fn closing_the_listener_closes_all_links() {
    let raw = raw_pair().await;
    drop(raw.server);
    raw.listener.close().await;
    let ConnectionError::ApplicationClosed(close) = raw.connection.closed().await else {
        panic!("not closed")
    };
    assert_eq!(close.error_code, VarInt::from_u32(codes::CLOSE_NORMAL));
}

// [BQ-1]
#[tokio::test]
async fn another_application_protocol_is_named_on_both_sides() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    let target = target(listener.transport(), address(&listener));
    let tls = pki.client_with(|options| options.alpn = vec!["h3".to_owned(), "hq".to_owned()]);
    let client = tokio::spawn(async move { connect(&target, &tls, &ConnectOptions::default()).await });
    let error = accept(&mut listener).await.await.expect("join").expect_err("no common protocol");
    let HandshakeError::Alpn { offered, spoken } = &error else { panic!("{error}") };
    assert_eq!((offered.as_str(), spoken.as_str()), ("h3, hq", "mqtt"));
    let error = client.await.expect("join").expect_err("no common protocol");
    assert!(matches!(error, ConnectError::Alpn { .. }), "{error}");
    assert!(error.to_string().contains("speaks QUIC but not the application protocol h3, hq"), "{error}");
}

#[tokio::test]
async fn a_refused_client_is_told_so() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    let target = target(listener.transport(), address(&listener));
    let tls = pki.client();
    let client = tokio::spawn(async move { connect(&target, &tls, &ConnectOptions::default()).await });
    listener.accept().await.expect("accept").refuse();
    let error = client.await.expect("join").expect_err("refused").to_string();
    assert!(error.contains("takes no more connections now"), "{error}");
}

#[tokio::test]
async fn every_congestion_controller_carries_bytes() {
    let pki = Pki::new();
    for name in ["bbr3", "cubic", "newreno"] {
        let congestion = Congestion::from_name(name).expect("known");
        let quic = QuicOptions { congestion, ..QuicOptions::server() };
        let options = ListenOptions { quic, ..ListenOptions::default() };
        let mut listener =
            Listener::bind(ListenerKind::Quic(pki.server()), loopback(), &options).expect("bind");
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        carry(&mut server, &mut client, &[7; 500_000]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_told_and_where_to_look() {
    let silent = UdpSocket::bind(loopback()).await.expect("bind");
    let target = target(braid_transport::Transport::Quic, silent.local_addr().expect("address"));
    let pki = Pki::new();
    let error = connect(&target, &pki.client(), &ConnectOptions::default()).await.expect_err("silence");
    let is_silence = matches!(error, ConnectError::Unreachable { kind: std::io::ErrorKind::TimedOut, .. });
    assert!(is_silence, "{error:?}");
    let error = error.to_string();
    assert!(error.contains("no answer from 127.0.0.1"), "{error}");
    assert!(error.ends_with("does every firewall let UDP through?"), "{error}");
}

#[tokio::test]
async fn a_peer_that_vanishes_does_not_hold_a_shutdown_for_long() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    // The peer's runtime is stopped: its socket closes without a word.
    let elsewhere =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
    let client = elsewhere.spawn(raw_client(&pki, address(&listener), "mqtt"));
    let server = accept(&mut listener).await;
    let (endpoint, connection) = client.await.expect("join").expect("handshake");
    let (mut send, recv) = connection.open_bi().await.expect("open");
    send.write_all(b"!").await.expect("write");
    let mut server = Wire::from(server.await.expect("join").expect("handshake"));
    server.io.read_u8().await.expect("read");
    elsewhere.shutdown_background();

    tokio::time::pause();
    let start = tokio::time::Instant::now();
    server.io.write_all(&[0; 20_000]).await.expect("write");
    server.io.shutdown().await.expect("shutdown");
    assert!(start.elapsed() <= std::time::Duration::from_secs(4), "{:?}", start.elapsed());
    drop((endpoint, connection, send, recv));
}

#[tokio::test]
async fn an_unspecified_ipv6_listener_takes_ipv4() {
    let pki = Pki::new();
    let any: SocketAddr = "[::]:0".parse().expect("address");
    let kind = ListenerKind::Quic(pki.server());
    let Ok(mut listener) = Listener::bind(kind, any, &ListenOptions::default()) else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let mut target = target(listener.transport(), address(&listener));
    target.host = "127.0.0.1".to_owned();
    let tls = pki.client();
    let client = tokio::spawn(async move {
        let mut link = Wire::from(connect(&target, &tls, &ConnectOptions::default()).await.expect("connect"));
        link.io.write_all(b"!").await.expect("write");
        link
    });
    let server = accept(&mut listener).await.await.expect("join").expect("handshake");
    assert!(server.peer().address.is_some_and(|address| address.is_ipv4()), "{server:?}");
    drop(client);
}

/// First datagram of a client.
async fn first_datagram(pki: &Pki) -> Vec<u8> {
    let silent = UdpSocket::bind(loopback()).await.expect("bind");
    let client = raw_client(pki, silent.local_addr().expect("address"), "mqtt");
    let mut datagram = vec![0; 2000];
    tokio::select! {
        length = silent.recv(&mut datagram) => datagram.truncate(length.expect("receive")),
        _ = client => unreachable!("there is no answer"),
    }
    datagram
}

#[tokio::test]
async fn datagrams_of_a_waiting_client_after_the_last_accept_do_no_harm() {
    for in_order in [true, false] {
        let pki = Pki::new();
        let mut listener = bind(ListenerKind::Quic(pki.server()));
        let address = address(&listener);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        let waiting = UdpSocket::bind(loopback()).await.expect("bind");
        let datagram = first_datagram(&pki).await;
        waiting.send_to(&datagram, address).await.expect("send");
        // A later datagram has passed the endpoint's task as well.
        carry(&mut client, &mut server, b"1").await;
        let closing = if in_order { Some(tokio::spawn(listener.close())) } else { drop_now(listener) };
        waiting.send_to(&datagram, address).await.expect("send");
        carry(&mut client, &mut server, b"2").await;
        let refused = waiting.recv(&mut [0; 2000]).await.expect("receive");
        assert!(refused > 0, "the waiting client is refused");
        carry(&mut server, &mut client, b"3").await;
        drop((server, client, closing));
    }
}

fn drop_now<T>(listener: Listener) -> Option<T> {
    drop(listener);
    None
}
