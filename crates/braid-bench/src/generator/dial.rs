use std::io;
use std::net::IpAddr;
use std::time::Duration;

use braid_transport::{
    ClientTls, ConnectError, ConnectOptions, ConnectTimes, Link, Target, Transport, connect_timed, mem, sim,
};
use tokio::time::{Instant, timeout};

use crate::emqtt::Counter;

/// How long one attempt may take until there is a link. TCP would go on for two minutes.
const PATIENCE: Duration = Duration::from_secs(15);

/// How the clients reach the broker.
#[derive(Debug)]
pub struct Dialer {
    way: Way,
}

#[derive(Debug)]
enum Way {
    Network { targets: Vec<Target>, tls: ClientTls, options: Box<ConnectOptions>, addresses: Vec<IpAddr> },
    Memory(mem::Connector),
    Simulation(sim::Connector),
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No host.
    #[error("no host: give one with -h")]
    NoHost,
    /// The transport says why.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The broker in this process is gone.
    #[error(transparent)]
    Memory(#[from] io::Error),
    /// Nobody answered.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Timeout,
}

impl Dialer {
    /// Over the network: client 1 goes to the first target from the first of the local `addresses`, and the others
    /// follow in turn; where there are none, from that of `options`. `options` have the congestion controls of both TCP
    /// and QUIC.
    ///
    /// # Errors
    /// There is no target, the congestion control of TCP cannot be had here, or a certificate file cannot be used.
    pub fn new(
        targets: Vec<Target>,
        tls: ClientTls,
        options: ConnectOptions,
        addresses: Vec<IpAddr>,
    ) -> Result<Self, DialError> {
        if targets.is_empty() {
            return Err(DialError::NoHost);
        }
        if targets.iter().any(|target| target.transport != Transport::Quic) {
            options.tcp.check()?;
        }
        if targets.iter().any(|target| target.transport.is_encrypted()) {
            tls.check().map_err(ConnectError::from)?;
        }
        Ok(Self { way: Way::Network { targets, tls, options: Box::new(options), addresses } })
    }

    /// To a broker in this process.
    #[must_use]
    pub fn in_memory(connector: mem::Connector) -> Self {
        Self { way: Way::Memory(connector) }
    }

    /// Over a simulated network.
    #[must_use]
    pub fn in_simulation(connector: sim::Connector) -> Self {
        Self { way: Way::Simulation(connector) }
    }

    /// Whether a client goes over QUIC.
    pub(super) fn is_quic(&self, client: u64) -> bool {
        match &self.way {
            Way::Network { targets, .. } => {
                nth(targets, client).is_some_and(|target| target.transport == Transport::Quic)
            }
            Way::Memory(_) => false,
            Way::Simulation(_) => true,
        }
    }

    /// The address that a client has for itself alone or with others, of several local ones.
    pub(super) fn local(&self, client: u64) -> Option<IpAddr> {
        match &self.way {
            Way::Network { addresses, .. } => nth(addresses, client).copied(),
            Way::Memory(_) | Way::Simulation(_) => None,
        }
    }

    /// A link for a client, and how long its parts took.
    pub(super) async fn dial(&self, client: u64) -> Result<(Link, ConnectTimes), DialError> {
        timeout(PATIENCE, self.attempt(client)).await.unwrap_or(Err(DialError::Timeout))
    }

    async fn attempt(&self, client: u64) -> Result<(Link, ConnectTimes), DialError> {
        match &self.way {
            Way::Network { targets, tls, options, addresses } => {
                let target = nth(targets, client).ok_or(DialError::NoHost)?;
                let Some(&local) = nth(addresses, client) else {
                    return Ok(connect_timed(target, tls, options).await?);
                };
                let options = ConnectOptions { local: Some(local), ..ConnectOptions::clone(options) };
                Ok(connect_timed(target, tls, &options).await?)
            }
            Way::Memory(connector) => Ok((connector.connect().await?, ConnectTimes::default())),
            Way::Simulation(connector) => {
                let start = Instant::now();
                let link = connector.connect().await?;
                Ok((link, ConnectTimes { tcp: None, secured: Some(start.elapsed()) }))
            }
        }
    }
}

impl DialError {
    /// What else it counts as, if it is QUIC that failed.
    pub(super) fn quic_counter(&self) -> Option<Counter> {
        match self {
            Self::Timeout => Some(Counter::ConnectionTimeout),
            Self::Connect(ConnectError::Unreachable { reason, .. }) => {
                // The system's or QUIC's word on one address; nothing else tells silence from refusal.
                let is_silence = reason.contains("no answer");
                Some(if is_silence { Counter::ConnectionTimeout } else { Counter::Unreachable })
            }
            Self::Connect(ConnectError::Resolve { .. }) => Some(Counter::Unreachable),
            Self::Connect(_) => Some(Counter::ConnectionRefused),
            Self::NoHost | Self::Memory(_) => None,
        }
    }
}

/// Clients are counted from 1.
fn nth<T>(of: &[T], client: u64) -> Option<&T> {
    let at = client.saturating_sub(1).checked_rem(of.len() as u64)?;
    of.get(usize::try_from(at).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_1_has_the_first_and_the_others_follow_in_turn() {
        let found = [1, 2, 3, 4].map(|client| nth(&["a", "b", "c"], client));
        assert_eq!(found, [Some(&"a"), Some(&"b"), Some(&"c"), Some(&"a")]);
        assert_eq!(nth::<u8>(&[], 1), None);
    }

    #[test]
    fn a_client_is_named_after_its_own_address() {
        let target = Target { transport: Transport::Tcp, host: "h".to_owned(), port: 1, path: String::new() };
        let addresses: Vec<IpAddr> = vec![[127, 0, 0, 2].into(), [127, 0, 0, 3].into()];
        let dialer = |addresses| {
            Dialer::new(vec![target.clone()], ClientTls::default(), ConnectOptions::default(), addresses)
        };
        let local = |addresses, client| dialer(addresses).expect("one target").local(client);
        assert_eq!(
            [1, 2, 3].map(|client| local(addresses.clone(), client)),
            [0, 1, 0].map(|at| Some(addresses[at]))
        );
        assert_eq!(local(Vec::new(), 1), None);
    }
}
