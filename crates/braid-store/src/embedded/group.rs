//! What the callers hand over and the writer takes: one lock, held for the few map operations of a batch and never
//! while anything is written, woken or waited for.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::index::Index;
use super::window::Window;
use super::writes::Writes;
use crate::commit::{Completer, Completion};
use crate::error::StoreError;

pub(super) struct Shared {
    state: Mutex<State>,
    /// Something is due, earlier than the writer knew.
    due: Condvar,
}

pub(super) struct State {
    pub(super) index: Index,
    pub(super) pending: Group,
    /// The group that is being written; what it stores is not ahead of the tables yet.
    pub(super) writing: Option<Arc<Writes>>,
    /// When the first batch of that group came.
    writing_since: Option<Instant>,
    /// How many groups were taken: the number of the pending one.
    taken: u64,
    /// Of a store that is asynchronous.
    window: Window,
    pub(super) failure: Option<StoreError>,
    /// Who wants to be told when the store fails.
    watchers: Vec<Completer<()>>,
    company: Company,
    closing: bool,
}

/// What the group before lets expect: whoever was told that a batch is done has mostly another one at once. Waiting
/// for them a little makes one group of what would be two that take turns.
#[derive(Clone, Copy)]
struct Company {
    /// How many waited for the last group, and came while it was written, but for lazy batches.
    batches: usize,
    /// Until when as many are waited for.
    until: Instant,
}

/// Company is waited for no longer than this part of the time for which the last group was written.
const PART: u32 = 4;

/// Who waits for a group, in the order of the calls, with what was decided already.
pub(super) type Waiting = Vec<(Completer<()>, Result<(), StoreError>)>;

/// Batches that become durable together.
#[derive(Default)]
pub(super) struct Group {
    pub(super) writes: Writes,
    pub(super) waiting: Waiting,
    changes: usize,
    /// When the first batch came; `None` while nothing is in it.
    since: Option<Instant>,
    /// How many of those who wait do nothing until they are told.
    pub(super) eager: usize,
    /// When it is to be written at the latest; `None` while nothing is in it.
    due: Option<Instant>,
}

impl Group {
    /// Adds a caller who waits; with an error it was refused, but its turn to hear it comes after those before.
    pub(super) fn wait(&mut self, outcome: Result<(), StoreError>) -> Completion<()> {
        let (completer, completion) = Completion::pending();
        self.waiting.push((completer, outcome));
        completion
    }

    /// Whether nobody has anything in it.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.writes.is_empty()
    }
}

impl Shared {
    pub(super) fn new(index: Index, pending: Group, window: Window) -> Self {
        let state = State {
            index,
            pending,
            writing: None,
            writing_since: None,
            taken: 0,
            window,
            failure: None,
            watchers: Vec::new(),
            company: Company { batches: 0, until: Instant::now() },
            closing: false,
        };
        Self { state: Mutex::new(state), due: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pending group has `changes` more and is to be written `within` the time, or at once when `limit` is
    /// reached.
    pub(super) fn expect(&self, state: &mut State, changes: usize, within: Duration, limit: usize) {
        let group = &mut state.pending;
        group.changes = group.changes.saturating_add(changes);
        let now = Instant::now();
        group.since.get_or_insert(now);
        let due = if group.changes >= limit { Some(now) } else { now.checked_add(within) };
        // A time beyond the calendar never comes.
        let earlier = due.filter(|due| group.due.is_none_or(|earlier| *due < earlier));
        group.due = earlier.or(group.due);
        if earlier.is_some() || (group.eager > 0 && group.eager == state.company.batches) {
            self.due.notify_one();
        }
    }

    /// Lets the writer end after what is pending.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.due.notify_one();
    }

    /// Waits for the next group; `None` when the store has failed, or was closed and nothing is left.
    pub(super) fn take(&self) -> Option<(Arc<Writes>, Waiting)> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() || (state.closing && state.pending.is_empty()) {
                return None;
            }
            let now = Instant::now();
            let due = state.pending.due.map(|due| state.wanted().map_or(due, |until| due.max(until)));
            if state.closing || due.is_some_and(|due| due <= now) {
                let group = mem::take(&mut state.pending);
                state.writing_since = group.since;
                state.taken += 1;
                state.company.batches = group.eager;
                let writes = Arc::new(group.writes);
                state.writing = Some(Arc::clone(&writes));
                return Some((writes, group.waiting));
            }
            state = match due {
                None => self.due.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let left = due.saturating_duration_since(now);
                    self.due.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The group that was taken is durable, and nobody in it was told yet: who waits now came meanwhile.
    pub(super) fn expect_company(&self) {
        let mut state = self.lock();
        state.company.batches += state.pending.eager;
    }

    /// The group that was taken is durable and everybody in it was told; it `took` the journal so long.
    pub(super) fn written(&self, took: Duration) {
        let (written, held) = {
            let mut guard = self.lock();
            let (state, now) = (&mut *guard, Instant::now());
            state.company.until = now.checked_add(took / PART).unwrap_or(now);
            state.writing_since = None;
            let held = state.window.let_go(state.taken, state.pending.since, now);
            (state.writing.take(), held)
        };
        // Messages are let go and callers told outside the lock.
        drop(written);
        tell(held, &Ok(()));
    }

    /// Nothing is written any more: tells those in the group that failed, and everybody who waits or watches. A store
    /// fails once: what fails after that hears why it has.
    pub(super) fn fail(&self, failure: &StoreError, place: &str, waiting: Waiting) {
        let (first, failure, group, held, watchers) = {
            let mut state = self.lock();
            let first = state.failure.is_none();
            // Before anybody is told: who hears of it must not be able to commit any more.
            let failure = state.failure.get_or_insert_with(|| failure.clone()).clone();
            let group = mem::take(&mut state.pending);
            let safe = state.window.safe();
            (first.then_some(safe), failure, group, state.window.give_up(), mem::take(&mut state.watchers))
        };
        if let Some(safe) = first {
            tracing::error!(store = place, "{failure}; nothing is acknowledged any more, {safe}");
        }
        self.due.notify_one();
        for waiting in [waiting, held, group.waiting] {
            tell(waiting, &Err(failure.clone()));
        }
        for watcher in watchers {
            watcher.complete(Err(failure.clone()));
        }
    }

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
    /// What a caller is told who does not wait for the device, mostly at once.
    pub(super) fn pass(&mut self, outcome: Result<(), StoreError>) -> Completion<()> {
        let oldest = self.writing_since.or(self.pending.since);
        self.window.pass(outcome, self.taken, oldest, Instant::now())
    }

    /// When the pending group has waited long enough for company.
    fn wanted(&self) -> Option<Instant> {
        (self.pending.eager < self.company.batches).then_some(self.company.until)
    }
}

/// Tells everybody in a group, in their order.
pub(super) fn tell(waiting: Waiting, outcome: &Result<(), StoreError>) {
    for (completer, refused) in waiting {
        completer.complete(refused.and_then(|()| outcome.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Group, Shared};
    use crate::embedded::index::Index;
    use crate::embedded::window::Window;
    use crate::identity::Claim;
    use crate::recover::NextIds;

    /// `count` more callers wait for the pending group, which is due.
    fn wait(shared: &Shared, count: usize) {
        let mut state = shared.lock();
        for _ in 0..count {
            // Nobody looks at what becomes of it.
            drop(state.pending.wait(Ok(())));
        }
        state.pending.eager += count;
        state.pending.due = Some(Instant::now());
    }

    #[test]
    fn who_was_told_and_who_came_meanwhile_make_the_next_group() {
        let index = Index::new(Claim::new(1), NextIds::FIRST);
        let shared = Shared::new(index, Group::default(), Window::new(Duration::ZERO));
        wait(&shared, 3);
        assert_eq!(shared.take().map(|(_, waiting)| waiting.len()), Some(3));
        wait(&shared, 2);
        shared.expect_company();
        // So long that no pause of this test is longer than a quarter of it.
        shared.written(Duration::from_secs(100_000));
        wait(&shared, 2);
        assert!(shared.lock().wanted().is_some(), "one of five is not back");
        wait(&shared, 1);
        assert!(shared.lock().wanted().is_none(), "all are back");
    }
}
