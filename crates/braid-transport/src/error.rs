//! Errors of files, listeners, connects and handshakes. The text of each says what to change.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use thiserror::Error;

use crate::certificate::CertificateFiles;
use crate::proxy::header::ProxyHeaderError;

/// Error of a certificate, key or CA file. Every text names the file.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct CertificateError(pub(crate) String);

impl CertificateError {
    /// The content of a PEM file cannot be used.
    pub(crate) fn unusable(path: &Path, reason: &impl Display) -> Self {
        Self(format!("{} cannot be used: {reason}", path.display()))
    }

    /// The TLS library refuses the configuration.
    pub(crate) fn config(reason: &impl Display) -> Self {
        Self(format!("TLS cannot be configured: {reason}"))
    }

    /// The certificate was made for another key.
    pub(crate) fn mismatch(CertificateFiles { certificate, key }: &CertificateFiles) -> Self {
        let (certificate, key) = (certificate.display(), key.display());
        Self(format!(
            "{certificate} and {key} do not belong together: give the key that the certificate was made for"
        ))
    }
}

/// Error of [`Listener::bind`](crate::Listener::bind).
#[derive(Debug, Error)]
#[error("{0}")]
pub struct BindError(String);

impl BindError {
    /// `transport`: `TCP` or `UDP`. `address`: the one asked for.
    pub(crate) fn from_io(transport: &str, address: SocketAddr, source: &io::Error) -> Self {
        let (ip, port) = (address.ip(), address.port());
        Self(match source.kind() {
            io::ErrorKind::AddrInUse => format!(
                "{transport} port {port} on {ip} is in use: stop the program that has it or choose another port"
            ),
            io::ErrorKind::AddrNotAvailable => format!(
                "{ip} is not an address of this machine: listen on one of its own, or on 0.0.0.0 or [::]"
            ),
            io::ErrorKind::PermissionDenied => format!(
                "not allowed to listen on {address}: ports below 1024 need a privilege, choose a higher one"
            ),
            _ => format!("cannot listen on {address}: {source}"),
        })
    }
}

impl BindError {
    /// The PROXY protocol on a listener that is not over TCP.
    pub(crate) fn proxy_without_tcp() -> Self {
        Self("the PROXY protocol needs TCP: switch it off for QUIC listeners".to_owned())
    }
}

impl From<CertificateError> for BindError {
    fn from(CertificateError(text): CertificateError) -> Self {
        Self(text)
    }
}

/// Error of [`connect`](crate::connect()).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("cannot find the address of {host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Error of the resolver.
        reason: String,
    },
    /// No address of the host takes a connection.
    #[error("cannot connect to {host}:{port}: {reason}")]
    Unreachable {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// Kind of the failure of the last address tried: `TimedOut` is silence, `ConnectionRefused` an answer.
        kind: io::ErrorKind,
        /// Error of that address, with the address.
        reason: String,
    },
    /// No trusted authority has signed the certificate of this host.
    #[error("the certificate of {0} is not trusted: give its CA with --cafile, or --insecure for tests")]
    NotTrusted(String),
    /// The certificate belongs to another name.
    #[error(
        "the certificate of {host} is for another name ({reason}): connect by a name it has, or check its CA alone with --cafile and --insecure"
    )]
    WrongName {
        /// The host asked for.
        host: String,
        /// Names of the certificate.
        reason: String,
    },
    /// A name that cannot stand in a certificate.
    #[error("{0} is neither a host name nor an address")]
    ServerName(String),
    /// The QUIC peer speaks another protocol.
    #[error("{host}:{port} speaks QUIC but not the application protocol {spoken}: check the port")]
    Alpn {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// Protocols that this end offered.
        spoken: String,
    },
    /// Certificate files of this end, or the CA file, cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Any other failure of TCP, TLS, WebSocket or QUIC. The text names the host or the option.
    #[error("{0}")]
    Other(String),
}

impl ConnectError {
    /// `last`: error of the last address tried.
    pub(crate) fn unreachable(host: &str, port: u16, last: Option<io::Error>) -> Self {
        let last = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
        Self::Unreachable { host: host.to_owned(), port, kind: last.kind(), reason: last.to_string() }
    }

    /// TLS could not be agreed upon.
    pub(crate) fn tls(host: &str, reason: impl Display) -> Self {
        Self::Other(format!("TLS with {host} failed: {reason}"))
    }

    /// In-memory links come from [`mem::listener`](crate::mem::listener).
    pub(crate) fn no_address() -> Self {
        Self::Other("in-memory links have no address to connect to".to_owned())
    }
}

/// Error of the handshake of a peer that connected to a listener. The peer causes all of them, so they are logged at a
/// low level.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection broke or was closed by the peer.
    #[error("the connection broke during the handshake: {0}")]
    Io(#[from] io::Error),
    /// A connection that does not come through a trusted proxy, or without a right header.
    #[error("PROXY protocol: {0}")]
    Proxy(#[from] ProxyError),
    /// TLS could not be agreed upon, or the client's certificate was not accepted.
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    /// The peer speaks another protocol on QUIC.
    #[error(
        "the peer offers the application protocol {offered}, this listener speaks {spoken}: set the client's ALPN to {spoken}"
    )]
    Alpn {
        /// Protocols that the peer offered, or `none`.
        offered: String,
        /// Protocols of this listener.
        spoken: String,
    },
    /// A WebSocket request without MQTT among its subprotocols, which are these, or `none`.
    #[error("WebSocket request without the subprotocol mqtt (offered: {0})")]
    Subprotocol(String),
    /// A WebSocket request for another path, or of a web page that may not connect.
    #[error("WebSocket request {0}")]
    Refused(String),
    /// Any other defect of a WebSocket request.
    #[error("WebSocket handshake failed: {0}")]
    WebSocket(String),
    /// The QUIC handshake failed or the connection ended before the control stream was opened.
    #[error("QUIC handshake failed: {0}")]
    Quic(String),
}

/// Refusal of a connection on a listener with the PROXY protocol.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The address is not one of [`ProxyOptions::trusted`](crate::proxy::ProxyOptions::trusted).
    #[error(
        "{0} is not a trusted proxy: add it to the trusted ones, or let its clients connect through a proxy"
    )]
    Untrusted(IpAddr),
    /// A trusted proxy has sent no header, or a wrong one.
    #[error("header of the proxy {proxy}: {error}")]
    Header {
        /// Address of the proxy.
        proxy: IpAddr,
        /// Defect.
        error: ProxyHeaderError,
    },
}
