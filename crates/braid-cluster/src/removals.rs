//! Copies of messages that have removed what was retained, which the servers keep as the last ones of their topics.

use std::collections::{BTreeMap, HashMap};

use async_nats::HeaderMap;

use crate::message::payload_at;

/// Header with the bytes of the payload, of a message that is delivered without it.
const SIZE: &str = "Nats-Msg-Size";

/// Removals whose copies are there.
#[derive(Default)]
pub(crate) struct Removals {
    by_subject: HashMap<String, u64>,
    /// Subject, and seconds since 1970, by the sequence number of the copy.
    by_sequence: BTreeMap<u64, (String, u64)>,
}

/// Tests whether the payload of MQTT is empty, by the headers of a message that came without its payload.
pub(crate) fn is_removal(headers: &HeaderMap) -> bool {
    let size = headers.get(SIZE).and_then(|size| size.as_str().parse().ok());
    size.is_some_and(|size: usize| payload_at(headers) == Some(size))
}

impl Removals {
    /// Notes the last copy of a topic.
    pub(crate) fn note(&mut self, subject: &str, sequence: u64, stored_at: u64, is_removal: bool) {
        self.forget(subject);
        if is_removal {
            self.by_subject.insert(subject.to_owned(), sequence);
            self.by_sequence.insert(sequence, (subject.to_owned(), stored_at));
        }
    }

    /// Some that were stored until `until`, in seconds since 1970: the oldest, with their sequence numbers.
    pub(crate) fn due(&self, until: u64, count: usize) -> Vec<(String, u64)> {
        let oldest = self.by_sequence.iter().take(count);
        let due = oldest.filter(|(_, (_, stored_at))| *stored_at <= until);
        due.map(|(sequence, (subject, _))| (subject.clone(), *sequence)).collect()
    }

    /// Forgets a topic, whose copy is gone.
    pub(crate) fn forget(&mut self, subject: &str) {
        if let Some(sequence) = self.by_subject.remove(subject) {
            self.by_sequence.remove(&sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Model;

    use braid_proto::packet::QoS;
    use proptest::prelude::*;

    use super::*;
    use crate::message::LoggedMessage;

    #[test]
    fn a_removal_is_known_by_its_headers() {
        for (long, payload, expected) in
            [(0, "", true), (0, "x", false), (40_000, "", true), (40_000, "x", false)]
        {
            let message = LoggedMessage {
                qos: QoS::AtMostOnce,
                publisher: "c".repeat(long),
                identity: None,
                is_withheld: false,
                expires_at: None,
                properties: None,
                payload: payload.into(),
            };
            let (mut headers, written) = message.write();
            headers.insert(SIZE, written.len().to_string());
            assert_eq!(is_removal(&headers), expected, "{long} {payload}");
        }
        assert!(!is_removal(&HeaderMap::new()), "it is of other software");
    }

    proptest! {
        #[test]
        fn the_oldest_are_due(notes in proptest::collection::vec((0..4_u8, any::<bool>(), any::<bool>()), 0..30), until in 0..40_u64) {
            let (mut removals, mut model) = (Removals::default(), Model::new());
            for (at, (topic, is_removal, is_purged)) in (1_u64..).zip(notes) {
                let subject = topic.to_string();
                removals.note(&subject, at, at, is_removal);
                model.remove(&subject);
                if is_removal {
                    model.insert(subject.clone(), at);
                }
                if is_purged {
                    removals.forget(&subject);
                    model.remove(&subject);
                }
            }
            let mut expected: Vec<_> = model.into_iter().filter(|(_, at)| *at <= until).collect();
            expected.sort_by_key(|(_, at)| *at);
            expected.truncate(2);
            prop_assert_eq!(removals.due(until, 2), expected);
        }
    }
}
