//! A simulated network for QUIC: UDP inside this process, on tokio's clock, paused or not.
//!
//! [`Host`]s are attached to a perfect [`Network`], each by a link of its own whose two directions
//! have [`Conditions`] that can change at any time. With a paused clock a minute of network takes
//! as long as its computing, and one seed decides all losses and delays. Arrivals keep tokio's
//! granularity of one millisecond, and nothing arrives sooner than after one.
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

mod conditions;
mod connector;
mod lane;
mod random;
mod recording;
mod switch;

pub use conditions::{Conditions, Counters, Direction, Policer, Shaper};
pub use connector::Connector;
pub use recording::{Datagram, Recording};

pub(crate) use switch::{Arrival, Attached, Switch};

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::BindError;
use crate::listener::{ListenOptions, Listener};
use crate::quic::{QuicListener, QuicOptions};
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

/// One machine on a [`Network`], and its link. Clones are the same machine.
#[derive(Clone)]
pub struct Host {
    id: usize,
    switch: Arc<Switch>,
}

impl Host {
    /// The name it was asked for with.
    #[must_use]
    pub fn name(&self) -> String {
        self.switch.host_name(self.id)
    }

    /// Changes both directions of the link. Datagrams on their way are not affected.
    pub fn change(&self, change: impl Fn(&mut Conditions)) {
        self.change_one(Direction::Up, &change);
        self.change_one(Direction::Down, &change);
    }

    /// Changes one direction of the link. Datagrams on their way are not affected.
    pub fn change_one(&self, direction: Direction, change: impl FnOnce(&mut Conditions)) {
        self.switch.change(self.id, direction, change);
    }

    /// What one direction of the link has carried and dropped.
    #[must_use]
    pub fn counters(&self, direction: Direction) -> Counters {
        self.switch.counters(self.id, direction)
    }

    /// Keeps a copy of every datagram from now on.
    #[must_use]
    pub fn record(&self) -> Recording {
        self.switch.record(self.id)
    }

    /// Sends one datagram from a port that is used for nothing else.
    pub fn send(&self, to: SocketAddr, bytes: &[u8]) {
        if let Some(socket) = self.switch.attach(self.id, None) {
            self.switch.send(socket.id, to, None, bytes);
            self.switch.detach(socket.id);
        }
    }

    /// The NAT in front of the host forgets its mappings: peers see another address from now on,
    /// and what they send to the old one is lost. The host itself notices nothing.
    pub fn rebind_nat(&self) {
        self.switch.rebind_nat(self.id);
    }

    /// Listens for MQTT over QUIC, like [`Network::listen`].
    ///
    /// # Errors
    /// QUIC cannot use the certificate.
    pub fn listen(&self, tls: ServerTls, options: &ListenOptions) -> Result<Listener, BindError> {
        let port = Transport::Quic.default_port();
        let socket = self.attach(Some(port)).or_else(|_| self.attach(None)).map_err(|source| {
            let address = SocketAddr::from(([0, 0, 0, 0], port));
            BindError::from_io("UDP", address, source)
        })?;
        let listener = QuicListener::simulated(self, socket, tls, &options.quic)?;
        Ok(Listener::from_quic(listener))
    }

    /// What connects from this host to `server`.
    #[must_use]
    pub fn connector(&self, server: SocketAddr, tls: ClientTls, options: QuicOptions) -> Connector {
        Connector::new(self.clone(), server, tls, options)
    }

    /// A bare endpoint of the QUIC library, which serves if it has a configuration to serve with.
    ///
    /// # Errors
    /// The library cannot start.
    pub fn endpoint(&self, config: Option<noq::ServerConfig>) -> io::Result<noq::Endpoint> {
        quic::simulated_endpoint(self, config)
    }

    /// A socket; it lives until the switch is told otherwise.
    pub(crate) fn attach(&self, port: Option<u16>) -> io::Result<Attached> {
        self.switch.attach(self.id, port).ok_or_else(|| io::ErrorKind::AddrInUse.into())
    }

    pub(crate) fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Host").field(&self.name()).finish()
    }
}
