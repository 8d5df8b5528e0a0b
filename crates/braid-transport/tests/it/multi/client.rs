//! The client's side of a link.

use braid_transport::Dir;
use braid_transport::quic::codes;
use futures_util::FutureExt;
use noq::crypto::rustls::QuicServerConfig;
use noq::{ReadError, ServerConfig, VarInt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

use crate::noq_peer;

/// Our client's link, and the raw server at its other end. One byte has gone from it.
struct Mirror {
    client: Link,
    server: Connection,
    _endpoint: Endpoint,
}

impl Mirror {
    /// `streams`: what the server grants of each kind, and the client too.
    async fn new(streams: u32) -> Self {
        let (pki, network) = (Pki::new(), Network::new(9));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(streams.into()).max_concurrent_uni_streams(streams.into());
        let config = raw_server(&pki, transport);
        let endpoint = noq_peer::endpoint(&network.host("server"), Some(config));
        let options = QuicOptions { bidi_streams: streams, uni_streams: streams, ..QuicOptions::client() };
        let address = endpoint.local_addr().expect("address");
        let connector = network.host("device").connector(address, pki.client(), options);
        let accept = async { endpoint.accept().await.expect("incoming").await.expect("handshake") };
        let (client, server) = tokio::join!(connector.connect(), accept);
        Self { client: client.expect("connect").into(), server, _endpoint: endpoint }
    }
}

/// A server of the QUIC library alone.
pub(super) fn raw_server(pki: &Pki, transport: TransportConfig) -> ServerConfig {
    let files = pki.issue("server", &["localhost"]);
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).expect("certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("config");
    tls.alpn_protocols = vec![b"mqtt".to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("crypto")));
    config.transport_config(Arc::new(transport));
    config
}

// [BQ-51]
#[tokio::test(start_paused = true)]
async fn a_client_opens_streams_of_both_kinds() {
    let Mirror { mut client, server, _endpoint } = Mirror::new(3).await;
    write(&mut client, StreamKey::CONTROL, b"CONNECT").await;
    let bidi = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    let uni = poll_fn(|cx| client.poll_open(cx, Dir::Uni)).await.expect("open");
    assert_eq!((bidi, uni), (StreamKey::bidi(1), StreamKey::uni(0)));
    write(&mut client, bidi, b"SUBSCRIBE").await;
    write(&mut client, uni, b"PUBLISH").await;
    client.finish(uni);
    let (_control_send, mut control_recv) = server.accept_bi().await.expect("control");
    control_recv.read_exact(&mut [0; 7]).await.expect("read");
    let (mut send, mut recv) = server.accept_bi().await.expect("data");
    recv.read_exact(&mut [0; 9]).await.expect("read");
    let mut uni_recv = server.accept_uni().await.expect("uni");
    let published = async { uni_recv.read_to_end(100).await.expect("read") };
    let answer = async {
        let published = published.await;
        send.write_all(b"SUBACK").await.expect("write");
        send.finish().expect("finish");
        published
    };
    let (read, published) = tokio::join!(next(&mut client), answer);
    assert_eq!(published, b"PUBLISH");
    assert_eq!(read, (Read::Bytes(bidi), b"SUBACK".to_vec()));
    assert_eq!(next(&mut client).await.0, Read::Finished(bidi));
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_open_as_soon_as_the_credit_allows() {
    let Mirror { mut client, server, _endpoint } = Mirror::new(2).await;
    write(&mut client, StreamKey::CONTROL, b"CONNECT").await;
    let first = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    assert!(poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).now_or_never().is_none());
    client.finish(first);
    let (_control_send, _control_recv) = server.accept_bi().await.expect("control");
    let (mut send, mut recv) = server.accept_bi().await.expect("data");
    let end = async {
        assert_eq!(recv.read_to_end(10).await.expect("read"), b"");
        send.finish().expect("finish");
    };
    let (read, ()) = tokio::join!(next(&mut client), end);
    assert_eq!(read.0, Read::Finished(first));
    let second = poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open");
    assert_eq!(second, StreamKey::bidi(2));
}

// [BQ-4]
#[tokio::test(start_paused = true)]
async fn streams_that_a_server_opens_are_refused() {
    let Mirror { mut client, server, _endpoint } = Mirror::new(2).await;
    write(&mut client, StreamKey::CONTROL, b"CONNECT").await;
    let refused = VarInt::from_u32(codes::STREAM_NOT_SERVED);
    let (mut control, _control_recv) = server.accept_bi().await.expect("control");
    let attempts = async {
        let (mut send, mut recv) = server.open_bi().await.expect("open");
        send.write_all(b"PUBLISH").await.expect("write");
        assert_eq!(send.stopped().await, Ok(Some(refused)));
        assert_eq!(recv.read(&mut [0; 8]).await, Err(ReadError::Reset(refused)));
        let mut send = server.open_uni().await.expect("open");
        send.write_all(b"PUBLISH").await.expect("write");
        assert_eq!(send.stopped().await, Ok(Some(refused)));
        control.write_all(b"CONNACK").await.expect("write");
    };
    let (read, ()) = tokio::join!(next(&mut client), attempts);
    assert_eq!(read, (Read::Bytes(StreamKey::CONTROL), b"CONNACK".to_vec()), "and not told");
}

// [BQ-4]
#[tokio::test(start_paused = true)]
async fn a_server_opens_no_streams() {
    let mut scene = Scene::new().await;
    let error = poll_fn(|cx| scene.server.poll_open(cx, Dir::Bidi)).await.expect_err("a server");
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}
