use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that were done, over all threads, while a run goes on.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<[AtomicU64]>);

impl Progress {
    /// A counter for each thread, so that they do not contend for one.
    #[must_use]
    pub fn new(threads: u32) -> Self {
        Self((0..threads).map(|_| AtomicU64::new(0)).collect())
    }

    /// Requests that were done or that failed.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.0.iter().map(|thread| thread.load(Ordering::Relaxed)).sum()
    }

    /// Sets the count of a thread.
    pub(super) fn set(&self, thread: u32, done: u64) {
        if let Some(counter) = self.0.get(thread as usize) {
            counter.store(done, Ordering::Relaxed);
        }
    }
}
