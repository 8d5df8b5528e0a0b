//! Change of a client's address.

use std::net::SocketAddr;
use std::time::Duration;

use noq_proto::PathId;
use tokio::time::Instant;

use crate::quic::io::Connection;
use crate::transport::canonical;

/// Time for which a new address is polled for its validation.
const VALIDATION_LIMIT: Duration = Duration::from_secs(3);

/// Shortest time between two such polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Round trips, and time in addition, after which the library has given up a validation: three probe timeouts.
const GIVEN_UP: (u32, Duration) = (10, Duration::from_millis(100));

/// Bytes that have to come from an address before its validation begins again: a third of two padded datagrams
/// (RFC 9000, 8.1).
const LEAST_RECEIVED: u64 = 800;

/// Watches a client's address, which may change while its connection goes on. [BQ-70]
pub(super) struct PathMigration {
    /// The last address that was validated.
    known: SocketAddr,
    /// The address in use.
    current: SocketAddr,
    /// PATH_RESPONSE frames up to the last change.
    responses: u64,
    /// The path that carries data.
    path: PathId,
    unvalidated: Option<Validation>,
}

/// Validation of an address that is in use.
#[derive(Clone, Copy)]
struct Validation {
    begun: Instant,
    /// Bytes that had come before.
    received: u64,
}

impl PathMigration {
    pub(super) fn new(known: SocketAddr) -> Self {
        Self { known, current: known, responses: 0, path: PathId::ZERO, unvalidated: None }
    }

    /// The peer's new address, once. Begins its validation again if the library has given up: it does so after three
    /// probe timeouts, sends the address nothing from then on, and never tries again.
    ///
    /// The library uses a new address at once (and sends little there) and does not tell when it has validated it. A
    /// PATH_RESPONSE is the sign: the library asks for one after a change only.
    pub(super) fn take_new_address(&mut self, connection: &mut Connection) -> Option<SocketAddr> {
        let address = canonical(connection.remote_address()?);
        if address.port() == 0 || (address == self.current && self.unvalidated.is_none()) {
            return None;
        }
        let stats = connection.path_stats()?;
        let (responses, received) = (stats.frame_rx.path_response, stats.udp_rx.bytes);
        let now = Instant::now();
        // Another path carries data only once it is validated.
        let path = connection.primary_path();
        if std::mem::replace(&mut self.path, path) != path {
            (self.current, self.responses, self.unvalidated) = (address, responses, None);
            return self.validated(address);
        }
        if address != self.current {
            (self.current, self.responses) = (address, responses);
            self.unvalidated = Some(Validation { begun: now, received });
            return None;
        }
        if responses > self.responses {
            self.unvalidated = None;
            return self.validated(address);
        }
        let validation = self.unvalidated?;
        let (round_trips, more) = GIVEN_UP;
        let has_given_up = now - validation.begun > stats.rtt * round_trips + more;
        if has_given_up && received - validation.received >= LEAST_RECEIVED {
            connection.validate_again();
            self.unvalidated = Some(Validation { begun: now, received });
        }
        None
    }

    /// The address, if it is not the last one that was validated.
    fn validated(&mut self, address: SocketAddr) -> Option<SocketAddr> {
        (std::mem::replace(&mut self.known, address) != address).then_some(address)
    }

    /// Time of the next poll; the validation itself is no event.
    pub(super) fn next_poll(&self, connection: &Connection) -> Option<Instant> {
        let now = Instant::now();
        let rtt = connection.rtt().unwrap_or_default();
        (now < self.unvalidated?.begun + VALIDATION_LIMIT).then(|| now + rtt.max(POLL_INTERVAL))
    }
}
