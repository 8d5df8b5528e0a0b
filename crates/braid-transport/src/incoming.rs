//! Accepted connections, and their handshakes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::net::TcpStream;

use crate::error::HandshakeError;
use crate::link::Link;
use crate::quic::QuicIncoming;
use crate::tls::{self, Application, ServerTls};
use crate::transport::{Peer, Transport};
use crate::{WebSocketOptions, ws};

/// A connection whose handshake has not begun.
pub struct Incoming(pub(crate) IncomingKind);

pub(crate) enum IncomingKind {
    Stream { io: TcpStream, address: SocketAddr, upgrade: Upgrade },
    Quic(Box<QuicIncoming>),
    Mem(DuplexStream),
}

impl Incoming {
    /// Address of the peer. `None` for in-memory links. On QUIC the address is not validated yet.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            IncomingKind::Stream { address, .. } => Some(*address),
            IncomingKind::Quic(incoming) => Some(incoming.peer_address()),
            IncomingKind::Mem(_) => None,
        }
    }

    /// Completes the handshake: TLS, WebSocket upgrade, or QUIC up to the control stream. Its duration depends on the peer, so it
    /// needs a timeout; dropping it closes the connection.
    ///
    /// # Errors
    /// The peer ended the connection, or speaks another protocol.
    pub async fn handshake(self) -> Result<Link, HandshakeError> {
        match self.0 {
            // The handshakes are boxed so that the task of a plain connection, which lives as long
            // as the connection, has not the size of the largest of them.
            IncomingKind::Stream { io, address, upgrade } => match upgrade {
                Upgrade::Nothing => Ok(Link::single(Peer::plain(Transport::Tcp, Some(address)), io)),
                upgrade => Box::pin(upgrade.accept(io, address)).await,
            },
            IncomingKind::Quic(incoming) => Box::pin(incoming.handshake()).await,
            IncomingKind::Mem(io) => Ok(Link::single(Peer::plain(Transport::Mem, None), io)),
        }
    }

    /// Turns the peer away without a handshake.
    pub fn refuse(self) {
        if let IncomingKind::Quic(incoming) = self.0 {
            incoming.refuse();
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer_address", &self.peer_address()).finish_non_exhaustive()
    }
}

/// Handshake of a TCP connection before MQTT begins.
#[derive(Clone)]
pub(crate) enum Upgrade {
    Nothing,
    Tls(ServerTls),
    Ws(Arc<WebSocketOptions>),
    Wss(ServerTls, Arc<WebSocketOptions>),
}

impl Upgrade {
    async fn accept(self, io: TcpStream, address: SocketAddr) -> Result<Link, HandshakeError> {
        let plain = |transport| Peer::plain(transport, Some(address));
        match self {
            Self::Nothing => Ok(Link::single(plain(Transport::Tcp), io)),
            Self::Tls(server) => {
                let io = server.accept(io, Application::Mqtt).await?;
                let mut peer = plain(Transport::Tls);
                tls::describe(&mut peer, io.get_ref().1);
                Ok(Link::single(peer, io))
            }
            Self::Ws(options) => Ok(Link::single(plain(Transport::Ws), ws::accept(io, &options).await?)),
            Self::Wss(server, options) => {
                let io = server.accept(io, Application::Http).await?;
                let mut peer = plain(Transport::Wss);
                tls::describe(&mut peer, io.get_ref().1);
                Ok(Link::single(peer, ws::accept(io, &options).await?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_handshake_of_a_plain_connection_is_small() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let io = TcpStream::connect(address).await.expect("connect");
        let plain = IncomingKind::Stream { io, address, upgrade: Upgrade::Nothing };
        let handshake = Incoming(plain).handshake();
        // Part of a task that lives as long as the connection; 10,000 of them are idle.
        let size = size_of_val(&handshake);
        assert!(size <= 512, "{size} bytes");
    }
}
