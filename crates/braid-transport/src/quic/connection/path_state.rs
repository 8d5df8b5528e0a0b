//! State of the path of a connection, and of what blocks its streams, for reports.

use std::time::Duration;

use braid_proto::stream::StreamKey;

use super::state::ConnectionState;
use crate::path_sample::PathStats;
use crate::quic::congestion::Class;

/// State of the path of a QUIC connection. Counts are those of this path, since the connection moved to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    /// Smoothed round-trip time (RFC 9002, 5.3).
    pub rtt: Duration,
    /// Congestion window in bytes. Where the gate limits the path it says nothing about it.
    pub congestion_window: u64,
    /// Largest UDP payload that the path is known to take, bytes.
    pub mtu: u16,
    /// Packets sent, those of acknowledgements alone included.
    pub packets_sent: u64,
    /// Packets of them that were declared lost.
    pub packets_lost: u64,
    /// Bytes sent in QUIC packets, without those of acknowledgements alone.
    pub bytes_sent: u64,
    /// Bytes of them in lost packets.
    pub bytes_lost: u64,
    /// Number of times that the congestion controller reduced its window.
    pub congestion_events: u64,
}

/// Reason for which a stream takes no bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The path is full: the congestion window, or the buffer of the socket.
    Path,
    /// The gate keeps packets back, because the path would drop or delay them.
    Gate,
    /// The peer does not read the stream. Known once room for all streams would have come.
    FlowControl,
}

impl ConnectionState {
    pub(crate) fn path_state(&mut self) -> Option<PathState> {
        let path = self.connection.path_stats()?;
        Some(PathState {
            rtt: path.rtt,
            congestion_window: path.cwnd,
            mtu: path.current_mtu,
            packets_sent: path.sent_packets,
            packets_lost: path.lost_packets,
            bytes_sent: path.sent_bytes,
            bytes_lost: path.lost_bytes,
            congestion_events: path.congestion_events,
        })
    }

    pub(crate) fn path_stats(&mut self) -> Option<PathStats> {
        self.connection.path_stats().map(|stats| PathStats::of(&stats))
    }

    pub(crate) fn blocked(&mut self, key: StreamKey) -> Option<Blocked> {
        let since = self.writes.scheduler.blocked_since(key)?;
        let capacity = self.capacity();
        if since.elapsed() > self.blocked_limit(&capacity) {
            return Some(Blocked::FlowControl);
        }
        let class = self.gate.as_ref().and_then(|gate| gate.state()).map(|state| state.class);
        Some(if class.is_some_and(Class::is_limited) { Blocked::Gate } else { Blocked::Path })
    }
}
