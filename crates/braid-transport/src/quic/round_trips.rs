//! Cache of round-trip times by the network of the peer.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Networks in one generation of the cache. There are two, of some 64 bytes an entry.
const NETWORKS: usize = 4096;

/// Time for which a measurement counts: clients come back within it while they load a page, or after a connection that
/// was lost.
const AGE: Duration = Duration::from_secs(600);

/// Least value. A flight is repeated after three times this, the next one after twice that, and so on: a peer that is
/// busy for longer gets a few packets more.
const LEAST: Duration = Duration::from_millis(3);

/// Round-trip times of earlier connections of clients, as the initial one of later ones to the same network: RFC 9002
/// (6.2.2) recommends it for the same network path. An IPv6 network has 64 bits. Clones share the cache.
#[derive(Clone, Default)]
pub struct RoundTrips(Arc<Mutex<Generations>>);

impl PartialEq for RoundTrips {
    /// True: a cache is no setting.
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for RoundTrips {}

impl fmt::Debug for RoundTrips {
    /// Writes no addresses of peers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundTrips").finish_non_exhaustive()
    }
}

/// The generation that is filled, and the one before.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<IpAddr, Measured>,
    old: HashMap<IpAddr, Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    rtt: Duration,
    at: Instant,
}

impl RoundTrips {
    /// Assumes a round-trip time for a peer that an earlier run measured.
    pub fn assume(&self, peer: IpAddr, rtt: Duration) {
        self.note(peer, rtt, Instant::now());
    }

    /// Notes the round-trip time of a connection that is established.
    pub(super) fn note(&self, peer: IpAddr, rtt: Duration, now: Instant) {
        let mut cache = self.lock();
        if cache.young.len() >= NETWORKS {
            cache.old = std::mem::take(&mut cache.young);
        }
        cache.young.insert(network(peer), Measured { rtt: rtt.max(LEAST), at: now });
    }

    /// Round-trip time to assume for a peer; `None` if its network is not known.
    pub(super) fn of(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let cache = self.lock();
        let network = network(peer);
        let measured = cache.young.get(&network).or_else(|| cache.old.get(&network))?;
        (now.saturating_duration_since(measured.at) < AGE).then_some(measured.rtt)
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        // Poisoning is harmless: each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_last_measurement_of_a_network_counts_for_ten_minutes() {
        let (cache, now) = (RoundTrips::default(), Instant::now());
        let of = |text: &str, at| cache.of(text.parse().unwrap(), at);
        let note = |text: &str, rtt| cache.note(text.parse().unwrap(), rtt, now);
        assert_eq!(of("192.0.2.1", now), None);
        note("192.0.2.1", 70 * MS);
        note("::ffff:192.0.2.1", 80 * MS);
        note("2001:db8::1", MS);
        assert_eq!(of("192.0.2.1", now), Some(80 * MS));
        assert_eq!(of("2001:db8::ffff:2", now), Some(LEAST));
        assert_eq!((of("2001:db8:0:1::1", now), of("192.0.2.2", now)), (None, None));
        assert_eq!(of("192.0.2.1", now + AGE - MS), Some(80 * MS));
        assert_eq!(of("192.0.2.1", now + AGE), None);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_the_newest() {
        let (cache, now) = (RoundTrips::default(), Instant::now());
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        for number in 0..3 * NETWORKS {
            cache.note(address(number), 20 * MS, now);
            let Generations { young, old } = &*cache.lock();
            assert!(young.len() <= NETWORKS && old.len() <= NETWORKS);
        }
        assert_eq!(cache.of(address(NETWORKS - 1), now), None);
        for number in 2 * NETWORKS..3 * NETWORKS {
            assert_eq!(cache.of(address(number), now), Some(20 * MS), "{number}");
        }
    }
}
