//! Where the peer is: a client may come to have another address while its connection goes on.

use std::net::SocketAddr;
use std::time::Duration;

use noq::{Connection, Path, PathId};
use tokio::time::Instant;

use crate::link::canonical;

/// How long a new address is looked at without being asked, until it is validated.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two such looks, at least.
const LOOK: Duration = Duration::from_millis(10);

pub(super) struct PathMigration {
    path: Path,
    known: SocketAddr,
    /// PATH_RESPONSE frames up to the last change.
    responses: u64,
    /// Since when another address is used that is not validated yet.
    unproven: Option<Instant>,
}

impl PathMigration {
    pub(super) fn new(connection: &Connection, known: SocketAddr) -> Option<Self> {
        let path = connection.path(PathId::ZERO)?;
        Some(Self { path, known, responses: 0, unproven: None })
    }

    /// The peer's new address, once. [BQ-70]
    ///
    /// The library uses a new address at once (and sends little there) and does not say when it has
    /// validated it. That it has is taken from a PATH_RESPONSE: it asks for one after a change only.
    pub(super) fn moved(&mut self) -> Option<SocketAddr> {
        let address = canonical(self.path.remote_address().ok()?);
        if address == self.known {
            self.unproven = None;
            return None;
        }
        let responses = self.path.stats().frame_rx.path_response;
        if responses == self.responses {
            self.unproven.get_or_insert_with(Instant::now);
            return None;
        }
        (self.known, self.responses, self.unproven) = (address, responses, None);
        Some(address)
    }

    /// When to look again, though nothing else happens: the validation itself wakes nobody.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let now = Instant::now();
        let since = self.unproven?;
        (now < since + PATIENCE).then(|| now + self.path.stats().rtt.max(LOOK))
    }
}
