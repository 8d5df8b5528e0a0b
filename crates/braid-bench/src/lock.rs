//! Locks of counters, timers and caches.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, poisoned or not: holders in this crate add to numbers, and insert or remove whole entries, so that a
/// panic of one leaves a usable value to the others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
