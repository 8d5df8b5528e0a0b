//! Reads of messages of the log: by their numbers, and those that a session has missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use braid_broker::cluster::{ReplayLimits, Replayed};
use braid_proto::topic::TopicFilter;
use braid_store::{Lsn, SessionId, StoreError, StoredMessage};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::log_source::{Found, LogSource};
use crate::logged::{Logged, named, read};
use crate::position::ReadPosition;
use crate::store::{NodeState, ReadRequest};

/// Messages that are read at a time by their numbers.
const AT_ONCE: usize = 32;

/// Fewest messages that are kept while the log is read.
const KEPT: usize = 256;

/// Tries to read.
const TRIES: u32 = 10;

/// Reader of single messages.
#[derive(Clone)]
pub(crate) struct MessageReader {
    pub(crate) state: Arc<NodeState>,
    pub(crate) log: LogSource,
}

impl MessageReader {
    /// Answers requests for as long as the store is there.
    pub(crate) async fn run(self, mut requests: UnboundedReceiver<ReadRequest>) {
        while let Some(ReadRequest { lsns, completer }) = requests.recv().await {
            let reader = self.clone();
            tokio::spawn(async move {
                let reads = stream::iter(lsns).map(|lsn| reader.read_one(lsn)).buffered(AT_ONCE);
                let read: Vec<_> = reads.collect().await;
                completer.complete(read.into_iter().collect());
            });
        }
    }

    async fn read_one(&self, lsn: Lsn) -> Result<Option<StoredMessage>, StoreError> {
        let layout = &self.state.layout;
        let Some((index, sequence)) = layout.position(lsn) else { return Ok(None) };
        let mut reason = String::new();
        for _ in 0..TRIES {
            match self.log.streams[index].get_raw_message(sequence).await {
                Ok(found) => {
                    let (subject, headers) = (found.subject.to_string(), Some(&found.headers));
                    let logged =
                        read(layout, index, sequence, named(layout, &subject), headers, found.payload);
                    return Ok(logged.map(|logged| logged.message));
                }
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
                Err(error) => reason = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(StoreError::Unavailable { reason: reason.into() })
    }

    /// Messages that match a session and are not queued for it by now, the latest within the limits.
    pub(crate) async fn replay(
        &self,
        id: SessionId,
        limits: ReplayLimits,
    ) -> Result<Vec<Replayed>, StoreError> {
        let mut all = Vec::new();
        for index in 0..self.state.layout.parts() {
            all.extend(self.replay_shard(id, index, limits).await?);
        }
        let mut bytes = all.iter().map(|one| one.message.payload().len()).sum::<usize>();
        let mut begin = 0;
        while all.len() - begin > limits.messages || bytes > limits.bytes && begin < all.len() {
            bytes -= all[begin].message.payload().len();
            begin += 1;
        }
        if begin > 0 {
            tracing::warn!(session = %id, messages = begin, "the queue of a session is full: the oldest messages are dropped");
        }
        Ok(all.split_off(begin))
    }

    async fn replay_shard(
        &self,
        id: SessionId,
        index: usize,
        limits: ReplayLimits,
    ) -> Result<Vec<Replayed>, StoreError> {
        let NodeState { layout, positions, clock, .. } = &*self.state;
        let now = clock.wall();
        let until = positions.get(index).map_or(0, ReadPosition::settled);
        let (filters, found) = {
            let sessions = self.state.sessions();
            let session = sessions.own.get(&id).ok_or(StoreError::Fenced { session: id })?;
            (session.filters(), session.found(index))
        };
        if found.done >= until {
            return Ok(Vec::new());
        }
        let mut matching = Matching::default();
        for (filter, since) in filters {
            let from = found.done.max(since.get(index).copied().unwrap_or(0)) + 1;
            let subject = layout.messages(layout.shard_at(index), &filter);
            let mut next = from;
            while next <= until {
                let (some, is_end) = self.log.read_matching(index, &subject, next).await?;
                let Some(last) = some.last() else { break };
                next = last.sequence + 1;
                for Found { sequence, subject, headers, payload } in some {
                    if sequence > until || !found.is_needed(sequence) {
                        continue;
                    }
                    let read_one = || {
                        let named = named(layout, &subject);
                        let logged = read(layout, index, sequence, named, Some(&headers), payload)?;
                        let is_over =
                            logged.is_withheld || logged.message.expires_at().is_some_and(|at| at <= now);
                        (!is_over).then_some(logged)
                    };
                    matching.note(sequence, &filter, read_one);
                    matching.limit(limits);
                }
                if is_end {
                    break;
                }
            }
        }
        let sessions = self.state.sessions();
        let session = sessions.own.get(&id).ok_or(StoreError::Fenced { session: id })?;
        // A number is looked up for each message that was read: the ranges of a session may hold more than memory.
        let replayed =
            matching.messages.into_iter().filter(|(sequence, _)| session.is_missing(index, *sequence));
        Ok(replayed
            .map(|(_, (Logged { lsn, message, publisher, .. }, filters))| Replayed {
                lsn,
                message,
                publisher,
                filters: filters.into_iter().collect(),
            })
            .collect())
    }
}

/// Messages of a shard that match a session, the latest within the limits of its queue, with their filters.
#[derive(Default)]
struct Matching {
    messages: BTreeMap<u64, (Logged, BTreeSet<TopicFilter>)>,
    /// Bytes of their payloads.
    bytes: usize,
    /// Highest sequence number of those that are dropped: by another filter an older one may come that would fit.
    dropped: u64,
}

impl Matching {
    /// Notes a message of a filter. It is read unless it is known, or older than one that is dropped.
    fn note(&mut self, sequence: u64, filter: &TopicFilter, read: impl FnOnce() -> Option<Logged>) {
        if sequence <= self.dropped {
            return;
        }
        if let Some((_, filters)) = self.messages.get_mut(&sequence) {
            filters.insert(filter.clone());
        } else if let Some(logged) = read() {
            self.bytes += logged.message.payload().len();
            self.messages.insert(sequence, (logged, BTreeSet::from([filter.clone()])));
        }
    }

    /// Drops the oldest beyond the limits, and keeps at least one. Those that are queued by now count: they are told
    /// apart at the end.
    fn limit(&mut self, limits: ReplayLimits) {
        let most = 2 * limits.messages.max(KEPT);
        while self.messages.len() > most || self.bytes > limits.bytes && self.messages.len() > 1 {
            let Some((sequence, (logged, _))) = self.messages.pop_first() else { return };
            self.bytes -= logged.message.payload().len();
            self.dropped = sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_proto::packet::QoS;
    use braid_proto::topic::TopicName;
    use bytes::Bytes;

    use super::*;

    fn logged(sequence: u64, bytes: usize) -> Option<Logged> {
        let (topic, payload) = (TopicName::parse("t").unwrap(), Bytes::from(vec![0; bytes]));
        let message = StoredMessage::from_parts(topic, payload, QoS::AtLeastOnce, false, None, None);
        Some(Logged { lsn: Lsn::new(sequence), message, publisher: None, identity: None, is_withheld: false })
    }

    #[test]
    fn a_replay_holds_no_more_bytes_than_a_queue() {
        let limits = ReplayLimits { messages: 100_000, bytes: 1000 };
        let [one, other] = ["t", "#"].map(|filter| TopicFilter::parse(filter).unwrap());
        let mut matching = Matching::default();
        for sequence in 1..=50 {
            matching.note(2 * sequence, &one, || logged(sequence, 300));
            matching.limit(limits);
            assert!(matching.bytes <= limits.bytes, "{}", matching.bytes);
        }
        // Older ones are not among the latest, though they would fit; a known one has both filters.
        for sequence in [1, 93, 94, 96, 100] {
            matching.note(sequence, &other, || logged(sequence, 1));
            matching.limit(limits);
        }
        let kept: Vec<_> = matching.messages.iter().map(|(at, (_, filters))| (*at, filters.len())).collect();
        assert_eq!(kept, [(96, 2), (98, 1), (100, 2)]);
        matching.note(101, &one, || logged(101, 5000));
        matching.limit(limits);
        assert_eq!(matching.messages.keys().copied().collect::<Vec<_>>(), [101], "at least one");
    }

    #[test]
    fn a_replay_holds_no_more_messages_than_twice_a_queue() {
        let (limits, filter) = (ReplayLimits { messages: 1, bytes: 1000 }, TopicFilter::parse("#").unwrap());
        let mut matching = Matching::default();
        for sequence in 1..=3 * KEPT as u64 {
            matching.note(sequence, &filter, || logged(sequence, 0));
            matching.limit(limits);
        }
        assert_eq!((matching.messages.len(), matching.dropped), (2 * KEPT, KEPT as u64));
    }
}
