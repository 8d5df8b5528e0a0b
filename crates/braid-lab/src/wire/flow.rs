//! Flow of a packet, as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::emulator::PacketView;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The flags of a TCP segment, the lowest bit first.
const FLAGS: &[u8; 8] = b"FSRPAUEC";

/// Protocol, source and destination: `udp 10.0.0.1:5000 10.0.0.2:14567`, `tcp:SA` with the flags that are set, `1` for other
/// protocols by number, without ports where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    protocol: u8,
    tcp_flags: u8,
    addresses: (IpAddr, IpAddr),
    ports: Option<(u16, u16)>,
}

impl Flow {
    /// That of an IP packet; `None` if it is none.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let view = PacketView::parse(packet)?;
        let (source, destination) = view.addresses();
        let addresses = (address(packet.get(source)?)?, address(packet.get(destination)?)?);
        let tcp_flags = view.tcp_flags(packet);
        Some(Self { protocol: view.protocol, tcp_flags, addresses, ports: view.ports })
    }

    /// A packet of `size` bytes that the emulator takes for one of this flow: without checksums and payload.
    pub(super) fn packet(&self, size: usize) -> Vec<u8> {
        let mut packet = match self.addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.ipv4(source, destination),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.ipv6(source, destination),
            _ => Vec::new(),
        };
        if let Some((source, destination)) = self.ports {
            packet.extend(source.to_be_bytes());
            packet.extend(destination.to_be_bytes());
            if self.protocol == TCP {
                packet.extend([0; 8]);
                packet.extend([5 << 4, self.tcp_flags]);
            }
        }
        packet.resize(size, 0);
        packet
    }

    /// TCP and UDP show no ports in later fragments only.
    fn is_fragment(&self) -> bool {
        matches!(self.protocol, TCP | UDP) && self.ports.is_none()
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, u8::from(self.is_fragment()), 64, self.protocol, 0, 0];
        header.extend(source.octets());
        header.extend(destination.octets());
        header
    }

    fn ipv6(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
        const FRAGMENT: u8 = 44;
        let next = if self.is_fragment() { FRAGMENT } else { self.protocol };
        let mut header = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        header.extend(source.octets());
        header.extend(destination.octets());
        if self.is_fragment() {
            header.extend([self.protocol, 0, 0, 8, 0, 0, 0, 0]);
        }
        header
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            TCP => {
                f.write_str("tcp:")?;
                for (bit, &flag) in FLAGS.iter().enumerate() {
                    if self.tcp_flags >> bit & 1 == 1 {
                        write!(f, "{}", char::from(flag))?;
                    }
                }
            }
            UDP => f.write_str("udp")?,
            other => write!(f, "{other}")?,
        }
        let (source, destination) = self.addresses;
        match self.ports {
            Some((from, to)) => {
                write!(f, " {} {}", SocketAddr::new(source, from), SocketAddr::new(destination, to))
            }
            None => write!(f, " {source} {destination}"),
        }
    }
}

impl FromStr for Flow {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const BAD: &str = "no flow: protocol, source and destination";
        let mut words = text.split(' ');
        let (Some(kind), Some(source), Some(destination), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(BAD);
        };
        let mut tcp_flags = 0;
        let protocol = match kind.strip_prefix("tcp:") {
            Some(flags) => {
                for letter in flags.bytes() {
                    tcp_flags |= 1 << FLAGS.iter().position(|&flag| flag == letter).ok_or("no TCP flag")?;
                }
                TCP
            }
            None if kind == "udp" => UDP,
            None => kind.parse().map_err(|_| "no protocol")?,
        };
        let ends: Result<(SocketAddr, SocketAddr), _> =
            source.parse().and_then(|source| Ok((source, destination.parse()?)));
        if let Ok((source, destination)) = ends {
            let ports = Some((source.port(), destination.port()));
            return Ok(Self { protocol, tcp_flags, addresses: (source.ip(), destination.ip()), ports });
        }
        let addresses =
            source.parse().and_then(|source| Ok((source, destination.parse()?))).map_err(|_| BAD)?;
        Ok(Self { protocol, tcp_flags, addresses, ports: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_as_it_is_written_and_its_packets_are_of_the_same_flow() {
        for text in [
            "udp 10.0.0.1:5000 10.0.0.2:14567",
            "tcp:SA 10.0.0.1:5000 10.0.0.2:14567",
            "tcp: [fd00::1]:5000 [fd00::2]:80",
            "1 10.0.0.1 10.0.0.2",
            "58 fd00::1 fd00::2",
            "udp 10.0.0.1 10.0.0.2",
            "udp fd00::1 fd00::2",
        ] {
            let flow: Flow = text.parse().unwrap();
            assert_eq!(flow.to_string(), text);
            assert_eq!(Flow::of(&flow.packet(100)), Some(flow), "{text}");
        }
    }

    #[test]
    fn what_is_no_flow_is_refused() {
        for text in ["", "udp", "udp 10.0.0.1:5 x", "tcp:X 10.0.0.1:5 10.0.0.2:5", "icmp 10.0.0.1 10.0.0.2"] {
            assert!(text.parse::<Flow>().is_err(), "{text}");
        }
    }
}
