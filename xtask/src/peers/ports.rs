//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// One port per listener of the broker.
pub(super) struct Ports {
    pub(super) tcp: u16,
    pub(super) tls: u16,
    pub(super) ws: u16,
    pub(super) wss: u16,
    pub(super) quic: u16,
}

impl Ports {
    /// Five different ports that were free a moment ago: all are held until the last one is known.
    pub(super) fn free() -> Result<Self, String> {
        let held = (0..4).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<Vec<_>, _>>();
        let held = held.map_err(|error| format!("no free TCP port on loopback: {error}"))?;
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let udp = udp.map_err(|error| format!("no free UDP port on loopback: {error}"))?;
        let mut tcp = Vec::new();
        for listener in &held {
            tcp.push(listener.local_addr().map_err(|error| error.to_string())?.port());
        }
        let quic = udp.local_addr().map_err(|error| error.to_string())?.port();
        Ok(Self { tcp: tcp[0], tls: tcp[1], ws: tcp[2], wss: tcp[3], quic })
    }

    /// The ports that accept a TCP connection once the broker is up.
    pub(super) fn stream_ports(&self) -> [u16; 4] {
        [self.tcp, self.tls, self.ws, self.wss]
    }
}
