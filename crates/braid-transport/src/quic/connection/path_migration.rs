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

/// Watches a client's address, which may change while its connection goes on. [BQ-70]
pub(super) struct PathMigration {
    known: SocketAddr,
    /// PATH_RESPONSE frames up to the last change.
    responses: u64,
    /// The path that carries data.
    path: PathId,
    /// Time since which an address is in use that is not validated.
    unvalidated: Option<Instant>,
}

impl PathMigration {
    pub(super) fn new(known: SocketAddr) -> Self {
        Self { known, responses: 0, path: PathId::ZERO, unvalidated: None }
    }

    /// The peer's new address, once.
    ///
    /// The library uses a new address at once (and sends little there) and does not tell when it has validated it. A
    /// PATH_RESPONSE is the sign: the library asks for one after a change only.
    pub(super) fn take_new_address(&mut self, connection: &mut Connection) -> Option<SocketAddr> {
        let address = canonical(connection.remote_address()?);
        if address == self.known {
            self.unvalidated = None;
            return None;
        }
        let responses = connection.path_stats()?.frame_rx.path_response;
        // Another path carries data only once it is validated.
        let path = connection.primary_path();
        let is_other = std::mem::replace(&mut self.path, path) != path;
        if responses == self.responses && !is_other {
            self.unvalidated.get_or_insert_with(Instant::now);
            return None;
        }
        (self.known, self.responses, self.unvalidated) = (address, responses, None);
        Some(address)
    }

    /// Time of the next poll; the validation itself is no event.
    pub(super) fn next_poll(&self, connection: &Connection) -> Option<Instant> {
        let now = Instant::now();
        let rtt = connection.rtt().unwrap_or_default();
        (now < self.unvalidated? + VALIDATION_LIMIT).then(|| now + rtt.max(POLL_INTERVAL))
    }
}
