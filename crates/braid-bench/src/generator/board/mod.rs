//! Counters of a run, readable while it runs.

mod events;
mod glance;
mod qoe;
mod routes;
mod summary;
mod tally;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Clock;
use crate::emqtt::{Counters, Histograms};
use crate::summary::Event;

use events::Events;
pub use glance::{Glance, GlanceTopic};
use routes::Routes;
pub(super) use routes::{RouteId, RouteKey};
pub(super) use tally::Tally;

/// Threads with a tally of their own; further threads share these.
const SHARDS: usize = 16;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of this thread's tally.
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// Counters of a run, readable while it runs. Cheap to clone.
///
/// Every thread counts on its own tally, which it locks once for each batch of messages; readers add them up.
#[derive(Clone, Debug)]
pub struct Board {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// Never held across an await; readers hold it only to copy.
    tallies: [Mutex<Tally>; SHARDS],
    routes: Mutex<Routes>,
    events: Mutex<Events>,
    wanted: AtomicU64,
    connected: AtomicU64,
    is_complete: AtomicBool,
    /// End of the run.
    ended: Mutex<Option<Duration>>,
}

impl Board {
    /// Board of one run that starts at `clock.start()`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let shared = Shared {
            clock,
            tallies: std::array::from_fn(|_| Mutex::default()),
            routes: Mutex::default(),
            events: Mutex::default(),
            wanted: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            is_complete: AtomicBool::new(false),
            ended: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Clock of the run.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Time since the start of the run, until its end.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let ended = *lock(&self.shared.ended);
        ended.unwrap_or_else(|| self.shared.clock.start().elapsed())
    }

    /// Sum of the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for tally in &self.shared.tallies {
            for (counter, value) in lock(tally).counters.iter() {
                all[counter] += value;
            }
        }
        all
    }

    /// Histograms for Prometheus.
    #[must_use]
    pub fn histograms(&self) -> Histograms {
        let mut all = Histograms::default();
        self.shared.tallies.iter().for_each(|tally| all.add(&lock(tally).histograms));
        all
    }

    /// Number of wanted clients.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        self.shared.wanted.load(Ordering::Relaxed)
    }

    /// Number of clients that are connected now.
    #[must_use]
    pub fn connected(&self) -> u64 {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// True when all messages of `-L` were published and acknowledged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shared.is_complete.load(Ordering::Relaxed)
    }

    /// Events from the number `from` (0 is the first) on, as lines to print.
    ///
    /// The first 10,000 are kept; the summary has the number of the others.
    #[must_use]
    pub fn events(&self, from: usize) -> Vec<Event> {
        lock(&self.shared.events).from(from)
    }

    /// Records single messages from now on, in [`TopicSummary::trace`](crate::summary::TopicSummary::trace): the first
    /// 100,000 of each topic and thread. Call it before the run begins.
    pub fn keep_traces(&self) {
        for tally in &self.shared.tallies {
            lock(tally).is_traced = true;
        }
    }

    // -- Counting ----------------------------------------------------------------------------------

    /// Locks the tally of this thread. Drop the guard before any await.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.shared.tallies[SHARD.with(|shard| *shard)])
    }

    /// Number of a topic on a stream, for [`Tally::route`].
    pub(super) fn route(&self, key: RouteKey) -> RouteId {
        lock(&self.shared.routes).id(key)
    }

    /// Whole second since the start of the run.
    pub(super) fn second(&self, at: tokio::time::Instant) -> usize {
        self.shared.clock.second(at)
    }

    pub(super) fn tell(&self, what: String) {
        let at = self.elapsed().as_secs_f64();
        lock(&self.shared.events).push(Event { at, what });
    }

    pub(super) fn set_wanted(&self, clients: u64) {
        self.shared.wanted.store(clients, Ordering::Relaxed);
    }

    pub(super) fn client_came(&self) {
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn client_left(&self) {
        self.shared.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_complete(&self) {
        self.shared.is_complete.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        let elapsed = self.elapsed();
        lock(&self.shared.ended).get_or_insert(elapsed);
    }
}

/// Locks a mutex. A panic under the lock leaves valid numbers behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
