//! The RST with which a NAT answers a TCP segment whose flow it does not know (RFC 9293, 3.5.2).

use super::checksum::{fold, sum};
use super::view::{PacketView, TCP};

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
