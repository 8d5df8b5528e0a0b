//! Timers of disconnected sessions: delayed Wills and session expiry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock_order::{Ordered, Rank};
use crate::registry::SessionEntry;

/// Number of timers from which on stale ones are purged.
const PURGE_FROM: usize = 1024;

/// Timers of all disconnected sessions.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Mutex<Heap>,
    /// Notified when a timer is earlier than all others.
    earlier: Notify,
}

/// Heap of the timers, earliest first.
///
/// The timer of a session that was resumed is stale, and would stay until its time, which may be in a hundred years.
/// Whenever the heap has doubled, the stale ones are purged: its size stays near the number of sessions, however often
/// they reconnect.
#[derive(Debug, Default)]
struct Heap {
    timers: BinaryHeap<Reverse<Timer>>,
    /// Timers that the last purge left.
    purged: usize,
}

#[derive(Debug)]
struct Timer {
    at: Instant,
    due: DueEvent,
}

/// Timer that has expired.
#[derive(Debug)]
pub(crate) struct DueEvent {
    pub(crate) kind: TimerKind,
    /// Disconnection for which the timer was set; void if the session has another one by now.
    pub(crate) disconnect_epoch: u64,
    pub(crate) entry: Weak<SessionEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKind {
    /// The Will Delay Interval. [MQTT-3.1.3-9]
    Will,
    /// The Session Expiry Interval. [MQTT-3.1.2-23]
    SessionEnd,
}

impl Timer {
    fn is_stale(&self) -> bool {
        let epoch = self.due.disconnect_epoch;
        self.due.entry.upgrade().is_none_or(|entry| entry.disconnect_epoch() != epoch)
    }

    fn order(&self) -> (Instant, TimerKind, u64) {
        (self.at, self.due.kind, self.due.disconnect_epoch)
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Timers {
    /// Sets a timer that expires `after` from now, and is void once the session has left this disconnect epoch.
    pub(crate) fn set(
        &self,
        kind: TimerKind,
        after: Duration,
        disconnect_epoch: u64,
        entry: &Arc<SessionEntry>,
    ) {
        let Some(at) = Instant::now().checked_add(after) else { return };
        let timer = Timer { at, due: DueEvent { kind, disconnect_epoch, entry: Arc::downgrade(entry) } };
        let mut heap = self.heap();
        if heap.timers.len() >= PURGE_FROM && heap.timers.len() >= 2 * heap.purged {
            heap.timers.retain(|Reverse(timer)| !timer.is_stale());
            heap.purged = heap.timers.len();
        }
        let is_first = heap.timers.peek().is_none_or(|Reverse(first)| timer.at < first.at);
        heap.timers.push(Reverse(timer));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn heap(&self) -> Ordered<MutexGuard<'_, Heap>> {
        // Poison is ignored: a purge calls nothing that panics, and a lost timer of a heap would be one of memory.
        Ordered::acquire(Rank::Leaf, || self.heap.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the earliest timer that has expired at `now`.
    ///
    /// # Errors
    /// None has: the time of the earliest.
    pub(crate) fn poll_due(&self, now: Instant) -> Result<DueEvent, Option<Instant>> {
        let mut heap = self.heap();
        match heap.timers.peek() {
            Some(Reverse(first)) if first.at <= now => {}
            first => return Err(first.map(|Reverse(first)| first.at)),
        }
        heap.timers.pop().map(|Reverse(timer)| timer.due).ok_or(None)
    }

    /// Waits until a timer was set that is earlier than all others.
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{ConnectionId, SessionKey};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reconnects_often_leaves_no_stale_timers() {
        let timers = Timers::default();
        let entry = |key| Arc::new(SessionEntry::new(SessionKey(key), "client".into(), ConnectionId(1)));
        let (restless, patient) = (entry(1), entry(2));
        patient.set_disconnect_epoch(1);
        timers.set(TimerKind::SessionEnd, Duration::from_secs(50), 1, &patient);
        for epoch in 2..100_000 {
            restless.set_disconnect_epoch(epoch);
            timers.set(TimerKind::SessionEnd, Duration::from_secs(u32::MAX.into()), epoch, &restless);
        }
        assert!(timers.heap().timers.len() <= PURGE_FROM);
        let later = Instant::now() + Duration::from_secs(50);
        assert!(timers.poll_due(later).is_ok_and(|due| due.disconnect_epoch == 1));
    }
}
