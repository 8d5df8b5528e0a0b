//! What happens to a session while its client is away: delayed Wills, and its end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::hub::Hub;
use crate::slot::Slot;

/// How often expired retained messages are looked for.
const SWEEP: Duration = Duration::from_secs(10);

/// The absences that end at a known time, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    earlier: Notify,
}

#[derive(Debug)]
struct Due {
    at: Instant,
    event: DueEvent,
    absence: u64,
    slot: Weak<Slot>,
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
    fn order(&self) -> (Instant, DueEvent, u64) {
        (self.at, self.event, self.absence)
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
    /// Notes that `event` is due `after` from now, unless the client comes back from this absence before.
    pub(crate) fn schedule(&self, event: DueEvent, after: Duration, absence: u64, slot: &Arc<Slot>) {
        let Some(at) = Instant::now().checked_add(after) else { return };
        let due = Due { at, event, absence, slot: Arc::downgrade(slot) };
        let mut heap = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = heap.peek().is_none_or(|Reverse(first)| due.at < first.at);
        heap.push(Reverse(due));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// What is due, or when to ask again.
    fn next(&self, now: Instant) -> Result<(DueEvent, u64, Weak<Slot>), Option<Instant>> {
        let mut heap = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        match heap.peek() {
            Some(Reverse(first)) if first.at <= now => {}
            first => return Err(first.map(|Reverse(first)| first.at)),
        }
        let Some(Reverse(due)) = heap.pop() else { return Err(None) };
        Ok((due.event, due.absence, due.slot))
    }
}

/// Carries out what is due, for as long as the hub lives.
pub(crate) async fn run(hub: Arc<Hub>) {
    let mut sweep = Instant::now() + SWEEP;
    loop {
        let now = Instant::now();
        if now >= sweep {
            hub.retained.expire(now.into_std());
            sweep = now + SWEEP;
        }
        match hub.expiry.next(now) {
            Ok((event, absence, slot)) => {
                if let Some(slot) = slot.upgrade() {
                    hub.handle_due(&slot, event, absence);
                }
            }
            Err(next) => {
                let until = next.map_or(sweep, |at| at.min(sweep));
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = hub.expiry.earlier.notified() => {}
                }
            }
        }
    }
}
