//! Codec of the few MQTT 3.1.1 packets of the generator: the broker's own codec must not check itself.

use std::io::{self, Read, Write};

use super::payload::{self, Stamp};

/// First bytes of packets from the broker.
pub(crate) const CONNACK: u8 = 0x20;
pub(crate) const PUBACK: u8 = 0x40;
pub(crate) const SUBACK: u8 = 0x90;

/// A CONNECT of MQTT 3.1.1 with this Clean Session and the longest Keep Alive.
pub(crate) fn connect(client_id: &str, is_clean: bool) -> Vec<u8> {
    let flags = if is_clean { 0x02 } else { 0 };
    let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 4, flags, 0xff, 0xff];
    push_string(&mut body, client_id);
    packet(0x10, &body)
}

/// DISCONNECT.
pub(crate) const DISCONNECT: [u8; 2] = [0xe0, 0];

/// A SUBSCRIBE with one filter and packet id 1.
pub(crate) fn subscribe(filter: &str, qos: u8) -> Vec<u8> {
    let mut body = vec![0, 1];
    push_string(&mut body, filter);
    body.push(qos);
    packet(0x82, &body)
}

/// Appends a PUBACK.
pub(crate) fn push_puback(out: &mut Vec<u8>, packet_id: u16) {
    let [high, low] = packet_id.to_be_bytes();
    out.extend_from_slice(&[PUBACK, 2, high, low]);
}

/// A PUBLISH of QoS 1 up to its payload.
pub(crate) fn publish_head(topic: &str, packet_id: u16, payload_length: u32) -> Vec<u8> {
    let mut body = Vec::new();
    push_string(&mut body, topic);
    body.extend_from_slice(&packet_id.to_be_bytes());
    let mut bytes = fixed_header(0x32, body.len() + payload_length as usize);
    bytes.extend_from_slice(&body);
    bytes
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = fixed_header(first, body.len());
    bytes.extend_from_slice(body);
    bytes
}

fn fixed_header(first: u8, mut rest: usize) -> Vec<u8> {
    let mut bytes = vec![first];
    loop {
        let digit = u8::try_from(rest % 128).unwrap_or(0);
        rest /= 128;
        bytes.push(if rest > 0 { digit | 0x80 } else { digit });
        if rest == 0 {
            return bytes;
        }
    }
}

fn push_string(body: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(text.as_bytes());
}

/// A PUBLISH encoded once; each message is a copy with its packet id and stamp written in.
pub(crate) struct PublishTemplate {
    bytes: Vec<u8>,
    packet_id_at: Option<usize>,
    payload_at: usize,
}

impl PublishTemplate {
    /// Template for one topic, QoS 0 or 1.
    pub(crate) fn new(topic: &str, qos: u8, payload_length: usize) -> Self {
        let mut body = Vec::new();
        push_string(&mut body, topic);
        if qos > 0 {
            body.extend_from_slice(&[0, 0]);
        }
        let variable_header = body.len();
        body.extend_from_slice(&payload::blank(payload_length));
        let bytes = packet(0x30 | (qos << 1), &body);
        let payload_at = bytes.len() - body.len() + variable_header;
        Self { packet_id_at: (qos > 0).then(|| payload_at - 2), payload_at, bytes }
    }

    /// Bytes of one message on the wire.
    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Appends one message.
    pub(crate) fn push(&self, out: &mut Vec<u8>, packet_id: u16, stamp: Stamp) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let message = &mut out[start..];
        if let Some(at) = self.packet_id_at {
            message[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
        payload::write(&mut message[self.payload_at..], stamp);
    }
}

/// A packet in a read buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// Packet type and flags.
    pub(crate) first: u8,
    /// Bytes behind the Remaining Length.
    pub(crate) body: &'a [u8],
}

/// Splits the first complete packet off `bytes`; `None` if it is incomplete.
///
/// # Errors
/// A Remaining Length of more than four bytes.
pub(crate) fn split_packet(bytes: &[u8]) -> Result<Option<(Packet<'_>, &[u8])>, String> {
    let Some((&first, mut rest)) = bytes.split_first() else { return Ok(None) };
    let mut length = 0_usize;
    for shift in [0, 7, 14, 21] {
        let Some((&digit, behind)) = rest.split_first() else { return Ok(None) };
        rest = behind;
        length |= usize::from(digit & 0x7f) << shift;
        if digit & 0x80 == 0 {
            return Ok(rest.split_at_checked(length).map(|(body, rest)| (Packet { first, body }, rest)));
        }
    }
    Err("the broker sent a Remaining Length of more than four bytes".to_owned())
}

/// A received PUBLISH.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Publish<'a> {
    pub(crate) qos: u8,
    pub(crate) topic: &'a [u8],
    /// 0 for QoS 0.
    pub(crate) packet_id: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads the packet as a PUBLISH; `None` if it is another one or too short.
    pub(crate) fn publish(&self) -> Option<Publish<'a>> {
        if self.first & 0xf0 != 0x30 {
            return None;
        }
        let qos = (self.first >> 1) & 3;
        let (length, rest) = self.body.split_first_chunk::<2>()?;
        let (topic, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let (packet_id, payload) = if qos == 0 {
            (0, rest)
        } else {
            let (packet_id, payload) = rest.split_first_chunk::<2>()?;
            (u16::from_be_bytes(*packet_id), payload)
        };
        Some(Publish { qos, topic, packet_id, payload })
    }
}

/// State of a socket after a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    /// The socket is empty until its next readiness.
    Drained,
    /// The buffer was filled to the end: read again.
    More,
}

/// Reads once into `buffer` and passes every complete packet to `each`; an incomplete one is kept in `carry`.
///
/// # Errors
/// The connection ended or failed, or `each` refused a packet.
pub(crate) fn read_packets(
    socket: &mut impl Read,
    buffer: &mut [u8],
    carry: &mut Vec<u8>,
    mut each: impl FnMut(&Packet<'_>) -> Result<(), String>,
) -> Result<Readable, String> {
    let carried = carry.len();
    let Some(front) = buffer.get_mut(..carried) else {
        return Err(format!("the broker sent a packet of more than {} bytes", buffer.len()));
    };
    front.copy_from_slice(carry);
    let room = buffer.len() - carried;
    let read = loop {
        match socket.read(&mut buffer[carried..]) {
            Ok(0) => return Err("the broker closed the connection".to_owned()),
            Ok(read) => break read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Readable::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("reading failed: {error}")),
        }
    };
    let mut bytes = &buffer[..carried + read];
    while let Some((packet, rest)) = split_packet(bytes)? {
        each(&packet)?;
        bytes = rest;
    }
    carry.clear();
    carry.extend_from_slice(bytes);
    // A short read of a stream socket has emptied it (epoll(7), question 9).
    Ok(if read < room { Readable::Drained } else { Readable::More })
}

/// Writes as much of `bytes` as the socket takes now; returns the number of bytes.
///
/// # Errors
/// The connection failed.
pub(crate) fn write_some(socket: &mut impl Write, bytes: &[u8]) -> Result<usize, String> {
    let mut written = 0;
    while written < bytes.len() {
        match socket.write(&bytes[written..]) {
            Ok(0) => return Err("the broker takes no more bytes".to_owned()),
            Ok(taken) => written += taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("writing failed: {error}")),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::{
        Publish, PublishTemplate, Readable, Stamp, connect, payload, push_puback, read_packets, split_packet,
        subscribe,
    };

    #[test]
    fn connect_and_subscribe_are_the_bytes_of_the_specification() {
        assert_eq!(connect("ab", true), b"\x10\x0e\x00\x04MQTT\x04\x02\xff\xff\x00\x02ab");
        assert_eq!(connect("ab", false), b"\x10\x0e\x00\x04MQTT\x04\x00\xff\xff\x00\x02ab");
        assert_eq!(subscribe("a/+", 1), b"\x82\x08\x00\x01\x00\x03a/+\x01");
        let mut out = Vec::new();
        push_puback(&mut out, 0x1234);
        assert_eq!(out, [0x40, 2, 0x12, 0x34]);
    }

    #[test]
    fn template_of_qos_1_carries_packet_id_and_stamp() {
        let template = PublishTemplate::new("t/1", 1, 256);
        let mut out = vec![0xff];
        let stamp = Stamp { due: 5, publisher: 6, sequence: 7 };
        template.push(&mut out, 0xabcd, stamp);
        assert_eq!(out.len(), 1 + template.length());
        let (packet, rest) = split_packet(&out[1..]).expect("well formed").expect("whole");
        assert!(rest.is_empty());
        let publish = packet.publish().expect("a PUBLISH");
        assert_eq!((publish.qos, publish.topic, publish.packet_id), (1, &b"t/1"[..], 0xabcd));
        assert_eq!(payload::read(publish.payload, &payload::blank(256)), Some(stamp));
    }

    #[test]
    fn template_of_qos_0_has_no_packet_id() {
        let template = PublishTemplate::new("t", 0, 16);
        let mut out = Vec::new();
        template.push(&mut out, 9, Stamp { due: 0, publisher: 0, sequence: 0 });
        assert_eq!(out, [&[0x30, 19, 0, 1, b't'][..], &[0; 16]].concat());
        let (packet, _) = split_packet(&out).expect("well formed").expect("whole");
        let expected = Publish { qos: 0, topic: b"t", packet_id: 0, payload: &[0; 16] };
        assert_eq!(packet.publish(), Some(expected));
    }

    #[test]
    fn packets_split_at_every_byte_are_found_whole() {
        let mut stream = Vec::new();
        let template = PublishTemplate::new("topic", 1, 300);
        for sequence in 0..3 {
            template.push(&mut stream, 1, Stamp { due: 0, publisher: 0, sequence });
        }
        for cut in 1..stream.len() {
            let (front, back) = stream.split_at(cut);
            let (mut carry, mut buffer, mut seen) = (Vec::new(), vec![0; 4096], Vec::new());
            for mut part in [front, back] {
                let state = read_packets(&mut part, &mut buffer, &mut carry, |packet| {
                    let publish = packet.publish().ok_or("not a PUBLISH")?;
                    let stamp =
                        payload::read(publish.payload, &payload::blank(300)).ok_or("wrong payload")?;
                    seen.push(stamp.sequence);
                    Ok(())
                });
                assert_eq!(state, Ok(Readable::Drained));
            }
            assert_eq!(seen, [0, 1, 2], "cut at {cut}");
            assert!(carry.is_empty());
        }
    }

    #[test]
    fn a_full_buffer_asks_for_another_read_and_an_end_is_an_error() {
        let stream = [0xd0, 0].repeat(8);
        let mut part = &stream[..];
        let (mut carry, mut buffer, mut seen) = (Vec::new(), [0; 7], 0);
        let mut read = |part: &mut &[u8]| {
            read_packets(part, &mut buffer, &mut carry, |_| {
                seen += 1;
                Ok(())
            })
        };
        assert_eq!(read(&mut part), Ok(Readable::More));
        assert_eq!(read(&mut part), Ok(Readable::More));
        assert_eq!(read(&mut part), Ok(Readable::Drained));
        assert!(read(&mut part).is_err_and(|reason| reason.contains("closed")));
        assert_eq!(seen, 8);
    }

    #[test]
    fn malformed_lengths_are_refused() {
        assert!(split_packet(&[0x30, 0x80, 0x80, 0x80, 0x80]).is_err());
        assert_eq!(split_packet(&[0x30, 0x80, 0x80]), Ok(None));
        assert!(split_packet(&[0x30, 1, 0]).expect("ok").expect("whole").0.publish().is_none());
    }
}
