//! Limits of the front.

use std::time::Duration;

/// Limits of the HTTP server. Durations are those of a connection or request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of all clients, and requests in flight to upstreams; more of those: 503.
    pub connections: usize,
    /// Connections of one IPv4 address or IPv6 network of 64 bits, and its requests in flight to upstreams; more of
    /// those: 503.
    pub connections_per_address: usize,
    /// Requests in flight on a connection of HTTP/2 or 3. HTTP/1.1 has one.
    pub streams: u32,
    /// Bytes of a request's head, 8 KiB to 64 KiB; above: 431.
    pub head_bytes: usize,
    /// Bytes of a request's URI; above: 414, as long as the head is within its limit.
    pub uri_bytes: usize,
    /// Bytes of a request's body; above: 413.
    pub body_bytes: u64,
    /// Time for the handshake, and for a request's head.
    pub head_timeout: Duration,
    /// Time for a request's body, to which each KiB that arrives adds a second; then: 408.
    pub body_timeout: Duration,
    /// Time without a byte in either direction after which a connection is closed, and for one direction of a WebSocket
    /// to an upstream after the end of the other.
    pub idle_timeout: Duration,
    /// Time for a response of an upstream to begin, and between its parts; then: 504, or a broken response.
    pub upstream_timeout: Duration,
    /// Time that requests in flight have when a connection or the server ends.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_address: 256,
            streams: 100,
            head_bytes: 32 << 10,
            uri_bytes: 8 << 10,
            body_bytes: 16 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            upstream_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}
