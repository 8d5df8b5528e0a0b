//! Times in which the broker holds too much: they are told, and they end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use braid_proto::reason::ReasonCode;
use tokio::time::{Instant, timeout};

use crate::hub::Hub;
use crate::memory::Level;
use crate::queue::session_queue::Signal;
use crate::slot::{SessionKey, Slot};
use crate::sys;

/// Between two looks at it.
const LOOK: Duration = Duration::from_secs(1);

/// Between two steps against it, if it does not get better, and between two lines in the log that one has begun.
const STEP: Duration = Duration::from_secs(10);

/// It gets better if in a step so much of the low mark became free.
const PROGRESS: u64 = 16;

/// In so many steps, at its present pace, a connection must have moved what it holds.
const PATIENCE: u64 = 30;

/// One time of it.
struct Overload {
    began: Instant,
    /// Not told before. Then: when it was.
    tell_from: Instant,
    /// The worst that was told.
    told: Level,
    /// What `$SYS` says.
    published: Level,
    stepped: Instant,
    /// Bytes in use at the last step.
    used: u64,
    /// What those who held something had moved by then.
    moved: HashMap<SessionKey, u64>,
    /// Who was disconnected: one that comes back is not the first to go again.
    disconnected: HashSet<SessionKey>,
}

/// Watches over the marks.
pub(crate) async fn run(hub: Arc<Hub>) {
    let mut overload: Option<Overload> = None;
    let mut tell_from = Instant::now();
    loop {
        match &overload {
            None => hub.memory.changed().await,
            // Either is a reason to look.
            Some(_) => drop(timeout(LOOK, hub.memory.changed()).await),
        }
        let level = hub.memory.settle();
        if level > Level::Fine {
            overload.get_or_insert_with(|| Overload::begin(&hub, tell_from)).look(&hub, level);
        } else if let Some(overload) = overload.take() {
            tell_from = overload.end(&hub);
        }
    }
}

impl Overload {
    fn begin(hub: &Hub, tell_from: Instant) -> Self {
        hub.statistics.overloaded(1);
        let began = Instant::now();
        Self {
            began,
            tell_from,
            told: Level::Fine,
            published: Level::Fine,
            stepped: began,
            used: hub.memory.used(),
            moved: HashMap::new(),
            disconnected: HashSet::new(),
        }
    }

    /// Says how bad it is. One that follows the last one closely is told once it lasts.
    fn tell(&mut self, hub: &Hub, level: Level) {
        let now = Instant::now();
        if now < self.tell_from {
            return;
        }
        let used = hub.memory.used();
        if self.told == Level::Fine {
            tracing::warn!(used, low = hub.memory.low(), "memory is short: publishers are held back");
            self.tell_from = now;
        }
        if self.told < Level::Full && level == Level::Full {
            tracing::warn!(used, "memory is short: new connections are refused");
        }
        self.told = self.told.max(level);
        if level != self.published {
            sys::publish_memory(hub, level);
            self.published = level;
        }
    }

    fn look(&mut self, hub: &Hub, level: Level) {
        self.tell(hub, level);
        if self.stepped.elapsed() < STEP {
            return;
        }
        self.stepped = Instant::now();
        let before = std::mem::replace(&mut self.used, hub.memory.used());
        if self.used.saturating_add(hub.memory.low() / PROGRESS) > before {
            self.step(hub);
        }
    }

    /// Whoever holds the most of those who are too slow is disconnected. What waits for a session that goes on without a
    /// connection rests from then on: nothing of it is lost, and publishers need not wait for it.
    fn step(&mut self, hub: &Hub) {
        let holders: Vec<_> = {
            let slots = hub.registry.slots();
            slots.values().map(|slot| (slot.used(), slot.clone())).filter(|(bytes, _)| *bytes > 0).collect()
        };
        let moved = holders.iter().map(|(_, slot)| (slot.key, slot.moved())).collect();
        let before = std::mem::replace(&mut self.moved, moved);
        // Those below it hold little beside others: more of them would have to go than are needed.
        let mean = holders.iter().map(|(bytes, _)| *bytes).sum::<usize>() / holders.len().max(1);
        let is_too_slow = |bytes: usize, slot: &Slot| {
            let Some(before) = before.get(&slot.key) else { return false };
            bytes as u64 > slot.moved().saturating_sub(*before).saturating_mul(PATIENCE)
        };
        let slow: Vec<_> =
            holders.iter().filter(|(bytes, slot)| *bytes >= mean && is_too_slow(*bytes, slot)).collect();
        if slow.iter().all(|(_, slot)| self.disconnected.contains(&slot.key)) {
            self.disconnected.clear();
        }
        let others = slow.into_iter().filter(|(_, slot)| !self.disconnected.contains(&slot.key));
        let Some((bytes, slot)) = others.max_by_key(|(bytes, _)| *bytes) else { return };
        self.disconnected.insert(slot.key);
        let client = slot.client_id.as_str();
        tracing::warn!(client, bytes, "disconnected: memory is short, and it holds much for long");
        hub.statistics.overwhelmed(1);
        if let Some(waker) = slot.queue.signal(Signal::Close(ReasonCode::QuotaExceeded)) {
            waker.wake();
        }
    }

    /// It is over; returns from when on another one may be told.
    fn end(self, hub: &Hub) -> Instant {
        if self.told == Level::Fine {
            return self.tell_from;
        }
        let seconds = self.began.elapsed().as_secs();
        tracing::info!(seconds, used = hub.memory.used(), "memory is no longer short");
        sys::publish_memory(hub, Level::Fine);
        self.tell_from + STEP
    }
}
