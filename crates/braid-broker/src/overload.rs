//! Times in which the broker holds too much: they are told, and they end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use braid_proto::reason::ReasonCode;
use tokio::time::{Instant, timeout};

use crate::core::Core;
use crate::memory::Level;
use crate::queue::session_queue::Signal;
use crate::session_entry::{SessionEntry, SessionKey};
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
pub(crate) async fn run(core: Arc<Core>) {
    let mut overload: Option<Overload> = None;
    let mut tell_from = Instant::now();
    loop {
        match &overload {
            None => core.memory.changed().await,
            // Either is a reason to look.
            Some(_) => drop(timeout(LOOK, core.memory.changed()).await),
        }
        let level = core.memory.settle();
        if level > Level::Fine {
            overload.get_or_insert_with(|| Overload::begin(&core, tell_from)).look(&core, level);
        } else if let Some(overload) = overload.take() {
            tell_from = overload.end(&core);
        }
    }
}

impl Overload {
    fn begin(core: &Core, tell_from: Instant) -> Self {
        core.statistics.overloaded(1);
        let began = Instant::now();
        Self {
            began,
            tell_from,
            told: Level::Fine,
            published: Level::Fine,
            stepped: began,
            used: core.memory.used(),
            moved: HashMap::new(),
            disconnected: HashSet::new(),
        }
    }

    /// Says how bad it is. One that follows the last one closely is told once it lasts.
    fn tell(&mut self, core: &Core, level: Level) {
        let now = Instant::now();
        if now < self.tell_from {
            return;
        }
        let used = core.memory.used();
        if self.told == Level::Fine {
            tracing::warn!(used, low = core.memory.low(), "memory is short: publishers are held back");
            self.tell_from = now;
        }
        if self.told < Level::Full && level == Level::Full {
            tracing::warn!(used, "memory is short: new connections are refused");
        }
        self.told = self.told.max(level);
        if level != self.published {
            sys::publish_memory(core, level);
            self.published = level;
        }
    }

    fn look(&mut self, core: &Core, level: Level) {
        self.tell(core, level);
        if self.stepped.elapsed() < STEP {
            return;
        }
        self.stepped = Instant::now();
        let before = std::mem::replace(&mut self.used, core.memory.used());
        if self.used.saturating_add(core.memory.low() / PROGRESS) > before {
            self.step(core);
        }
    }

    /// Whoever holds the most of those who are too slow is disconnected. What waits for a session that goes on without a
    /// connection rests from then on: nothing of it is lost, and publishers need not wait for it.
    fn step(&mut self, core: &Core) {
        let holders: Vec<_> = {
            let entries = core.sessions.registry.entries();
            entries
                .values()
                .map(|entry| (entry.used(), entry.clone()))
                .filter(|(bytes, _)| *bytes > 0)
                .collect()
        };
        let moved = holders.iter().map(|(_, entry)| (entry.key, entry.moved())).collect();
        let before = std::mem::replace(&mut self.moved, moved);
        // Those below it hold little beside others: more of them would have to go than are needed.
        let mean = holders.iter().map(|(bytes, _)| *bytes).sum::<usize>() / holders.len().max(1);
        let is_too_slow = |bytes: usize, entry: &SessionEntry| {
            let Some(before) = before.get(&entry.key) else { return false };
            bytes as u64 > entry.moved().saturating_sub(*before).saturating_mul(PATIENCE)
        };
        let slow: Vec<_> =
            holders.iter().filter(|(bytes, entry)| *bytes >= mean && is_too_slow(*bytes, entry)).collect();
        if slow.iter().all(|(_, entry)| self.disconnected.contains(&entry.key)) {
            self.disconnected.clear();
        }
        let others = slow.into_iter().filter(|(_, entry)| !self.disconnected.contains(&entry.key));
        let Some((bytes, entry)) = others.max_by_key(|(bytes, _)| *bytes) else { return };
        self.disconnected.insert(entry.key);
        let client = entry.client_id.as_str();
        tracing::warn!(client, bytes, "disconnected: memory is short, and it holds much for long");
        core.statistics.overwhelmed(1);
        if let Some(waker) = entry.queue.signal(Signal::Close(ReasonCode::QuotaExceeded)) {
            waker.wake();
        }
    }

    /// It is over; returns from when on another one may be told.
    fn end(self, core: &Core) -> Instant {
        if self.told == Level::Fine {
            return self.tell_from;
        }
        let seconds = self.began.elapsed().as_secs();
        tracing::info!(seconds, used = core.memory.used(), "memory is no longer short");
        sys::publish_memory(core, Level::Fine);
        self.tell_from + STEP
    }
}
