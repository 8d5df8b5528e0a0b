//! Group commit: callers add batches to the pending group, and the writer thread makes one group after the other
//! durable with one fsync each. One lock, held for the map operations of one batch and never while anything is written,
//! woken or waited for.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::tables::Tables;
use super::wal::Wal;
use crate::completion::{Completer, Completion};
use crate::error::StoreError;
use crate::index::Index;
use crate::write_set::WriteSet;

/// The next group is delayed for further callers by at most this fraction of the duration of the last append.
const HINT_DIVISOR: u32 = 4;

/// Wait of the writer while nothing is pending; a caller ends it.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// Callers that wait for a group, in the order of their calls, each with the outcome of its check.
pub(super) type Waiters = Vec<(Completer<()>, Result<(), StoreError>)>;

/// Writer thread: makes one group after the other durable until the store is closed or fails.
pub(super) fn run(commits: &GroupCommit, wal: &Wal, tables: &Tables) {
    let mut record = Vec::new();
    while let Some((writes, waiters)) = commits.next_group() {
        let is_empty = writes.is_empty();
        let appended =
            if is_empty { Ok(Duration::ZERO) } else { guarded(|| wal.append(&writes, &mut record, tables)) };
        let took = match appended {
            Ok(took) => took,
            Err(failure) => {
                commits.fail(&failure, &tables.path, waiters);
                break;
            }
        };
        commits.note_arrivals();
        complete(waiters, &Ok(()));
        // Before the group is dropped: readers find a message in the group until they find it in the log.
        let merged = guarded(|| {
            if !is_empty {
                wal.merge(&writes);
            }
            Ok(())
        });
        if let Err(failure) = merged {
            commits.fail(&failure, &tables.path, Vec::new());
            break;
        }
        drop(writes);
        commits.end_group(took);
    }
    let failure = commits.lock().failure.clone();
    if let Some(failure) = failure {
        wal.fail(&failure);
        commits.fail(&failure, &tables.path, Vec::new());
    }
}

/// Turns a panic of the database into a failure of the store, so that every caller is answered.
pub(super) fn guarded<T>(write: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        Err(StoreError::Failed { reason: Arc::from("the database stopped while it was writing") })
    })
}

/// Completes every caller of a group, in their order.
fn complete(waiters: Waiters, outcome: &Result<(), StoreError>) {
    for (completer, refused) in waiters {
        completer.complete(refused.and_then(|()| outcome.clone()));
    }
}

pub(super) struct GroupCommit {
    state: Mutex<State>,
    /// The pending group is due earlier than the writer knew.
    due: Condvar,
}

pub(super) struct State {
    pub(super) index: Index,
    pub(super) pending: Group,
    /// The group that is being written; the log does not have its messages yet.
    pub(super) writing: Option<Arc<WriteSet>>,
    /// Arrival of that group's first batch.
    writing_since: Option<Instant>,
    /// Number of groups taken by the writer, which is the number of the pending one.
    taken: u64,
    early_acks: EarlyAcks,
    pub(super) failure: Option<StoreError>,
    /// Completed when the store fails.
    watchers: Vec<Completer<()>>,
    hint: GroupCommitHint,
    is_closing: bool,
}

/// Group-commit hint: callers that have just completed usually commit again at once. A short wait for them makes one
/// group of what would otherwise be two that alternate.
#[derive(Clone, Copy)]
struct GroupCommitHint {
    /// Callers that waited for the last group or arrived while it was written, without lazy batches.
    callers: usize,
    /// Time until which as many callers are awaited.
    until: Instant,
}

/// Batches that become durable together.
#[derive(Default)]
pub(super) struct Group {
    pub(super) writes: WriteSet,
    pub(super) waiters: Waiters,
    changes: usize,
    /// Arrival of the first batch; `None` while the group is empty.
    since: Option<Instant>,
    /// Waiters with a batch that is not lazy.
    pub(super) eager: usize,
    /// Latest time of its write; `None` while the group is empty.
    due: Option<Instant>,
}

impl Group {
    /// Adds a waiting caller. A refused one waits too, since completions keep the order of the calls.
    pub(super) fn wait(&mut self, outcome: Result<(), StoreError>) -> Completion<()> {
        let (completer, completion) = Completion::pending();
        self.waiters.push((completer, outcome));
        completion
    }

    /// True without changes and waiters.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.writes.is_empty()
    }
}

impl GroupCommit {
    pub(super) fn new(index: Index, early_acks: EarlyAcks) -> Self {
        let state = State {
            index,
            pending: Group::default(),
            writing: None,
            writing_since: None,
            taken: 0,
            early_acks,
            failure: None,
            watchers: Vec::new(),
            hint: GroupCommitHint { callers: 0, until: Instant::now() },
            is_closing: false,
        };
        Self { state: Mutex::new(state), due: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.fail_if_poisoned(self.state.lock())
    }

    /// A panic of a caller may leave a batch half applied to the index and to the pending group, so a poisoned lock
    /// fails the store: the writer then ends without that group, and fails its callers.
    fn fail_if_poisoned<'a>(&self, locked: LockResult<MutexGuard<'a, State>>) -> MutexGuard<'a, State> {
        locked.unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            if state.failure.is_none() {
                let reason = "a thread panicked while it applied a batch".into();
                state.failure = Some(StoreError::Failed { reason });
                self.due.notify_one();
            }
            state
        })
    }

    /// Counts `changes` more in the pending group, which is to be written `within` the time, or at once when it has
    /// `limit` changes.
    pub(super) fn schedule(&self, state: &mut State, changes: usize, within: Duration, limit: usize) {
        let group = &mut state.pending;
        group.changes = group.changes.saturating_add(changes);
        let now = Instant::now();
        group.since.get_or_insert(now);
        let due = if group.changes >= limit { Some(now) } else { now.checked_add(within) };
        // A time beyond the range of `Instant` never comes.
        let earlier = due.filter(|due| group.due.is_none_or(|earlier| *due < earlier));
        group.due = earlier.or(group.due);
        if earlier.is_some() || (group.eager > 0 && group.eager == state.hint.callers) {
            self.due.notify_one();
        }
    }

    /// Ends the writer after the pending group.
    pub(super) fn close(&self) {
        self.lock().is_closing = true;
        self.due.notify_one();
    }

    /// Blocks until the next group is due; `None` when the store has failed, or was closed and nothing is pending.
    fn next_group(&self) -> Option<(Arc<WriteSet>, Waiters)> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() || (state.is_closing && state.pending.is_empty()) {
                return None;
            }
            let now = Instant::now();
            let due = state.pending.due.map(|due| state.hint_deadline().map_or(due, |until| due.max(until)));
            if state.is_closing || due.is_some_and(|due| due <= now) {
                let group = mem::take(&mut state.pending);
                state.writing_since = group.since;
                state.taken += 1;
                state.hint.callers = group.eager;
                let writes = Arc::new(group.writes);
                state.writing = Some(Arc::clone(&writes));
                return Some((writes, group.waiters));
            }
            let left = due.map_or(IDLE_WAIT, |due| due.saturating_duration_since(now));
            let waited = self.due.wait_timeout(state, left).map(|(state, _)| state);
            state =
                self.fail_if_poisoned(waited.map_err(|poisoned| PoisonError::new(poisoned.into_inner().0)));
        }
    }

    /// Counts the callers that arrived while the group was written, before its own callers are completed.
    fn note_arrivals(&self) {
        let mut state = self.lock();
        state.hint.callers += state.pending.eager;
    }

    /// Ends a group that is durable and whose callers are completed; the journal `took` so long to append it.
    fn end_group(&self, took: Duration) {
        let (written, delayed) = {
            let mut guard = self.lock();
            let (state, now) = (&mut *guard, Instant::now());
            state.hint.until = now.checked_add(took / HINT_DIVISOR).unwrap_or(now);
            state.writing_since = None;
            let delayed = state.early_acks.release(state.taken, state.pending.since, now);
            (state.writing.take(), delayed)
        };
        // Messages are freed and callers completed outside the lock.
        drop(written);
        complete(delayed, &Ok(()));
    }

    /// Fails the store: completes the callers of the failed group, all others that wait, and the watchers, with the
    /// first error.
    pub(super) fn fail(&self, failure: &StoreError, path: &str, waiters: Waiters) {
        let (first, failure, group, delayed, watchers) = {
            let mut state = self.lock();
            let first = state.failure.is_none();
            // Before any caller is completed, so that none can commit after it has seen the error.
            let failure = state.failure.get_or_insert_with(|| failure.clone()).clone();
            let group = mem::take(&mut state.pending);
            let loss = state.early_acks.describe_loss();
            (
                first.then_some(loss),
                failure,
                group,
                state.early_acks.take_all(),
                mem::take(&mut state.watchers),
            )
        };
        if let Some(loss) = first {
            tracing::error!(store = path, "{failure}; nothing is acknowledged any more, {loss}");
        }
        self.due.notify_one();
        for waiters in [waiters, delayed, group.waiters] {
            complete(waiters, &Err(failure.clone()));
        }
        for watcher in watchers {
            watcher.complete(Err(failure.clone()));
        }
    }

    /// Completes, with the error, when the store fails.
    pub(super) fn watch(&self) -> Completion<()> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Completion::Done(Err(failure.clone()));
        }
        let (completer, completion) = Completion::pending();
        state.watchers.push(completer);
        completion
    }
}

impl State {
    /// Acknowledges a batch in async mode, mostly at once.
    pub(super) fn acknowledge_early(&mut self, outcome: Result<(), StoreError>) -> Completion<()> {
        let oldest = self.writing_since.or(self.pending.since);
        self.early_acks.acknowledge(outcome, self.taken, oldest, Instant::now())
    }

    /// Time until which the pending group waits for the callers of the hint; `None` when all are there.
    fn hint_deadline(&self) -> Option<Instant> {
        (self.pending.eager < self.hint.callers).then_some(self.hint.until)
    }
}

/// Async mode: acknowledges before fsync while the oldest unsynced batch is younger than `loss_window`. A crash then
/// loses only batches that were acknowledged within that time. While the device is slower, acknowledgements are delayed
/// until their batch is durable or the oldest unsynced batch is young enough again.
pub(super) struct EarlyAcks {
    loss_window: Duration,
    /// In the order of the calls.
    delayed: VecDeque<DelayedAck>,
}

struct DelayedAck {
    /// Number of the batch's group.
    group: u64,
    completer: Completer<()>,
    outcome: Result<(), StoreError>,
}

impl EarlyAcks {
    pub(super) const fn new(loss_window: Duration) -> Self {
        Self { loss_window, delayed: VecDeque::new() }
    }

    /// Acknowledges a batch of the group with this number; `oldest` is the arrival of the oldest unsynced batch.
    fn acknowledge(
        &mut self,
        outcome: Result<(), StoreError>,
        group: u64,
        oldest: Option<Instant>,
        now: Instant,
    ) -> Completion<()> {
        if self.delayed.is_empty() && self.is_within(oldest, now) {
            return Completion::Done(outcome);
        }
        let (completer, completion) = Completion::pending();
        self.delayed.push_back(DelayedAck { group, completer, outcome });
        completion
    }

    /// Takes the acknowledgements that may leave: all if the oldest unsynced batch is young enough, otherwise those of
    /// groups before the one with this number, which are durable.
    fn release(&mut self, group: u64, oldest: Option<Instant>, now: Instant) -> Waiters {
        let count = if self.is_within(oldest, now) {
            self.delayed.len()
        } else {
            self.delayed.iter().take_while(|ack| ack.group < group).count()
        };
        self.delayed.drain(..count).map(|ack| (ack.completer, ack.outcome)).collect()
    }

    /// Text for the log: which acknowledged batches a failure of the device loses.
    fn describe_loss(&self) -> String {
        if self.loss_window.is_zero() {
            return "what was acknowledged is safe".to_owned();
        }
        let milliseconds = self.loss_window.as_secs_f64() * 1000.0;
        format!(
            "what was acknowledged is safe but for the last {milliseconds} ms before the device stopped (durability is async)"
        )
    }

    /// Takes all delayed acknowledgements, for a store that has failed.
    fn take_all(&mut self) -> Waiters {
        self.delayed.drain(..).map(|ack| (ack.completer, ack.outcome)).collect()
    }

    fn is_within(&self, oldest: Option<Instant>, now: Instant) -> bool {
        oldest.is_none_or(|oldest| now.saturating_duration_since(oldest) < self.loss_window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Claim, NextIds};

    const LOSS_WINDOW: Duration = Duration::from_millis(100);

    fn commits() -> GroupCommit {
        GroupCommit::new(Index::new(Claim::new(1), NextIds::FIRST), EarlyAcks::new(Duration::ZERO))
    }

    /// Adds `count` callers to the pending group, which is due.
    fn wait(commits: &GroupCommit, count: usize) {
        let mut state = commits.lock();
        for _ in 0..count {
            // The test does not use their completions.
            drop(state.pending.wait(Ok(())));
        }
        state.pending.eager += count;
        state.pending.due = Some(Instant::now());
    }

    #[test]
    fn the_next_group_waits_for_completed_callers_and_new_arrivals() {
        let commits = commits();
        wait(&commits, 3);
        assert_eq!(commits.next_group().map(|(_, waiters)| waiters.len()), Some(3));
        wait(&commits, 2);
        commits.note_arrivals();
        // A quarter of it is longer than any pause of this test.
        commits.end_group(Duration::from_secs(100_000));
        wait(&commits, 2);
        assert!(commits.lock().hint_deadline().is_some(), "one of five is missing");
        wait(&commits, 1);
        assert!(commits.lock().hint_deadline().is_none(), "all are there");
    }

    #[test]
    fn a_panic_while_a_batch_is_applied_fails_the_store() {
        let commits = commits();
        wait(&commits, 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _state = commits.lock();
            std::panic::resume_unwind(Box::new("a defect"));
        }));
        assert!(panicked.is_err());
        assert!(matches!(commits.lock().failure, Some(StoreError::Failed { .. })));
        assert!(commits.next_group().is_none(), "the half group is not written");
    }

    fn complete_all(waiters: Waiters) -> usize {
        let count = waiters.len();
        complete(waiters, &Ok(()));
        count
    }

    #[test]
    fn acknowledgements_wait_while_the_oldest_batch_is_too_old_and_keep_their_order() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut acks = EarlyAcks::new(LOSS_WINDOW);
        // Group 1 began at 0 and is being written from 50 on, when group 2 begins.
        for now in [0, 50, 99] {
            let ack = acks.acknowledge(Ok(()), 2, Some(at(0)), at(now));
            assert!(matches!(ack, Completion::Done(Ok(()))), "{now}");
        }
        let refused = Err(StoreError::Closed);
        let mut first = acks.acknowledge(refused.clone(), 2, Some(at(0)), at(100));
        let mut second = acks.acknowledge(Ok(()), 2, Some(at(50)), at(120));
        assert_eq!((first.try_take(), second.try_take()), (None, None), "the second came later");
        // Group 1 is durable in time: nothing of group 2 is, and all are acknowledged.
        assert_eq!(complete_all(acks.release(2, Some(at(50)), at(149))), 2);
        assert_eq!((first.try_take(), second.try_take()), (Some(refused), Some(Ok(()))));
    }

    #[test]
    fn early_acknowledged_batches_are_not_called_safe() {
        assert_eq!(EarlyAcks::new(Duration::ZERO).describe_loss(), "what was acknowledged is safe");
        let loss = EarlyAcks::new(LOSS_WINDOW).describe_loss();
        assert!(loss.contains("safe but for the last 100 ms"), "{loss}");
    }

    #[test]
    fn a_slow_device_delays_acknowledgements_until_their_group_is_durable() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut acks = EarlyAcks::new(LOSS_WINDOW);
        let mut commits: Vec<_> =
            [2, 2, 3].map(|group| acks.acknowledge(Ok(()), group, Some(at(0)), at(5000))).into();
        let mut done = || commits.iter_mut().map(|commit| commit.try_take().is_some()).collect::<Vec<_>>();
        assert_eq!(complete_all(acks.release(2, Some(at(50)), at(5050))), 0, "group 1 is durable");
        assert_eq!(done(), [false, false, false]);
        assert_eq!(complete_all(acks.release(3, Some(at(5000)), at(10_000))), 2, "group 2 is");
        assert_eq!(done(), [true, true, false]);
        assert_eq!(complete_all(acks.release(4, None, at(15_000))), 1, "nothing is unsynced");
        assert!(matches!(acks.acknowledge(Ok(()), 4, None, at(15_000)), Completion::Done(Ok(()))));
    }
}
