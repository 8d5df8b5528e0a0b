//! Accepted connections, and their handshakes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::net::TcpStream;

use crate::error::HandshakeError;
use crate::link::Link;
use crate::proxy::{self, ProxyOptions};
use crate::quic::QuicIncoming;
use crate::tls::{self, ServerTls};
use crate::transport::{Peer, Transport, canonical};
use crate::{ByteStream, WebSocketOptions, ws};

/// A connection whose handshake has not begun.
pub struct Incoming(pub(crate) IncomingKind);

pub(crate) enum IncomingKind {
    Stream {
        io: TcpStream,
        address: SocketAddr,
        upgrade: Upgrade,
    },
    Quic(Box<QuicIncoming>),
    /// The address is `None` for most tests.
    Mem {
        io: DuplexStream,
        address: Option<SocketAddr>,
    },
    /// The handshake was that of an HTTP server.
    Upgraded {
        io: Box<dyn ByteStream>,
        peer: Box<Peer>,
        max_frame_bytes: usize,
    },
}

impl Incoming {
    /// Address of the peer, which is a proxy where the listener has the PROXY protocol. `None` for in-memory links
    /// without one. On QUIC the address is not validated yet.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            IncomingKind::Stream { address, .. } => Some(*address),
            IncomingKind::Quic(incoming) => Some(incoming.peer_address()),
            IncomingKind::Mem { address, .. } => *address,
            IncomingKind::Upgraded { peer, .. } => peer.address,
        }
    }

    /// Completes the handshake: PROXY header, TLS, WebSocket upgrade, or QUIC up to the control stream. Its duration
    /// depends on the peer, so it needs a timeout; dropping it closes the connection.
    ///
    /// # Errors
    /// The peer ended the connection, speaks another protocol, or comes through no trusted proxy.
    pub async fn handshake(self) -> Result<Link, HandshakeError> {
        match self.0 {
            // The handshakes are boxed so that the task of a plain connection, which lives as long
            // as the connection, has not the size of the largest of them.
            IncomingKind::Stream { io, address, upgrade } => {
                let peer = Peer::plain(upgrade.transport, Some(address));
                match (&upgrade.proxy, &upgrade.tls, &upgrade.websocket) {
                    (None, None, None) => Ok(Link::single(peer, io)),
                    _ => Box::pin(upgrade.accept(io, address, peer)).await,
                }
            }
            IncomingKind::Quic(incoming) => Box::pin(incoming.handshake()).await,
            IncomingKind::Mem { io, address } => Ok(Link::single(Peer::plain(Transport::Mem, address), io)),
            IncomingKind::Upgraded { io, peer, max_frame_bytes } => {
                Ok(Link::websocket(*peer, ws::upgraded(io, max_frame_bytes)))
            }
        }
    }

    /// Turns the peer away without a handshake.
    pub fn refuse(self) {
        match self.0 {
            IncomingKind::Quic(incoming) => incoming.refuse(),
            // Closed when they are dropped.
            IncomingKind::Stream { .. } | IncomingKind::Mem { .. } | IncomingKind::Upgraded { .. } => {}
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("peer_address", &self.peer_address()).finish_non_exhaustive()
    }
}

/// Layers between TCP and MQTT.
#[derive(Clone)]
pub(crate) struct Upgrade {
    pub(crate) transport: Transport,
    pub(crate) proxy: Option<Arc<ProxyOptions>>,
    pub(crate) tls: Option<ServerTls>,
    pub(crate) websocket: Option<Arc<WebSocketOptions>>,
}

impl Upgrade {
    /// `address`: of the TCP connection.
    async fn accept(
        self,
        mut io: TcpStream,
        address: SocketAddr,
        mut peer: Peer,
    ) -> Result<Link, HandshakeError> {
        if let Some(options) = &self.proxy {
            let header = proxy::read(&mut io, address, options).await?;
            peer.address = Some(header.client.map_or(address, canonical));
            peer.proxy = Some(address);
        }
        let websocket = self.websocket.as_deref();
        let Some(tls) = self.tls else { return accept_websocket(io, peer, websocket).await };
        let io = tls.accept(io, self.transport).await?;
        let session = io.get_ref().1;
        tls::describe(&mut peer, session);
        peer.certificate = tls::client_certificate(session.peer_certificates(), &tls);
        accept_websocket(io, peer, websocket).await
    }
}

async fn accept_websocket(
    io: impl ByteStream + 'static,
    peer: Peer,
    options: Option<&WebSocketOptions>,
) -> Result<Link, HandshakeError> {
    Ok(match options {
        Some(options) => Link::websocket(peer, ws::accept(io, options).await?),
        None => Link::single(peer, io),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_handshake_of_a_plain_connection_is_small() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let io = TcpStream::connect(address).await.expect("connect");
        let upgrade = Upgrade { transport: Transport::Tcp, proxy: None, tls: None, websocket: None };
        let plain = IncomingKind::Stream { io, address, upgrade };
        let handshake = Incoming(plain).handshake();
        // Part of a task that lives as long as the connection; 10,000 of them are idle.
        let size = size_of_val(&handshake);
        assert!(size <= 512, "{size} bytes");
    }
}
