use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use braid_store::{Commit, Completion, StoreError};

#[derive(Default)]
struct Counted(AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn failed() -> StoreError {
    StoreError::Failed { reason: "no space left".into() }
}

#[test]
fn a_done_completion_is_ready_at_once() {
    let mut commit: Commit = Completion::Done(Err(failed()));
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(pin!(&mut commit).poll(&mut context), Poll::Ready(Err(failed())));
    assert_eq!(commit.try_take(), Some(Err(StoreError::Closed)), "taken once");
    assert_eq!(Completion::Done(Ok(7)).wait(), Ok(7));
}

#[test]
fn completing_wakes_only_the_last_waker() {
    let (completer, mut completion) = Completion::pending();
    let (first, last) = (Arc::<Counted>::default(), Arc::<Counted>::default());
    for waker in [&first, &last, &last] {
        let waker = Waker::from(Arc::clone(waker));
        assert_eq!(pin!(&mut completion).poll(&mut Context::from_waker(&waker)), Poll::Pending);
    }
    assert_eq!(completion.try_take(), None);
    completer.complete(Ok(7));
    assert_eq!((first.0.load(Ordering::SeqCst), last.0.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(pin!(&mut completion).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(7)));
    assert_eq!(completion.try_take(), Some(Err(StoreError::Closed)));
}

#[test]
fn a_completer_that_is_dropped_answers_closed() {
    let (completer, mut completion) = Completion::<()>::pending();
    let counted = Arc::<Counted>::default();
    let waker = Waker::from(Arc::clone(&counted));
    assert!(pin!(&mut completion).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(completer);
    assert_eq!(counted.0.load(Ordering::SeqCst), 1);
    assert_eq!(completion.wait(), Err(StoreError::Closed));
}

#[test]
fn a_dropped_completion_can_be_completed() {
    let (completer, completion) = Completion::pending();
    drop(completion);
    completer.complete(Ok(()));
}

#[test]
fn a_thread_waits_for_another() {
    let mut completers = Vec::new();
    let waiting: Vec<_> = (0..100)
        .map(|number| {
            let (completer, completion) = Completion::pending();
            completers.push((number, completer));
            thread::spawn(move || completion.wait())
        })
        .collect();
    for (number, completer) in completers {
        completer.complete(Ok(number));
    }
    let outcomes: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(outcomes, (0..100).map(Ok).collect::<Vec<_>>());
}
