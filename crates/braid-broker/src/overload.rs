//! Monitor of memory overload: logs and publishes its level, and disconnects stuck clients that hold the most.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use braid_proto::reason::ReasonCode;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::core::Core;
use crate::limit::Limit;
use crate::memory::Level;
use crate::queue::session_queue::Signal;
use crate::registry::{SessionEntry, SessionKey};
use crate::statistics::Counter;
use crate::sys;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two disconnects while memory does not get free, and between two log lines that an overload has begun.
const STEP: Duration = Duration::from_secs(10);

/// Memory gets free if in a step this fraction of the low watermark does.
const PROGRESS: u64 = 16;

/// A connection is too slow if at its present pace it needs more steps than this for the bytes that it holds.
const MAX_STEPS: u64 = 30;

/// One overload, from the low watermark until memory is no longer short.
struct Overload {
    began: Instant,
    /// Earliest time of the first log line; afterwards the time of that line.
    log_from: Instant,
    /// Worst level that was logged.
    logged: Level,
    /// Level that `$SYS` shows.
    published: Level,
    stepped: Instant,
    /// Bytes in use at the last step.
    used: u64,
    /// Bytes that each connection had moved at the last step, of those that held any.
    moved: HashMap<SessionKey, u64>,
    /// Sessions that were disconnected. One that reconnects is not the first to be disconnected again.
    disconnected: HashSet<SessionKey>,
}

/// Watches the memory watermarks.
pub(crate) async fn run(core: Arc<Core>) {
    let mut overload: Option<Overload> = None;
    let mut log_from = Instant::now();
    loop {
        match &overload {
            None => core.memory.changed().await,
            Some(_) => drop(timeout(CHECK_INTERVAL, core.memory.changed()).await),
        }
        let level = core.memory.settle();
        if level > Level::Fine {
            overload.get_or_insert_with(|| Overload::begin(&core, log_from)).check(&core, level).await;
        } else if let Some(overload) = overload.take() {
            log_from = overload.end(&core);
        }
    }
}

impl Overload {
    fn begin(core: &Core, log_from: Instant) -> Self {
        core.statistics.add(Counter::Overloads, 1);
        let began = Instant::now();
        Self {
            began,
            log_from,
            logged: Level::Fine,
            published: Level::Fine,
            stepped: began,
            used: core.memory.held(),
            moved: HashMap::new(),
            disconnected: HashSet::new(),
        }
    }

    /// Logs and publishes the level. An overload soon after the last one is logged only if it lasts.
    fn report(&mut self, core: &Core, level: Level) {
        let now = Instant::now();
        if now < self.log_from {
            return;
        }
        let used = core.memory.held();
        if self.logged == Level::Fine {
            tracing::warn!(used, low = core.memory.low(), "memory is short: publishers are held back");
            self.log_from = now;
        }
        if self.logged < Level::Full && level == Level::Full {
            tracing::warn!(used, "memory is short: new connections are refused");
        }
        self.logged = self.logged.max(level);
        if level != self.published {
            sys::publish_memory(core, level);
            self.published = level;
        }
    }

    async fn check(&mut self, core: &Core, level: Level) {
        self.report(core, level);
        if self.stepped.elapsed() < STEP {
            return;
        }
        self.stepped = Instant::now();
        let before = std::mem::replace(&mut self.used, core.memory.held());
        if self.used.saturating_add(core.memory.low() / PROGRESS) > before {
            self.disconnect_one(core).await;
        }
    }

    /// Disconnects the client that holds the most of those that are too slow. If its session outlives the connection,
    /// its messages count as offline from then on: none is lost, and they slow no publisher.
    async fn disconnect_one(&mut self, core: &Core) {
        // The queues are locked one by one, and none under the registry's lock.
        let mut holders = Vec::new();
        for some in core.sessions.registry.pieces() {
            let used = some.into_iter().map(|entry| (entry.used(), entry));
            holders.extend(used.filter(|(bytes, _)| *bytes > 0));
            yield_now().await;
        }
        let moved = holders.iter().map(|(_, entry)| (entry.key, entry.moved())).collect();
        let before = std::mem::replace(&mut self.moved, moved);
        // Below the mean more clients would have to go than are needed.
        let mean = holders.iter().map(|(bytes, _)| *bytes).sum::<usize>() / holders.len().max(1);
        let is_too_slow = |bytes: usize, entry: &SessionEntry| {
            let Some(before) = before.get(&entry.key) else { return false };
            bytes as u64 > entry.moved().saturating_sub(*before).saturating_mul(MAX_STEPS)
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
        tracing::warn!(
            client,
            bytes,
            "disconnected: memory is short, and the client is slow and holds the most"
        );
        core.statistics.add(Counter::ClientsOverwhelmed, 1);
        core.statistics.reach(Limit::StuckClients);
        if let Some(waker) = entry.queue.signal(Signal::Close(ReasonCode::QuotaExceeded)) {
            waker.wake();
        }
    }

    /// Ends the overload. Returns from when on the next one may be logged.
    fn end(self, core: &Core) -> Instant {
        if self.logged == Level::Fine {
            return self.log_from;
        }
        let seconds = self.began.elapsed().as_secs();
        tracing::info!(seconds, used = core.memory.held(), "memory is no longer short");
        sys::publish_memory(core, Level::Fine);
        self.log_from + STEP
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::config::BrokerConfig;
    use crate::registry::ConnectionId;

    /// A queue whose lock is held for long must not keep new sessions out of the registry.
    #[tokio::test]
    async fn search_for_slow_clients_does_not_lock_the_registry() {
        let (core, connection) = (Arc::new(Core::in_memory(BrokerConfig::default())), ConnectionId(1));
        let slow = Arc::new(SessionEntry::new(SessionKey(1), "slow".into(), connection));
        core.sessions.registry.insert(&slow);
        let (inserted, is_inserted) = mpsc::channel();
        let (searching, registering) = slow.queue.while_locked(|| {
            let searched = core.clone();
            let (runtime, (begin, begun)) = (tokio::runtime::Handle::current(), mpsc::channel());
            let searching = std::thread::spawn(move || {
                begin.send(()).expect("the test waits");
                runtime.block_on(Overload::begin(&searched, Instant::now()).disconnect_one(&searched));
            });
            begun.recv().expect("the search begins");
            let core = core.clone();
            // As many as the search could lock the registry for, until it blocks at the first queue.
            let registering = std::thread::spawn(move || {
                for key in 2..20_000 {
                    let entry = SessionEntry::new(SessionKey(key), "new".into(), connection);
                    core.sessions.registry.insert(&Arc::new(entry));
                }
                inserted.send(()).expect("the test waits");
            });
            is_inserted.recv_timeout(Duration::from_secs(20)).expect("the registry is not locked");
            (searching, registering)
        });
        searching.join().expect("no panic");
        registering.join().expect("no panic");
    }
}
