//! Lateness of packets, and the time that they waited before they were read.

use std::time::Duration;

use braid_measure::Latencies;
use braid_measure::process::RunDelay;
use serde::{Deserialize, Serialize};

/// Time from the due time of packets until the kernel had them, with the time that they waited to be read;
/// microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of packets.
    pub packets: u64,
    /// Half of them at most.
    pub p50_us: f64,
    /// 99 % of them at most.
    pub p99_us: f64,
    /// All of them.
    pub max_us: f64,
}

impl From<&Latencies> for Lateness {
    fn from(late: &Latencies) -> Self {
        let us = late.quantiles_us().unwrap_or_default();
        Self { packets: us.count, p50_us: us.p50, p99_us: us.p99, max_us: us.max }
    }
}

// === Waits before reading ===

/// Number of packets with a wait of their own, more than a queue holds unless it is asked for more.
const INSIDE: usize = 1 << 17;

/// By the number of the packet; one that many packets have overtaken has the wait of one of them.
#[derive(Debug)]
pub(super) struct Waits {
    /// Nanoseconds. Pages that no packet reaches are never touched.
    nanos: Box<[u32]>,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self { nanos: vec![0; INSIDE].into_boxed_slice() }
    }

    /// More than 4 s count as 4 s.
    pub(super) fn set(&mut self, index: u64, wait: Duration) {
        self.nanos[place(index)] = u32::try_from(wait.as_nanos()).unwrap_or(u32::MAX);
    }

    pub(super) fn of(&self, index: u64) -> Duration {
        Duration::from_nanos(self.nanos[place(index)].into())
    }
}

fn place(index: u64) -> usize {
    // The remainder is below `INSIDE`.
    usize::try_from(index % INSIDE as u64).unwrap_or(0)
}

/// Two readings this close are not looked at: a frame in between has waited no longer.
const CLOSE: Duration = Duration::from_micros(100);
/// The greatest age of the kernel's figure at the next reading; the time before is counted with it.
const STALE: Duration = Duration::from_millis(1);

/// Source of the time that frames waited before they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The kernel says when each came.
    Timestamps,
    /// The time that the reading thread waited for a processor counts for all frames which it then found.
    RunQueue,
    /// Unmeasured: /proc/thread-self/schedstat is missing. Lateness is then that of sending alone.
    #[default]
    Unknown,
}

impl Reading {
    /// In reports; nothing where it is not known.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Timestamps => "timestamps",
            Self::RunQueue => "run queue",
            Self::Unknown => "",
        }
    }
}

/// Time that a runnable thread waits for a processor.
#[derive(Debug)]
pub(super) struct RunQueue {
    /// `None` if the kernel does not count it.
    counter: Option<RunDelay>,
    /// The last value, and its time.
    waited: Duration,
    asked_at: Duration,
    read_at: Duration,
}

impl RunQueue {
    /// Run queue of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        Self::of(RunDelay::of_this_thread())
    }

    fn of(counter: Option<RunDelay>) -> Self {
        let waited = counter.as_ref().and_then(RunDelay::read).unwrap_or_default();
        Self { counter, waited, asked_at: Duration::ZERO, read_at: Duration::ZERO }
    }

    pub(super) fn reading(&self) -> Reading {
        if self.counter.is_some() { Reading::RunQueue } else { Reading::Unknown }
    }

    /// After a reading at `now`: how long the thread waited since the reading before.
    pub(super) fn since_last(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.read_at);
        self.read_at = now;
        if passed < CLOSE && now.saturating_sub(self.asked_at) < STALE {
            return Duration::ZERO;
        }
        let Some(waited) = self.counter.as_ref().and_then(RunDelay::read) else { return Duration::ZERO };
        self.asked_at = now;
        let before = std::mem::replace(&mut self.waited, waited);
        waited.saturating_sub(before).min(passed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn says(file: &File, waited: Duration) {
        file.set_len(0).unwrap();
        file.write_all_at(format!("123 {} 1\n", waited.as_nanos()).as_bytes(), 0).unwrap();
    }

    #[test]
    fn waits_of_a_thread_count_between_two_readings() {
        let file = tempfile::tempfile().unwrap();
        says(&file, ms(7));
        let mut queue = RunQueue::of(RunDelay::of(file.try_clone().unwrap()));
        assert_eq!(queue.reading(), Reading::RunQueue);
        assert_eq!(queue.since_last(ms(10)), Duration::ZERO, "before the first");
        says(&file, ms(37));
        assert_eq!(queue.since_last(ms(110)), ms(30));
        assert_eq!(queue.since_last(ms(210)), Duration::ZERO);
        says(&file, ms(97));
        assert_eq!(queue.since_last(ms(220)), ms(10), "no longer than it is since the last");
    }

    #[test]
    fn readings_close_to_each_other_do_not_ask() {
        let file = tempfile::tempfile().unwrap();
        says(&file, ms(0));
        let mut queue = RunQueue::of(RunDelay::of(file.try_clone().unwrap()));
        let step = Duration::from_micros(90);
        queue.since_last(ms(10));
        says(&file, ms(5));
        assert_eq!(queue.since_last(ms(10) + step), Duration::ZERO);
        // A skipped interval is counted at most a millisecond later.
        assert_eq!(queue.since_last(ms(11)), Duration::from_micros(910));
        says(&file, ms(6));
        assert_eq!(queue.since_last(ms(12) + step), ms(1));
    }

    #[test]
    fn a_kernel_that_does_not_count_is_told() {
        assert_eq!(RunQueue::of(None).reading(), Reading::Unknown);
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"0 0 0\n", 0).unwrap();
        assert_eq!(RunQueue::of(RunDelay::of(file)).reading(), Reading::Unknown);
        let mut queue = RunQueue::of(None);
        assert_eq!(queue.since_last(ms(10)), Duration::ZERO);
    }
}
