use std::collections::BTreeMap;
use std::time::SystemTime;

use braid_proto::packet::ClientId;
use braid_proto::topic::TopicName;

use super::super::error::{OpenError, ReadError};
use super::super::file::Snapshot;
use super::super::keys::{self, meta};
use super::super::options::{Stage, Teller};
use super::OfflineStore;
use crate::identity::{Lsn, SessionId};

/// How much is in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The format of the file; 0 for one that nothing was written to.
    pub format: u64,
    /// How often it was opened by a broker.
    pub opens: u64,
    /// Sessions.
    pub sessions: u64,
    /// Subscriptions of all sessions.
    pub subscriptions: u64,
    /// Wills that are not published.
    pub wills: u64,
    /// QoS 2 messages of clients whose PUBREL has not come.
    pub received: u64,
    /// Entries of all queues, but those that were released.
    pub queued: u64,
    /// Entries that were sent or released.
    pub inflight: u64,
    /// Topics with a retained message.
    pub retained: u64,
    /// Different messages.
    pub messages: u64,
    /// Bytes of the messages as they are stored, each once.
    pub bytes: u64,
    /// The message that has been queued longest.
    pub oldest: Option<Oldest>,
    /// The longest queues, the longest first; at most ten.
    pub queues: Vec<QueueStats>,
    /// Bytes of the file before it was opened.
    pub length: u64,
    /// Bytes of the pages that hold something; the others are used again before the file grows.
    pub used: u64,
}

/// The message that has been queued longest. When it came is stored only where there is a cap by age.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Oldest {
    /// Its number.
    pub message: Lsn,
    /// Its topic.
    pub topic: TopicName,
    /// Bytes of its payload.
    pub payload: u64,
    /// One for whom it waits.
    pub client_id: ClientId,
    /// When that client was there last; `None` when it was connected until the broker ended.
    pub parked_at: Option<SystemTime>,
}

/// One session's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Whose.
    pub session: SessionId,
    /// Of which client.
    pub client_id: ClientId,
    /// When the client was there last; `None` when it was connected until the broker ended.
    pub parked_at: Option<SystemTime>,
    /// Entries.
    pub entries: u64,
    /// Bytes of their messages as they are stored; one that others have in their queues too is in the bytes of each.
    pub bytes: u64,
}

/// So many queues are told.
const LONGEST: usize = 10;

impl OfflineStore {
    /// Counts; reads every queue.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read, or something is damaged.
    pub fn stats(&self) -> Result<Stats, OpenError> {
        let mut stats = self.count().map_err(|error| self.open_error(error))?;
        stats.used = self.file.used()?;
        Ok(stats)
    }

    fn count(&self) -> Result<Stats, ReadError> {
        let snapshot = self.file.snapshot()?;
        let mut stats = Stats {
            format: snapshot.number(meta::FORMAT)?.unwrap_or(0),
            opens: snapshot.number(meta::OPENS)?.unwrap_or(0),
            sessions: snapshot.rows(keys::SESSION)?,
            subscriptions: snapshot.rows(keys::SUBSCRIPTION)?,
            wills: snapshot.rows(keys::WILL)?,
            received: snapshot.rows(keys::RECEIVED)?,
            queued: snapshot.rows(keys::QUEUE)?,
            inflight: snapshot.rows(keys::INFLIGHT)?,
            retained: snapshot.rows(keys::RETAINED)?,
            messages: snapshot.rows(keys::MESSAGE)?,
            length: self.length,
            ..Stats::default()
        };
        let mut teller = Teller::new(&self.options, Stage::Reading, stats.messages + stats.queued);
        snapshot.each_message_size(|size| {
            stats.bytes = stats.bytes.saturating_add(size as u64);
            teller.step_over(size);
        })?;
        let (oldest, queues) = snapshot.queue_sizes(&mut teller)?;
        stats.queues = snapshot.longest(queues)?;
        if let Some((message, session)) = oldest {
            stats.oldest = Some(snapshot.oldest(message, session)?);
        }
        teller.end();
        Ok(stats)
    }
}

/// Entries and bytes of each session's queue.
type Sizes = BTreeMap<SessionId, (u64, u64)>;

impl Snapshot {
    /// The first entry of all, as its message and its session, and how long the queues are.
    fn queue_sizes(&self, teller: &mut Teller<'_>) -> Result<(Option<(Lsn, SessionId)>, Sizes), ReadError> {
        let (mut first, mut sizes) = (None, Sizes::new());
        self.each_queued(|row| {
            let ((_, session), delivery) = row?;
            first = first.or(Some((delivery.message, session)));
            let size = self.message_row(delivery.message)?.map_or(0, |row| keys::stored_len(row.value()));
            let (entries, bytes) = sizes.entry(session).or_default();
            (*entries, *bytes) = (*entries + 1, bytes.saturating_add(size as u64));
            teller.step_over(size);
            Ok::<_, ReadError>(())
        })?;
        Ok((first, sizes))
    }

    fn longest(&self, sizes: Sizes) -> Result<Vec<QueueStats>, ReadError> {
        let mut sizes: Vec<_> = sizes.into_iter().collect();
        sizes.sort_by_key(|(_, (entries, bytes))| std::cmp::Reverse((*entries, *bytes)));
        sizes.truncate(LONGEST);
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
