//! PROXY protocol on listeners over TCP: the address of a client behind a load balancer.

pub(crate) mod header;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

pub use header::{MAX_HEADER_BYTES, ProxyHeader, ProxyHeaderError, parse_proxy_header};

pub use crate::error::ProxyError;

use crate::error::HandshakeError;

/// Options of the PROXY protocol, version 1 or 2, on a listener over TCP.
///
/// A connection from a trusted address must begin with a header; without one, or with a wrong one, it is refused. A
/// connection from any other address is refused. The header counts against the time limit of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyOptions {
    /// Addresses of the proxies.
    pub trusted: Vec<Network>,
}

impl ProxyOptions {
    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }
}

/// Range of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    /// True if the address is one of this range. An IPv4 address in its IPv6 form (`::ffff:a.b.c.d`) is the IPv4 one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = String;

    /// Parses a range like `10.0.0.0/8` or `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, String> {
        let range = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse::<IpNet>().map_err(|_| {
                format!("{text:?} is neither an address nor a range of addresses like 10.0.0.0/8 or fd00::/8")
            })?,
        };
        if range != range.trunc() {
            return Err(format!("{text:?} is an address inside of its range: write {}", range.trunc()));
        }
        match range.addr() {
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
                Err(format!("{text:?} is in the IPv6 form of IPv4: write it as an IPv4 address or range"))
            }
            _ => Ok(Self(range)),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads the header of a connection from `proxy`, and nothing behind it.
pub(crate) async fn read(
    io: &mut TcpStream,
    proxy: SocketAddr,
    options: &ProxyOptions,
) -> Result<ProxyHeader, HandshakeError> {
    let proxy = proxy.ip();
    if !options.trusts(proxy) {
        return Err(ProxyError::Untrusted(proxy).into());
    }
    let mut header = Vec::new();
    loop {
        // The bytes so far are part of a header that is not complete: so they are not the last of the longest one.
        let taken = header.len();
        header.resize(MAX_HEADER_BYTES, 0);
        let free = header.get_mut(taken..).unwrap_or_default();
        let seen = taken + io.peek(free).await?;
        if seen == taken {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let parsed = parse_proxy_header(header.get(..seen).unwrap_or_default())
            .map_err(|error| ProxyError::Header { proxy, error })?;
        let end = parsed.map_or(seen, |header| header.length);
        io.read_exact(header.get_mut(taken..end).unwrap_or_default()).await?;
        if let Some(header) = parsed {
            return Ok(header);
        }
        header.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_the_addresses_of_its_prefix() {
        let cases = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("::1", "::1", true),
        ];
        for (network, address, expected) in cases {
            let network: Network = network.parse().expect("a network");
            assert_eq!(
                network.contains(address.parse().expect("an address")),
                expected,
                "{network} {address}"
            );
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().expect("a network").to_string(), "10.0.0.0/8");
    }

    #[test]
    fn what_is_no_network_is_an_error_that_says_what_to_write() {
        let cases = [
            ("", "\"\" is neither an address nor a range"),
            ("proxy.example", "\"proxy.example\" is neither"),
            ("10.0.0.0/33", "\"10.0.0.0/33\" is neither"),
            ("10.0.0.0/", "\"10.0.0.0/\" is neither"),
            ("10.0.0/8", "\"10.0.0/8\" is neither"),
            (" 10.0.0.0/8", "\" 10.0.0.0/8\" is neither"),
            ("10.0.0.1/8", "\"10.0.0.1/8\" is an address inside of its range: write 10.0.0.0/8"),
            ("fd00::1/8", "\"fd00::1/8\" is an address inside of its range: write fd00::/8"),
            ("::ffff:10.0.0.0/104", "\"::ffff:10.0.0.0/104\" is in the IPv6 form of IPv4"),
            ("::ffff:10.0.0.1", "\"::ffff:10.0.0.1\" is in the IPv6 form of IPv4"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
