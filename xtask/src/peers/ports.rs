//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Names of the listeners in the scripts; in lower case they are flags of `braidmq serve`. The last one is on UDP.
const LISTENERS: [&str; 5] = ["TCP", "TLS", "WS", "WSS", "QUIC"];

/// One port per listener of the broker.
pub(super) struct Ports([u16; 5]);

impl Ports {
    /// Five different ports that were free a moment ago: all are held until the last one is known.
    pub(super) fn free() -> Result<Self, String> {
        let held = (0..4).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<Vec<_>, _>>();
        let held = held.map_err(|error| format!("no free TCP port on loopback: {error}"))?;
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let udp = udp.map_err(|error| format!("no free UDP port on loopback: {error}"))?;
        let addresses = held.iter().map(TcpListener::local_addr).chain([udp.local_addr()]);
        let mut ports = [0; 5];
        for (port, address) in ports.iter_mut().zip(addresses) {
            *port = address.map_err(|error| error.to_string())?.port();
        }
        Ok(Self(ports))
    }

    /// The listeners with their ports.
    pub(super) fn listeners(&self) -> impl Iterator<Item = (&'static str, u16)> {
        LISTENERS.into_iter().zip(self.0)
    }

    /// The ports that accept a TCP connection once the broker is up: TCP, TLS, WebSocket, WebSocket over TLS.
    pub(super) fn stream_ports(&self) -> [u16; 4] {
        let [ports @ .., _] = self.0;
        ports
    }
}
