//! MQTT packets in a sequence of bytes.

/// Bytes whose packets are taken one by one.
#[derive(Default)]
pub(crate) struct Packets(Vec<u8>);

impl Packets {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl Iterator for Packets {
    type Item = Vec<u8>;

    /// The next whole packet; all bytes where they are none of MQTT, for the broker to refuse.
    fn next(&mut self) -> Option<Vec<u8>> {
        let (header, length) = size(&self.0)?;
        (self.0.len() >= header + length).then(|| self.0.drain(..header + length).collect())
    }
}

/// Sizes of the fixed header and of the rest.
fn size(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut length = 0;
    for (index, byte) in bytes.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((index + 2, length));
        }
    }
    (bytes.len() >= 5).then_some((bytes.len(), 0))
}

/// Topic name of a PUBLISH.
pub(crate) fn topic(packet: &[u8]) -> Option<&[u8]> {
    if packet.first()? >> 4 != 3 {
        return None;
    }
    let rest = packet.get(size(packet)?.0..)?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

/// Packet identifier of a PUBLISH with QoS 1 or 2.
pub(crate) fn asked_by(packet: &[u8]) -> Option<[u8; 2]> {
    let start = size(packet)?.0 + 2 + topic(packet)?.len();
    (packet.first()? & 6 != 0).then(|| packet.get(start..)?.first_chunk().copied())?
}

/// Packet identifier of a PUBLISH with QoS 2.
pub(crate) fn released_by(packet: &[u8]) -> Option<[u8; 2]> {
    asked_by(packet).filter(|_| packet.first().is_some_and(|first| first & 6 == 4))
}

/// Packet identifier of a PUBACK, PUBREC or PUBCOMP.
pub(crate) fn answered_by(packet: &[u8]) -> Option<[u8; 2]> {
    matches!(packet.first()? >> 4, 4 | 5 | 7).then(|| packet.get(2..)?.first_chunk().copied())?
}

/// Packet identifier of a PUBREL.
pub(crate) fn releases(packet: &[u8]) -> Option<[u8; 2]> {
    (packet.first()? >> 4 == 6).then(|| packet.get(2..)?.first_chunk().copied())?
}
