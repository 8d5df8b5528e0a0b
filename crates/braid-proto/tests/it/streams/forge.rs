//! Encoded packets of an MQTT 5 client.

/// PUBLISH on topic `t`; with QoS 0 without an identifier.
pub(super) fn publish(qos: u8, id: u8, payload: &str) -> Vec<u8> {
    let len = u8::try_from(payload.len()).unwrap();
    let mut packet = vec![0x30 | qos << 1, 4 + len, 0, 1, b't'];
    if qos > 0 {
        packet[1] += 2;
        packet.extend([0, id]);
    }
    packet.push(0);
    packet.extend(payload.as_bytes());
    packet
}

/// PUBLISH with DUP.
pub(super) fn publish_with_dup(qos: u8, id: u8, payload: &str) -> Vec<u8> {
    let mut packet = publish(qos, id, payload);
    packet[0] |= 8;
    packet
}

pub(super) fn subscribe(id: u8, filter: &str) -> Vec<u8> {
    let len = u8::try_from(filter.len()).unwrap();
    [&[0x82, 6 + len, 0, id, 0, 0, len][..], filter.as_bytes(), &[1]].concat()
}

pub(super) fn unsubscribe(id: u8, filter: &str) -> Vec<u8> {
    let len = u8::try_from(filter.len()).unwrap();
    [&[0xA2, 5 + len, 0, id, 0, 0, len][..], filter.as_bytes()].concat()
}

pub(super) const fn puback(id: u8) -> [u8; 4] {
    [0x40, 2, 0, id]
}

pub(super) const fn pubrec(id: u8) -> [u8; 4] {
    [0x50, 2, 0, id]
}

pub(super) const fn pubrel(id: u8) -> [u8; 4] {
    [0x62, 2, 0, id]
}

pub(super) const fn pubcomp(id: u8) -> [u8; 4] {
    [0x70, 2, 0, id]
}

pub(super) const PINGREQ: [u8; 2] = [0xC0, 0];
pub(super) const PINGRESP: [u8; 2] = [0xD0, 0];
pub(super) const CONTROL: super::StreamKey = super::StreamKey::CONTROL;
