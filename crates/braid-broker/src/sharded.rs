//! Counters that all threads change, without a cache line that they share.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Number of shards. More threads share them.
const SHARDS: usize = 16;

/// Counters of some threads: two cache lines, since they are fetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<const N: usize>([AtomicI64; N]);

/// `N` sums, each the total of one counter in every shard. Relaxed: they guard no other memory.
pub(crate) struct ShardedCounters<const N: usize>([Shard<N>; SHARDS]);

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Shard(std::array::from_fn(|_| AtomicI64::new(0)))))
    }
}

impl<const N: usize> ShardedCounters<N> {
    /// Changes a sum. Returns the part of it in the shard of this thread, before and after.
    pub(crate) fn add(&self, counter: usize, change: i64) -> (i64, i64) {
        let before = self.0[shard()].0[counter].fetch_add(change, Ordering::Relaxed);
        (before, before.wrapping_add(change))
    }

    /// The sum. Reads a cache line of each shard.
    pub(crate) fn sum(&self, counter: usize) -> i64 {
        let parts = self.0.iter().map(|shard| shard.0[counter].load(Ordering::Relaxed));
        parts.fold(0, i64::wrapping_add)
    }
}

impl<const N: usize> fmt::Debug for ShardedCounters<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..N).map(|counter| self.sum(counter))).finish()
    }
}

/// Shard of this thread: the next one at its first call.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.try_with(|shard| *shard).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_shards_of_their_own_and_one_sum() {
        let counters = ShardedCounters::<2>::default();
        let parts: Vec<_> = std::thread::scope(|scope| {
            let add = |change| counters.add(1, change);
            let threads: Vec<_> = (1..=4).map(|change| scope.spawn(move || add(change))).collect();
            threads.into_iter().map(|thread| thread.join().expect("join")).collect()
        });
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 10));
        assert_eq!(parts, [(0, 1), (0, 2), (0, 3), (0, 4)], "no thread has changed the counter of another");
        assert_eq!(size_of_val(&counters), 2 * 64 * SHARDS);
    }
}
