//! What is durable in the journal and not in the tables yet: where the next record goes, what the tables do not have, and
//! when they get it.
//!
//! The halves of the journal take turns. Groups are appended to one half and joined in memory, where most of what was
//! stored cancels out; then both turn: the tables get what was joined, and only when they have it the half is used
//! again. Whoever finds no room waits for that, so nothing grows.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::file::File;
use super::journal::Journal;
use super::keys;
use super::keys::journal::{BLOCK, begin_record, end_record, group_room};
use super::writes::Writes;
use crate::error::StoreError;
use crate::identity::Lsn;
use crate::message::StoredMessage;

/// A record that was longer does not keep its memory.
const KEPT: usize = 1 << 20;

pub(super) struct Ahead {
    state: Mutex<State>,
    /// The state is another one than somebody waits in.
    changed: Condvar,
    journal: Journal,
    every: Duration,
}

struct State {
    /// Where the next record goes: which half, and the first of its blocks that is free.
    half: u64,
    block: u64,
    /// The last record that was begun.
    sequence: u64,
    /// It is on its way: not joined yet.
    underway: Option<Way>,
    /// What the half has and the tables do not.
    joined: Writes,
    /// Since when; `None` while that is nothing.
    since: Option<Instant>,
    /// What the other half has and the tables are getting.
    checkpoint: Option<Checkpoint>,
    /// The last record that the tables have.
    settled: u64,
    /// Up to here somebody waits for the tables.
    wanted: u64,
    end: End,
    failure: Option<StoreError>,
}

/// How a group becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Journal,
    /// It is larger than a half, and everything before it is in the tables.
    Tables,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// One more checkpoint.
    Closing,
    Closed,
}

/// What the tables get in one transaction.
#[derive(Clone)]
pub(super) struct Checkpoint {
    pub(super) writes: Arc<Writes>,
    /// The last record that is in it.
    pub(super) sequence: u64,
    /// Nothing follows: the tables have everything then.
    pub(super) is_last: bool,
}

impl Ahead {
    /// Behind the record with this number, which the tables have.
    pub(super) fn new(journal: Journal, settled: u64, every: Duration) -> Self {
        let state = State {
            half: 0,
            block: 0,
            sequence: settled,
            underway: None,
            joined: Writes::default(),
            since: None,
            checkpoint: None,
            settled,
            wanted: 0,
            end: End::Open,
            failure: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), journal, every }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// What is on its way to the tables.
    pub(super) fn message(&self, message: Lsn) -> Option<StoredMessage> {
        let state = self.lock();
        let both = [Some(&state.joined), state.checkpoint.as_ref().map(|checkpoint| &*checkpoint.writes)];
        let written = both.into_iter().flatten().find_map(|writes| writes.messages.get(&message));
        written.and_then(|write| write.value()).cloned()
    }

    /// How many groups the tables do not have.
    pub(super) fn groups(&self) -> u64 {
        let state = self.lock();
        if state.is_settled() { 0 } else { state.sequence - state.settled }
    }

    /// Waits until the tables have everything that is durable now.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let mut state = self.lock();
        let wanted = state.sequence;
        state.wanted = state.wanted.max(wanted);
        self.changed.notify_all();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.settled >= wanted || state.is_settled() {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    /// Nothing is written any more.
    pub(super) fn fail(&self, failure: &StoreError) {
        self.lock().failure.get_or_insert_with(|| failure.clone());
        self.changed.notify_all();
    }

    /// Lets the last checkpoint begin. Nobody appends any more.
    pub(super) fn close(&self) {
        self.lock().end = End::Closing;
        self.changed.notify_all();
    }
}

/// For whoever appends: one thread.
impl Ahead {
    /// Makes a group durable; [`join`](Self::join) follows. `record` is room for it that is used again and again.
    ///
    /// For how long the journal wrote: neither the wait for room in it counts, nor a group that went to the tables, for the
    /// next group has neither.
    pub(super) fn append(
        &self,
        writes: &Writes,
        record: &mut Vec<u8>,
        file: &File,
    ) -> Result<Duration, StoreError> {
        begin_record(record);
        if !keys::encode_group(record, writes, group_room(self.journal.half())) {
            record.clear();
            record.shrink_to(KEPT);
            let sequence = self.wait_for_tables()?;
            return file.write(writes, sequence, false).map(|()| Duration::ZERO);
        }
        let blocks = record.len().div_ceil(BLOCK) as u64;
        let (half, block, sequence) = self.find_room(blocks)?;
        end_record(record, self.journal.store(), sequence);
        let began = Instant::now();
        let appended = self.journal.append(half, block, record);
        let took = began.elapsed();
        record.clear();
        record.shrink_to(KEPT);
        appended.map_err(|error| StoreError::Failed { reason: format!("I/O error: {error}").into() })?;
        Ok(took)
    }

    /// Where the next record goes and its number, once there is room.
    fn find_room(&self, blocks: u64) -> Result<(u64, u64, u64), StoreError> {
        let mut state = self.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.block + blocks <= self.journal.half() {
                break;
            }
            if state.checkpoint.is_none() {
                state.turn(false);
                self.changed.notify_all();
            } else {
                state = self.wait(state);
            }
        }
        let (half, block) = (state.half, state.block);
        state.block += blocks;
        Ok((half, block, state.number(Way::Journal)))
    }

    /// The number of a group that goes to the tables, once they have everything else.
    fn wait_for_tables(&self) -> Result<u64, StoreError> {
        self.flush()?;
        Ok(self.lock().number(Way::Tables))
    }

    /// What was appended is durable: keeps what the tables are to get.
    pub(super) fn join(&self, writes: &Writes) {
        let mut state = self.lock();
        // Of the tables themselves it may settle what somebody waits for.
        let is_wanted = state.wanted > state.settled;
        match state.underway.take() {
            Some(Way::Journal) => state.joined.merge(writes),
            Some(Way::Tables) => state.settled = state.sequence,
            None => {}
        }
        let is_first = state.since.is_none() && !state.joined.is_empty();
        if state.joined.is_empty() {
            state.since = None;
        } else if is_first {
            state.since = Some(Instant::now());
        }
        let is_due = state.is_due(Instant::now(), self.every);
        if is_due {
            state.turn(false);
        }
        // Everything else can wait, and waking somebody for each group costs more than most of them.
        if is_first || is_due || is_wanted || state.end != End::Open {
            self.changed.notify_all();
        }
    }
}

/// For whoever writes the tables: one thread.
impl Ahead {
    /// Waits for what is next; `None` when nothing follows.
    pub(super) fn next(&self) -> Option<Checkpoint> {
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
                End::Closing => state.turn(true),
                End::Open if state.is_due(now, self.every) => state.turn(false),
                End::Open => state = self.wait_for_due(state, now),
            }
        }
    }

    fn wait_for_due<'a>(&self, state: MutexGuard<'a, State>, now: Instant) -> MutexGuard<'a, State> {
        // A time beyond the calendar never comes. One that has come while a group is underway waits for its end, which tells.
        let due = state.since.and_then(|since| since.checked_add(self.every));
        let left = due.map(|due| due.saturating_duration_since(now)).filter(|left| !left.is_zero());
        let Some(left) = left else { return self.wait(state) };
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The tables have it.
    pub(super) fn settle(&self) {
        let settled = {
            let mut state = self.lock();
            let settled = state.checkpoint.take();
            if let Some(checkpoint) = &settled {
                state.settled = checkpoint.sequence;
            }
            settled
        };
        self.changed.notify_all();
        // Messages are let go outside the lock.
        drop(settled);
    }
}

impl State {
    /// The number of a group that is on its way from now on.
    fn number(&mut self, way: Way) -> u64 {
        self.sequence += 1;
        self.underway = Some(way);
        self.sequence
    }

    /// Whether the tables have everything, but for what has cancelled out.
    fn is_settled(&self) -> bool {
        self.joined.is_empty() && self.checkpoint.is_none() && self.underway.is_none()
    }

    /// Whether the tables are to get what is joined, though there is room.
    fn is_due(&self, now: Instant, every: Duration) -> bool {
        let is_old = || self.since.is_some_and(|since| now.saturating_duration_since(since) >= every);
        self.checkpoint.is_none()
            && self.underway.is_none()
            && !self.joined.is_empty()
            && (self.wanted > self.settled || is_old())
    }

    /// The other half is free and nothing is underway: the tables get what this one has.
    fn turn(&mut self, is_last: bool) {
        let writes = Arc::new(mem::take(&mut self.joined));
        self.since = None;
        self.checkpoint = Some(Checkpoint { writes, sequence: self.sequence, is_last });
        (self.half, self.block) = (1 - self.half, 0);
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

    use super::super::journal::Candidate;
    use super::super::options::Options;
    use super::*;
    use crate::recover::NextIds;

    /// Long enough for whatever does not wait for ever.
    const LONG: Duration = Duration::from_secs(60);

    fn opened() -> (Ahead, File) {
        opened_for(Duration::from_secs(3600))
    }

    fn opened_for(every: Duration) -> (Ahead, File) {
        let (place, options) = (Arc::from("memory"), Options::default());
        let file = File::open(InMemoryBackend::new(), &place, &options).unwrap();
        let journal = Candidate::on(InMemoryBackend::new()).adopt(&file, 2 * BLOCK).unwrap();
        (Ahead::new(journal, 0, every), file)
    }

    /// Fills one half.
    fn small() -> Writes {
        Writes { next: Some(NextIds::FIRST), ..Writes::default() }
    }

    #[test]
    fn a_group_that_goes_to_the_tables_lets_nobody_wait_for_company() {
        let (ahead, file) = opened();
        let mut large = Writes::default();
        (1..1000).for_each(|session| large.close(crate::SessionId::new(session)));
        assert_eq!(ahead.append(&large, &mut Vec::new(), &file), Ok(Duration::ZERO));
    }

    /// It is told to its callers before it is joined, and they may want everything in the tables at once.
    #[test]
    fn who_waits_for_a_group_that_went_to_the_tables_is_told() {
        let (ahead, file) = opened();
        let mut large = Writes::default();
        (1..1000).for_each(|session| large.close(crate::SessionId::new(session)));
        ahead.append(&large, &mut Vec::new(), &file).unwrap();
        let (tell, told) = mpsc::channel();
        let ahead = Arc::new(ahead);
        let waiting = Arc::clone(&ahead);
        thread::spawn(move || tell.send(waiting.flush()));
        while ahead.lock().wanted == 0 {
            thread::yield_now();
        }
        ahead.join(&large);
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    }

    /// What was joined before has its time still.
    #[test]
    fn a_group_that_is_underway_hides_no_checkpoint_that_is_due_later() {
        let (ahead, file) = opened_for(Duration::from_millis(200));
        ahead.append(&small(), &mut Vec::new(), &file).unwrap();
        ahead.join(&small());
        ahead.lock().number(Way::Journal);
        let (tell, told) = mpsc::channel();
        let ahead = Arc::new(ahead);
        let waiting = Arc::clone(&ahead);
        thread::spawn(move || tell.send(waiting.next().is_some()));
        // Until it waits, mostly; if it does not yet the test shows nothing.
        (0..1000).for_each(|_| thread::yield_now());
        ahead.join(&small());
        assert_eq!(told.recv_timeout(LONG), Ok(true));
    }

    #[test]
    fn the_wait_for_a_free_half_is_no_part_of_the_time_that_the_journal_took() {
        let (ahead, file) = opened();
        for _ in 0..2 {
            ahead.append(&small(), &mut Vec::new(), &file).unwrap();
            ahead.join(&small());
        }
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let appending = scope.spawn(|| {
                let began = Instant::now();
                tell.send(()).unwrap();
                let took = ahead.append(&small(), &mut Vec::new(), &file).unwrap();
                (took, began.elapsed())
            });
            told.recv().unwrap();
            let since = Instant::now();
            (0..10_000).for_each(|_| thread::yield_now());
            let held = since.elapsed();
            ahead.settle();
            let (took, all) = appending.join().unwrap();
            assert!(took + held <= all, "{took:?} of {all:?}, {held:?} of them waiting");
        });
    }
}
