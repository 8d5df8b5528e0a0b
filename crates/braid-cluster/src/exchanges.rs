//! Open exchanges of QoS 2 of a client in one shard: a record that is appended together with the messages.
//!
//! Each record is appended on condition that it follows the one before: a message of a client whose session has moved
//! is refused, and one that is sent again is not appended twice.

use std::collections::BTreeMap;

use braid_proto::packet::{ClientId, PacketId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::publish::Outgoing;

/// Exchanges of a client in a shard.
#[derive(Clone, Debug)]
pub(crate) struct Exchanges {
    pub(crate) client: ClientId,
    subject: String,
    last: Last,
    open: BTreeMap<PacketId, u16>,
}

/// Sequence number of the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Known(u64),
    /// To be read: a new session, which no other node has had.
    Unread,
    /// To be read: this node has written another one.
    Unsure,
}

#[derive(Default, Serialize, Deserialize)]
struct Record {
    /// Process that wrote it.
    #[serde(rename = "r")]
    run: String,
    /// Packet identifiers, and the number of exchanges of each.
    #[serde(rename = "p")]
    open: Vec<(u16, u16)>,
}

/// Change of the exchanges by one batch of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExchangeUpdate {
    pub(crate) opened: Vec<PacketId>,
    pub(crate) released: Vec<PacketId>,
}

impl Exchanges {
    /// Exchanges of a new session.
    pub(crate) fn new(client: ClientId, subject: String) -> Self {
        Self { client, subject, last: Last::Unread, open: BTreeMap::new() }
    }

    /// Exchanges as a record has them. `payload` and `sequence` of the last record, if there is one.
    pub(crate) fn read(client: ClientId, subject: String, found: Option<(&[u8], u64)>) -> Self {
        let record: Record =
            found.and_then(|(payload, _)| serde_json::from_slice(payload).ok()).unwrap_or_default();
        let open = record.open.into_iter().filter_map(|(id, count)| Some((PacketId::new(id)?, count)));
        let last = Last::Known(found.map_or(0, |(_, sequence)| sequence));
        Self { client, subject, last, open: open.collect() }
    }

    /// Restores open exchanges whose record is not there any more.
    pub(crate) fn restore(&mut self, open: impl Iterator<Item = (u16, u16)>) {
        self.open = open.filter_map(|(id, count)| Some((PacketId::new(id)?, count))).collect();
    }

    pub(crate) fn subject(&self) -> &str {
        &self.subject
    }

    pub(crate) const fn last(&self) -> Last {
        self.last
    }

    pub(crate) const fn set_last(&mut self, last: Last) {
        self.last = last;
    }

    /// Open exchanges by packet identifier.
    pub(crate) fn open(&self) -> impl Iterator<Item = (PacketId, u16)> {
        self.open.iter().map(|(id, count)| (*id, *count))
    }

    /// Applies a change.
    pub(crate) fn apply(&mut self, update: &ExchangeUpdate) {
        for id in &update.opened {
            *self.open.entry(*id).or_default() += 1;
        }
        for id in &update.released {
            if let Some(count) = self.open.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.open.remove(id);
                }
            }
        }
    }

    /// The record as it is now, written by `run`, to follow the last one.
    pub(crate) fn outgoing(&self, run: &str) -> Outgoing {
        let open = self.open.iter().map(|(id, count)| (id.value(), *count)).collect();
        let record = Record { run: run.to_owned(), open };
        // Numbers and a text are always JSON.
        let payload = Bytes::from(serde_json::to_vec(&record).unwrap_or_default());
        let last = if let Last::Known(sequence) = self.last { sequence } else { 0 };
        Outgoing::new(self.subject.clone(), payload).expecting(last)
    }

    /// Takes note of the last record in the stream, which is not the expected one: true if it is of this node, or has
    /// been removed with the log before it; false if another node has written it.
    pub(crate) fn accept(&mut self, found: Option<(&[u8], u64)>, run: &str) -> bool {
        let (is_accepted, sequence) = match found {
            None => (true, 0),
            Some((payload, sequence)) => {
                let is_own =
                    || serde_json::from_slice::<Record>(payload).is_ok_and(|record| record.run == run);
                (self.last == Last::Unread || is_own(), sequence)
            }
        };
        if is_accepted {
            self.last = Last::Known(sequence);
        }
        is_accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(value: u16) -> PacketId {
        PacketId::new(value).unwrap()
    }

    #[test]
    fn a_record_comes_back_and_belongs_to_the_node_that_wrote_it() {
        let (client, subject) = (ClientId::from("c"), "t.q.0.c".to_owned());
        let mut own = Exchanges::new(client.clone(), subject.clone());
        assert!(
            own.accept(Some((b"{\"r\":\"other\",\"p\":[[9,1]]}", 4)), "run"),
            "a new session follows any record"
        );
        own.apply(&ExchangeUpdate { opened: vec![id(1), id(2), id(1)], released: vec![id(3)] });
        own.apply(&ExchangeUpdate { opened: vec![], released: vec![id(2), id(1)] });
        let record = own.outgoing("run");
        assert_eq!(record.headers.get("Nats-Expected-Last-Subject-Sequence").unwrap().as_str(), "4");
        let read = Exchanges::read(client, subject, Some((&record.payload, 7)));
        assert_eq!((read.open().collect::<Vec<_>>(), read.last()), (vec![(id(1), 1)], Last::Known(7)));
        assert!(own.accept(Some((&record.payload, 8)), "run") && own.last() == Last::Known(8));
        assert!(!own.accept(Some((&record.payload, 9)), "another") && own.last() == Last::Known(8));
        assert!(own.accept(None, "run") && own.last() == Last::Known(0));
    }
}
