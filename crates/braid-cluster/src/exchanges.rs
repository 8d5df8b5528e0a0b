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

/// Process that wrote the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// Process of this node.
    Own,
    /// Another one, after this one did: it has the session.
    Other,
    /// Another one, before or after this one had the session; or the record was removed with the log before it. The
    /// record of the session tells who has it.
    Unknown,
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

    /// Authorship of the last record in the stream, which is not the expected one.
    pub(crate) fn author(&self, found: Option<&[u8]>, run: &str) -> Author {
        let record = found.map(|payload| serde_json::from_slice::<Record>(payload).unwrap_or_default());
        match record {
            Some(record) if record.run == run => Author::Own,
            Some(_) if self.last == Last::Unsure => Author::Other,
            _ => Author::Unknown,
        }
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
        let foreign = &b"{\"r\":\"other\",\"p\":[[9,1]]}"[..];
        assert_eq!(own.author(Some(foreign), "run"), Author::Unknown, "a new session may follow any record");
        assert_eq!(own.author(None, "run"), Author::Unknown);
        own.set_last(Last::Known(4));
        own.apply(&ExchangeUpdate { opened: vec![id(1), id(2), id(1)], released: vec![id(3)] });
        own.apply(&ExchangeUpdate { opened: vec![], released: vec![id(2), id(1)] });
        let record = own.outgoing("run");
        assert_eq!(record.headers.get("Nats-Expected-Last-Subject-Sequence").unwrap().as_str(), "4");
        let read = Exchanges::read(client, subject, Some((&record.payload, 7)));
        assert_eq!((read.open().collect::<Vec<_>>(), read.last()), (vec![(id(1), 1)], Last::Known(7)));
        own.set_last(Last::Unsure);
        assert_eq!(own.author(Some(&record.payload), "run"), Author::Own);
        assert_eq!(own.author(Some(&record.payload), "another"), Author::Other);
        assert_eq!(own.author(Some(b"?"), "run"), Author::Other, "it is not of this node");
        assert_eq!(own.author(None, "run"), Author::Unknown, "the log before it was removed");
    }
}
