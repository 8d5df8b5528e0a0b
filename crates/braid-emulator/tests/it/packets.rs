//! IP packets with whole checksums, and a plain reading of them.

const LEFT: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const RIGHT: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// From the left to the right end.
pub(crate) fn udp(version: u8, source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(source.to_be_bytes());
    segment.extend(destination.to_be_bytes());
    segment.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    packet(version, 17, &segment)
}

/// From the left to the right end, sequence number 1000, acknowledging 2000.
pub(crate) fn tcp(version: u8, source: u16, destination: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(source.to_be_bytes());
    segment.extend(destination.to_be_bytes());
    segment.extend(1000_u32.to_be_bytes());
    segment.extend(2000_u32.to_be_bytes());
    segment.extend([5 << 4, flags, 0x20, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    packet(version, 6, &segment)
}

fn packet(version: u8, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let length = u16::try_from(segment.len()).unwrap();
    let mut packet = if version == 4 {
        let total = (length + 20).to_be_bytes();
        let mut header = vec![0x45, 0, total[0], total[1], 0, 1, 0x40, 0, 64, protocol, 0, 0];
        header.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        header
    } else {
        let mut header = vec![0x60, 0, 0, 0, length.to_be_bytes()[0], length.to_be_bytes()[1], protocol, 64];
        header.extend(LEFT);
        header.extend(RIGHT);
        header
    };
    packet.extend(segment);
    seal(&mut packet);
    packet
}

/// The way back: addresses and ports exchanged.
pub(crate) fn answer(packet: &[u8]) -> Vec<u8> {
    let mut back = packet.to_vec();
    let (addresses, width) = if packet[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
    back[addresses..addresses + 2 * width].rotate_left(width);
    let ports = header(packet);
    back[ports..ports + 4].rotate_left(2);
    seal(&mut back);
    back
}

fn header(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { usize::from(packet[0] & 15) * 4 } else { 40 }
}

fn protocol(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 { packet[9] } else { packet[6] }
}

fn checksum_at(packet: &[u8]) -> usize {
    header(packet) + if protocol(packet) == 6 { 16 } else { 6 }
}

/// Source and destination port.
pub(crate) fn ports(packet: &[u8]) -> (u16, u16) {
    let at = header(packet);
    (u16::from_be_bytes([packet[at], packet[at + 1]]), u16::from_be_bytes([packet[at + 2], packet[at + 3]]))
}

/// The last bytes of source and destination address.
pub(crate) fn hosts(packet: &[u8]) -> (u8, u8) {
    if packet[0] >> 4 == 4 { (packet[15], packet[19]) } else { (packet[23], packet[39]) }
}

/// Writes all checksums from scratch.
pub(crate) fn seal(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let sum = ones_complement(&packet[..header(packet)]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let at = checksum_at(packet);
    packet[at..at + 2].fill(0);
    let mut sum = ones_complement(&covered(packet));
    if protocol(packet) == 17 && sum == 0 {
        sum = 0xffff;
    }
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Whether writing all checksums from scratch changes nothing.
pub(crate) fn is_sealed(packet: &[u8]) -> bool {
    let mut sealed = packet.to_vec();
    seal(&mut sealed);
    sealed == packet
}

/// Pseudo header and segment.
fn covered(packet: &[u8]) -> Vec<u8> {
    let segment = &packet[header(packet)..];
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
    let mut bytes = packet[addresses].to_vec();
    bytes.extend(u32::try_from(segment.len()).unwrap().to_be_bytes());
    bytes.extend([0, 0, 0, protocol(packet)]);
    bytes.extend(segment);
    bytes
}

/// RFC 1071, as slowly as it is written there.
fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !u16::try_from(sum).unwrap()
}
