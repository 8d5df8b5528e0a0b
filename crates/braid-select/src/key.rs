//! Client networks and origins, the keys of measurements.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Prefix length of an IPv4 network.
const IPV4_PREFIX: u32 = 24;
/// Prefix length of an IPv6 network: a site (RFC 6177).
const IPV6_PREFIX: u32 = 48;

/// Network of an address: an IPv4 /24 or an IPv6 /48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    /// First address of the network.
    pub fn address(&self) -> IpAddr {
        self.0
    }
}

impl From<IpAddr> for Network {
    /// Returns the network of an address. An IPv4 address in IPv6 counts as IPv4.
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & (u32::MAX << (32 - IPV4_PREFIX))).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << (128 - IPV6_PREFIX))).into(),
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.0.is_ipv4() { IPV4_PREFIX } else { IPV6_PREFIX };
        write!(f, "{}/{prefix}", self.0)
    }
}

/// Network and origin: measurements of one key are of one path and one server.
///
/// A server uses the network of the client's address. A client uses the network of its own address. The origin is a
/// name that the caller chooses, such as `https://example.org`; its length is the caller's to limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Network of the client.
    pub network: Network,
    /// Origin, which callers share between keys.
    pub origin: Arc<str>,
}

impl Key {
    /// Key of the network of `address` and an origin.
    pub fn new(address: IpAddr, origin: Arc<str>) -> Self {
        Self { network: address.into(), origin }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.network, self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_prefixes() {
        for (address, network) in [
            ("192.0.2.77", "192.0.2.0/24"),
            ("::ffff:192.0.2.1", "192.0.2.0/24"),
            ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
            ("0.0.0.0", "0.0.0.0/24"),
        ] {
            assert_eq!(Network::from(address.parse::<IpAddr>().unwrap()).to_string(), network);
        }
    }
}
