//! What the threads of one run share: the clock, the counters, the faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many faults keep their text; the rest is only counted.
const FAULTS_KEPT: usize = 5;

/// One run's shared state. Counters are added to once per read, never per message.
pub(super) struct Board {
    epoch: Instant,
    /// Nanoseconds since the epoch between which latencies count.
    pub(super) measured: std::ops::Range<u64>,
    /// No further message is to be sent.
    pub(super) stop: AtomicBool,
    /// Nothing further is to be read.
    pub(super) finish: AtomicBool,
    /// Messages delivered to all subscribers.
    pub(super) delivered: AtomicU64,
    /// Per publisher: deliveries that arrived or were passed over, which is what its window counts.
    pub(super) resolved: Vec<AtomicU64>,
    fault_count: AtomicU64,
    faults: Mutex<Vec<String>>,
}

impl Board {
    /// Starts the clock: the epoch is now.
    pub(super) fn new(publishers: usize, warm_up: Duration, measured: Duration) -> Self {
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
    pub(super) fn now(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }

    /// When `due`, in nanoseconds since the epoch, is.
    pub(super) fn instant(&self, due: u64) -> Instant {
        self.epoch + Duration::from_nanos(due)
    }

    /// Notes that something is wrong with the broker's answers.
    pub(super) fn fault(&self, text: String) {
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut faults) = self.faults.lock()
            && faults.len() < FAULTS_KEPT
        {
            faults.push(text);
        }
    }

    /// How many faults there were, and the first few.
    pub(super) fn faults(&self) -> (u64, Vec<String>) {
        let texts = self.faults.lock().map(|faults| faults.clone()).unwrap_or_default();
        (self.fault_count.load(Ordering::Relaxed), texts)
    }
}

/// A duration as nanoseconds; 584 years are enough.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
