//! The little that the emulator reads of a packet (RFC 791, RFC 8200, RFC 9293, RFC 768).

/// IP protocol number of ICMP.
pub(crate) const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub(crate) const TCP: u8 = 6;
/// IP protocol number of UDP.
pub(crate) const UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub(crate) const ICMPV6: u8 = 58;

/// Extension headers that may stand between IPv6 and the transport protocol.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Where the parts of an IP packet are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketView {
    /// 4 or 6.
    pub version: u8,
    /// The transport protocol: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Where the transport header begins, in bytes from the start of the packet.
    pub transport: usize,
    /// Source and destination port of TCP and UDP, if the whole transport header is there; later fragments have none.
    pub ports: Option<(u16, u16)>,
}

impl PacketView {
    /// Reads `packet`, which begins with its IP header; `None` if that is not whole. Lengths in the headers are not
    /// believed beyond the end of `packet`.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let version = packet.first()? >> 4;
        let (protocol, transport, first_fragment) = match version {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let header = match protocol {
            TCP => 20,
            UDP => 8,
            _ => usize::MAX,
        };
        let ports = packet
            .get(transport..)
            .filter(|rest| first_fragment && rest.len() >= header)
            .map(|rest| (u16::from_be_bytes([rest[0], rest[1]]), u16::from_be_bytes([rest[2], rest[3]])));
        Some(Self { version, protocol, transport, ports })
    }

    /// Whether `port` is at either end; no port fits all.
    pub(crate) fn has_port(&self, port: Option<u16>) -> bool {
        port.is_none_or(|port| {
            self.ports.is_some_and(|(source, destination)| source == port || destination == port)
        })
    }

    /// The flags of a TCP segment; none for what is not TCP or has no ports.
    pub(crate) fn tcp_flags(&self, packet: &[u8]) -> u8 {
        let tcp = self.protocol == TCP && self.ports.is_some();
        if tcp { packet.get(self.transport + 13).copied().unwrap_or(0) } else { 0 }
    }

    /// Where the source and the destination address are.
    pub(crate) fn addresses(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        if self.version == 4 { (12..16, 16..20) } else { (8..24, 24..40) }
    }
}

fn ipv4(packet: &[u8]) -> Option<(u8, usize, bool)> {
    let header = usize::from(packet[0] & 0x0f) * 4;
    if header < 20 || packet.len() < header {
        return None;
    }
    let fragment_offset = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff;
    Some((packet[9], header, fragment_offset == 0))
}

fn ipv6(packet: &[u8]) -> Option<(u8, usize, bool)> {
    if packet.len() < 40 {
        return None;
    }
    let (mut next, mut offset, mut first_fragment) = (packet[6], 40, true);
    while let HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS = next {
        let Some(header) = packet.get(offset..offset + 8) else { break };
        let length = if next == FRAGMENT {
            first_fragment &= u16::from_be_bytes([header[2], header[3]]) & 0xfff8 == 0;
            8
        } else {
            (usize::from(header[1]) + 1) * 8
        };
        next = header[0];
        offset += length;
    }
    Some((next, offset, first_fragment))
}
