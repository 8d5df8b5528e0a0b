//! Statistics of a store's content.

use std::collections::BTreeMap;
use std::time::SystemTime;

use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;

use super::super::codec::{self, meta};
use super::super::error::{OpenError, ReadError};
use super::super::options::{ProgressReporter, Stage};
use super::super::snapshot::Snapshot;
use super::OfflineStore;
use crate::ids::{Lsn, SessionId};

/// Numbers of a store's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Format of the tables; 0 if nothing was ever written.
    pub format: u64,
    /// Number of openings by a broker or an import.
    pub opens: u64,
    /// Sessions.
    pub sessions: u64,
    /// Subscriptions of all sessions.
    pub subscriptions: u64,
    /// Unpublished Wills.
    pub wills: u64,
    /// Identifiers of QoS 2 messages of clients whose PUBREL has not come.
    pub received: u64,
    /// Entries of all queues without released ones.
    pub queued: u64,
    /// Sent and released entries.
    pub inflight: u64,
    /// Topics with a retained message.
    pub retained: u64,
    /// Messages, each once.
    pub messages: u64,
    /// Bytes of the stored messages, each once.
    pub bytes: u64,
    /// The message with the lowest queue entry.
    pub oldest: Option<Oldest>,
    /// The longest queues in descending order; at most ten.
    pub queues: Vec<QueueStats>,
    /// Bytes of the tables' file before it was opened.
    pub length: u64,
    /// Bytes of the allocated pages; free ones are reused before the file grows.
    pub used: u64,
}

/// The message that has been queued longest. Its queueing time is stored only where queues have a limit by age.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Oldest {
    /// Its sequence number.
    pub message: Lsn,
    /// Its topic.
    pub topic: TopicName,
    /// Bytes of its payload.
    pub payload: u64,
    /// One of its receivers.
    pub client_id: ClientId,
    /// End of that client's last connection; `None` when it was connected until the broker ended.
    pub parked_at: Option<SystemTime>,
}

/// One session's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// The session.
    pub session: SessionId,
    /// Its client.
    pub client_id: ClientId,
    /// End of the client's last connection; `None` when it was connected until the broker ended.
    pub parked_at: Option<SystemTime>,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of their stored messages; a message in several queues counts in each.
    pub bytes: u64,
}

/// Limit of [`Stats::queues`].
const QUEUES_MAX: usize = 10;

impl OfflineStore {
    /// Counts the rows and reads every queue.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read, or a row is damaged.
    pub fn stats(&self) -> Result<Stats, OpenError> {
        let mut stats = self.count().map_err(|error| self.open_error(error))?;
        stats.used = self.tables.used()?;
        Ok(stats)
    }

    fn count(&self) -> Result<Stats, ReadError> {
        let snapshot = self.tables.snapshot()?;
        let mut stats = Stats {
            format: snapshot.number(meta::FORMAT)?.unwrap_or(0),
            opens: snapshot.number(meta::OPENS)?.unwrap_or(0),
            sessions: snapshot.rows(codec::SESSION)?,
            subscriptions: snapshot.rows(codec::SUBSCRIPTION)?,
            wills: snapshot.rows(codec::WILL)?,
            received: snapshot.rows(codec::RECEIVED)?,
            queued: snapshot.rows(codec::QUEUE)?,
            inflight: snapshot.rows(codec::INFLIGHT)?,
            retained: snapshot.rows(codec::RETAINED)?,
            messages: snapshot.rows(codec::MESSAGE)?,
            length: self.length,
            ..Stats::default()
        };
        let rows = stats.messages + stats.queued;
        let mut progress = ProgressReporter::new(&self.options, Stage::Reading, rows);
        let size_row = |_: &[u8; 8], value: &[u8]| Ok(codec::stored_len(value));
        snapshot.each(codec::MESSAGE, size_row, |size| -> Result<(), ReadError> {
            let size = size?;
            stats.bytes = stats.bytes.saturating_add(size as u64);
            progress.step(size);
            Ok(())
        })?;
        let (oldest, queues) = snapshot.queue_sizes(&mut progress)?;
        stats.queues = snapshot.longest(queues)?;
        if let Some((message, session)) = oldest {
            stats.oldest = Some(snapshot.oldest(message, session)?);
        }
        progress.end();
        Ok(stats)
    }
}

/// Entries and bytes of each session's queue.
type Sizes = BTreeMap<SessionId, (u64, u64)>;

impl Snapshot {
    /// Message and session of the lowest entry, and the sizes of all queues.
    fn queue_sizes(
        &self,
        progress: &mut ProgressReporter<'_>,
    ) -> Result<(Option<(Lsn, SessionId)>, Sizes), ReadError> {
        let (mut first, mut sizes) = (None, Sizes::new());
        self.each(codec::QUEUE, codec::queue_row, |row| {
            let ((_, session), delivery) = row?;
            first = first.or(Some((delivery.message, session)));
            let size = self.message_row(delivery.message)?.map_or(0, |row| codec::stored_len(row.value()));
            let (entries, bytes) = sizes.entry(session).or_default();
            (*entries, *bytes) = (*entries + 1, bytes.saturating_add(size as u64));
            progress.step(size);
            Ok::<_, ReadError>(())
        })?;
        Ok((first, sizes))
    }

    fn longest(&self, sizes: Sizes) -> Result<Vec<QueueStats>, ReadError> {
        let mut sizes: Vec<_> = sizes.into_iter().collect();
        sizes.sort_by_key(|(_, (entries, bytes))| std::cmp::Reverse((*entries, *bytes)));
        sizes.truncate(QUEUES_MAX);
        let queue = |(session, (entries, bytes))| {
            let record = self.session(session)?;
            let (client_id, parked_at) = (record.client_id, record.parked_at);
            Ok(QueueStats { session, client_id, parked_at, entries, bytes })
        };
        sizes.into_iter().map(queue).collect()
    }

    fn oldest(&self, message: Lsn, session: SessionId) -> Result<Oldest, ReadError> {
        let missing = || ReadError::Row(format!("message {message} is not there").into());
        let (head, payload) = self.message_head(message)?.ok_or_else(missing)?;
        let record = self.session(session)?;
        Ok(Oldest {
            message,
            topic: head.topic().clone(),
            payload: payload as u64,
            client_id: record.client_id,
            parked_at: record.parked_at,
        })
    }
}
