//! Limits of the connections of one address: their number and their rate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::rate::{ConnectionRate, RateDecision};
use super::recent::RecentMap;
use crate::config::LimitsConfig;
use crate::limit::Limit;

/// Addresses whose rate is remembered at least; twice as many at most. Each takes about 60 bytes.
const REMEMBERED_RATES: usize = 32 * 1024;

/// Address as the limits count it: an IPv4 address, or the /64 network of an IPv6 address, which is what one host or
/// one customer of a provider can choose its addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AddressKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl AddressKey {
    /// `None` for a loopback address. Programs of this machine share it: a proxy without the PROXY protocol, a bridge,
    /// a benchmark. Limits of one address would limit all of their clients together.
    pub(crate) fn of(address: SocketAddr) -> Option<Self> {
        match address.ip().to_canonical() {
            ip if ip.is_loopback() => None,
            IpAddr::V4(ip) => Some(Self::V4(ip.octets())),
            IpAddr::V6(ip) => ip.octets().first_chunk().map(|prefix| Self::V6(*prefix)),
        }
    }

    /// The addresses that are counted together.
    pub(crate) fn network(self) -> IpNet {
        match self {
            Self::V4(octets) => Ipv4Net::from(Ipv4Addr::from(octets)).into(),
            Self::V6(prefix) => {
                let address = Ipv6Addr::from(u128::from(u64::from_be_bytes(prefix)) << 64);
                Ipv6Net::new(address, 64).unwrap_or_else(|_| address.into()).into()
            }
        }
    }
}

/// Connections of each address, and their rates.
#[derive(Debug)]
pub(super) struct AddressLimits {
    /// 0 for any number.
    most_connections: usize,
    /// 0 for any number.
    per_second: u64,
    /// Counts above 0: as many entries as connections at most. Empty without a limit.
    connections: HashMap<AddressKey, usize>,
    rates: RecentMap<AddressKey, ConnectionRate>,
}

impl AddressLimits {
    pub(super) fn new(limits: &LimitsConfig) -> Self {
        Self {
            most_connections: limits.connections_per_address,
            per_second: limits.connects_per_address_per_second,
            connections: HashMap::new(),
            rates: RecentMap::new(REMEMBERED_RATES),
        }
    }

    /// Tests whether any address can be refused.
    pub(super) fn is_limited(&self) -> bool {
        self.most_connections > 0 || self.per_second > 0
    }

    fn has_room(&self, key: AddressKey) -> bool {
        let connections = || self.connections.get(&key).copied().unwrap_or(0);
        self.most_connections == 0 || connections() < self.most_connections
    }

    /// The limit that the next connection would exceed, answered connections included. Counts nothing.
    pub(super) fn check(&self, key: AddressKey, now: Instant) -> Result<(), Limit> {
        if !self.has_room(key) {
            Err(Limit::AddressConnections)
        } else if self.rates.peek(key).is_some_and(|rate| rate.is_exhausted(now)) {
            Err(Limit::AddressRate)
        } else {
            Ok(())
        }
    }

    /// Counts a connection, until [`release`](Self::release). True if it exceeds the rate and is answered with a
    /// CONNACK.
    ///
    /// # Errors
    /// The limit that it exceeds. It is not counted as a connection.
    pub(super) fn admit(&mut self, key: AddressKey, now: Instant) -> Result<bool, Limit> {
        if !self.has_room(key) {
            return Err(Limit::AddressConnections);
        }
        let mut is_answered = false;
        if let Some(new) = ConnectionRate::new(self.per_second, now) {
            match self.rates.touch(key, || new).admit(now) {
                RateDecision::Accept => {}
                RateDecision::Answer => is_answered = true,
                RateDecision::Refuse => return Err(Limit::AddressRate),
            }
        }
        if self.most_connections > 0 {
            *self.connections.entry(key).or_insert(0) += 1;
        }
        Ok(is_answered)
    }

    /// Ends a connection that was admitted.
    pub(super) fn release(&mut self, key: AddressKey) {
        if let Entry::Occupied(mut connections) = self.connections.entry(key) {
            *connections.get_mut() -= 1;
            if *connections.get() == 0 {
                connections.remove();
            }
        }
    }

    /// Removes what makes no difference any more.
    pub(super) fn expire(&mut self, now: Instant) {
        self.rates.retain(|rate| !rate.is_idle(now));
        self.connections.shrink_to(self.connections.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(text: &str) -> Option<AddressKey> {
        AddressKey::of(SocketAddr::new(text.parse().unwrap(), 1))
    }

    #[test]
    fn an_ipv4_address_or_64_bits_of_an_ipv6_address_count_together() {
        let network = |text| key(text).map(|key| key.network().to_string());
        for (address, expected) in [
            ("10.0.0.1", Some("10.0.0.1/32")),
            ("::ffff:10.0.0.1", Some("10.0.0.1/32")),
            ("2001:db8:1:2:3:4:5:6", Some("2001:db8:1:2::/64")),
            ("fe80::1", Some("fe80::/64")),
            ("127.0.0.1", None),
            ("127.9.9.9", None),
            ("::1", None),
            ("::ffff:127.0.0.1", None),
        ] {
            assert_eq!(network(address).as_deref(), expected, "{address}");
        }
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:0:0:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }

    /// Against counts and times that are kept for ever.
    #[test]
    fn connections_and_rates_of_each_address_are_limited() {
        let (most, per_second) = (3, 2);
        let limits = LimitsConfig {
            connections_per_address: most,
            connects_per_address_per_second: per_second,
            ..LimitsConfig::default()
        };
        let mut rng = fastrand::Rng::with_seed(7);
        let keys: Vec<_> = (1..=5).map(|last| AddressKey::V4([10, 0, 0, last])).collect();
        let (mut limiter, mut now) = (AddressLimits::new(&limits), Instant::now());
        let mut open = vec![0; keys.len()];
        let mut rates: Vec<_> = keys.iter().map(|_| ConnectionRate::new(per_second, now).unwrap()).collect();
        let mut seen = [0; 4];
        for _ in 0..20_000 {
            now += Duration::from_millis(rng.u64(..60));
            let at = rng.usize(..keys.len());
            match rng.u8(..10) {
                0 => limiter.expire(now),
                1..4 if open[at] > 0 => {
                    limiter.release(keys[at]);
                    open[at] -= 1;
                }
                _ => {
                    let expected = if open[at] == most {
                        Err(Limit::AddressConnections)
                    } else {
                        match rates[at].admit(now) {
                            RateDecision::Accept => Ok(false),
                            RateDecision::Answer => Ok(true),
                            RateDecision::Refuse => Err(Limit::AddressRate),
                        }
                    };
                    assert_eq!(limiter.check(keys[at], now).err(), expected.err());
                    assert_eq!(limiter.admit(keys[at], now), expected);
                    open[at] += usize::from(expected.is_ok());
                    seen[match expected {
                        Ok(false) => 0,
                        Ok(true) => 1,
                        Err(Limit::AddressRate) => 2,
                        Err(_) => 3,
                    }] += 1;
                }
            }
            assert_eq!(limiter.connections.values().sum::<usize>(), open.iter().sum::<usize>());
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
        for (key, open) in keys.iter().zip(open) {
            (0..open).for_each(|_| limiter.release(*key));
        }
        limiter.expire(now + Duration::from_secs(2));
        assert_eq!((limiter.connections.len(), limiter.rates.len()), (0, 0), "nothing is left behind");
    }

    #[test]
    fn nothing_is_kept_without_a_limit() {
        let mut limiter = AddressLimits::new(&LimitsConfig::default());
        assert!(!limiter.is_limited());
        for last in 0..100 {
            assert_eq!(limiter.admit(AddressKey::V4([10, 0, 0, last]), Instant::now()), Ok(false));
        }
        assert_eq!((limiter.connections.len(), limiter.rates.len()), (0, 0));
    }
}
