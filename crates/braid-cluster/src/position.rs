//! Position of a reader of the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Position up to which a shard is delivered at this node.
#[derive(Debug)]
pub(crate) struct ReadPosition {
    /// Held while messages are delivered.
    gate: Mutex<u64>,
    completed: AtomicU64,
}

impl ReadPosition {
    pub(crate) fn new(sequence: u64) -> Self {
        Self { gate: Mutex::new(sequence), completed: AtomicU64::new(sequence) }
    }

    /// Position without what is being delivered.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Position after what is being delivered now: everything behind it finds the subscriptions that there are now.
    pub(crate) fn settled(&self) -> u64 {
        *self.gate()
    }

    /// Begins to deliver messages.
    pub(crate) fn begin(&self) -> Delivering<'_> {
        Delivering { completed: &self.completed, gate: self.gate() }
    }

    fn gate(&self) -> MutexGuard<'_, u64> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Messages that are being delivered.
pub(crate) struct Delivering<'a> {
    completed: &'a AtomicU64,
    gate: MutexGuard<'a, u64>,
}

impl Delivering<'_> {
    /// Position before them.
    pub(crate) fn sequence(&self) -> u64 {
        *self.gate
    }

    /// Everything up to this position is delivered.
    pub(crate) fn set(&mut self, sequence: u64) {
        *self.gate = sequence;
        self.completed.store(sequence, Ordering::Release);
    }
}
