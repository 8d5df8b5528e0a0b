//! Locking of the state that the application and the driver share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of this crate, also after a panic under it.
///
/// Critical sections can panic only where they call a waker or drop a value, and their state is valid at each of these
/// points.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
