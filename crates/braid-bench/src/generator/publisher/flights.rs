use braid_proto::packet::PacketId;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::generator::board::RouteId;

/// An inflight message of QoS 1 or 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) route: RouteId,
    pub(super) due: Instant,
    /// Bytes of the payload.
    pub(super) bytes: u64,
}

/// Unacknowledged messages of one client.
#[derive(Debug, Default)]
pub(super) struct Flights {
    by_id: FxHashMap<PacketId, Flight>,
}

impl Flights {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn insert(&mut self, id: PacketId, flight: Flight) {
        self.by_id.insert(id, flight);
    }

    pub(super) fn land(&mut self, id: PacketId) -> Option<Flight> {
        self.by_id.remove(&id)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Flight> {
        self.by_id.drain().map(|(_, flight)| flight)
    }
}
