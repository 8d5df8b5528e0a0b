//! TLS over TCP, and the configurations of QUIC: rustls with ring, 1.2 and 1.3.

mod client;
mod client_auth;
mod keylog;
mod resolver;
mod server;
mod tickets;

pub(crate) use client::tls_error;
pub use client::{ClientTls, ClientTlsOptions};
pub(crate) use client_auth::client_certificate;
pub use server::{ClientAuth, ServerTls, ServerTlsOptions, TlsVersion};
pub(crate) use tickets::Tickets;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, ProtocolVersion};

use crate::transport::{Peer, PeerCertificate};

/// The application protocol of MQTT over QUIC, and over TLS where a client offers it.
pub(crate) const ALPN_MQTT: &str = "mqtt";

/// Application protocol of HTTP/3 (RFC 9114, 3.1).
pub const ALPN_H3: &str = "h3";

/// Application protocols of HTTP over TLS, the preferred one first.
pub(crate) const ALPN_TLS: [&str; 2] = ["h2", "http/1.1"];

/// Application protocol that WebSocket clients may offer on TLS.
pub(crate) const ALPN_HTTP: &str = "http/1.1";

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Cryptography of a QUIC client, which prefers AES-128 with SHA-256: QUIC derives a dozen keys more than TLS over TCP,
/// and processors have instructions for SHA-256, but few for SHA-384.
fn quic_provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Adds the facts of the TLS session to `peer`.
pub(crate) fn describe(peer: &mut Peer, session: &rustls::CommonState) {
    peer.tls_version = match session.protocol_version() {
        Some(ProtocolVersion::TLSv1_2) => Some("TLSv1.2"),
        Some(ProtocolVersion::TLSv1_3) => Some("TLSv1.3"),
        _ => None,
    };
    peer.alpn = session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into());
    peer.certificate = leaf(session.peer_certificates());
}

pub(crate) fn leaf(chain: Option<&[CertificateDer<'_>]>) -> Option<PeerCertificate> {
    chain?.first().map(|leaf| PeerCertificate::new(leaf))
}
