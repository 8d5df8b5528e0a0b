//! Work of one QUIC connection in the statistics: a client that wastes it shows there.

use braid_transport::Link;
use braid_transport::quic::LoadCounts;

use crate::statistics::{Counter, Statistics};

/// Counts of the work of a link that the statistics have.
#[derive(Debug, Default)]
pub(super) struct CountedLoad(LoadCounts);

impl CountedLoad {
    /// Brings the counts of the link into the statistics.
    pub(super) fn count(&mut self, link: &mut Link, statistics: &Statistics) {
        let Some(now) = link.load_counts() else { return };
        let growth = now.since(std::mem::replace(&mut self.0, now));
        statistics.add(Counter::QuicReceived, growth.received);
        statistics.add(Counter::QuicRefusedWrites, growth.refused_writes);
        statistics.add(Counter::QuicMoves, growth.moves);
    }
}
