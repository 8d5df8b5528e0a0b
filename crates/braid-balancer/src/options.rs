//! Options of a balancer, and their check.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use braid_transport::quic::{QuicLbFormat, ServerId};
use thiserror::Error;

/// Options of a balancer.
#[derive(Clone, Debug, Default)]
pub struct BalancerOptions {
    /// TCP ports, such as those of MQTT, TLS and WebSocket.
    pub tcp: Vec<TcpFront>,
    /// UDP port of QUIC.
    pub quic: Option<QuicFront>,
    /// Limits of each port.
    pub limits: BalancerLimits,
}

/// TCP port of a balancer.
#[derive(Clone, Debug)]
pub struct TcpFront {
    /// Address that clients connect to. Port 0 is a free one.
    pub listen: SocketAddr,
    /// Addresses of the nodes, at least one.
    pub backends: Vec<SocketAddr>,
}

/// UDP port of a balancer, for QUIC.
#[derive(Clone, Debug)]
pub struct QuicFront {
    /// Address that clients send to. Port 0 is a free one.
    pub listen: SocketAddr,
    /// Formats of the nodes' connection IDs: one, and a second one while it replaces the first.
    pub formats: Vec<QuicLbFormat>,
    /// Nodes, at least one.
    pub backends: Vec<QuicBackend>,
}

/// Node behind a UDP port.
#[derive(Clone, Copy, Debug)]
pub struct QuicBackend {
    /// Address of its QUIC listener.
    pub address: SocketAddr,
    /// Server ID in its connection IDs.
    pub server_id: ServerId,
}

/// Limits of each port of a balancer.
#[derive(Clone, Debug)]
pub struct BalancerLimits {
    /// TCP connections at a time; the system queues more. Each takes two descriptors.
    pub connections: usize,
    /// Time for a node to accept a TCP connection; then the next one is tried.
    pub connect_timeout: Duration,
    /// Time for which a node that refused gets no new clients, unless all did.
    pub retry_after: Duration,
    /// Pairs of a client's UDP address and a node, each with a socket. One more replaces the one that was unused for
    /// longest.
    pub flows: usize,
    /// Time without datagrams after which such a pair ends. Should exceed the Keep Alive of clients: until a client
    /// sends again, its node cannot reach it.
    pub flow_idle: Duration,
}

impl Default for BalancerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            connect_timeout: Duration::from_secs(2),
            retry_after: Duration::from_secs(2),
            flows: 4096,
            flow_idle: Duration::from_secs(300),
        }
    }
}

/// Error of [`Balancer::start`](crate::Balancer::start).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BalancerError {
    /// No port to listen on is given.
    #[error("the balancer has nothing to do: give a TCP or a QUIC port")]
    NoFront,
    /// A port has no nodes.
    #[error("no node is behind {0}: give the address of one at least")]
    NoBackend(SocketAddr),
    /// A node has the address of the port.
    #[error("{0} is the balancer itself: give the addresses of nodes")]
    Itself(SocketAddr),
    /// A node is listed twice behind one port.
    #[error("node {0} is listed twice: give each once")]
    BackendTwice(SocketAddr),
    /// A limit is zero.
    #[error("`{0}` of the balancer is 0: give 1 at least")]
    Limit(&'static str),
    /// No format of connection IDs is given.
    #[error("the balancer cannot read connection IDs: give the QUIC-LB format of the nodes")]
    NoFormat,
    /// Two formats have one config ID.
    #[error("two QUIC-LB formats have config ID {0}: give each its own")]
    ConfigIdTwice(u8),
    /// A server ID has another length than a format tells.
    #[error(
        "server ID {server_id} has {} bytes, but those of config ID {config_id} have {expected}",
        server_id.as_bytes().len()
    )]
    ServerIdLength {
        /// The server ID.
        server_id: ServerId,
        /// Config ID of the format.
        config_id: u8,
        /// Length of the format's server IDs, bytes.
        expected: usize,
    },
    /// Two nodes have one server ID.
    #[error("two nodes have server ID {0}: give each its own")]
    ServerIdTwice(ServerId),
    /// A port cannot be opened.
    #[error("the balancer cannot listen on {transport} {address}: {source}")]
    Bind {
        /// `TCP` or `UDP`.
        transport: &'static str,
        /// Address of the port.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
}

impl BalancerOptions {
    pub(crate) fn check(&self) -> Result<(), BalancerError> {
        if self.tcp.is_empty() && self.quic.is_none() {
            return Err(BalancerError::NoFront);
        }
        let limits = &self.limits;
        for (name, limit) in [("connections", limits.connections), ("flows", limits.flows)] {
            if limit == 0 {
                return Err(BalancerError::Limit(name));
            }
        }
        let times = [("connect_timeout", limits.connect_timeout), ("flow_idle", limits.flow_idle)];
        if let Some((name, _)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(BalancerError::Limit(name));
        }
        self.tcp.iter().try_for_each(|front| check_addresses(front.listen, &front.backends))?;
        self.quic.as_ref().map_or(Ok(()), QuicFront::check)
    }
}

impl QuicFront {
    fn check(&self) -> Result<(), BalancerError> {
        let addresses: Vec<SocketAddr> = self.backends.iter().map(|backend| backend.address).collect();
        check_addresses(self.listen, &addresses)?;
        if self.formats.is_empty() {
            return Err(BalancerError::NoFormat);
        }
        let mut config_ids = HashSet::new();
        for format in &self.formats {
            let (config_id, expected) = (format.config_id(), format.server_id_length());
            if !config_ids.insert(config_id) {
                return Err(BalancerError::ConfigIdTwice(config_id));
            }
            let mut server_ids = self.backends.iter().map(|backend| backend.server_id);
            if let Some(server_id) = server_ids.find(|id| id.as_bytes().len() != expected) {
                return Err(BalancerError::ServerIdLength { server_id, config_id, expected });
            }
        }
        let mut server_ids = HashSet::new();
        let twice = self.backends.iter().find(|backend| !server_ids.insert(backend.server_id));
        twice.map_or(Ok(()), |backend| Err(BalancerError::ServerIdTwice(backend.server_id)))
    }
}

fn check_addresses(listen: SocketAddr, backends: &[SocketAddr]) -> Result<(), BalancerError> {
    if backends.is_empty() {
        return Err(BalancerError::NoBackend(listen));
    }
    let mut seen = HashSet::new();
    for backend in backends {
        if *backend == listen {
            return Err(BalancerError::Itself(listen));
        }
        if !seen.insert(backend) {
            return Err(BalancerError::BackendTwice(*backend));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn valid() -> BalancerOptions {
        let format = |config_id| QuicLbFormat::new(config_id, 2, 6, None).expect("in range");
        let node =
            |port, id| QuicBackend { address: address(port), server_id: ServerId::new(id).expect("ID") };
        let (formats, backends) = (vec![format(0), format(1)], vec![node(1, &[0, 1]), node(2, &[0, 2])]);
        BalancerOptions {
            tcp: vec![TcpFront { listen: address(9), backends: vec![address(1), address(2)] }],
            quic: Some(QuicFront { listen: address(9), formats, backends }),
            limits: BalancerLimits::default(),
        }
    }

    type Change = fn(&mut BalancerOptions);

    fn quic(options: &mut BalancerOptions) -> &mut QuicFront {
        options.quic.as_mut().expect("QUIC")
    }

    #[test]
    fn options_are_checked() {
        valid().check().expect("valid");
        let cases: [(Change, &str); 15] = [
            (|options| *options = BalancerOptions::default(), "nothing to do"),
            (|options| options.tcp[0].backends.clear(), "no node is behind 127.0.0.1:9"),
            (|options| quic(options).backends.clear(), "no node is behind 127.0.0.1:9"),
            (|options| options.tcp[0].backends[1] = address(9), "127.0.0.1:9 is the balancer itself"),
            (|options| quic(options).backends[1].address = address(9), "127.0.0.1:9 is the balancer itself"),
            (|options| options.tcp[0].backends[1] = address(1), "node 127.0.0.1:1 is listed twice"),
            (|options| quic(options).backends[1].address = address(1), "node 127.0.0.1:1 is listed twice"),
            (|options| options.limits.connections = 0, "`connections` of the balancer is 0"),
            (|options| options.limits.flows = 0, "`flows` of the balancer is 0"),
            (
                |options| options.limits.connect_timeout = Duration::ZERO,
                "`connect_timeout` of the balancer is 0",
            ),
            (|options| options.limits.flow_idle = Duration::ZERO, "`flow_idle` of the balancer is 0"),
            (|options| quic(options).formats.clear(), "give the QUIC-LB format"),
            (
                |options| quic(options).formats[1] = QuicLbFormat::new(0, 2, 8, None).expect("in range"),
                "two QUIC-LB formats have config ID 0",
            ),
            (
                |options| quic(options).formats[1] = QuicLbFormat::new(1, 3, 8, None).expect("in range"),
                "server ID 0001 has 2 bytes, but those of config ID 1 have 3",
            ),
            (
                |options| quic(options).backends[1].server_id = ServerId::new(&[0, 1]).expect("ID"),
                "two nodes have server ID 0001",
            ),
        ];
        for (change, text) in cases {
            let mut options = valid();
            change(&mut options);
            let error = options.check().expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
