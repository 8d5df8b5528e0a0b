//! A client's way into the simulated network.

use std::net::SocketAddr;

use super::Host;
use crate::error::ConnectError;
use crate::link::Link;
use crate::quic::{self, QuicOptions};
use crate::tls::ClientTls;

/// Connects from one [`Host`] to one server, each time from a new port.
#[derive(Clone, Debug)]
pub struct Connector {
    host: Host,
    server: SocketAddr,
    server_name: String,
    tls: ClientTls,
    options: QuicOptions,
}

impl Connector {
    pub(super) fn new(host: Host, server: SocketAddr, tls: ClientTls, options: QuicOptions) -> Self {
        Self { host, server, server_name: "localhost".to_owned(), tls, options }
    }

    /// Asks for a certificate of this name; `localhost` unless called.
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.server_name);
        self
    }

    /// Sends early data when it can, or never; in place of
    /// [`QuicOptions::zero_rtt`]. Both have the same tickets.
    #[must_use]
    pub fn zero_rtt(mut self, zero_rtt: bool) -> Self {
        self.options.zero_rtt = zero_rtt;
        self
    }

    /// The host it connects from.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// A new link, as [`connect`](crate::connect()) makes it for `quic`.
    ///
    /// # Errors
    /// As [`connect`](crate::connect()).
    pub async fn connect(&self) -> Result<Link, ConnectError> {
        quic::connect_simulated(&self.host, self.server, &self.server_name, &self.tls, &self.options).await
    }
}
