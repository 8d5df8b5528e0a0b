//! Pool for slow hashes: a few threads and a bounded queue.
//!
//! The threads are its own: each hash takes 19 MiB, which the allocator keeps for every thread that computed one, and
//! the runtime has many for blocking calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use tokio::sync::{Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Verifications that may wait for a thread. At 50 ms each on one thread, the last one waits 3.2 s, within the time
/// for CONNECT.
pub const MAX_WAITING: usize = 64;

/// Pool for slow hashes. Other clients are served by other threads meanwhile. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HashPool {
    /// Threads without a job.
    threads: Arc<Semaphore>,
    jobs: mpsc::Sender<Job>,
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
}

/// As many verifications wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl HashPool {
    /// Pool with this many threads, at least one, and this many places in its queue.
    pub fn new(threads: usize, max_waiting: usize) -> Self {
        let threads = threads.max(1);
        let (jobs, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver = receiver.clone();
            let thread = std::thread::Builder::new().name("hash".to_owned());
            if let Err(error) = thread.spawn(move || work(&receiver)) {
                tracing::error!(%error, "the system gives no thread for hashes of passwords");
            }
        }
        Self { threads: Arc::new(Semaphore::new(threads)), jobs, waiting: Arc::default(), max_waiting }
    }

    /// Runs a slow computation. One whose caller is gone before it begins is not run.
    ///
    /// # Errors
    /// [`Busy`] if too many wait, after a panic of the computation, and without threads.
    pub async fn run<T: Send + 'static>(
        &self,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let place = Place::take(&self.waiting, self.max_waiting)?;
        let thread = self.threads.clone().acquire_owned().await.map_err(|_| Busy)?;
        drop(place);
        let (result, computed) = oneshot::channel();
        let job = move || {
            let outcome = catch_unwind(AssertUnwindSafe(compute));
            // Before the caller goes on, which may have another.
            drop(thread);
            // A caller that is gone needs no result; after a panic there is none.
            let _ = outcome.map(|outcome| result.send(outcome));
        };
        self.jobs.send(Box::new(job)).map_err(|_| Busy)?;
        computed.await.map_err(|_| Busy)
    }
}

/// Runs jobs for as long as there is a pool.
fn work(jobs: &Mutex<mpsc::Receiver<Job>>) {
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(job) = next() {
        job();
    }
}

impl Default for HashPool {
    /// Half of the processors, so that a flood of passwords leaves the others to the rest of the broker.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors / 2, MAX_WAITING)
    }
}

/// Place in the queue of a pool.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(waiting: &Arc<AtomicUsize>, max: usize) -> Result<Self, Busy> {
        let has_room = |waiting: usize| (waiting < max).then_some(waiting + 1);
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, has_room).map_err(|_| Busy)?;
        Ok(Self(waiting.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_full_pool_refuses_and_a_caller_that_is_gone_gives_its_place_back() {
        let pool = HashPool::new(1, 1);
        let (release, released) = mpsc::channel::<()>();
        let running = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run(move || released.recv()).await }
        });
        // The first one runs; then the queue has one place.
        while pool.threads.available_permits() > 0 || pool.waiting.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
        let mut waiting = Box::pin(pool.run(|| 2));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert_eq!(pool.run(|| 3).await, Err(Busy));
        drop(waiting);
        let mut waiting = Box::pin(pool.run(|| 4));
        assert!(waiting.as_mut().now_or_never().is_none());
        release.send(()).unwrap();
        assert!(running.await.unwrap().is_ok());
        assert_eq!(waiting.await, Ok(4));
        assert_eq!(pool.run(|| panic!("on purpose")).await, Err::<(), _>(Busy));
        assert_eq!(pool.run(|| 5).await, Ok(5), "the thread is free again");
    }
}
