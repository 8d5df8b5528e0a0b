//! Timers of disconnected sessions: delayed Wills, parts of messages, and session expiry.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock_order::{Ordered, Rank};
use crate::registry::SessionEntry;

/// Timers that are checked for each one that is set. More than become stale with one disconnection, which sets up to
/// three.
const CHECKED_AT_ONCE: usize = 4;

/// Position of a timer: time, kind and disconnect epoch, which no two sessions share.
type TimerKey = (Instant, TimerKind, u64);

/// Timers of all disconnected sessions.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: Mutex<TimerQueue>,
    /// Notified when a timer is earlier than all others.
    earlier: Notify,
}

/// Timers in the order of their times.
///
/// The timer of a session that was resumed is stale, and would stay until its time, which may be in a hundred years.
/// Each new timer removes the stale ones among the next few, so that a round over all of them ends before they have
/// doubled: the size stays near the number of sessions, however often they reconnect, and no call takes long.
#[derive(Debug, Default)]
struct TimerQueue {
    timers: BTreeMap<TimerKey, Weak<SessionEntry>>,
    /// Timer that was checked last; `None` at the start of a round.
    checked: Option<TimerKey>,
}

impl TimerQueue {
    /// Removes the stale timers among the next [`CHECKED_AT_ONCE`].
    fn purge_some(&mut self) {
        let from = self.checked.map_or(Bound::Unbounded, Bound::Excluded);
        let mut stale = [None; CHECKED_AT_ONCE];
        let mut next = self.timers.range((from, Bound::Unbounded));
        for slot in &mut stale {
            let checked = next.next();
            self.checked = checked.map(|(key, _)| *key);
            let Some((key, entry)) = checked else { break };
            let is_live = entry.upgrade().is_some_and(|entry| entry.disconnect_epoch() == key.2);
            *slot = (!is_live).then_some(*key);
        }
        stale.into_iter().flatten().for_each(|key| drop(self.timers.remove(&key)));
    }
}

/// Timer that has expired.
#[derive(Debug)]
pub(crate) struct ExpiredTimer {
    pub(crate) kind: TimerKind,
    /// Disconnection for which the timer was set; void if the session has another one by now.
    pub(crate) disconnect_epoch: u64,
    pub(crate) entry: Weak<SessionEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKind {
    /// The Will Delay Interval. [MQTT-3.1.3-9]
    Will,
    /// The time for which parts of large messages are kept. [BQ-96]
    Partials,
    /// The Session Expiry Interval. [MQTT-3.1.2-23]
    SessionEnd,
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
        let mut queue = self.queue();
        queue.purge_some();
        let is_first = queue.timers.first_key_value().is_none_or(|((first, ..), _)| at < *first);
        queue.timers.insert((at, kind, disconnect_epoch), Arc::downgrade(entry));
        drop(queue);
        if is_first {
            self.earlier.notify_one();
        }
    }

    fn queue(&self) -> Ordered<MutexGuard<'_, TimerQueue>> {
        // Poison is ignored: each change is one call of the map.
        Ordered::acquire(Rank::Leaf, || self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the earliest timer that has expired at `now`.
    ///
    /// # Errors
    /// None has: the time of the earliest.
    pub(crate) fn poll_due(&self, now: Instant) -> Result<ExpiredTimer, Option<Instant>> {
        let mut queue = self.queue();
        let first = queue.timers.first_entry().ok_or(None)?;
        let (at, kind, disconnect_epoch) = *first.key();
        if at > now {
            return Err(Some(at));
        }
        Ok(ExpiredTimer { kind, disconnect_epoch, entry: first.remove() })
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
    async fn timers_expire_at_their_times_in_order() {
        let (timers, start) = (Timers::default(), Instant::now());
        assert_eq!(timers.poll_due(start).err(), Some(None), "there is none");
        let entries = [2, 3].map(|epoch| {
            let entry = Arc::new(SessionEntry::new(SessionKey(epoch), "client".into(), ConnectionId(1)));
            entry.set_disconnect_epoch(epoch);
            entry
        });
        for (kind, session, seconds) in
            [(TimerKind::SessionEnd, 1, 3), (TimerKind::Will, 0, 2), (TimerKind::Will, 1, 3)]
        {
            timers.set(kind, Duration::from_secs(seconds), seconds, &entries[session]);
        }
        let at = |seconds| start + Duration::from_secs(seconds);
        let poll = |now| timers.poll_due(now).map(|due| (due.kind, due.disconnect_epoch));
        assert_eq!(poll(at(1)), Err(Some(at(2))));
        assert_eq!(poll(at(2)), Ok((TimerKind::Will, 2)));
        assert_eq!(poll(at(2)), Err(Some(at(3))));
        assert_eq!(poll(at(3)), Ok((TimerKind::Will, 3)));
        assert_eq!(poll(at(3)), Ok((TimerKind::SessionEnd, 3)));
        assert_eq!(poll(at(3)), Err(None));
    }

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
        assert!(timers.queue().timers.len() <= 2 * CHECKED_AT_ONCE);
        let later = Instant::now() + Duration::from_secs(50);
        assert!(timers.poll_due(later).is_ok_and(|due| due.disconnect_epoch == 1));
    }

    /// The lock is taken where a connection ends: it must not be held for as long as all timers take.
    #[tokio::test(start_paused = true)]
    async fn a_new_timer_checks_few_others() {
        let timers = Timers::default();
        let entry = |key| Arc::new(SessionEntry::new(SessionKey(key), "client".into(), ConnectionId(1)));
        let waiting: Vec<_> = (1..=10_000).map(entry).collect();
        for (epoch, entry) in (1..).zip(&waiting) {
            entry.set_disconnect_epoch(epoch);
            timers.set(TimerKind::SessionEnd, Duration::from_secs(50), epoch, entry);
        }
        waiting.iter().for_each(|entry| entry.set_disconnect_epoch(0));
        let resumed = entry(10_001);
        resumed.set_disconnect_epoch(10_001);
        let mut before = timers.queue().timers.len();
        for rounds in 0..10_000 {
            timers.set(TimerKind::Will, Duration::from_secs(rounds), 10_001, &resumed);
            let left = timers.queue().timers.len();
            assert!(left + CHECKED_AT_ONCE >= before, "{before} timers, then {left}");
            before = left;
        }
        assert_eq!(before, 10_000, "only live ones are left");
    }
}
