//! A server that does no more than it must, so that it is never what is measured.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// CONNACK of MQTT 5 with success and nothing else.
const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];
/// PUBLISH with QoS 1, not sent again, not retained.
const PUBLISH_QOS_1: u8 = 0x32;
/// PUBACK with success, but for its packet identifier.
const PUBACK: [u8; 2] = [0x40, 2];
/// Bytes of one read.
const READ: usize = 256 * 1024;

/// Starts this many connections, each with a thread. With `answers` PUBLISH packets of QoS 1 are acknowledged,
/// otherwise nothing is looked at.
pub(super) fn serve(sink: &TcpListener, connections: u64, answers: bool) {
    for _ in 0..connections {
        let Ok((stream, _)) = sink.accept() else { return };
        // Without its thread the client finds no CONNACK, which is told as a failure.
        let _ = thread::Builder::new().name("sink".to_owned()).spawn(move || swallow(stream, answers));
    }
}

fn swallow(mut stream: TcpStream, answers: bool) {
    let mut buffer = vec![0; READ];
    // The first read is the CONNECT.
    if !matches!(stream.read(&mut buffer), Ok(1..)) || stream.write_all(&CONNACK).is_err() {
        return;
    }
    let (mut held, mut acks) = (0, Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut buffer[held..]) {
        if !answers {
            continue;
        }
        held += read;
        let whole = acknowledge(&buffer[..held], &mut acks);
        buffer.copy_within(whole..held, 0);
        held -= whole;
        if held == buffer.len() {
            // Not even one packet had room.
            buffer.resize(2 * held, 0);
        }
        if stream.write_all(&acks).is_err() {
            return;
        }
        acks.clear();
    }
}

/// Appends an acknowledgement of each PUBLISH of QoS 1 in `bytes`. How many bytes the whole packets have.
fn acknowledge(bytes: &[u8], acks: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some((body, end)) = packet(bytes, at) {
        if bytes[at] == PUBLISH_QOS_1
            && let Some(id) = identifier(&bytes[body..end])
        {
            acks.extend_from_slice(&PUBACK);
            acks.extend_from_slice(&id);
        }
        at = end;
    }
    at
}

/// Range of the body of the packet at `at`, if all of it is there.
fn packet(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut length = 0;
    for (digit, &byte) in bytes.get(at + 1..)?.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * digit);
        if byte & 0x80 == 0 {
            let body = at + 2 + digit;
            return (body + length <= bytes.len()).then_some((body, body + length));
        }
    }
    None
}

/// The packet identifier behind the Topic Name.
fn identifier(body: &[u8]) -> Option<[u8; 2]> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    let id = rest.get(usize::from(u16::from_be_bytes(*length))..)?;
    id.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_publishes_of_qos_1_are_acknowledged() {
        let mut bytes = vec![PUBLISH_QOS_1, 7, 0, 1, b'a', 0x12, 0x34, 0, b'x'];
        bytes.extend([0xC0, 0, 0x30, 3, 0, 1, b'a']);
        let whole = bytes.len();
        bytes.extend([PUBLISH_QOS_1, 0x85, 0x01, 0, 1, b'a', 0, 1]);
        let mut acks = Vec::new();
        assert_eq!(acknowledge(&bytes, &mut acks), whole, "the last one is not all there");
        assert_eq!(acks, [0x40, 2, 0x12, 0x34]);
        bytes.resize(whole + 3 + 0x85, 0);
        assert_eq!(acknowledge(&bytes[whole..], &mut acks), 3 + 0x85);
        assert_eq!(acks[4..], [0x40, 2, 0, 1]);
    }

    #[test]
    fn the_beginning_of_a_packet_waits() {
        for part in [&[][..], &[0x32], &[0x32, 0x80], &[0x32, 5, 0, 1, b'a', 0]] {
            let mut acks = Vec::new();
            assert_eq!(acknowledge(part, &mut acks), 0, "{part:?}");
            assert!(acks.is_empty());
        }
    }
}
