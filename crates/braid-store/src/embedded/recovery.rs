//! Recovery: replays the journal into the tables when the store is opened, loads the index from the tables, and shows
//! their content to the broker.

use std::mem;
use std::sync::Arc;

use super::codec::journal::{FirstBlock, Header, find_records, is_same};
use super::codec::{self, Malformed};
use super::error::{OpenError, ReadError};
use super::journal::JournalFile;
use super::options::{Options, ProgressReporter, Stage};
use super::snapshot::{CheckpointState, Owner, Snapshot};
use super::tables::Tables;
use crate::ids::{Claim, NextIds, SessionId};
use crate::index::Index;
use crate::message::QueueEntry;
use crate::recovery::Recover;
use crate::write_set::{Inflight, Phase, QueueKey, WriteSet};

/// Bytes of journal records that are applied in one transaction.
const TRANSACTION_BYTES: usize = 16 << 20;

/// Replays the journal; afterwards the tables have everything.
pub(super) fn replay(
    tables: &Tables,
    journal: Option<&JournalFile>,
    options: &Options,
) -> Result<(), OpenError> {
    let state = tables.snapshot().and_then(|snapshot| snapshot.checkpoint_state());
    let state = state.map_err(|error| error.open(&tables.path))?;
    let mut applied = state.applied;
    if let Some((journal, header)) = journal_to_replay(tables, state, journal)? {
        let (writes, bytes) = (WriteSet::default(), 0);
        let replay = Replay { tables, journal, header, applied, writes, bytes, merged: applied };
        applied = replay.run(options)?;
    }
    if state.is_closed {
        return Ok(());
    }
    tables.try_apply(&WriteSet::default(), applied, true).map_err(|error| error.open(&tables.path))
}

/// The journal of these tables, if it may have records that they do not.
fn journal_to_replay<'a>(
    tables: &Tables,
    state: CheckpointState,
    journal: Option<&'a JournalFile>,
) -> Result<Option<(&'a JournalFile, Header)>, OpenError> {
    let missing = || OpenError::JournalMissing(tables.path.clone());
    let Some(journal) = journal else { return if state.is_closed { Ok(None) } else { Err(missing()) } };
    let of_another = || OpenError::JournalOfAnother(journal.path.clone());
    let damaged = |reason: &str| OpenError::journal_damaged(&journal.path, reason);
    // The import replaced the store that the journal belongs to.
    if state.owner == Owner::Import {
        return Ok(None);
    }
    match journal.first_block()? {
        FirstBlock::Blank if state.is_closed => Ok(None),
        FirstBlock::Blank => Err(missing()),
        FirstBlock::Foreign => Err(of_another()),
        // Its creation was interrupted.
        FirstBlock::Damaged if state.is_closed => Ok(None),
        FirstBlock::Damaged => Err(damaged("its header is not whole")),
        FirstBlock::Newer(found) => Err(OpenError::Newer { path: journal.path.clone(), found }),
        // The tables are a copy that was put back, and the journal has records from after the copy was made.
        FirstBlock::Header(header)
            if state.is_closed
                && matches!(state.owner, Owner::Store(store) if is_same(store, header.store)) =>
        {
            Ok(None)
        }
        FirstBlock::Header(header) if state.owner == Owner::Store(header.store) => {
            if !journal.is_complete(header)? {
                return Err(damaged("it ends too early"));
            }
            Ok(Some((journal, header)))
        }
        FirstBlock::Header(_) => Err(of_another()),
    }
}

struct Replay<'a> {
    tables: &'a Tables,
    journal: &'a JournalFile,
    header: Header,
    /// Sequence number of the last record that the tables have.
    applied: u64,
    writes: WriteSet,
    /// Bytes of the records merged into `writes`.
    bytes: usize,
    /// Sequence number of the last record merged into `writes`.
    merged: u64,
}

impl Replay<'_> {
    /// Applies all records and returns the sequence number of the last one.
    fn run(mut self, options: &Options) -> Result<u64, OpenError> {
        let segments = [self.journal.segment(self.header, 0)?, self.journal.segment(self.header, 1)?];
        let mut records: Vec<_> = segments
            .iter()
            .flat_map(|segment| {
                let found = find_records(segment, self.header.store, self.applied);
                found.into_iter().map(|found| (found.sequence, &segment[found.group]))
            })
            .collect();
        records.sort_unstable_by_key(|(sequence, _)| *sequence);
        if records.is_empty() {
            return Ok(self.applied);
        }
        // Before any of them is applied: a refused store stays as it was.
        for (expected, (sequence, _)) in (self.applied + 1..).zip(&records) {
            if *sequence != expected {
                return Err(self.damaged(&format!(
                    "record {expected} is damaged or lost, and record {sequence} is there"
                )));
            }
        }
        let mut progress = ProgressReporter::new(options, Stage::Replaying, records.len() as u64);
        for (sequence, group) in records {
            let decoded = codec::decode_group(group);
            let writes = decoded.map_err(|Malformed(what)| {
                self.damaged(&format!("record {sequence}: {what} was expected"))
            })?;
            self.writes.merge(&writes);
            (self.merged, self.bytes) = (sequence, self.bytes + group.len());
            if self.bytes >= TRANSACTION_BYTES {
                self.flush()?;
            }
            progress.step(group.len());
        }
        self.flush()?;
        progress.end();
        Ok(self.applied)
    }

    fn flush(&mut self) -> Result<(), OpenError> {
        if self.merged > self.applied {
            let writes = mem::take(&mut self.writes);
            let applied = self.tables.try_apply(&writes, self.merged, false);
            applied.map_err(|error| error.open(&self.tables.path))?;
            (self.applied, self.bytes) = (self.merged, 0);
        }
        Ok(())
    }

    fn damaged(&self, reason: &str) -> OpenError {
        OpenError::journal_damaged(&self.journal.path, reason)
    }
}

impl Snapshot {
    /// Builds the index.
    pub(super) fn load(
        &self,
        first_claim: Claim,
        next: NextIds,
        options: &Options,
    ) -> Result<Index, ReadError> {
        let mut index = Index::new(first_claim, next);
        let rows = self.rows(codec::SESSION)? + self.rows(codec::QUEUE)?;
        let mut progress = ProgressReporter::new(options, Stage::Loading, rows);
        self.each(codec::SESSION, codec::session_row, |row| {
            let record = row?;
            let id = record.id;
            progress.step(0);
            let refused = || ReadError::Row(format!("the client of session {id} has two").into());
            index.load_session(record).then_some(()).ok_or_else(refused)
        })?;
        self.each(codec::QUEUE, codec::queue_row, |row| {
            let (key, delivery) = row?;
            progress.step(0);
            index.load_queued(key, delivery.message).then_some(()).ok_or_else(|| orphan("queue", key))
        })?;
        self.each(codec::INFLIGHT, codec::inflight_row, |row| {
            let (key, inflight) = row?;
            index.load_inflight(key, inflight).then_some(()).ok_or_else(|| orphan("inflight", key))
        })?;
        self.each(codec::RETAINED, codec::retained_row, |row| {
            let (topic, message) = row?;
            let refused = || ReadError::Row(format!("{topic} retains two messages").into());
            index.load_retained(topic.clone(), message).then_some(()).ok_or_else(refused)
        })?;
        let (stored, referenced) = (self.rows(codec::MESSAGE)?, index.references().len());
        if u64::try_from(referenced) != Ok(stored) {
            let reason = format!("{stored} messages are stored and {referenced} are referred to");
            return Err(ReadError::Row(reason.into()));
        }
        progress.end();
        Ok(index)
    }

    /// Shows everything but the messages.
    pub(super) fn show(
        &self,
        into: &mut dyn Recover,
        claim: impl Fn(SessionId) -> Claim,
        options: &Options,
    ) -> Result<(), ReadError> {
        let rows = self.rows(codec::SESSION)? + self.rows(codec::QUEUE)?;
        let mut progress = ProgressReporter::new(options, Stage::Recovering, rows);
        self.show_sessions(into, claim, &mut progress)?;
        self.show_queues(into, &mut progress)?;
        self.each(codec::RETAINED, codec::retained_row, |row| {
            row.map(|(topic, message)| into.retained(topic, message))
        })?;
        progress.end();
        Ok(())
    }

    fn show_sessions(
        &self,
        into: &mut dyn Recover,
        claim: impl Fn(SessionId) -> Claim,
        progress: &mut ProgressReporter<'_>,
    ) -> Result<(), ReadError> {
        // By ascending number, the order of their keys.
        let mut sessions = Vec::new();
        self.each(codec::SESSION, codec::session_row, |row| -> Result<(), ReadError> {
            let record = row?;
            let claim = claim(record.id);
            sessions.push(record.id);
            into.session(record, claim);
            progress.step(0);
            Ok(())
        })?;
        let check = |session: SessionId, table: &str| {
            let missing = |_| ReadError::Row(format!("table {table}: there is no session {session}").into());
            sessions.binary_search(&session).map(drop).map_err(missing)
        };
        self.each(codec::SUBSCRIPTION, codec::subscription_row, |row| {
            let (session, filter, subscription) = row?;
            check(session, "subscription")?;
            into.subscription(session, filter, subscription);
            Ok::<_, ReadError>(())
        })?;
        self.each(codec::WILL, codec::will_row, |row| {
            let (session, will) = row?;
            check(session, "will")?;
            into.will(session, Arc::new(will));
            Ok::<_, ReadError>(())
        })?;
        self.each(codec::RECEIVED, codec::received_row, |row| {
            let (session, packet_id, exchanges) = row?;
            check(session, "received")?;
            into.received(session, packet_id, exchanges);
            Ok(())
        })
    }

    fn show_queues(
        &self,
        into: &mut dyn Recover,
        progress: &mut ProgressReporter<'_>,
    ) -> Result<(), ReadError> {
        let inflight = self.inflight()?;
        let mut in_order: Vec<(&QueueKey, &Inflight)> = inflight.iter().collect();
        in_order.sort_unstable_by_key(|(_, inflight)| inflight.step);
        let queue = self.table(codec::QUEUE)?;
        for (queue_key, Inflight { phase, packet_id, .. }) in in_order {
            let (lsn, session) = *queue_key;
            let entry = match phase {
                Phase::Released => QueueEntry::Released(*packet_id),
                Phase::Sent => {
                    let key = codec::queue_key(*queue_key);
                    let row = queue.as_ref().map(|queue| queue.get(&key)).transpose()?.flatten();
                    let row = row.ok_or_else(|| orphan("inflight", *queue_key))?;
                    let delivery = codec::decode_delivery(*queue_key, row.value());
                    let malformed = |error| ReadError::row("queue", &key, error);
                    QueueEntry::Sent(*packet_id, delivery.map_err(malformed)?)
                }
            };
            into.queued(session, lsn, entry);
        }
        self.each(codec::QUEUE, codec::queue_row, |row| {
            let (key, delivery) = row?;
            progress.step(0);
            if !inflight.contains_key(&key) {
                into.queued(key.1, key.0, QueueEntry::Waiting(delivery));
            }
            Ok(())
        })
    }
}

/// Error for a row whose session or entry does not exist.
fn orphan(table: &str, (lsn, session): QueueKey) -> ReadError {
    ReadError::Row(format!("table {table}: entry {lsn} of session {session} belongs to nothing").into())
}
