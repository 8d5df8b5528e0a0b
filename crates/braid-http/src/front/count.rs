//! Count of open connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::{FrontCounters, FrontRefusal};
use crate::limits::Limits;

/// Count of open connections, by address.
#[derive(Clone, Debug)]
pub(super) struct ConnectionCount {
    total: usize,
    per_address: usize,
    open: Arc<Mutex<Open>>,
    counters: FrontCounters,
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
    pub(super) fn new(limits: &Limits, counters: FrontCounters) -> Self {
        let (total, per_address) = (limits.connections, limits.connections_per_address);
        Self { total, per_address, open: Arc::default(), counters }
    }

    /// `None` if there are too many connections of this address, or of all.
    pub(super) fn admit(&self, address: IpAddr) -> Option<Permit> {
        let address = network(address);
        let mut open = lock(&self.open);
        if open.total >= self.total {
            self.counters.count(FrontRefusal::Connections);
            return None;
        }
        if open.by_address.get(&address).is_some_and(|n| *n >= self.per_address) {
            self.counters.count(FrontRefusal::ConnectionsPerAddress);
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
        let counters = FrontCounters::default();
        let count = ConnectionCount::new(&limits, counters.clone());
        let admit = |text: &str| count.admit(text.parse().unwrap());
        let first = admit("2001:db8::1").unwrap();
        let second = admit("2001:db8::ffff:2").unwrap();
        assert!(admit("2001:db8:0:0:9::1").is_none(), "the same network");
        let third = admit("192.0.2.1").unwrap();
        assert!(admit("192.0.2.2").is_none(), "the total");
        let counted: Vec<_> = counters.values().take(2).collect();
        assert_eq!(counted, [("connections", 1), ("connections_per_address", 1)]);
        drop(first);
        assert!(admit("2001:db8::1").is_some());
        drop((second, third));
        assert!(lock(&count.open).by_address.is_empty());
    }
}
