//! What a client was told to be, validated.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::ClientOptions;
use braid_proto::packet::Connect;
use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ConnectOptions, Link, Target, mem, sim};
use tokio::time::timeout;

use crate::error::Error;

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) dialer: Dialer,
    /// The CONNECT of the first connection.
    pub(crate) connect: Connect,
    pub(crate) protocol: Arc<ClientOptions>,
    pub(crate) connect_timeout: Duration,
    pub(crate) disconnect_timeout: Duration,
}

/// How to get a link.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    Network(Box<(Target, ClientTls, ConnectOptions)>),
    Memory(mem::Connector),
    Simulated(Box<Simulated>),
}

/// A server on a simulated network.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pub(crate) from: sim::Host,
    pub(crate) server: SocketAddr,
    pub(crate) server_name: String,
    pub(crate) tls: ClientTls,
    pub(crate) quic: QuicOptions,
}

impl Settings {
    /// A link to the server.
    pub(crate) async fn dial(&self, may_be_early: bool) -> Result<Link, Error> {
        let too_late = Error::ConnectTimeout { seconds: self.connect_timeout.as_secs() };
        timeout(self.connect_timeout, self.dialer.dial(may_be_early)).await.unwrap_or(Err(too_late))
    }
}

impl Dialer {
    async fn dial(&self, may_be_early: bool) -> Result<Link, Error> {
        let link = match self {
            Self::Network(network) => {
                let (target, tls, options) = &**network;
                let quic = timely(&options.quic, may_be_early);
                let options = ConnectOptions { quic, ..options.clone() };
                braid_transport::connect(target, tls, &options).await
            }
            Self::Simulated(simulated) => {
                let Simulated { from, server, server_name, tls, quic } = &**simulated;
                let connector = from.connector(*server, tls.clone(), timely(quic, may_be_early));
                connector.server_name(server_name).connect().await
            }
            Self::Memory(connector) => {
                return connector.connect().await.map_err(|_| Error::ConnectionLost);
            }
        };
        link.map_err(|error| Error::Connect(Arc::new(error)))
    }
}

fn timely(options: &QuicOptions, may_be_early: bool) -> QuicOptions {
    QuicOptions { zero_rtt: options.zero_rtt && may_be_early, ..options.clone() }
}
