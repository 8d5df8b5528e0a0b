//! Estimate of the bytes that were received and not read.

use std::time::Duration;

use noq_proto::ConnectionStats;
use tokio::time::Instant;

/// Least overhead of a datagram with STREAM frames: short header with a connection ID of eight bytes, AEAD tag, frame
/// type and stream ID.
const OVERHEAD: u64 = 28;

/// Interval at which the estimate is corrected while nothing is unread.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(1);

/// Upper estimate of the bytes that were received and not read. The library reports the bytes of datagrams only: what
/// came in them since everything was read, less what was read since.
pub(super) struct UnreadEstimate {
    /// Bytes of one stream that the library can hold.
    stream_window: u64,
    /// Payload of all datagrams when everything was read last.
    received: u64,
    /// Bytes read since then.
    read: u64,
    corrected_at: Option<Instant>,
}

impl UnreadEstimate {
    pub(super) fn new(stream_window: u64) -> Self {
        Self { stream_window, received: 0, read: 0, corrected_at: None }
    }

    pub(super) fn stream_window(&self) -> usize {
        usize::try_from(self.stream_window).unwrap_or(usize::MAX)
    }

    pub(super) fn handle_read(&mut self, bytes: usize) {
        self.read += bytes as u64;
    }

    /// Everything was read.
    pub(super) fn handle_empty(&mut self, stats: impl FnOnce() -> ConnectionStats) {
        let now = Instant::now();
        if self.corrected_at.is_none_or(|at| now - at >= CORRECTION_INTERVAL) {
            (self.received, self.read, self.corrected_at) = (payload(&stats()), 0, Some(now));
        }
    }

    /// Bytes that were received and not read.
    pub(super) fn received(&self, stats: &ConnectionStats) -> u64 {
        payload(stats).saturating_sub(self.received).saturating_sub(self.read)
    }
}

fn payload(stats: &ConnectionStats) -> u64 {
    stats.udp_rx.bytes.saturating_sub(stats.udp_rx.datagrams.saturating_mul(OVERHEAD))
}
