//! Futures of requests that are polled before they become tasks: most are ready at once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;

/// Polls a future once. One that is not ready is returned; its next poll, with the waker of its task, finds what has
/// happened meanwhile.
pub(super) fn poll_first<F: Future>(future: F) -> Result<F::Output, Pin<Box<F>>> {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
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
        if let Err(waiting) = poll_first(future) {
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
}
