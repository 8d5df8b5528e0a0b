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
            (session.filters(), session.missing(index).0)
        };
        if found.done >= until {
            return Ok(Vec::new());
        }
        let mut matching: BTreeMap<u64, (Logged, BTreeSet<TopicFilter>)> = BTreeMap::new();
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
                    if let Some((_, filters)) = matching.get_mut(&sequence) {
                        filters.insert(filter.clone());
                    } else if let Some(logged) =
                        read(layout, index, sequence, named(layout, &subject), Some(&headers), payload)
                        && !logged.is_withheld
                        && logged.message.expires_at().is_none_or(|at| at > now)
                    {
                        matching.insert(sequence, (logged, BTreeSet::from([filter.clone()])));
                    }
                }
                // The oldest ones would be dropped in any case.
                while matching.len() > 2 * limits.messages.max(KEPT) {
                    matching.pop_first();
                }
                if is_end {
                    break;
                }
            }
        }
        let sessions = self.state.sessions();
        let session = sessions.own.get(&id).ok_or(StoreError::Fenced { session: id })?;
        let (_, is_missing) = session.missing(index);
        let replayed = matching.into_iter().filter(|(sequence, _)| is_missing(*sequence));
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
