//! A peer's handshake with a listener.

use std::io;

use thiserror::Error;

/// Why a peer that connected to a listener got no link. Nothing here is the broker's fault, so it
/// is for the log at a low level.
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
        /// What the peer offered, or `none`.
        offered: String,
        /// What is spoken here.
        spoken: &'static str,
    },
    /// A WebSocket request for another path.
    #[error("WebSocket request for {path}: MQTT is at {served}")]
    Path {
        /// What was asked for.
        path: String,
        /// What is served.
        served: String,
    },
    /// A WebSocket request without MQTT among its subprotocols.
    #[error("WebSocket request without the subprotocol mqtt (offered: {offered})")]
    Subprotocol {
        /// What was offered, or `none`.
        offered: String,
    },
    /// A WebSocket request of a web page that may not connect.
    #[error("WebSocket request of a page of {origin}, which may not connect")]
    Origin {
        /// As the browser gave it.
        origin: String,
    },
    /// Any other defect of a WebSocket request.
    #[error("WebSocket handshake failed: {0}")]
    WebSocket(String),
    /// The QUIC handshake failed or the connection ended before the control stream was opened.
    #[error("QUIC handshake failed: {0}")]
    Quic(String),
}
