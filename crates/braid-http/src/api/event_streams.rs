//! Count of open event streams: of all clients, of an address and of a user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::network::of_host;

/// Limits of event streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStreamLimits {
    /// Streams of all clients.
    pub total: usize,
    /// Streams of one address, and of one user.
    pub per_client: usize,
}

/// Client that streams are counted for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Counted {
    Address(IpAddr),
    User(Arc<str>),
}

/// Event streams that are open.
pub(super) struct EventStreams {
    limits: EventStreamLimits,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    total: usize,
    /// No entry is 0.
    by_client: HashMap<Counted, usize>,
}

/// Limit that is reached, with the name of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached(pub(super) &'static str);

/// Permission for one stream, until it is dropped.
pub(super) struct StreamPermit {
    clients: Vec<Counted>,
    open: Arc<Mutex<Open>>,
}

impl EventStreams {
    pub(super) fn new(limits: EventStreamLimits) -> Self {
        Self { limits, open: Arc::default() }
    }

    /// Counts another stream of an address and, where clients have names, a user.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn open(&self, address: IpAddr, user: Option<Arc<str>>) -> Result<StreamPermit, Reached> {
        let address = Counted::Address(of_host(address));
        let clients: Vec<_> = [address].into_iter().chain(user.map(Counted::User)).collect();
        let mut open = lock(&self.open);
        if open.total >= self.limits.total {
            return Err(Reached("event_streams"));
        }
        let is_full =
            |client| open.by_client.get(client).is_some_and(|count| *count >= self.limits.per_client);
        if self.limits.per_client == 0 || clients.iter().any(is_full) {
            return Err(Reached("event_streams_per_client"));
        }
        open.total += 1;
        for client in &clients {
            *open.by_client.entry(client.clone()).or_default() += 1;
        }
        Ok(StreamPermit { clients, open: Arc::clone(&self.open) })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.total -= 1;
        for client in &self.clients {
            if let Some(count) = open.by_client.get_mut(client) {
                *count -= 1;
                if *count == 0 {
                    open.by_client.remove(client);
                }
            }
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    // Nothing panics while it is held.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_in_total_by_network_and_by_user() {
        let streams = EventStreams::new(EventStreamLimits { total: 5, per_client: 2 });
        let open = |address: &str, user: Option<&str>| {
            streams.open(address.parse().unwrap(), user.map(Arc::from)).map_err(|Reached(limit)| limit)
        };
        let first = open("2001:db8::1", Some("ann")).unwrap();
        let _second = open("2001:db8::2", Some("ben")).unwrap();
        assert_eq!(open("2001:db8::3", None).err(), Some("event_streams_per_client"), "the same network");
        let _third = open("192.0.2.1", Some("ann")).unwrap();
        assert_eq!(open("192.0.2.2", Some("ann")).err(), Some("event_streams_per_client"), "the same user");
        let others = ["192.0.2.2", "192.0.2.3"].map(|address| open(address, None).unwrap());
        assert_eq!(open("192.0.2.4", None).err(), Some("event_streams"));
        drop(first);
        let again = open("2001:db8::3", Some("ann")).unwrap();
        drop((again, others));
        assert!(open("2001:db8::3", Some("ann")).is_ok());
        assert_eq!(lock(&streams.open).by_client.len(), 4, "no client without a stream is remembered");
    }
}
