//! Networks of addresses.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// Address by which a client is counted: a host of IPv6 has a network of 64 bits to choose addresses from.
pub(crate) fn of_host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

/// Reads an address or a network.
///
/// # Errors
/// The text is neither; the remedy.
pub(crate) fn parse(text: &str) -> Result<IpNet, &'static str> {
    let parsed = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    parsed.map_err(|_| "write an IP address or a network, such as 10.0.0.0/8")
}
