//! Datagrams of a client that has got nothing of the server's first flight. Pure.

/// Least size of a client's datagram with an Initial packet [RFC 9000, 14.1].
const LEAST: usize = 1200;

/// First byte of an Initial packet, without the bits that are protected [RFC 9000, 17.2.2].
const INITIAL: u8 = 0b1100_0000;
const TYPE: u8 = 0b1111_0000;

/// QUIC version 1.
const VERSION: [u8; 4] = [0, 0, 0, 1];

/// Whether a datagram has an Initial packet and no other. A client that has got the keys of the next level answers with
/// a Handshake packet in the same datagram.
pub(super) fn is_initial_alone(datagram: &[u8]) -> bool {
    datagram.len() >= LEAST && end_of_initial(datagram).is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

/// Bytes behind the Initial packet at the front.
fn end_of_initial(datagram: &[u8]) -> Option<&[u8]> {
    let (first, rest) = datagram.split_first()?;
    let rest = rest.strip_prefix(&VERSION)?;
    if first & TYPE != INITIAL {
        return None;
    }
    let rest = skip_short(skip_short(rest)?)?;
    let (token, rest) = variable(rest)?;
    let (length, rest) = variable(rest.get(token..)?)?;
    rest.get(length..)
}

/// Skips a connection ID behind its length.
fn skip_short(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first()?;
    rest.get(usize::from(*length)..)
}

/// Integer of variable length [RFC 9000, 16].
fn variable(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let mut value = usize::from(first & 0b0011_1111);
    for _ in 1..1_usize << (first >> 6) {
        let (next, behind) = rest.split_first()?;
        (value, rest) = (value.checked_mul(256)?.checked_add(usize::from(*next))?, behind);
    }
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagram of 1200 bytes with an Initial packet of `length` bytes behind its length, and `rest` behind that.
    fn datagram(first: u8, length: usize, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 2, 9, 9];
        bytes.extend_from_slice(&[
            0x40 | u8::try_from(length / 256).unwrap(),
            u8::try_from(length % 256).unwrap(),
        ]);
        bytes.resize(bytes.len() + length, 0xab);
        bytes.extend_from_slice(rest);
        bytes.resize(1200, 0);
        bytes
    }

    #[test]
    fn an_initial_packet_alone_is_found() {
        let whole = 1200 - 20;
        assert!(is_initial_alone(&datagram(0xc3, whole, &[])));
        assert!(is_initial_alone(&datagram(0xcf, 100, &[])), "padded behind the packet");
        for other in [
            datagram(0xc3, 100, &[0xe0, 0, 0, 0, 1]),
            datagram(0xe0, whole, &[]),
            datagram(0xf0, whole, &[]),
            datagram(0x43, whole, &[]),
            datagram(0xc3, whole, &[])[..1199].to_vec(),
            vec![0xc3; 1200],
            Vec::new(),
        ] {
            assert!(!is_initial_alone(&other), "{:?}", &other[..other.len().min(30)]);
        }
        let mut version = datagram(0xc3, whole, &[]);
        version[4] = 2;
        assert!(!is_initial_alone(&version));
    }

    #[test]
    fn lengths_beyond_the_datagram_are_no_packet() {
        for at in [5, 14, 15, 18] {
            let mut wrong = datagram(0xc3, 1180, &[]);
            wrong[at] = 0xff;
            assert!(!is_initial_alone(&wrong), "byte {at}");
        }
        for end in 0..30 {
            assert_eq!(end_of_initial(&datagram(0xc3, 1180, &[])[..end]), None);
        }
    }
}
