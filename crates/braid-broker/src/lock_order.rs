//! Order of the broker's locks, asserted in debug builds.
//!
//! A thread acquires locks in ascending rank: session owner, routing table, registry, session queue, one leaf lock, and
//! at last the store. A leaf guards a value of its own: the timers, the retained messages, the pending session deletes,
//! the claims, admission, the identity and the presence of a session, the wakers that wait for room in a queue, the
//! queues of taps, the throttle of a log line. The only call under a leaf that locks is a commit. The store has locks
//! of its own and never calls the broker under one; a completed commit wakes tasks. No thread holds two locks of one
//! rank, and none is held across an await.
//!
//! Outside of the order are the channels and notifiers of tokio, each of which locks for one call and wakes tasks at
//! most, and the turn of a claim ([`ClaimTurn`](crate::registry::ClaimTurn)): a lock of tokio for one client, which is
//! awaited with no ranked lock held and held across awaits. In release builds [`Ordered`] is its guard and nothing
//! else.

use std::ops::{Deref, DerefMut};

/// Position of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Rank {
    /// The owner of one session's state.
    Owner,
    /// The routing table.
    Routing,
    /// The maps of the registry.
    Registry,
    /// The queue of one session.
    Queue,
    /// A lock of one value, under which only the store is called.
    Leaf,
    /// A commit, which takes the locks of the store.
    Store,
}

/// Guard of a lock that has a rank.
pub(crate) struct Ordered<G> {
    guard: G,
    #[cfg(debug_assertions)]
    _held: held::Held,
}

impl<G> Ordered<G> {
    /// Acquires a lock of this rank.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a higher rank.
    pub(crate) fn acquire(rank: Rank, lock: impl FnOnce() -> G) -> Self {
        #[cfg(debug_assertions)]
        let _held = held::Held::new(rank);
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Self {
            guard: lock(),
            #[cfg(debug_assertions)]
            _held,
        }
    }
}

impl<G: Deref> Deref for Ordered<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ordered<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Panics in debug builds if this thread holds any ranked lock: what follows takes time or locks of its own.
pub(crate) fn assert_none_held() {
    #[cfg(debug_assertions)]
    held::assert_none();
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// One bit per rank.
        static HELD: Cell<u8> = const { Cell::new(0) };
        /// Locks that this thread has acquired, and those of [`Rank::Queue`] among them, for tests that count them.
        static LOCKS: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
    }

    pub(super) struct Held(Rank);

    impl Held {
        pub(super) fn new(rank: Rank) -> Self {
            let held = HELD.get();
            // A panic while another unwinds would abort before the first is told.
            if !std::thread::panicking() {
                assert!(held < 1 << rank as u8, "lock order: {rank:?} while a mask of {held:#b} is held");
            }
            HELD.set(held | 1 << rank as u8);
            let [all, queues] = LOCKS.get();
            LOCKS.set([all + 1, queues + u64::from(rank == Rank::Queue)]);
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(1 << self.0 as u8));
        }
    }

    pub(super) fn assert_none() {
        let held = HELD.get();
        assert!(std::thread::panicking() || held == 0, "lock order: a mask of {held:#b} is held");
    }

    #[cfg(test)]
    pub(crate) fn locks() -> u64 {
        LOCKS.get()[0]
    }

    #[cfg(test)]
    pub(crate) fn queue_locks() -> u64 {
        LOCKS.get()[1]
    }
}

#[cfg(all(test, debug_assertions))]
pub(crate) use held::{locks, queue_locks};

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn lock(rank: Rank, mutex: &Mutex<u8>) -> Ordered<std::sync::MutexGuard<'_, u8>> {
        Ordered::acquire(rank, || mutex.lock().expect("not poisoned"))
    }

    #[test]
    fn ascending_ranks_are_allowed_and_released_in_any_order() {
        let (first, second) = (Mutex::new(0), Mutex::new(0));
        let owner = lock(Rank::Owner, &first);
        let queue = lock(Rank::Queue, &second);
        drop(owner);
        drop(queue);
        drop(lock(Rank::Registry, &first));
        assert_none_held();
    }

    #[test]
    #[should_panic(expected = "lock order: Routing")]
    fn a_descending_rank_panics() {
        let (first, second) = (Mutex::new(0), Mutex::new(0));
        let _registry = lock(Rank::Registry, &first);
        let _routing = lock(Rank::Routing, &second);
    }

    #[test]
    #[should_panic(expected = "lock order: Queue")]
    fn two_locks_of_one_rank_panic() {
        let (first, second) = (Mutex::new(0), Mutex::new(0));
        let _first = lock(Rank::Queue, &first);
        let _second = lock(Rank::Queue, &second);
    }
}
