//! Payloads that tell their message and of which every byte can be verified.

use bytes::Bytes;

/// Hexadecimal digits of the message's number.
const HEAD: usize = 16;
/// Last level of topics with large messages, all of them above the threshold of the broker's spool.
pub(crate) const LARGE: &str = "/large";

/// Payload of a message, deterministic by topic and number, of varying size.
pub(crate) fn payload(topic: &str, number: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed(topic, number));
    let size = match random.u32(0..1000) {
        0..950 if topic.ends_with(LARGE) => random.usize(300_000..600_000),
        _ if topic.ends_with(LARGE) => random.usize(600_000..4_000_000),
        0..700 => random.usize(0..64),
        700..980 => random.usize(64..2_000),
        980..997 => random.usize(2_000..40_000),
        _ => random.usize(40_000..200_000),
    };
    let mut bytes = format!("{number:0HEAD$x}").into_bytes();
    bytes.resize(HEAD + size, 0);
    random.fill(&mut bytes[HEAD..]);
    bytes.into()
}

/// Number of the message with this payload; `None` if it was not published to the topic.
pub(crate) fn number(topic: &str, received: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(received.get(..HEAD)?).ok()?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (payload(topic, number) == received).then_some(number)
}

/// FNV-1a of topic and number.
fn seed(topic: &str, number: u64) -> u64 {
    topic.bytes().chain(number.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_known_by_its_number_and_its_topic() {
        for sent in [0, 1, 77, u64::MAX] {
            let bytes = payload("a/b", sent);
            assert_eq!(number("a/b", &bytes), Some(sent));
            assert_eq!(number("a/c", &bytes), None);
        }
    }

    #[test]
    fn a_large_payload_is_large() {
        for number in 0..50 {
            let size = payload("a/large", number).len();
            assert!((300_000..4_100_000).contains(&size), "{size}");
        }
    }

    #[test]
    fn a_changed_byte_and_a_missing_one_are_seen() {
        let bytes = (0..).map(|number| payload("a", number)).find(|bytes| bytes.len() > 1_000).unwrap();
        let mut changed = bytes.to_vec();
        changed[900] ^= 1;
        assert_eq!(number("a", &changed), None);
        assert_eq!(number("a", &bytes[..bytes.len() - 1]), None);
        assert_eq!(number("a", b""), None);
    }
}
