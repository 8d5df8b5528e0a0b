//! A simulated network for QUIC: UDP inside this process, on tokio's clock, paused or not.
//!
//! [`Host`]s are attached to a perfect [`Network`], each by a link of its own whose two directions
//! have [`Conditions`] that can change at any time. With a paused clock a minute of network takes
//! as long as its computing, and one seed decides all losses and delays. Delays have tokio's
//! granularity of one millisecond, and are at least one.
//!
//! ```no_run
//! # async fn example(server_tls: braid_transport::ServerTls, client_tls: braid_transport::ClientTls) {
//! use std::time::Duration;
//!
//! use braid_transport::quic::QuicOptions;
//! use braid_transport::sim::Network;
//!
//! let network = Network::new(7);
//! let listener = network.listen(server_tls, &Default::default()).expect("a free port");
//! let device = network.host("device");
//! device.change(|link| link.latency = Duration::from_millis(50));
//! let server = listener.local_addr().expect("an address");
//! let link = device.connector(server, client_tls, QuicOptions::client()).connect().await;
//! # }
//! ```

mod frame;
mod link;
mod switch;

pub use link::{Conditions, Counters, Direction, Policer, Shaper};
pub use switch::{Arrival, Datagram, Host, Recording, Socket};

pub(crate) use switch::Switch;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{BindError, ConnectError};
use crate::link::Link;
use crate::listener::{ListenOptions, Listener};
use crate::quic::{LocalPath, Multipath, PathMode, QuicListener, QuicOptions};
use crate::tls::{ClientTls, ServerTls};
use crate::{Transport, quic};

/// The host that [`Network::listen`] listens on.
const SERVER: &str = "server";

/// A network without delay or loss. Clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    switch: Arc<Switch>,
}

impl Network {
    /// An empty network. `seed` decides every loss and delay.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { switch: Arc::new(Switch::new(seed)) }
    }

    /// The host of this name; a new one, with a perfect link, if there is none.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        Host { id: self.switch.host(name), switch: Arc::clone(&self.switch) }
    }

    /// Listens for MQTT over QUIC on the usual port of the host `server`, or on a free one when
    /// that is taken.
    ///
    /// # Errors
    /// QUIC cannot use the certificate.
    pub fn listen(&self, tls: ServerTls, options: &ListenOptions) -> Result<Listener, BindError> {
        self.host(SERVER).listen(tls, options)
    }
}

impl Host {
    /// Listens for MQTT over QUIC, like [`Network::listen`].
    ///
    /// # Errors
    /// QUIC cannot use the certificate.
    pub fn listen(&self, tls: ServerTls, options: &ListenOptions) -> Result<Listener, BindError> {
        if options.proxy.is_some() {
            return Err(BindError::proxy_without_tcp());
        }
        let port = Transport::Quic.default_port();
        let socket = self.attach(Some(port)).or_else(|_| self.attach(None)).map_err(|source| {
            let address = SocketAddr::from(([0, 0, 0, 0], port));
            BindError::from_io("UDP", address, &source)
        })?;
        let listener = QuicListener::simulated(self, socket, tls, &options.quic)?;
        Ok(Listener::from_quic(listener))
    }

    /// The network that it is attached to.
    #[must_use]
    pub fn network(&self) -> Network {
        Network { switch: Arc::clone(&self.switch) }
    }

    /// Connector from this host to `server`.
    #[must_use]
    pub fn connector(&self, server: SocketAddr, tls: ClientTls, options: QuicOptions) -> Connector {
        Connector { hosts: vec![self.clone()], server, server_name: "localhost".to_owned(), tls, options }
    }
}

/// Connects from one [`Host`] to one server, each time from a new port.
#[derive(Clone, Debug)]
pub struct Connector {
    /// The host, and those that are its further interfaces.
    hosts: Vec<Host>,
    server: SocketAddr,
    server_name: String,
    tls: ClientTls,
    options: QuicOptions,
}

impl Connector {
    /// Sets the name that the server's certificate must have, `localhost` by default.
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

    /// Opens paths from these hosts, too, as from further interfaces of the host, each with a link of its own.
    #[must_use]
    pub fn paths(mut self, others: &[Host], mode: PathMode) -> Self {
        self.hosts.truncate(1);
        self.hosts.extend(others.iter().cloned());
        let locals = self.hosts.iter().map(|host| LocalPath::Interface(host.name().into())).collect();
        self.options.multipath = Multipath { locals, mode, ..Multipath::default() };
        self
    }

    /// The host it connects from.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.hosts[0]
    }

    /// A new link, as [`connect`](crate::connect()) makes it for `quic`.
    ///
    /// # Errors
    /// As [`connect`](crate::connect()).
    pub async fn connect(&self) -> Result<Link, ConnectError> {
        quic::connect_simulated(&self.hosts, self.server, &self.server_name, &self.tls, &self.options).await
    }
}
