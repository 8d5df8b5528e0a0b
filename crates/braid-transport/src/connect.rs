//! The client's way to a link.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

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

impl Target {
    /// The addresses of the host, in the order of the system's preference; never empty. With [`connect_timed`] many
    /// connections take one lookup.
    ///
    /// # Errors
    /// The name has no address.
    pub async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        match self.transport {
            Transport::Mem => Err(ConnectError::NoAddress),
            _ => tcp::resolve(&self.host, self.port).await,
        }
    }
}

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// For `ws` and `wss`. The target's path counts, not the one in here.
    pub websocket: WebSocketOptions,
    /// For `quic`.
    pub quic: QuicOptions,
    /// For all that run over TCP.
    pub tcp: TcpOptions,
    /// The address of this machine to connect from; `None` leaves it to the system. Addresses of the host that are of
    /// the other family are not tried then.
    pub local: Option<IpAddr>,
}

/// How TCP is tuned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The congestion control of the socket by the system's name for it, such as `cubic` (Linux); `None` for the
    /// system's own choice.
    pub congestion: Option<Box<str>>,
}

impl TcpOptions {
    /// Whether sockets can be tuned so, known before anything is connected.
    ///
    /// # Errors
    /// [`ConnectError::Congestion`]: there is no such congestion control, or this process may not choose it.
    pub fn check(&self) -> Result<(), ConnectError> {
        tcp::check(self)
    }
}

/// How long the parts of connecting took, each from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectTimes {
    /// Until TCP was connected; `None` where there is no TCP.
    pub tcp: Option<Duration>,
    /// Until TLS or QUIC was established; `None` where nothing is encrypted.
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

/// As [`connect`] to the host's addresses from [`Target::resolve`], and tells how long it took. The host's name counts for
/// certificates and WebSocket all the same.
///
/// # Errors
/// As [`connect`].
pub async fn connect_timed(
    target: &Target,
    addresses: &[SocketAddr],
    tls: &ClientTls,
    options: &ConnectOptions,
) -> Result<(Link, ConnectTimes), ConnectError> {
    let Target { host, port, path, .. } = target;
    let start = Instant::now();
    let mut times = ConnectTimes::default();
    if target.transport == Transport::Quic {
        let link = quic::connect((host, *port), addresses, tls, options).await?;
        times.secured = Some(start.elapsed());
        return Ok((link, times));
    }
    if target.transport == Transport::Mem {
        return Err(ConnectError::NoAddress);
    }
    let io = tcp::dial((host, *port), addresses, &options.tcp, options.local).await?;
    times.tcp = Some(start.elapsed());
    let mut peer = Peer::plain(target.transport, io.peer_addr().ok());
    let link = match target.transport {
        Transport::Tls => {
            let io = tls.connect_mqtt(io, host).await?;
            times.secured = Some(start.elapsed());
            tls::describe(&mut peer, io.get_ref().1);
            single(peer, io)
        }
        Transport::Wss => {
            let io = tls.connect_http(io, host).await?;
            times.secured = Some(start.elapsed());
            tls::describe(&mut peer, io.get_ref().1);
            single(peer, ws::connect(io, host, *port, path, &options.websocket).await?)
        }
        Transport::Ws => single(peer, ws::connect(io, host, *port, path, &options.websocket).await?),
        Transport::Tcp | Transport::Quic | Transport::Mem => single(peer, io),
    };
    Ok((link, times))
}
