//! Limits of the HTTP server, and the count of connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limits of the HTTP server. Durations are those of a connection or request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of all clients.
    pub connections: usize,
    /// Connections of one IPv4 address or IPv6 network of 64 bits.
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
    /// Time without a byte in either direction after which a connection is closed.
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

/// Count of open connections, by address.
#[derive(Clone, Debug)]
pub(super) struct ConnectionCount {
    total: usize,
    per_address: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Permission for one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    address: IpAddr,
    open: Arc<Mutex<Open>>,
}

impl ConnectionCount {
    pub(super) fn new(limits: &Limits) -> Self {
        let (total, per_address) = (limits.connections, limits.connections_per_address);
        Self { total, per_address, open: Arc::default() }
    }

    /// `None` if there are too many connections of this address, or of all.
    pub(super) fn admit(&self, address: IpAddr) -> Option<Permit> {
        let address = network(address);
        let mut open = lock(&self.open);
        if open.total >= self.total || open.by_address.get(&address).is_some_and(|n| *n >= self.per_address) {
            return None;
        }
        open.total += 1;
        *open.by_address.entry(address).or_default() += 1;
        Some(Permit { address, open: Arc::clone(&self.open) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // Nothing panics while it is held.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host of IPv6 has a network of 64 bits to choose addresses from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_in_total_and_by_network() {
        let limits = Limits { connections: 3, connections_per_address: 2, ..Limits::default() };
        let count = ConnectionCount::new(&limits);
        let admit = |text: &str| count.admit(text.parse().unwrap());
        let first = admit("2001:db8::1").unwrap();
        let second = admit("2001:db8::ffff:2").unwrap();
        assert!(admit("2001:db8:0:0:9::1").is_none(), "the same network");
        let third = admit("192.0.2.1").unwrap();
        assert!(admit("192.0.2.2").is_none(), "the total");
        drop(first);
        assert!(admit("2001:db8::1").is_some());
        drop((second, third));
        assert!(lock(&count.open).by_address.is_empty());
    }
}
