//! Datagrams of one connection: messages of QoS 0 that may be lost.

use braid_proto::error::Violation;
use braid_transport::Link;
use braid_transport::quic::DatagramCounts;

use crate::statistics::{Counter, Statistics};

/// Datagrams of one connection.
#[derive(Debug, Default)]
pub(super) struct DatagramTraffic {
    /// Some were exchanged.
    is_used: bool,
    /// One was refused.
    has_refused: bool,
    /// Counts of the link that the statistics have.
    counted: DatagramCounts,
}

impl DatagramTraffic {
    /// Notes that a datagram was received or sent.
    pub(super) fn note_used(&mut self) {
        self.is_used = true;
    }

    /// Counts a datagram that had no effect, and logs the first one. [BQ-85]
    pub(super) fn refuse(
        &mut self,
        cause: Violation,
        client: Option<&str>,
        peer: &str,
        statistics: &Statistics,
    ) {
        statistics.add(Counter::DatagramsRefused, 1);
        if std::mem::replace(&mut self.has_refused, true) {
            tracing::debug!(client, peer, %cause, "datagram dropped");
        } else {
            tracing::info!(client, peer, %cause, "datagram dropped; later ones are counted in datagrams/refused");
        }
    }

    /// Brings the counts of the link into the statistics. Returns the number of those that were dropped unsent.
    pub(super) fn count(&mut self, link: &mut Link, statistics: &Statistics) -> u64 {
        if !self.is_used {
            return 0;
        }
        let Some(now) = link.datagram_counts() else { return 0 };
        let growth = now.since(std::mem::replace(&mut self.counted, now));
        statistics.add(Counter::DatagramsSent, growth.sent);
        statistics.add(Counter::DatagramsReceived, growth.received);
        statistics.add(Counter::DatagramsDropped, growth.dropped_unsent + growth.dropped_unread);
        growth.dropped_unsent
    }
}
