//! Cache of measurements of paths by earlier connections.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::io::now;
use super::rate::bytes_in;

/// Networks in one generation of the cache. There are two, of some 150 bytes an entry.
const NETWORKS: usize = 4096;

/// Time for which a measurement counts: clients come back within it while they load a page, or after a connection that
/// was lost.
const AGE: Duration = Duration::from_secs(600);

/// Parts of a known window that a connection which resumes sends one after the other. RFC 9959 (4.3) permits a half.
pub(super) const PARTS: [u64; 2] = [8, 2];

/// Least window (bytes) that is noted: slow start takes two round trips to it.
const LEAST_WINDOW: u64 = 48_000;

/// Time and growth of the rate after which a capacity is noted again.
const INTERVAL: Duration = Duration::from_secs(1);
const GROWTH: u64 = 4;

/// Time for which no other connection to a network uses its capacity after one has.
const PAUSE: Duration = Duration::from_secs(5);

/// Least round trip that is assumed. A flight is repeated after three times this, the next one after twice that, and so
/// on: a peer that is busy for longer gets a few packets more.
const LEAST: Duration = Duration::from_millis(3);

/// Measurements of earlier connections, by the network of the peer. An IPv6 network has 64 bits. Clones share the
/// cache.
///
/// Round trips of a client are the initial ones of its next connection to the same network, as RFC 9002 (6.2.2)
/// recommends it for the same network path. Capacities are for RFC 9959, by which a connection to the same network from
/// the same local address soon sends at half of the rate that an earlier one had.
#[derive(Clone, Default)]
pub struct KnownPaths(Arc<Mutex<Generations>>);

impl PartialEq for KnownPaths {
    /// True: a cache is no setting.
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for KnownPaths {}

impl fmt::Debug for KnownPaths {
    /// Writes no addresses of peers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownPaths").finish_non_exhaustive()
    }
}

/// The generation that is filled, and the one before.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<IpAddr, Measured>,
    old: HashMap<IpAddr, Measured>,
}

/// Measurements with their times.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    round_trip: Option<(Duration, Instant)>,
    capacity: Option<(Capacity, Instant)>,
    /// Last time at which a connection took the capacity.
    taken: Option<Instant>,
}

/// Capacity of a path, as a connection measured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Bytes per second.
    pub(super) rate: u64,
    /// Shortest round trip.
    pub(super) round_trip: Duration,
    /// Local address of the connection; `None` on a server.
    pub(super) local: Option<IpAddr>,
}

impl Capacity {
    /// Bytes on the way at this rate.
    pub(super) fn window(&self) -> u64 {
        bytes_in(self.rate, self.round_trip)
    }

    /// Bytes in flight, at most, of a connection that resumes, while it does not know more.
    pub(super) fn resumed_window(&self) -> u64 {
        self.window() / PARTS[1]
    }
}

impl KnownPaths {
    /// Assumes a round-trip time for a peer that an earlier run measured.
    pub fn assume(&self, peer: IpAddr, rtt: Duration) {
        self.note_round_trip(peer, rtt, now());
    }

    /// Notes the round-trip time of a connection that is established.
    pub(super) fn note_round_trip(&self, peer: IpAddr, rtt: Duration, now: Instant) {
        self.lock().change(peer, |measured| measured.round_trip = Some((rtt.max(LEAST), now)));
    }

    /// Round-trip time to assume for a peer; `None` if its network is not known.
    pub(super) fn round_trip(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let (rtt, at) = self.lock().of(peer).round_trip?;
        is_young(at, now).then_some(rtt)
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        // Poisoning is harmless: each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn of(&self, peer: IpAddr) -> Measured {
        let network = network(peer);
        self.young.get(&network).or_else(|| self.old.get(&network)).copied().unwrap_or_default()
    }

    fn change(&mut self, peer: IpAddr, change: impl FnOnce(&mut Measured)) {
        let mut measured = self.of(peer);
        change(&mut measured);
        if self.young.len() >= NETWORKS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(network(peer), measured);
    }
}

/// Place in the cache of the first path of a connection. Clones share whether it was left.
#[derive(Clone, Debug)]
pub(super) struct KnownPath {
    paths: KnownPaths,
    peer: IpAddr,
    local: Option<IpAddr>,
    is_left: Arc<AtomicBool>,
    /// Rate that was noted last, and when.
    noted: Option<(u64, Instant)>,
}

impl KnownPath {
    /// `local`: local address of a client. A server has one for all.
    pub(super) fn new(paths: KnownPaths, peer: IpAddr, local: Option<IpAddr>) -> Self {
        Self { paths, peer, local, is_left: Arc::default(), noted: None }
    }

    /// Notes that the connection goes on elsewhere: its measurements are none of this path from now on.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Capacity that an earlier connection measured.
    pub(super) fn capacity(&self, now: Instant) -> Option<Capacity> {
        let Measured { capacity, taken, .. } = self.paths.lock().of(self.peer);
        let (capacity, at) = capacity?;
        let is_here = capacity.local == self.local && !self.is_left();
        let is_free = taken.is_none_or(|taken| now.saturating_duration_since(taken) >= PAUSE);
        (is_young(at, now) && is_here && is_free).then_some(capacity)
    }

    /// Takes the capacity out of the cache, so that of many connections which begin together one uses it.
    pub(super) fn take_capacity(&self, now: Instant) -> Option<Capacity> {
        let capacity = self.capacity(now)?;
        self.paths.lock().change(self.peer, |measured| {
            measured.capacity = None;
            measured.taken = Some(now);
        });
        Some(capacity)
    }

    /// Capacity of this path by a measurement of its connection.
    pub(super) fn measured(&self, rate: u64, round_trip: Duration) -> Capacity {
        Capacity { rate, round_trip, local: self.local }
    }

    /// Notes a measurement, if it is time and the path holds enough. A lower one than before counts only from a
    /// connection that has been limited by its path for a while. `is_limited`: there was more to send.
    pub(super) fn observe(&mut self, rate: u64, round_trip: Duration, is_limited: bool, now: Instant) {
        let is_due = self.noted.is_none_or(|(noted, at)| {
            now.saturating_duration_since(at) >= INTERVAL || rate > noted + noted / GROWTH
        });
        let capacity = self.measured(rate, round_trip);
        if !is_due || capacity.window() < LEAST_WINDOW || self.is_left() {
            return;
        }
        let is_first = self.noted.replace((rate, now)).is_none();
        let known = self.capacity(now).filter(|known| known.rate > rate);
        if known.is_none() || (is_limited && !is_first) {
            self.paths.lock().change(self.peer, |measured| measured.capacity = Some((capacity, now)));
        }
    }

    /// Forgets the capacity: it may be that of another path, or a burst through the bucket of a policer.
    pub(super) fn forget_capacity(&self) {
        let mut cache = self.paths.lock();
        if cache.of(self.peer).capacity.is_some() {
            cache.change(self.peer, |measured| measured.capacity = None);
        }
    }
}

fn is_young(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < AGE
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
        let (cache, now) = (KnownPaths::default(), Instant::now());
        let of = |text: &str, at| cache.round_trip(text.parse().unwrap(), at);
        let note = |text: &str, rtt| cache.note_round_trip(text.parse().unwrap(), rtt, now);
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
    fn a_capacity_is_for_one_connection_from_the_same_address() {
        let (cache, now) = (KnownPaths::default(), Instant::now());
        let peer = IpAddr::from([192, 0, 2, 1]);
        let [mut from, elsewhere] = [7, 8].map(|last| {
            let local = Some(IpAddr::from([192, 0, 2, last]));
            KnownPath::new(cache.clone(), peer, local)
        });
        cache.note_round_trip(peer, 9 * MS, now);
        from.observe(1_000_000, 50 * MS, true, now);
        assert_eq!(from.capacity(now).map(|capacity| capacity.window()), Some(50_000));
        assert_eq!((elsewhere.capacity(now), from.capacity(now + AGE)), (None, None));
        assert!(from.take_capacity(now).is_some());
        assert_eq!(from.take_capacity(now), None);
        from.observe(1_300_000, 50 * MS, true, now);
        assert_eq!(from.capacity(now + PAUSE - MS), None, "one connection at a time");
        assert!(from.capacity(now + PAUSE).is_some());
        assert_eq!(cache.round_trip(peer, now), Some(9 * MS), "the rest stays");
    }

    #[test]
    fn a_capacity_is_noted_when_it_is_large_and_has_grown_or_is_a_second_old() {
        let (begin, peer) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let mut path = KnownPath::new(KnownPaths::default(), peer, None);
        for (at, rate, noted) in [
            (0, 479_999, None),
            (1, 480_000, Some(480_000)),
            (2, 600_000, Some(480_000)),
            (3, 600_001, Some(600_001)),
            (1002, 500_000, Some(600_001)),
            (1003, 500_000, Some(500_000)),
        ] {
            let now = begin + at * MS;
            path.observe(rate, 100 * MS, true, now);
            assert_eq!(path.capacity(now).map(|capacity| capacity.rate), noted, "{at} ms");
        }
        path.clone().leave();
        path.observe(900_000, 100 * MS, true, begin + 2000 * MS);
        let again = KnownPath::new(path.paths.clone(), peer, None);
        let rate = again.capacity(begin + 2000 * MS).map(|capacity| capacity.rate);
        assert_eq!((rate, path.capacity(begin)), (Some(500_000), None), "a path that was left");
    }

    #[test]
    fn a_lower_capacity_is_noted_by_a_connection_that_its_path_has_limited_for_a_while() {
        let (paths, begin) = (KnownPaths::default(), Instant::now());
        let path = || KnownPath::new(paths.clone(), IpAddr::from([192, 0, 2, 1]), None);
        path().observe(10_000_000, 100 * MS, true, begin);
        for is_limited in [false, true] {
            let mut later = path();
            later.observe(600_000, 100 * MS, is_limited, begin + MS);
            assert_eq!(later.capacity(begin).map(|capacity| capacity.rate), Some(10_000_000));
            later.observe(600_000, 100 * MS, is_limited, begin + MS + INTERVAL);
            let rate = if is_limited { 600_000 } else { 10_000_000 };
            assert_eq!(later.capacity(begin).map(|capacity| capacity.rate), Some(rate));
        }
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_the_newest() {
        let (cache, now) = (KnownPaths::default(), Instant::now());
        let address = |number: usize| IpAddr::from(u32::try_from(number).unwrap().to_be_bytes());
        for number in 0..3 * NETWORKS {
            cache.note_round_trip(address(number), 20 * MS, now);
            let Generations { young, old } = &*cache.lock();
            assert!(young.len() <= NETWORKS && old.len() <= NETWORKS);
        }
        assert_eq!(cache.round_trip(address(NETWORKS - 1), now), None);
        for number in 2 * NETWORKS..3 * NETWORKS {
            assert_eq!(cache.round_trip(address(number), now), Some(20 * MS), "{number}");
        }
    }
}
