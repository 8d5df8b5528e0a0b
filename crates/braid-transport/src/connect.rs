//! Connects of clients.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::error::ConnectError;
use crate::link::Link;
use crate::quic::{self, QuicOptions};
use crate::tcp::TcpOptions;
use crate::tls::{self, ClientTls};
use crate::transport::{Peer, Transport};
use crate::{ByteStream, WebSocketOptions, tcp, ws};

/// Destination of a connect: the parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Transport.
    pub transport: Transport,
    /// A host name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The TCP or UDP port.
    pub port: u16,
    /// For WebSocket: the path with its leading slash, and a query if there is one.
    pub path: String,
}

impl Target {
    /// Resolves the host to its addresses, in the order of the system's preference; never empty. With [`connect_timed`]
    /// many connections share one lookup.
    ///
    /// # Errors
    /// The name has no address.
    pub async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        match self.transport {
            Transport::Mem => Err(ConnectError::no_address()),
            Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss | Transport::Quic => {
                tcp::resolve(&self.host, self.port).await
            }
        }
    }
}

/// Options of a connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// For `ws` and `wss`. The path of the target is used, not the one in here.
    pub websocket: WebSocketOptions,
    /// For `quic`.
    pub quic: QuicOptions,
    /// For transports over TCP.
    pub tcp: TcpOptions,
    /// The address of this machine to connect from; `None` leaves it to the system. Addresses of the host that are of
    /// the other family are not tried then.
    pub local: Option<IpAddr>,
    /// Whether paths of TCP are measured for [`Link::path_sample`]. Costs a file descriptor for each connection.
    pub measured: bool,
}

impl ConnectOptions {
    /// Address of this machine from which the system sends to `server`. No packet is sent.
    ///
    /// # Errors
    /// There is no route.
    pub fn route_to(server: SocketAddr) -> io::Result<IpAddr> {
        let any: IpAddr =
            if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(server)?;
        Ok(socket.local_addr()?.ip())
    }
}

/// Durations of the parts of a connect, from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectTimes {
    /// Duration until TCP was connected; `None` where there is no TCP.
    pub tcp: Option<Duration>,
    /// Duration until TLS or QUIC was established; `None` where nothing is encrypted.
    pub secured: Option<Duration>,
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
    let addresses = target.resolve().await?;
    connect_timed(target, &addresses, tls, options).await.map(|(link, _)| link)
}

/// Connects as [`connect`] to addresses from [`Target::resolve`], and measures the time. Certificates and WebSocket
/// still use the name of the host.
///
/// # Errors
/// As [`connect`].
pub async fn connect_timed(
    target: &Target,
    addresses: &[SocketAddr],
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<(Link, ConnectTimes), ConnectError> {
    let (host, start) = (target.host.as_str(), Instant::now());
    let mut times = ConnectTimes::default();
    let link = match target.transport {
        Transport::Mem => return Err(ConnectError::no_address()),
        Transport::Quic => {
            let link = quic::connect((host, target.port), addresses, tls, options).await?;
            times.secured = Some(start.elapsed());
            link
        }
        transport @ (Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss) => {
            let io = tcp::dial((host, target.port), addresses, &options.tcp, options.local).await?;
            times.tcp = Some(start.elapsed());
            let socket = options.measured.then(|| io.as_fd().try_clone_to_owned().ok()).flatten();
            let mut peer = Peer::plain(transport, io.peer_addr().ok());
            let link = if transport.is_encrypted() {
                let io = tls.connect(io, host, transport).await?;
                times.secured = Some(start.elapsed());
                tls::describe(&mut peer, io.get_ref().1);
                upgrade(io, peer, target, options).await?
            } else {
                upgrade(io, peer, target, options).await?
            };
            link.measured_by(socket)
        }
    };
    Ok((link, times))
}

/// Adds WebSocket where the target asks for it.
async fn upgrade(
    io: impl ByteStream + 'static,
    peer: Peer,
    target: &Target,
    options: &ConnectOptions,
) -> Result<Link, ConnectError> {
    if target.transport.is_websocket() {
        Ok(Link::websocket(peer, ws::connect(io, target, &options.websocket).await?))
    } else {
        Ok(Link::single(peer, io))
    }
}
