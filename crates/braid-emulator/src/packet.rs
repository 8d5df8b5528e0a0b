//! IP packets as bytes: views, checksums, and what a NAT changes or answers.

/// The ones' complement sum of `bytes`, not folded; an odd last byte counts as the upper half of a word.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    let words: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
    words + last.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a sum to the 16 bits of its ones' complement arithmetic.
#[expect(clippy::cast_possible_truncation, reason = "folded below 2^16")]
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// `checksum` after `old` in what it covers became `new`; both have the same, even length and an even place.
pub(crate) fn updated(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    // RFC 1624, eqn. 3: HC' = ~(~HC + ~m + m')
    !fold(u64::from(!checksum) + u64::from(!fold(sum(old))) + sum(new))
}

/// The two bits of ECN of an IP packet (RFC 3168): 0 if its sender does not understand marks, 3 if it is marked.
#[must_use]
pub fn ecn_of(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 4 => second & 0b11,
        [first, second, ..] if first >> 4 == 6 => second >> 4 & 0b11,
        _ => 0,
    }
}

/// Sets the two bits of ECN of an IP packet, and its checksum.
pub fn set_ecn(packet: &mut [u8], ecn: u8) {
    match packet {
        [first, second, _, _, _, _, _, _, _, _, high, low, ..] if *first >> 4 == 4 => {
            let old = [*first, *second];
            *second = *second & !0b11 | ecn & 0b11;
            let checksum = updated(u16::from_be_bytes([*high, *low]), &old, &[*first, *second]);
            [*high, *low] = checksum.to_be_bytes();
        }
        [first, second, ..] if *first >> 4 == 6 => *second = *second & !0b11_0000 | (ecn & 0b11) << 4,
        _ => {}
    }
}

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

/// Positions of the parts of an IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketView {
    /// 4 or 6.
    pub version: u8,
    /// The transport protocol: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// Offset of the transport header, in bytes from the start of the packet.
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
    #[must_use]
    pub fn tcp_flags(&self, packet: &[u8]) -> u8 {
        let tcp = self.protocol == TCP && self.ports.is_some();
        if tcp { packet.get(self.transport + 13).copied().unwrap_or(0) } else { 0 }
    }

    /// Ranges of the source and the destination address.
    #[must_use]
    pub fn addresses(&self) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
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

/// Which end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// Gives the `end` of `packet` the port `port`, and flips the bits `mask` in the last byte of its address. `view` must
/// be that of `packet`; without ports nothing changes.
pub(crate) fn rewrite(packet: &mut [u8], view: PacketView, end: End, port: u16, mask: u8) {
    let Some((source, destination)) = view.ports else { return };
    let (addresses, old_port, port_at) = match end {
        End::Source => (view.addresses().0, source, view.transport),
        End::Destination => (view.addresses().1, destination, view.transport + 2),
    };
    // The last word of the address, so that it stands at an even place for both checksums.
    let word = addresses.end - 2;
    let old_word = [packet[word], packet[word + 1]];
    let new_word = [old_word[0], old_word[1] ^ mask];
    let old = [old_word, old_port.to_be_bytes()].concat_words();
    let new = [new_word, port.to_be_bytes()].concat_words();

    packet[word..word + 2].copy_from_slice(&new_word);
    packet[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
    if view.version == 4 {
        update(packet, 10, &old_word, &new_word);
    }
    if view.protocol == UDP {
        let at = view.transport + 6;
        // Over IPv4 a checksum of 0 says that there is none (RFC 768), and a computed 0 is sent as all ones.
        if packet[at..at + 2] != [0, 0] {
            update(packet, at, &old, &new);
            if packet[at..at + 2] == [0, 0] {
                packet[at..at + 2].copy_from_slice(&[0xff, 0xff]);
            }
        }
    } else {
        update(packet, view.transport + 16, &old, &new);
    }
}

fn update(packet: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let checksum = updated(u16::from_be_bytes([packet[at], packet[at + 1]]), old, new);
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

trait Words {
    fn concat_words(self) -> [u8; 4];
}

impl Words for [[u8; 2]; 2] {
    fn concat_words(self) -> [u8; 4] {
        [self[0][0], self[0][1], self[1][0], self[1][1]]
    }
}

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

const HOP_LIMIT: u8 = 64;

/// The RST from the destination of `packet` to its source; `None` if it is no TCP segment, or itself a reset.
pub(crate) fn reset(packet: &[u8], view: PacketView) -> Option<Vec<u8>> {
    let (source, destination) = view.ports?;
    let flags = view.tcp_flags(packet);
    if view.protocol != TCP || flags & RST != 0 {
        return None;
    }
    let segment = &packet[view.transport..];
    let number =
        |at: usize| u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]]);
    let (sequence, acknowledged, answer) = if flags & ACK != 0 {
        (number(8), 0, RST)
    } else {
        let payload = segment.len().saturating_sub(usize::from(segment[12] >> 4) * 4);
        let length =
            u32::try_from(payload).unwrap_or(0) + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        (0, number(4).wrapping_add(length), RST | ACK)
    };

    let mut tcp = [0; 20];
    tcp[0..2].copy_from_slice(&destination.to_be_bytes());
    tcp[2..4].copy_from_slice(&source.to_be_bytes());
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = answer;
    let (from, to) = view.addresses();
    let pseudo_header =
        sum(&packet[from.clone()]) + sum(&packet[to.clone()]) + u64::from(TCP) + tcp.len() as u64;
    let checksum = !fold(pseudo_header + sum(&tcp));
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());

    let mut answer = if view.version == 4 { ipv4_header() } else { ipv6_header() };
    answer[from.clone()].copy_from_slice(&packet[to.clone()]);
    answer[to].copy_from_slice(&packet[from]);
    if view.version == 4 {
        let checksum = !fold(sum(&answer));
        answer[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    answer.extend_from_slice(&tcp);
    Some(answer)
}

/// 20 + 20 bytes, not to be fragmented, addresses and checksum still 0.
fn ipv4_header() -> Vec<u8> {
    let mut header = vec![0; 20];
    header[0] = 0x45;
    header[3] = 40;
    header[6] = 0x40;
    header[8] = HOP_LIMIT;
    header[9] = TCP;
    header
}

fn ipv6_header() -> Vec<u8> {
    let mut header = vec![0; 40];
    header[0] = 0x60;
    header[5] = 20;
    header[6] = TCP;
    header[7] = HOP_LIMIT;
    header
}
