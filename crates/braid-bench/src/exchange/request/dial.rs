use std::io;

use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ConnectError, ConnectOptions, Link, Target, connect, mem, sim};

use super::Failure;

/// Source of connections to the server.
pub trait Dial: Clone + Send + Sync + 'static {
    /// Connects. With `early` the link may be used before the end of the handshake (0-RTT), where that is possible.
    fn dial(&self, early: bool) -> impl Future<Output = Result<Link, Failure>> + Send;
}

/// A server on the network.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Address on TCP, TLS or QUIC, the transports of this protocol.
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
