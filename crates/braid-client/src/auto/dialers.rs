//! Dialers of both protocols for one server, and the attempts that they begin.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::packet::QuicHint;
use braid_select::Protocol;
use braid_transport::{ConnectOptions, Link};
use tokio::time::Instant;
use tracing::info;

use super::hint::ServerReference;
use crate::dialer::{Dialer, within};
use crate::error::Error;

/// Attempt to establish a link.
pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<Link, Error>> + Send>>;

/// Longest time for which a hint is kept: a day in RFC 7838, and no server needs more than a year.
const LONGEST_HINT: Duration = Duration::from_secs(365 * 24 * 3600);

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
    /// Hint of the present server about QUIC, with the end of its lifetime.
    hint: Option<(QuicHint, Instant)>,
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
        Self { quic, tls, origin: None, addresses: Vec::new(), limit, hint: None, is_referred: false }
    }

    /// Server part of the selector's key.
    pub(super) fn server(&self) -> Arc<str> {
        self.quic.host().unwrap_or("test").into()
    }

    /// Lets attempts of QUIC begin with this round trip.
    pub(super) fn assume_round_trip(&self, round_trip: Duration) {
        if let Some(known_paths) = self.quic.known_paths() {
            for address in &self.addresses {
                known_paths.assume(*address, round_trip);
            }
        }
    }

    /// Whether QUIC may be tried.
    pub(super) fn has_quic(&self) -> bool {
        !matches!(self.hint(), Some(QuicHint::None { .. }))
    }

    /// The hint that holds now.
    fn hint(&self) -> Option<QuicHint> {
        self.hint.filter(|(_, until)| *until > Instant::now()).map(|(hint, _)| hint)
    }

    /// Resolves the host, once for both protocols.
    pub(super) async fn resolve(&mut self) -> Result<(), Error> {
        self.addresses = within(self.limit, self.tls.resolve()).await?;
        Ok(())
    }

    /// Address of this machine from which packets to the server leave. `to`: its address, if it is known better than by
    /// its name. `None` without a network.
    pub(super) fn route(&self, to: Option<SocketAddr>) -> Option<IpAddr> {
        if let Some(to) = to {
            return ConnectOptions::route_to(to).ok();
        }
        self.addresses.iter().find_map(|address| ConnectOptions::route_to(SocketAddr::new(*address, 1)).ok())
    }

    /// Begins an attempt of a connect, to the addresses that were resolved for it.
    pub(super) fn attempt(&self, over: Protocol, may_be_early: bool) -> Attempt {
        let (dialer, addresses, limit) = (self.dialer(over), self.addresses.clone(), self.limit);
        Box::pin(async move { within(limit, dialer.dial_addresses(&addresses, may_be_early)).await })
    }

    /// Begins an attempt beside a connection. The host is resolved again: the network may be another one by now.
    pub(super) fn attempt_beside(&self, over: Protocol) -> Attempt {
        let (dialer, limit) = (self.dialer(over), self.limit);
        Box::pin(async move { within(limit, dialer.dial(false)).await })
    }

    fn dialer(&self, over: Protocol) -> Dialer {
        let mut dialer = match over {
            Protocol::Quic => self.quic.clone(),
            Protocol::Tcp => self.tls.clone(),
        };
        if let (Protocol::Quic, Some(QuicHint::Port { port, .. })) = (over, self.hint()) {
            dialer.set_port(port);
        }
        dialer
    }

    /// Takes a hint of the server about QUIC, for its lifetime. [BQ-90]
    pub(super) fn take_hint(&mut self, hint: QuicHint) {
        let is_new = self.hint() != Some(hint);
        let max_age = match hint {
            QuicHint::Port { max_age, .. } | QuicHint::None { max_age } => max_age,
        };
        let until = Instant::now().checked_add(max_age.min(LONGEST_HINT));
        self.hint = until.map(|until| (hint, until));
        if is_new {
            match hint {
                QuicHint::Port { port, max_age } => {
                    info!("the server says: QUIC on port {port} for {} s", max_age.as_secs());
                }
                QuicHint::None { max_age } => info!("the server says: no QUIC for {} s", max_age.as_secs()),
            }
        }
    }

    /// Goes to another server. The port of a reference is that of the protocol which brought it.
    pub(super) fn refer_to(&mut self, server: &ServerReference, over: Protocol, is_permanent: bool) {
        let before = (self.quic.clone(), self.tls.clone());
        self.quic.set_host(&server.host);
        self.tls.set_host(&server.host);
        if let Some(port) = server.port {
            match over {
                Protocol::Quic => self.quic.set_port(port),
                Protocol::Tcp => self.tls.set_port(port),
            }
        }
        (self.hint, self.is_referred) = (None, true);
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
        self.hint = None;
        true
    }
}
