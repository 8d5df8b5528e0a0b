//! State shared by the threads of one run: clock, counters, faults.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Faults that keep their text; all are counted.
const FAULTS_KEPT: usize = 5;

/// Shared state of one run. Threads add to its counters once per read, not per message.
pub(crate) struct RunState {
    epoch: Instant,
    /// Measured period, nanoseconds since the epoch.
    pub(crate) measured: std::ops::Range<u64>,
    /// Set when the publishers have to stop.
    pub(crate) stop: AtomicBool,
    /// Set when the subscribers have to stop.
    pub(crate) finish: AtomicBool,
    /// Messages delivered to all subscribers.
    pub(crate) delivered: AtomicU64,
    /// Deliveries per publisher that arrived or were skipped, which open its window.
    pub(crate) resolved: Vec<AtomicU64>,
    fault_count: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl RunState {
    /// Starts the clock: the epoch is now.
    pub(crate) fn new(publishers: usize, warm_up: Duration, measured: Duration) -> Self {
        let from = nanoseconds(warm_up);
        Self {
            epoch: Instant::now(),
            measured: from..from + nanoseconds(measured),
            stop: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            resolved: (0..publishers).map(|_| AtomicU64::new(0)).collect(),
            fault_count: AtomicU64::new(0),
            faults: Mutex::new(Vec::new()),
        }
    }

    /// Nanoseconds since the epoch, monotonic (CLOCK_MONOTONIC).
    pub(crate) fn now(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }

    /// Instant of a due time in nanoseconds since the epoch.
    pub(crate) fn instant(&self, due: u64) -> Instant {
        self.epoch + Duration::from_nanos(due)
    }

    /// Records a fault in the broker's answers.
    pub(crate) fn fault(&self, text: String) {
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.fault_texts();
        if faults.len() < FAULTS_KEPT {
            faults.push(text);
        }
    }

    /// Number of faults, and the texts of the first ones.
    pub(crate) fn faults(&self) -> (u64, Vec<String>) {
        (self.fault_count.load(Ordering::Relaxed), self.fault_texts().clone())
    }

    /// Locks the texts, poisoned or not: holders only add or copy them.
    fn fault_texts(&self) -> MutexGuard<'_, Vec<String>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds of a duration, at most 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
