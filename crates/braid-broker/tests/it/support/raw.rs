//! A plain QUIC client, for frames and codes that a link handles itself or hides.

use std::sync::Arc;

use braid_proto::packet::{Connect, Packet, ProtocolVersion};
use bytes::BytesMut;
use noq::crypto::rustls::QuicClientConfig;
use noq::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::quic::{CERTIFICATE, QuicBroker};
use crate::noq_peer;

/// A connection and its control stream.
pub(crate) struct Raw {
    pub(crate) connection: Connection,
    pub(crate) send: SendStream,
    pub(crate) recv: RecvStream,
    _endpoint: Endpoint,
}

impl Raw {
    /// Connects and sends `connect`; the CONNACK was read.
    pub(crate) async fn connect(broker: &QuicBroker, connect: Connect) -> Self {
        let mut raw = Self::open(broker).await;
        raw.send.write_all(&bytes(&Packet::Connect(Box::new(connect)))).await.expect("open");
        let mut connack = [0; 2];
        raw.recv.read_exact(&mut connack).await.expect("CONNACK");
        let mut rest = vec![0; connack[1].into()];
        raw.recv.read_exact(&mut rest).await.expect("CONNACK");
        assert_eq!((connack[0], rest[1]), (0x20, 0), "accepted");
        raw
    }

    pub(crate) async fn open(broker: &QuicBroker) -> Self {
        let endpoint = noq_peer::endpoint(&broker.host("raw"), None);
        let connecting = endpoint.connect_with(config(), broker.address, "localhost").expect("connect");
        let connection = connecting.await.expect("the broker listens");
        let (send, recv) = connection.open_bi().await.expect("credit");
        Self { connection, send, recv, _endpoint: endpoint }
    }

    pub(crate) async fn data(&self) -> (SendStream, RecvStream) {
        self.connection.open_bi().await.expect("credit")
    }
}

pub(crate) fn bytes(packet: &Packet) -> BytesMut {
    let mut bytes = BytesMut::new();
    packet.encode(ProtocolVersion::V5, &mut bytes);
    bytes
}

fn config() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&CERTIFICATE.1).expect("certificate")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"mqtt".to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).expect("TLS 1.3")))
}
