//! Errors of files, listeners, connects and handshakes. The text of each says what to change.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// Error of a certificate, key or CA file. Every text names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file has no certificate in it.
    #[error("{} holds no certificate: a PEM file with BEGIN CERTIFICATE is expected", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file has no private key in it.
    #[error("{} holds no private key: an unencrypted PEM file with BEGIN PRIVATE KEY is expected", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The certificate was made for another key.
    #[error("{} and {} do not belong together: give the key that the certificate was made for", certificate.display(), key.display())]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The file is PEM, but its content cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The defect.
        reason: String,
    },
    /// A certificate without its key; a new pair would overwrite the certificate of an operator.
    #[error("{} is there but {} is not: bring the key back, or remove the certificate to have a new pair made", certificate.display(), key.display())]
    KeyMissing {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A certificate cannot be made for these names.
    #[error("cannot make a certificate for {names}: {reason}")]
    Names {
        /// The names asked for.
        names: String,
        /// The defect.
        reason: String,
    },
    /// The system's CA certificates cannot be found.
    #[error("no CA certificates found on this system ({reason}): give the server's CA with --cafile")]
    NoSystemRoots {
        /// Error of the search.
        reason: String,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS cannot be configured: {reason}")]
    Config {
        /// Error of the library.
        reason: String,
    },
}

/// Error of [`Listener::bind`](crate::Listener::bind).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket listens there.
    #[error(
        "{transport} port {} on {} is in use: stop the program that has it or choose another port",
        address.port(), address.ip()
    )]
    InUse {
        /// `TCP` or `UDP`.
        transport: &'static str,
        /// The address asked for.
        address: SocketAddr,
    },
    /// No interface of this machine has the address.
    #[error("{} is not an address of this machine: listen on one of its own, or on 0.0.0.0 or [::]", address.ip())]
    NotOurs {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The operating system does not allow it.
    #[error("not allowed to listen on {address}: ports below 1024 need a privilege, choose a higher one")]
    Denied {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The certificate cannot be used for this listener.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Anything else the operating system refuses.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address asked for.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl BindError {
    pub(crate) fn from_io(transport: &'static str, address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { transport, address },
            io::ErrorKind::AddrNotAvailable => Self::NotOurs { address },
            io::ErrorKind::PermissionDenied => Self::Denied { address },
            _ => Self::Io { address, source },
        }
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
    /// TCP cannot be tuned as asked for.
    #[error("TCP congestion control {name:?}: {reason}{}", choice(.allowed))]
    Congestion {
        /// The name asked for.
        name: Box<str>,
        /// Why not.
        reason: String,
        /// Algorithms that this process may choose, as far as is known.
        allowed: Vec<String>,
    },
    /// No trusted authority has signed the server's certificate.
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
        /// Names of the certificate.
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
        /// Error of the TLS library.
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
        /// Protocols that this end offered.
        spoken: String,
    },
    /// Any other failure of QUIC.
    #[error("QUIC with {host}:{port} failed: {reason}")]
    Quic {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// Error of the QUIC library.
        reason: String,
    },
    /// The server did not upgrade to WebSocket.
    #[error("{host} does not speak MQTT over WebSocket at {path}: {reason}")]
    WebSocket {
        /// The host asked for.
        host: String,
        /// The path asked for.
        path: String,
        /// Status line, or the defect of the answer.
        reason: String,
    },
    /// Certificate files of this end, or the CA file, cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// In-memory links come from [`mem::hub`](crate::mem::hub).
    #[error("in-memory links have no address to connect to")]
    NoAddress,
}

impl ConnectError {
    /// `last`: error of the last address tried.
    pub(crate) fn unreachable(host: &str, port: u16, last: Option<io::Error>) -> Self {
        let last = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
        Self::Unreachable { host: host.to_owned(), port, kind: last.kind(), reason: last.to_string() }
    }
}

fn choice(allowed: &[String]) -> String {
    if allowed.is_empty() { String::new() } else { format!(": choose one of {}", allowed.join(", ")) }
}

/// Error of the handshake of a peer that connected to a listener. The peer causes all of them, so they are logged at a low
/// level.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection broke or was closed by the peer.
    #[error("the connection broke during the handshake: {0}")]
    Io(#[from] io::Error),
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
        /// Protocol of this listener.
        spoken: &'static str,
    },
    /// A WebSocket request for another path.
    #[error("WebSocket request for {path}: MQTT is at {served}")]
    Path {
        /// The requested path.
        path: String,
        /// The served path.
        served: String,
    },
    /// A WebSocket request without MQTT among its subprotocols.
    #[error("WebSocket request without the subprotocol mqtt (offered: {offered})")]
    Subprotocol {
        /// Subprotocols that the client offered, or `none`.
        offered: String,
    },
    /// A WebSocket request of a web page that may not connect.
    #[error("WebSocket request of a page of {origin}, which may not connect")]
    Origin {
        /// Origin as the browser sent it.
        origin: String,
    },
    /// Any other defect of a WebSocket request.
    #[error("WebSocket handshake failed: {0}")]
    WebSocket(String),
    /// The QUIC handshake failed or the connection ended before the control stream was opened.
    #[error("QUIC handshake failed: {0}")]
    Quic(String),
}
