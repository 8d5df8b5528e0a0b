//! Dialers of both protocols for one server, and the attempts that they begin.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::packet::QuicHint;
use braid_select::Protocol;
use braid_transport::{ConnectOptions, Link};
use tokio::time::{Instant, timeout};
use tracing::info;

use super::hint::ServerReference;
use crate::dialer::Dialer;
use crate::error::Error;

/// Attempt to establish a link.
pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<Link, Error>> + Send>>;

/// Dialers of QUIC and TLS.
pub(super) struct Dialers {
    quic: Dialer,
    tls: Dialer,
    /// The dialers of the URL, while a temporary Server Reference is followed.
    origin: Option<Box<(Dialer, Dialer)>>,
    /// Addresses of the server, the preferred one first.
    addresses: Vec<IpAddr>,
    /// Time limit of one attempt.
    limit: Duration,
    /// Time until which the server says that it has no QUIC.
    no_quic_until: Option<Instant>,
    /// Whether the next connection is the one that a Server Reference is for.
    is_referred: bool,
}

impl fmt::Debug for Dialers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialers").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Dialers {
    pub(super) fn new(quic: Dialer, tls: Dialer, limit: Duration) -> Self {
        Self {
            quic,
            tls,
            origin: None,
            addresses: Vec::new(),
            limit,
            no_quic_until: None,
            is_referred: false,
        }
    }

    /// Name of the server for what is remembered of it.
    pub(super) fn origin(&self) -> Arc<str> {
        self.quic.host().unwrap_or("test").into()
    }

    /// Lets attempts of QUIC begin with this round trip.
    pub(super) fn assume_round_trip(&self, round_trip: Duration) {
        if let Some(round_trips) = self.quic.round_trips() {
            for address in &self.addresses {
                round_trips.assume(*address, round_trip);
            }
        }
    }

    /// Whether QUIC may be tried.
    pub(super) fn has_quic(&self) -> bool {
        self.no_quic_until.is_none_or(|until| until <= Instant::now())
    }

    /// Resolves the host, once for both protocols.
    pub(super) async fn resolve(&mut self) -> Result<(), Error> {
        let too_late = Error::ConnectTimeout { seconds: self.limit.as_secs() };
        let resolved = timeout(self.limit, self.tls.resolve()).await.unwrap_or(Err(too_late));
        self.addresses = resolved?;
        Ok(())
    }

    /// Address of this machine from which packets to the server leave. `None` without a network.
    pub(super) fn route(&self) -> Option<IpAddr> {
        self.addresses.iter().find_map(|address| ConnectOptions::route_to(SocketAddr::new(*address, 1)).ok())
    }

    /// Begins an attempt.
    pub(super) fn attempt(&self, over: Protocol, may_be_early: bool) -> Attempt {
        let dialer = match over {
            Protocol::Quic => self.quic.clone(),
            Protocol::Tcp => self.tls.clone(),
        };
        let (addresses, limit) = (self.addresses.clone(), self.limit);
        Box::pin(async move {
            let too_late = Error::ConnectTimeout { seconds: limit.as_secs() };
            let dialled = dialer.dial_addresses(&addresses, may_be_early);
            timeout(limit, dialled).await.unwrap_or(Err(too_late))
        })
    }

    /// Takes a hint of the server about QUIC.
    pub(super) fn take_hint(&mut self, hint: QuicHint) {
        match hint {
            QuicHint::Port { port, max_age } => {
                let changes = self.quic.set_port(port);
                let had_none = self.no_quic_until.take().is_some();
                if changes || had_none {
                    info!("the server says: QUIC on port {port} for {} s", max_age.as_secs());
                }
            }
            QuicHint::None { max_age } => {
                self.no_quic_until = Some(Instant::now() + max_age);
                info!("the server says: no QUIC for {} s", max_age.as_secs());
            }
        }
    }

    /// Goes to another server. The port of a reference is that of the protocol which brought it.
    pub(super) fn refer_to(&mut self, server: &ServerReference, over: Protocol, is_permanent: bool) {
        let before = (self.quic.clone(), self.tls.clone());
        self.quic.set_host(&server.host);
        self.tls.set_host(&server.host);
        match (over, server.port) {
            (Protocol::Quic, Some(port)) => _ = self.quic.set_port(port),
            (Protocol::Tcp, Some(port)) => _ = self.tls.set_port(port),
            (_, None) => {}
        }
        (self.no_quic_until, self.is_referred) = (None, true);
        match is_permanent {
            true => self.origin = None,
            false => _ = self.origin.get_or_insert_with(|| Box::new(before)),
        }
    }

    /// Returns to the server of the URL, if a temporary Server Reference was followed: it holds for one connection.
    /// True: it was.
    pub(super) fn return_to_origin(&mut self) -> bool {
        if std::mem::take(&mut self.is_referred) {
            return false;
        }
        let Some(origin) = self.origin.take() else { return false };
        (self.quic, self.tls) = *origin;
        true
    }
}
