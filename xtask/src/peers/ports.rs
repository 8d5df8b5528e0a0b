//! Free ports on loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};

/// Names of the listeners in the scripts; in lower case they are flags of `braidmq serve`. QUIC is on UDP, HTTP on
/// both.
const LISTENERS: [&str; 6] = ["TCP", "TLS", "WS", "WSS", "QUIC", "HTTP"];
/// Ports of TCP that the system offers until one is free on UDP too.
const TRIES: usize = 16;

/// One port per listener of the broker, one for the server behind its proxy routes, and those of a cluster.
pub(super) struct Ports {
    listeners: [u16; 6],
    upstream: u16,
    /// Scripts inherit it: a port alone could become that of a connection before one of them listens.
    upstream_socket: TcpListener,
    nats: NatsPorts,
}

/// Ports of each server of NATS.
#[derive(Clone, Copy)]
pub(super) struct NatsPorts {
    pub(super) clients: u16,
    pub(super) routes: u16,
    pub(super) monitor: u16,
}

impl Ports {
    /// Different ports that were free a moment ago: all are held until the last one is known.
    pub(super) fn free() -> Result<Self, String> {
        Self::find().map_err(|error| format!("no free port on loopback: {error}"))
    }

    fn find() -> io::Result<Self> {
        let tcp = (0..7).map(|_| free_tcp()).collect::<io::Result<Vec<_>>>()?;
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (http, _http_udp) = free_on_both()?;
        let port = |held: &TcpListener| held.local_addr().map(|address| address.port());
        let listeners = [
            port(&tcp[0])?,
            port(&tcp[1])?,
            port(&tcp[2])?,
            port(&tcp[3])?,
            udp.local_addr()?.port(),
            port(&http)?,
        ];
        let nats = NatsPorts { clients: port(&tcp[4])?, routes: port(&tcp[5])?, monitor: port(&tcp[6])? };
        let upstream_socket = free_tcp()?;
        fcntl_setfd(&upstream_socket, FdFlags::empty())?;
        Ok(Self { listeners, upstream: port(&upstream_socket)?, upstream_socket, nats })
    }

    /// The listeners with their ports.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (&'static str, u16)> {
        LISTENERS.into_iter().zip(self.listeners)
    }

    /// The ports that accept TCP connections of MQTT clients: TCP, TLS, WebSocket, WebSocket over TLS.
    pub(super) fn stream_ports(&self) -> [u16; 4] {
        let [ports @ .., _, _] = self.listeners;
        ports
    }

    /// The port of HTTP, on TCP and UDP.
    pub(super) fn http(&self) -> u16 {
        self.listeners[5]
    }

    /// The ports of each server of NATS, which has an address of its own.
    pub(super) fn nats(&self) -> NatsPorts {
        self.nats
    }

    /// The port of the server behind the proxy routes, which a script starts.
    pub(super) fn upstream(&self) -> u16 {
        self.upstream
    }

    /// File descriptor of the socket that this server listens on.
    pub(super) fn upstream_fd(&self) -> RawFd {
        self.upstream_socket.as_raw_fd()
    }
}

fn free_tcp() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

fn free_on_both() -> io::Result<(TcpListener, UdpSocket)> {
    let mut tries = TRIES;
    loop {
        let tcp = free_tcp()?;
        match UdpSocket::bind(tcp.local_addr()?) {
            Ok(udp) => return Ok((tcp, udp)),
            Err(error) if tries == 1 => return Err(error),
            Err(_) => tries -= 1,
        }
    }
}
