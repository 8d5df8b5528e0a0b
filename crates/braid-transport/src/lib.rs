//! tokio adapters that carry MQTT bytes: TCP, TLS, WebSocket, QUIC and in-memory links.
//!
//! This crate never handles MQTT packets, sessions or decisions about clients. From either side it makes a [`Link`] of
//! an address, or an error of one line. No other crate of the project names the TLS, WebSocket and QUIC libraries.
//!
//! A server binds a [`Listener`], accepts an [`Incoming`] (cheap) and runs
//! [`Incoming::handshake`] in the connection's own task (slow). A client calls [`connect`].
//!
//! A link is polled by one task. It has one stream, or, on QUIC, a control stream and any number of
//! data streams that stall and end by themselves; [`Link`] is the same to its driver either way.

mod certificate;
mod connect;
mod error;
pub mod http;
mod incoming;
mod link;
mod listener;
pub mod mem;
mod path_sample;
pub mod proxy;
pub mod quic;
mod race;
pub mod sim;
mod single;
mod tcp;
mod tls;
mod transport;
mod ws;

pub use certificate::{CertificateFiles, fingerprint_sha256, self_signed};
pub use connect::{ConnectOptions, ConnectTimes, Target, connect, connect_timed};
pub use error::{BindError, CertificateError, ConnectError, HandshakeError};
pub use incoming::Incoming;
pub use link::Link;
pub use listener::{ListenOptions, Listener, ListenerKind};
pub use quic::{EndpointHealth, Multi};
pub use single::{ByteStream, Single};
pub use tcp::TcpOptions;
pub use tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls, ServerTlsOptions, TlsVersion};
pub use transport::{Close, Dir, Peer, PeerCertificate, Read, Transport};
pub use ws::WebSocketOptions;
