//! Write-ahead log: appends groups to the journal, keeps their merged changes in memory, and schedules checkpoints.
//!
//! The journal has two segments that alternate. Groups are appended to one segment and merged in memory, where most
//! stored messages cancel out with their completion. A checkpoint writes the merged changes to the tables while the
//! other segment is appended to; a segment is reused only after its checkpoint. An appender that finds no room waits
//! for the checkpoint, so memory is bounded.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::codec;
use super::codec::journal::{BLOCK, begin_record, end_record, group_len_max};
use super::journal::Journal;
use super::snapshot::Unread;
use super::tables::Tables;
use crate::error::StoreError;
use crate::write_set::{Write, WriteSet};

/// Capacity of the record buffer that is kept after a longer record, in bytes.
const RECORD_CAPACITY: usize = 1 << 20;

pub(super) struct Wal {
    state: Mutex<State>,
    /// Signals changes of the state to the writer, the checkpointer and flushes.
    changed: Condvar,
    journal: Journal,
    /// Longest time for which a change is in the journal alone, unless a checkpoint is slower.
    checkpoint_interval: Duration,
}

#[derive(Default)]
struct State {
    /// Position of the next record: its segment and the first free block there.
    segment: u64,
    block: u64,
    /// Sequence number of the last record that was begun.
    sequence: u64,
    /// Destination of that record while it is written and not merged.
    in_progress: Option<Destination>,
    /// Merged changes of the segment's records, which the tables do not have.
    unapplied: WriteSet,
    /// Time of the first unapplied change; `None` without any.
    unapplied_since: Option<Instant>,
    /// The running checkpoint, of the other segment.
    checkpoint: Option<Checkpoint>,
    /// Sequence number of the last record that the tables have.
    applied: u64,
    /// Highest sequence number whose checkpoint a flush waits for.
    flush_target: u64,
    end: End,
    failure: Option<StoreError>,
}

/// Destination of a group that becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Journal,
    /// For a group that is larger than a segment, after all earlier groups were applied.
    Tables,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// The last checkpoint is outstanding.
    Closing,
    Closed,
}

/// Changes that the tables get in one transaction.
#[derive(Clone)]
pub(super) struct Checkpoint {
    pub(super) writes: Arc<WriteSet>,
    /// Sequence number of the last record in it.
    pub(super) sequence: u64,
    /// True for the last one before the store is closed: afterwards the tables have everything.
    pub(super) is_last: bool,
}

impl Wal {
    /// Continues after the record with the sequence number `applied`, which the tables have.
    pub(super) fn new(journal: Journal, applied: u64, checkpoint_interval: Duration) -> Self {
        let state = State { sequence: applied, applied, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), journal, checkpoint_interval }
    }

    /// A poisoned state is safe to use: callers and the checkpointer set single fields, and a panic in `merge`, the
    /// only change in steps, is caught by the writer, which fails the store, so nothing of the state reaches the disk.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the messages that are durable and not in the tables yet, and leaves the others in `unread`.
    pub(super) fn read(&self, unread: &mut Vec<Unread<'_>>) {
        let state = self.lock();
        let checkpoint = state.checkpoint.as_ref().map(|checkpoint| &*checkpoint.writes);
        let both = || [Some(&state.unapplied), checkpoint].into_iter().flatten();
        unread.retain_mut(|(lsn, message)| {
            **message = both().find_map(|writes| writes.messages.get(lsn)).and_then(Write::value).cloned();
            message.is_none()
        });
    }

    /// Number of groups that the tables do not have.
    pub(super) fn unapplied_groups(&self) -> u64 {
        let state = self.lock();
        if state.is_applied() { 0 } else { state.sequence - state.applied }
    }

    /// Blocks until the tables have everything that is durable now.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        let target = state.sequence;
        state.flush_target = state.flush_target.max(target);
        self.changed.notify_all();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.applied >= target || state.is_applied() {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    /// Ends all writing with this error; the first one is kept.
    pub(super) fn fail(&self, failure: &StoreError) {
        self.lock().failure.get_or_insert_with(|| failure.clone());
        self.changed.notify_all();
    }

    /// Lets the last checkpoint begin. The caller has ended the writer.
    pub(super) fn close(&self) {
        self.lock().end = End::Closing;
        self.changed.notify_all();
    }
}

/// Appending, by the writer thread only.
impl Wal {
    /// Makes a group durable; [`merge`](Self::merge) follows. `record` is a buffer that is reused.
    ///
    /// Returns the duration of the journal's write and sync, as an estimate for the next group: without the wait for
    /// room, and zero for a group that went to the tables.
    pub(super) fn append(
        &self,
        writes: &WriteSet,
        record: &mut Vec<u8>,
        tables: &Tables,
    ) -> Result<Duration, StoreError> {
        begin_record(record);
        if !codec::encode_group(record, writes, group_len_max(self.journal.segment_blocks())) {
            record.clear();
            record.shrink_to(RECORD_CAPACITY);
            self.flush()?;
            let sequence = self.lock().begin_group(Destination::Tables);
            return tables.apply(writes, sequence, false).map(|()| Duration::ZERO);
        }
        let blocks = record.len().div_ceil(BLOCK) as u64;
        let (segment, block, sequence) = self.allocate(blocks)?;
        end_record(record, self.journal.store(), sequence);
        let began = Instant::now();
        let appended = self.journal.append(segment, block, record);
        let took = began.elapsed();
        record.clear();
        record.shrink_to(RECORD_CAPACITY);
        appended.map_err(|error| StoreError::Failed { reason: format!("I/O error: {error}").into() })?;
        Ok(took)
    }

    /// Allocates blocks for the next record and returns its segment, its first block and its sequence number; waits for
    /// room.
    fn allocate(&self, blocks: u64) -> Result<(u64, u64, u64), StoreError> {
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.block + blocks <= self.journal.segment_blocks() {
                break;
            }
            if state.checkpoint.is_none() {
                state.begin_checkpoint(false);
                self.changed.notify_all();
            } else {
                state = self.wait(state);
            }
        }
        let (segment, block) = (state.segment, state.block);
        state.block += blocks;
        Ok((segment, block, state.begin_group(Destination::Journal)))
    }

    /// Merges a durable group into the changes of the next checkpoint.
    pub(super) fn merge(&self, writes: &WriteSet) {
        let mut state = self.lock();
        // A group that went to the tables may complete a flush.
        let is_flushing = state.flush_target > state.applied;
        match state.in_progress.take() {
            Some(Destination::Journal) => state.unapplied.merge(writes),
            Some(Destination::Tables) => state.applied = state.sequence,
            None => {}
        }
        let now = Instant::now();
        let is_first = state.unapplied_since.is_none() && !state.unapplied.is_empty();
        if state.unapplied.is_empty() {
            state.unapplied_since = None;
        } else if is_first {
            state.unapplied_since = Some(now);
        }
        let is_due = state.is_checkpoint_due(now, self.checkpoint_interval);
        if is_due {
            state.begin_checkpoint(false);
        }
        // Other changes concern no waiting thread, and waking one for each group costs more than most groups.
        if is_first || is_due || is_flushing || state.end != End::Open {
            self.changed.notify_all();
        }
    }
}

/// Checkpoints, by the checkpointer thread only.
impl Wal {
    /// Blocks until the next checkpoint is due; `None` after the last one or a failure.
    pub(super) fn next_checkpoint(&self) -> Option<Checkpoint> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(checkpoint) = &state.checkpoint {
                return Some(checkpoint.clone());
            }
            let now = Instant::now();
            match state.end {
                End::Closed => return None,
                End::Closing => state.begin_checkpoint(true),
                End::Open if state.is_checkpoint_due(now, self.checkpoint_interval) => {
                    state.begin_checkpoint(false)
                }
                End::Open => state = self.wait_for_due(state, now),
            }
        }
    }

    fn wait_for_due<'a>(&self, state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        // A time beyond the range of `Instant` never comes. One that passed while a group is in progress waits for
        // `merge`, which notifies.
        let due = state.unapplied_since.and_then(|since| since.checked_add(self.checkpoint_interval));
        let left = due.map(|due| due.saturating_duration_since(now)).filter(|left| !left.is_zero());
        let Some(left) = left else { return self.wait(state) };
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends a checkpoint whose transaction is durable, and frees its segment.
    pub(super) fn end_checkpoint(&self) {
        let finished = {
            let mut state = self.lock();
            let finished = state.checkpoint.take();
            if let Some(checkpoint) = &finished {
                state.applied = checkpoint.sequence;
            }
            finished
        };
        self.changed.notify_all();
        // Messages are freed outside the lock.
        drop(finished);
    }
}

impl State {
    /// Begins a group and returns its sequence number.
    fn begin_group(&mut self, destination: Destination) -> u64 {
        self.sequence += 1;
        self.in_progress = Some(destination);
        self.sequence
    }

    /// True when the tables have every change that did not cancel out.
    fn is_applied(&self) -> bool {
        self.unapplied.is_empty() && self.checkpoint.is_none() && self.in_progress.is_none()
    }

    /// True when a checkpoint is due although the segment has room: for a flush, or by age.
    fn is_checkpoint_due(&self, now: Instant, interval: Duration) -> bool {
        let age = || self.unapplied_since.map(|since| now.saturating_duration_since(since));
        self.checkpoint.is_none()
            && self.in_progress.is_none()
            && !self.unapplied.is_empty()
            && (self.flush_target > self.applied || age().is_some_and(|age| age >= interval))
    }

    /// Switches segments and begins the checkpoint of the former one. The other segment is free and no group in
    /// progress.
    fn begin_checkpoint(&mut self, is_last: bool) {
        let writes = Arc::new(mem::take(&mut self.unapplied));
        self.unapplied_since = None;
        self.checkpoint = Some(Checkpoint { writes, sequence: self.sequence, is_last });
        (self.segment, self.block) = (1 - self.segment, 0);
        if is_last {
            self.end = End::Closed;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use redb::backends::InMemoryBackend;

    use super::super::journal::JournalFile;
    use super::super::options::Options;
    use super::*;
    use crate::ids::NextIds;

    /// Timeout of anything that does not block for ever.
    const LONG: Duration = Duration::from_secs(60);

    fn opened() -> (Wal, Tables) {
        opened_for(Duration::from_secs(3600))
    }

    fn opened_for(interval: Duration) -> (Wal, Tables) {
        let (path, options) = (Arc::from("memory"), Options::default());
        let tables = Tables::open(InMemoryBackend::new(), &path, &options).unwrap();
        let journal = JournalFile::on(InMemoryBackend::new()).adopt(&tables, 2 * BLOCK).unwrap();
        (Wal::new(journal, 0, interval), tables)
    }

    /// Fills one segment.
    fn small() -> WriteSet {
        WriteSet { next: Some(NextIds::FIRST), ..WriteSet::default() }
    }

    #[test]
    fn a_group_that_goes_to_the_tables_gives_no_commit_hint() {
        let (wal, tables) = opened();
        let mut large = WriteSet::default();
        (1..1000).for_each(|session| large.close(crate::SessionId::new(session)));
        assert_eq!(wal.append(&large, &mut Vec::new(), &tables), Ok(Duration::ZERO));
    }

    /// Callers are completed before the group is merged, and one of them may flush at once.
    #[test]
    fn a_flush_completes_when_a_group_went_to_the_tables() {
        let (wal, tables) = opened();
        let mut large = WriteSet::default();
        (1..1000).for_each(|session| large.close(crate::SessionId::new(session)));
        wal.append(&large, &mut Vec::new(), &tables).unwrap();
        let (tell, told) = mpsc::channel();
        let wal = Arc::new(wal);
        let waiting = Arc::clone(&wal);
        thread::spawn(move || tell.send(waiting.flush()));
        while wal.lock().flush_target == 0 {
            thread::yield_now();
        }
        wal.merge(&large);
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    }

    #[test]
    fn a_group_in_progress_does_not_cancel_a_checkpoint_that_is_due_later() {
        let (wal, tables) = opened_for(Duration::from_millis(200));
        wal.append(&small(), &mut Vec::new(), &tables).unwrap();
        wal.merge(&small());
        wal.lock().begin_group(Destination::Journal);
        let (tell, told) = mpsc::channel();
        let wal = Arc::new(wal);
        let waiting = Arc::clone(&wal);
        thread::spawn(move || tell.send(waiting.next_checkpoint().is_some()));
        // Mostly until the thread waits; otherwise the test shows nothing.
        (0..1000).for_each(|_| thread::yield_now());
        wal.merge(&small());
        assert_eq!(told.recv_timeout(LONG), Ok(true));
    }

    #[test]
    fn the_duration_of_an_append_excludes_the_wait_for_a_free_segment() {
        let (wal, tables) = opened();
        for _ in 0..2 {
            wal.append(&small(), &mut Vec::new(), &tables).unwrap();
            wal.merge(&small());
        }
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let appending = scope.spawn(|| {
                let began = Instant::now();
                tell.send(()).unwrap();
                let took = wal.append(&small(), &mut Vec::new(), &tables).unwrap();
                (took, began.elapsed())
            });
            told.recv().unwrap();
            let since = Instant::now();
            (0..10_000).for_each(|_| thread::yield_now());
            let held = since.elapsed();
            wal.end_checkpoint();
            let (took, all) = appending.join().unwrap();
            assert!(took + held <= all, "{took:?} of {all:?}, {held:?} of them waiting");
        });
    }
}
