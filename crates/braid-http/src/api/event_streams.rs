//! Count of open event streams: of all clients, of an address and of a user.

use std::net::IpAddr;
use std::sync::Arc;

use crate::network::of_host;
use crate::quota::{Quota, QuotaExceeded, QuotaPermit};

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
pub(super) enum Counted {
    Address(IpAddr),
    User(Arc<str>),
}

/// Event streams that are open.
pub(super) struct EventStreams(Quota<Counted>);

/// Limit that is reached, with the name of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached(pub(super) &'static str);

/// Permission for one stream, until it is dropped.
pub(super) type StreamPermit = QuotaPermit<Counted>;

impl EventStreams {
    pub(super) fn new(EventStreamLimits { total, per_client }: EventStreamLimits) -> Self {
        Self(Quota::new(total, per_client))
    }

    /// Counts another stream of an address and, where clients have names, a user.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn open(&self, address: IpAddr, user: Option<Arc<str>>) -> Result<StreamPermit, Reached> {
        let address = Counted::Address(of_host(address));
        let clients = [address].into_iter().chain(user.map(Counted::User)).collect();
        self.0.take_for(clients, 1).map_err(|exceeded| match exceeded {
            QuotaExceeded::Total => Reached("event_streams"),
            QuotaExceeded::Client => Reached("event_streams_per_client"),
        })
    }
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
        assert_eq!(streams.0.clients(), 4, "no client without a stream is remembered");
    }
}
