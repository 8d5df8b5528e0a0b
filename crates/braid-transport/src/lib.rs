//! tokio adapters that carry MQTT bytes: TCP, TLS, WebSocket, QUIC and in-memory links.
//!
//! This crate never reads or writes an MQTT packet, keeps no session and takes no decision about a
//! client: it turns an address into a [`Link`], from either side, and says in one line why it could
//! not. It is the only crate of the project that names the TLS, WebSocket and QUIC libraries.
//!
//! A server binds a [`Listener`], accepts an [`Incoming`] (cheap) and runs
//! [`Incoming::handshake`] in the connection's own task (slow). A client calls [`connect`].
//!
//! A link is polled by one task. It has one stream, or, on QUIC, a control stream and any number of
//! data streams that stall and end by themselves; [`Link`] is the same to its driver either way.

mod certificate;
mod connect;
mod der;
mod error;
mod incoming;
mod link;
mod listener;
pub mod mem;
pub mod quic;
mod race;
pub mod sim;
mod single;
mod tcp;
mod tls;
mod wakers;
mod ws;

pub use certificate::{CertificateFiles, fingerprint_sha256, is_self_signed_there, self_signed};
pub use connect::{ConnectOptions, ConnectTimes, Target, TcpOptions, connect, connect_timed};
pub use error::{BindError, CertificateError, ConnectError, HandshakeError};
pub use incoming::Incoming;
pub use link::{Close, Dir, Link, Peer, PeerCertificate, Read, Transport};
pub use listener::{ListenOptions, Listener, ListenerKind};
pub use quic::Multi;
pub use single::{ByteStream, Single};
pub use tls::{ClientAuth, ClientTls, ClientTlsOptions, ServerTls, ServerTlsOptions};
pub use ws::WebSocketOptions;
