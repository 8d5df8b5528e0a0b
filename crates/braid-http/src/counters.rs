//! Counters of what the front refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::StatusCode;

/// Limit or check at which something was refused; its value is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontRefusal {
    Connections,
    ConnectionsPerAddress,
    Head,
    HeadSize,
    HeadTime,
    UriSize,
    BodySize,
    BodyTime,
    Host,
    Origin,
    Request,
    Resets,
    Rate,
    EventStreams,
    Queries,
    /// Connections that gave way to new ones.
    IdleConnections,
}

/// Values of the label `reason`, in the order of [`FrontRefusal`].
const REASONS: [&str; 16] = [
    "connections",
    "connections_per_address",
    "head",
    "head_size",
    "head_time",
    "uri_size",
    "body_size",
    "body_time",
    "host",
    "origin",
    "request",
    "resets",
    "rate",
    "event_streams",
    "queries",
    "idle_connections",
];

impl From<StatusCode> for FrontRefusal {
    /// Check that refuses requests with this status.
    fn from(status: StatusCode) -> Self {
        match status {
            StatusCode::URI_TOO_LONG => Self::UriSize,
            StatusCode::PAYLOAD_TOO_LARGE => Self::BodySize,
            StatusCode::REQUEST_TIMEOUT => Self::BodyTime,
            StatusCode::MISDIRECTED_REQUEST => Self::Host,
            StatusCode::FORBIDDEN => Self::Origin,
            _ => Self::Request,
        }
    }
}

/// Counters of the connections and requests that a server and its API have refused. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FrontCounters(Arc<[AtomicU64; REASONS.len()]>);

impl FrontCounters {
    pub(crate) fn count(&self, refusal: FrontRefusal) {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Reasons and numbers.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_reason() {
        let counters = FrontCounters::default();
        counters.count(FrontRefusal::Connections);
        counters.count(FrontRefusal::EventStreams);
        counters.count(StatusCode::FORBIDDEN.into());
        let counted = counters.values().filter(|(_, count)| *count > 0);
        assert_eq!(counted.collect::<Vec<_>>(), [("connections", 1), ("origin", 1), ("event_streams", 1)]);
    }
}
