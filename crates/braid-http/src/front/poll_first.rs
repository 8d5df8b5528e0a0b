//! Futures of requests that are polled before they become tasks: most are ready at once.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;

/// Result of the first poll of a future.
pub(super) enum First<F: Future> {
    Ready(F::Output),
    /// Its next poll, with the waker of its task, finds what has happened meanwhile.
    Waiting(Pin<Box<F>>),
    /// Panic, as in a task: other requests of the connection are not concerned.
    Panicked,
}

/// Polls a future once.
pub(super) fn poll_first<F: Future>(future: F) -> First<F> {
    let mut future = Box::pin(future);
    let poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    // A future that has panicked is dropped, and not polled again.
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(Poll::Ready(output)) => First::Ready(output),
        Ok(Poll::Pending) => First::Waiting(future),
        Err(_) => First::Panicked,
    }
}

/// Executor of the streams of HTTP/2: polls in the task of the connection, and makes a task of what is not ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollFirst;

impl<F> Executor<F> for PollFirst
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        if let First::Waiting(waiting) = poll_first(future) {
            tokio::spawn(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_future_that_is_ready_is_done_in_the_call_and_another_becomes_a_task() {
        let done = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&done);
        PollFirst.execute(async move { set.store(true, Ordering::Relaxed) });
        assert!(done.load(Ordering::Relaxed));
        let (sender, receiver) = oneshot::channel();
        let (told, hears) = oneshot::channel();
        PollFirst.execute(async move {
            told.send(receiver.await).unwrap();
        });
        sender.send(7).unwrap();
        assert_eq!(hears.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn a_panic_ends_its_future_only() {
        assert!(matches!(poll_first(async { panic!("on purpose") }), First::<_>::Panicked));
        PollFirst.execute(async { panic!("on purpose") });
    }
}
