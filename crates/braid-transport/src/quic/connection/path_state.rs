//! State of the path of a connection, and of what blocks its streams, for reports.

use braid_proto::stream::StreamKey;

use super::state::ConnectionState;
use crate::path_sample::PathStats;
use crate::quic::congestion::Class;
use crate::quic::multipath::{PathReport, PathState};

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

/// Counts of a connection since its handshake: a peer that wastes work or memory shows in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// UDP datagrams that have come.
    pub received: u64,
    /// Writes that found no room: the peer grants no more, or too much is unacknowledged. [BQ-56]
    pub refused_writes: u64,
    /// Changes of the peer's address, validated or not. [BQ-70]
    pub moves: u64,
}

impl LoadCounts {
    /// Growth since earlier counts of the same connection.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            refused_writes: self.refused_writes - before.refused_writes,
            moves: self.moves - before.moves,
        }
    }
}

impl ConnectionState {
    pub(crate) fn load_counts(&self) -> LoadCounts {
        LoadCounts {
            received: self.connection.received(),
            refused_writes: self.writes.refused,
            moves: self.role.moves(),
        }
    }

    pub(crate) fn path_state(&mut self) -> Option<PathState> {
        self.connection.path_stats().map(|path| PathState::of(&path))
    }

    pub(crate) fn paths(&mut self) -> Vec<PathReport> {
        self.connection.path_reports()
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
