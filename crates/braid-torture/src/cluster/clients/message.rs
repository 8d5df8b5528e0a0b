//! Payloads that tell their message: its identifier, a space, and bytes that can be verified.

use bytes::Bytes;

use crate::payload::{number, payload as verifiable};

/// Identifier of a publisher's message.
pub(crate) fn identifier(publisher: &str, number: u64) -> String {
    format!("{publisher}:{number}")
}

/// Payload of a message.
pub(crate) fn payload(id: &str, topic: &str, number: u64) -> Bytes {
    [id.as_bytes(), b" ", &verifiable(topic, number)].concat().into()
}

/// Identifier of the message with this payload; `None` if it was not published to the topic.
pub(crate) fn id(topic: &str, payload: &[u8]) -> Option<String> {
    let space = payload.iter().position(|byte| *byte == b' ')?;
    let id = str::from_utf8(&payload[..space]).ok()?;
    let (_, told) = id.rsplit_once(':')?;
    let number = number(topic, &payload[space + 1..])?;
    (told.parse() == Ok(number)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_known_by_its_topic_and_each_of_its_bytes() {
        let id_of = identifier("pub-0", 17);
        let bytes = payload(&id_of, "m/pub-0/one", 17);
        assert_eq!(id("m/pub-0/one", &bytes).as_deref(), Some("pub-0:17"));
        assert_eq!(id("m/pub-0/two", &bytes), None);
        let mut changed = bytes.to_vec();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        assert_eq!(id("m/pub-0/one", &changed), None);
        assert_eq!(id("m/pub-0/one", &payload("pub-0:18", "m/pub-0/one", 17)), None);
        for wrong in [&b""[..], b" ", b"x ", b"x:1", b"x:1 "] {
            assert_eq!(id("m/pub-0/one", wrong), None);
        }
    }
}
