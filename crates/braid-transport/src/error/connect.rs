//! Connecting as a client.

use std::io;

use thiserror::Error;

use super::CertificateError;

/// Why [`connect`](crate::connect()) has no link.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("cannot find the address of {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// No address of the host takes a connection.
    #[error("cannot connect to {host}:{port}: {reason}")]
    Unreachable {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// How the last address tried failed: `TimedOut` is silence, `ConnectionRefused` an answer.
        kind: io::ErrorKind,
        /// What that address said, and which one it was.
        reason: String,
    },
    /// TCP cannot be tuned as asked for.
    #[error("TCP congestion control {name:?}: {reason}{}", choice(.allowed))]
    Congestion {
        /// The name asked for.
        name: Box<str>,
        /// Why not.
        reason: String,
        /// What this process may choose, as far as it is known.
        allowed: Vec<String>,
    },
    /// Nobody we trust has signed the server's certificate.
    #[error("the certificate of {host} is not trusted: give its CA with --cafile, or --insecure for tests")]
    NotTrusted {
        /// The host asked for.
        host: String,
    },
    /// The certificate belongs to another name.
    #[error(
        "the certificate of {host} is for another name ({reason}): connect by a name it has, or set the server name"
    )]
    WrongName {
        /// The host asked for.
        host: String,
        /// What the certificate is for.
        reason: String,
    },
    /// The certificate is not valid today.
    #[error("the certificate of {host} is not valid at this time ({reason}): renew it, or check the clock")]
    Expired {
        /// The host asked for.
        host: String,
        /// Too early or too late.
        reason: &'static str,
    },
    /// Any other failure of TLS.
    #[error("TLS with {host} failed: {reason}")]
    Tls {
        /// The host asked for.
        host: String,
        /// What the TLS library said.
        reason: String,
    },
    /// A name that cannot stand in a certificate.
    #[error("{name} is neither a host name nor an address")]
    ServerName {
        /// The name.
        name: String,
    },
    /// The QUIC peer does not speak MQTT.
    #[error("{host}:{port} speaks QUIC but not the application protocol {spoken}: is it the MQTT listener?")]
    Alpn {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// What we offered.
        spoken: String,
    },
    /// Any other failure of QUIC.
    #[error("QUIC with {host}:{port} failed: {reason}")]
    Quic {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// What the QUIC library said.
        reason: String,
    },
    /// The server did not upgrade to WebSocket.
    #[error("{host} does not speak MQTT over WebSocket at {path}: {reason}")]
    WebSocket {
        /// The host asked for.
        host: String,
        /// The path asked for.
        path: String,
        /// The status line, or what was wrong with the answer.
        reason: String,
    },
    /// Our own certificate files or the CA file cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// In-memory links come from [`mem::hub`](crate::mem::hub).
    #[error("in-memory links have no address to connect to")]
    NoAddress,
}

impl ConnectError {
    /// `last`: what the last address tried said.
    pub(crate) fn unreachable(host: &str, port: u16, last: Option<io::Error>) -> Self {
        let last = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
        Self::Unreachable { host: host.to_owned(), port, kind: last.kind(), reason: last.to_string() }
    }
}

fn choice(allowed: &[String]) -> String {
    if allowed.is_empty() { String::new() } else { format!(": choose one of {}", allowed.join(", ")) }
}
