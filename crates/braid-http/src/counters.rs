//! Counters of what the front serves and refuses, and the state of its listeners.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{StatusCode, Version};
use braid_transport::EndpointHealth;

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
    UpstreamRequests,
    Queries,
    /// Connections that gave way to new ones.
    IdleConnections,
    UpstreamRequestsPerAddress,
    /// Answers of the API, for those that their clients have not taken.
    Answers,
}

/// Values of the label `reason`, in the order of [`FrontRefusal`].
const REASONS: [&str; 19] = [
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
    "upstream_requests",
    "queries",
    "idle_connections",
    "upstream_requests_per_address",
    "answers",
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

/// Version of HTTP; its value is the index of its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    /// HTTP/1.1 and 1.0.
    One,
    Two,
    Three,
}

/// Values of the label `version`, in the order of [`HttpVersion`].
pub(crate) const VERSIONS: [&str; 3] = ["1.1", "2", "3"];

/// Values of the label `status`.
pub(crate) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Upper bounds of the buckets of durations in seconds; one more bucket has no bound.
pub(crate) const DURATIONS: [f64; 5] = [0.001, 0.01, 0.1, 1.0, 10.0];

/// Reason for which an upstream gave no response; its value is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No connection, or no response that is valid.
    Failed,
    /// None in time.
    Timeout,
}

/// Values of the label `reason`, in the order of [`UpstreamFailure`].
const UPSTREAM_FAILURES: [&str; 2] = ["failed", "timeout"];

impl From<Version> for HttpVersion {
    fn from(version: Version) -> Self {
        match version {
            Version::HTTP_2 => Self::Two,
            Version::HTTP_3 => Self::Three,
            _ => Self::One,
        }
    }
}

/// Counters and listeners of a server, for its API. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FrontCounters(Arc<Counters>);

/// Relaxed atomics: they guard no other memory.
#[derive(Debug, Default)]
struct Counters {
    refused: [AtomicU64; REASONS.len()],
    /// By version and status class.
    requests: [[AtomicU64; STATUS_CLASSES.len()]; VERSIONS.len()],
    /// Open connections by version.
    open: [AtomicU64; VERSIONS.len()],
    sent_bytes: [AtomicU64; VERSIONS.len()],
    upstream: [AtomicU64; UPSTREAM_FAILURES.len()],
    durations: Durations,
    listeners: Mutex<Vec<Arc<FrontListener>>>,
}

#[derive(Debug, Default)]
struct Durations {
    /// Numbers of each bucket alone; the last one has no bound.
    buckets: [AtomicU64; DURATIONS.len() + 1],
    sum_micros: AtomicU64,
}

fn load(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

impl FrontCounters {
    pub(crate) fn count(&self, refusal: FrontRefusal) {
        self.0.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Reasons of refusals and their numbers.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.0.refused.iter().map(load))
    }

    /// Counts a response.
    pub(crate) fn request(&self, version: HttpVersion, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len()) - 1;
        self.0.requests[version as usize][class].fetch_add(1, Ordering::Relaxed);
    }

    /// Responses by version and status class.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        VERSIONS.into_iter().zip(&self.0.requests).flat_map(|(version, classes)| {
            STATUS_CLASSES.into_iter().zip(classes).map(move |(class, count)| (version, class, load(count)))
        })
    }

    /// Counts a connection until what is returned is dropped.
    pub(crate) fn opened(&self, version: HttpVersion) -> OpenConnection {
        self.0.open[version as usize].fetch_add(1, Ordering::Relaxed);
        OpenConnection { counters: self.clone(), version }
    }

    /// Open connections by version.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&'static str, u64)> {
        VERSIONS.into_iter().zip(self.0.open.iter().map(load))
    }

    pub(crate) fn sent(&self, version: HttpVersion, bytes: u64) {
        self.0.sent_bytes[version as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes sent by version.
    pub(crate) fn sent_bytes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        VERSIONS.into_iter().zip(self.0.sent_bytes.iter().map(load))
    }

    pub(crate) fn upstream_failed(&self, failure: UpstreamFailure) {
        self.0.upstream[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Failures of upstreams by reason.
    pub(crate) fn upstream_failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        UPSTREAM_FAILURES.into_iter().zip(self.0.upstream.iter().map(load))
    }

    /// Notes the time until a response began; `None` for one that was there at once.
    pub(crate) fn took(&self, time: Option<Duration>) {
        let durations = &self.0.durations;
        let Some(time) = time else {
            durations.buckets[0].fetch_add(1, Ordering::Relaxed);
            return;
        };
        let secs = time.as_secs_f64();
        let bucket = DURATIONS.iter().position(|bound| secs <= *bound).unwrap_or(DURATIONS.len());
        durations.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        durations.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Numbers of responses up to each of [`DURATIONS`] and of all, and their time in microseconds.
    pub(crate) fn durations(&self) -> ([u64; DURATIONS.len() + 1], u64) {
        let mut total = 0;
        let buckets = self.0.durations.buckets.each_ref().map(|count| {
            total += load(count);
            total
        });
        (buckets, load(&self.0.durations.sum_micros))
    }

    /// Adds a listener.
    pub(crate) fn listen(&self, kind: &'static str, address: SocketAddr) -> Arc<FrontListener> {
        let listener = Arc::new(FrontListener {
            kind,
            address,
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            is_unavailable: AtomicBool::new(false),
        });
        self.all_listeners().push(Arc::clone(&listener));
        listener
    }

    /// Listeners, in the order of their addresses in the configuration.
    pub(crate) fn listeners(&self) -> Vec<Arc<FrontListener>> {
        self.all_listeners().clone()
    }

    fn all_listeners(&self) -> MutexGuard<'_, Vec<Arc<FrontListener>>> {
        // Nothing panics while it is held.
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Open connection of a version, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    counters: FrontCounters,
    version: HttpVersion,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.counters.0.open[self.version as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// State of a listener of the server.
#[derive(Debug)]
pub(crate) struct FrontListener {
    /// `http`, `https` or `h3`.
    pub(crate) kind: &'static str,
    pub(crate) address: SocketAddr,
    connections: AtomicU64,
    accepted: AtomicU64,
    restarts: AtomicU64,
    is_unavailable: AtomicBool,
}

/// Open connection of a listener, until it is dropped.
#[derive(Debug)]
pub(crate) struct Accepted(Arc<FrontListener>);

impl FrontListener {
    /// Counts a connection.
    pub(crate) fn accepted(self: &Arc<Self>) -> Accepted {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        Accepted(Arc::clone(self))
    }

    /// Notes the condition of a QUIC endpoint.
    pub(crate) fn note_health(&self, health: EndpointHealth) {
        self.restarts.store(health.restarts, Ordering::Relaxed);
        self.is_unavailable.store(!health.is_available, Ordering::Relaxed);
    }

    /// Connections that are open, and that were accepted.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (load(&self.connections), load(&self.accepted))
    }

    /// Condition of the endpoint.
    pub(crate) fn health(&self) -> EndpointHealth {
        let is_available = !self.is_unavailable.load(Ordering::Relaxed);
        EndpointHealth { restarts: load(&self.restarts), is_available, turned_away: 0 }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_reason() {
        let counters = FrontCounters::default();
        counters.count(FrontRefusal::Connections);
        counters.count(FrontRefusal::UpstreamRequests);
        counters.count(StatusCode::FORBIDDEN.into());
        let counted = counters.values().filter(|(_, count)| *count > 0);
        assert_eq!(
            counted.collect::<Vec<_>>(),
            [("connections", 1), ("origin", 1), ("upstream_requests", 1)]
        );
    }

    #[test]
    fn what_is_served_is_counted_by_bounded_labels() {
        let counters = FrontCounters::default();
        for (version, status) in [(Version::HTTP_10, 200), (Version::HTTP_2, 404), (Version::HTTP_3, 599)] {
            counters.request(version.into(), StatusCode::from_u16(status).unwrap());
        }
        // Any number that is a status for the library.
        counters.request(HttpVersion::One, StatusCode::from_u16(999).unwrap());
        let counted: Vec<_> = counters.requests().filter(|(.., count)| *count > 0).collect();
        assert_eq!(counted, [("1.1", "2xx", 1), ("1.1", "5xx", 1), ("2", "4xx", 1), ("3", "5xx", 1)]);
        let connections = [HttpVersion::Two, HttpVersion::Two].map(|version| counters.opened(version));
        assert_eq!(counters.open().collect::<Vec<_>>(), [("1.1", 0), ("2", 2), ("3", 0)]);
        drop(connections);
        assert!(counters.open().all(|(_, count)| count == 0));
        for micros in [1000, 1001, 500_000, 20_000_000] {
            counters.took(Some(Duration::from_micros(micros)));
        }
        counters.took(None);
        assert_eq!(counters.durations(), ([2, 3, 3, 4, 4, 5], 20_502_001));
    }
}
