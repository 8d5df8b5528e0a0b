//! The client's way to a link.

use crate::error::ConnectError;
use crate::link::{Link, Peer, Transport};
use crate::quic::{self, QuicOptions};
use crate::single::single;
use crate::tls::{self, ClientTls};
use crate::{WebSocketOptions, tcp, ws};

/// Where to connect to: a URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How.
    pub transport: Transport,
    /// A host name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The TCP or UDP port.
    pub port: u16,
    /// For WebSocket: the path with its leading slash, and a query if there is one.
    pub path: String,
}

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// For `ws` and `wss`. The target's path counts, not the one in here.
    pub websocket: WebSocketOptions,
    /// For `quic`.
    pub quic: QuicOptions,
}

/// Connects to `target`, trying each of the host's addresses in turn. On QUIC the control stream is
/// open; the server learns of it with the first bytes written.
///
/// There is no time limit beyond those of the operating system and of QUIC: put one around it.
///
/// # Errors
/// No address answers, TLS or WebSocket or QUIC cannot be agreed upon, or a certificate file cannot
/// be used. Each message says what to change.
pub async fn connect(
    target: &Target,
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<Link, ConnectError> {
    let Target { host, port, path, .. } = target;
    match target.transport {
        Transport::Tcp => {
            let io = tcp::dial(host, *port).await?;
            Ok(single(peer(Transport::Tcp, &io), io))
        }
        Transport::Tls => {
            let io = tls.connect_mqtt(tcp::dial(host, *port).await?, host).await?;
            let mut peer = peer(Transport::Tls, io.get_ref().0);
            tls::describe(&mut peer, io.get_ref().1);
            Ok(single(peer, io))
        }
        Transport::Ws => {
            let io = tcp::dial(host, *port).await?;
            let peer = peer(Transport::Ws, &io);
            Ok(single(peer, ws::connect(io, host, *port, path, &options.websocket).await?))
        }
        Transport::Wss => {
            let io = tls.connect_http(tcp::dial(host, *port).await?, host).await?;
            let mut peer = peer(Transport::Wss, io.get_ref().0);
            tls::describe(&mut peer, io.get_ref().1);
            Ok(single(peer, ws::connect(io, host, *port, path, &options.websocket).await?))
        }
        Transport::Quic => quic::connect(host, *port, tls, &options.quic).await,
        Transport::Mem => Err(ConnectError::NoAddress),
    }
}

fn peer(transport: Transport, io: &tokio::net::TcpStream) -> Peer {
    Peer::plain(transport, io.peer_addr().ok())
}
