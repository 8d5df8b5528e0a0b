//! Statistics of datagrams of QUIC.

use std::sync::atomic::{AtomicU64, Ordering};

use braid_transport::quic::DatagramCounts;

/// Number of messages in datagrams of QUIC, over all connections of a client so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramStatistics {
    /// Messages sent in datagrams.
    pub sent: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams dropped, unsent or unread, because others needed their room.
    pub dropped: u64,
    /// Datagrams received that were no message.
    pub refused: u64,
    /// Unreliable messages sent on a stream: they did not fit into a datagram, or the connection has none.
    pub streamed: u64,
}

/// Counters that the driver raises. Relaxed: they guard no other memory.
#[derive(Debug, Default)]
pub(crate) struct DatagramCounters {
    sent: AtomicU64,
    received: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    streamed: AtomicU64,
}

impl DatagramCounters {
    /// Adds the growth of the counts of a link.
    pub(crate) fn add(&self, growth: DatagramCounts) {
        let DatagramCounts { sent, received, dropped_unsent, dropped_unread } = growth;
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
        self.dropped.fetch_add(dropped_unsent + dropped_unread, Ordering::Relaxed);
    }

    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_streamed(&self) {
        self.streamed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> DatagramStatistics {
        let Self { sent, received, dropped, refused, streamed } = self;
        let [sent, received, dropped, refused, streamed] =
            [sent, received, dropped, refused, streamed].map(|counter| counter.load(Ordering::Relaxed));
        DatagramStatistics { sent, received, dropped, refused, streamed }
    }
}
