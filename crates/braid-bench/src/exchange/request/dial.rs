use std::io;

use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ConnectError, ConnectOptions, Link, Target, connect, mem, sim};

use super::Failure;

/// Makes connections to the server.
pub trait Dial: Clone + Send + Sync + 'static {
    /// A new link. `early`: it may be used before the handshake is done (0-RTT), where that can be.
    fn dial(&self, early: bool) -> impl Future<Output = Result<Link, Failure>> + Send;
}

/// A server on the network.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Where it is. On TCP, TLS or QUIC; nothing else is served.
    pub target: Target,
    /// Trust settings. On QUIC the client offers [`ALPN`](crate::exchange::ALPN).
    pub tls: ClientTls,
    /// Options of the connection.
    pub options: ConnectOptions,
}

impl Dial for Reach {
    async fn dial(&self, early: bool) -> Result<Link, Failure> {
        let quic = QuicOptions { zero_rtt: early, ..self.options.quic.clone() };
        let options = ConnectOptions { quic, ..self.options.clone() };
        connect(&self.target, &self.tls, &options).await.map_err(Failure::from)
    }
}

impl Dial for mem::Connector {
    async fn dial(&self, _early: bool) -> Result<Link, Failure> {
        self.connect().await.map_err(Failure::from)
    }
}

impl Dial for sim::Connector {
    async fn dial(&self, early: bool) -> Result<Link, Failure> {
        self.clone().zero_rtt(early).connect().await.map_err(Failure::from)
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Box::new(error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Link(error)
    }
}
