//! What happens to a session while its client is away: delayed Wills, and its end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::Core;
use crate::session_entry::SessionEntry;

/// How often expired retained messages, and messages that wait for too long, are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// Below this many entries nobody looks for stale ones.
const PURGE_FROM: usize = 1024;

/// Timers of disconnected sessions, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    heap: Mutex<Heap>,
    earlier: Notify,
}

/// What a client that came back left here is stale and would stay until its time, which may be in a hundred
/// years: whenever the heap has doubled, the stale entries go. So it is never much larger than the number of
/// sessions, however often they come and go.
#[derive(Debug, Default)]
struct Heap {
    due: BinaryHeap<Reverse<Due>>,
    /// How many entries the last purge left.
    purged: usize,
}

#[derive(Debug)]
struct Due {
    at: Instant,
    event: DueEvent,
    disconnect_epoch: u64,
    entry: Weak<SessionEntry>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DueEvent {
    /// The Will Delay Interval has passed. [MQTT-3.1.3-9]
    Will,
    /// The Session Expiry Interval has passed. [MQTT-3.1.2-23]
    SessionEnd,
}

impl Due {
    fn is_stale(&self) -> bool {
        self.entry.upgrade().is_none_or(|entry| entry.disconnect_epoch() != self.disconnect_epoch)
    }

    fn order(&self) -> (Instant, DueEvent, u64) {
        (self.at, self.event, self.disconnect_epoch)
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Expiry {
    /// Notes that `event` is due `after` from now, unless the client reconnects before.
    pub(crate) fn schedule(
        &self,
        event: DueEvent,
        after: Duration,
        disconnect_epoch: u64,
        entry: &Arc<SessionEntry>,
    ) {
        let Some(at) = Instant::now().checked_add(after) else { return };
        let due = Due { at, event, disconnect_epoch, entry: Arc::downgrade(entry) };
        let mut heap = self.heap();
        if heap.due.len() >= PURGE_FROM && heap.due.len() >= 2 * heap.purged {
            heap.due.retain(|Reverse(due)| !due.is_stale());
            heap.purged = heap.due.len();
        }
        let is_first = heap.due.peek().is_none_or(|Reverse(first)| due.at < first.at);
        heap.due.push(Reverse(due));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is due, or when to ask again.
    fn next(&self, now: Instant) -> Result<(DueEvent, u64, Weak<SessionEntry>), Option<Instant>> {
        let mut heap = self.heap();
        match heap.due.peek() {
            Some(Reverse(first)) if first.at <= now => {}
            first => return Err(first.map(|Reverse(first)| first.at)),
        }
        let Some(Reverse(due)) = heap.due.pop() else { return Err(None) };
        Ok((due.event, due.disconnect_epoch, due.entry))
    }
}

/// Carries out what is due, for as long as the core lives.
pub(crate) async fn run(core: Arc<Core>) {
    let mut sweep = Instant::now() + SWEEP;
    loop {
        let now = Instant::now();
        if now >= sweep {
            core.retained.expire(now.into_std(), &core.persist);
            core.queues.expire(|| core.registry.snapshot(), &core.persist).await;
            sweep = now + SWEEP;
        }
        let next = carry_out_due(&core, now);
        let until = next.map_or(sweep, |at| at.min(sweep));
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = core.expiry.earlier.notified() => {}
        }
    }
}

/// Carries out what is due at `now`; returns when the next is.
pub(crate) fn carry_out_due(core: &Core, now: Instant) -> Option<Instant> {
    loop {
        match core.expiry.next(now) {
            Ok((event, disconnect_epoch, entry)) => {
                if let Some(entry) = entry.upgrade() {
                    core.handle_due(&entry, event, disconnect_epoch);
                }
            }
            Err(next) => return next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_entry::{ConnectionId, SessionKey};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_comes_and_goes_leaves_no_heap_behind() {
        let expiry = Expiry::default();
        let entry = |key| Arc::new(SessionEntry::new(SessionKey(key), "client".into(), ConnectionId(1)));
        let (restless, patient) = (entry(1), entry(2));
        patient.set_disconnect_epoch(1);
        expiry.schedule(DueEvent::SessionEnd, Duration::from_secs(50), 1, &patient);
        for disconnect_epoch in 2..100_000 {
            restless.set_disconnect_epoch(disconnect_epoch);
            expiry.schedule(
                DueEvent::SessionEnd,
                Duration::from_secs(u32::MAX.into()),
                disconnect_epoch,
                &restless,
            );
        }
        assert!(expiry.heap().due.len() <= PURGE_FROM);
        let later = Instant::now() + Duration::from_secs(50);
        assert!(expiry.next(later).is_ok_and(|(_, disconnect_epoch, _)| disconnect_epoch == 1));
    }
}
