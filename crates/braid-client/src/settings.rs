//! What a client was told to be, validated.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::ClientOptions;
use braid_proto::packet::Connect;
use braid_transport::{ClientTls, ConnectOptions, Link, Target, mem};
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
}

impl Settings {
    /// A link to the server.
    pub(crate) async fn dial(&self) -> Result<Link, Error> {
        let too_late = Error::ConnectTimeout { seconds: self.connect_timeout.as_secs() };
        timeout(self.connect_timeout, self.dialer.dial()).await.unwrap_or(Err(too_late))
    }
}

impl Dialer {
    async fn dial(&self) -> Result<Link, Error> {
        match self {
            Self::Network(network) => {
                let (target, tls, options) = &**network;
                let link = braid_transport::connect(target, tls, options).await;
                link.map_err(|error| Error::Connect(Arc::new(error)))
            }
            Self::Memory(connector) => connector.connect().await.map_err(|_| Error::ConnectionLost),
        }
    }
}
