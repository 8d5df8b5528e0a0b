//! Timers of high precision.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

use crate::lock::lock;

/// Source of timers that wake tasks at given times. Clones share one thread.
#[derive(Clone, Debug)]
pub struct TimerService {
    /// `None` is tokio's timer.
    thread: Option<Arc<Thread>>,
}

/// Timer that completes at its time. Dropping it or setting another time cancels it.
#[derive(Debug)]
pub(crate) enum Timer {
    Tokio(Pin<Box<Sleep>>),
    Thread(ThreadTimer),
}

/// Timer of an exact service.
#[derive(Debug)]
pub(crate) struct ThreadTimer {
    thread: Arc<Thread>,
    due: Instant,
    /// Number and waker while it waits.
    entry: Option<(u64, Waker)>,
}

/// Thread of an exact service. It ends when the service and all its timers are dropped.
#[derive(Debug)]
struct Thread {
    timers: Arc<TimerQueue>,
}

/// Timers of an exact service, shared with its thread.
#[derive(Debug, Default)]
struct TimerQueue {
    /// A std lock: it is held for an insertion, a removal, or taking due timers. No waker is woken or dropped under
    /// it, because that may drop a task with a timer of its own.
    pending: Mutex<PendingTimers>,
    /// Signals an earlier timer, or that none is left.
    changed: Condvar,
}

/// Timers in the order of time.
#[derive(Debug, Default)]
struct PendingTimers {
    wakers: BTreeMap<(Instant, u64), Waker>,
    /// Number of the next timer. Numbers tell timers of one time apart.
    count: u64,
    is_over: bool,
}

impl TimerService {
    /// Wakes by tokio's clock, which tests can pause. It ticks in milliseconds, so that a timer may be two late.
    #[must_use]
    pub fn coarse() -> Self {
        Self { thread: None }
    }

    /// Wakes by a thread of its own, some 60 µs late on an idle machine. Not for a paused clock.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn exact() -> io::Result<Self> {
        let timers = Arc::new(TimerQueue::default());
        let queue = Arc::clone(&timers);
        std::thread::Builder::new().name("timers".to_owned()).spawn(move || queue.run())?;
        Ok(Self { thread: Some(Arc::new(Thread { timers })) })
    }

    /// Timer for this time.
    #[must_use]
    pub(crate) fn at(&self, due: Instant) -> Timer {
        match &self.thread {
            None => Timer::Tokio(Box::pin(sleep_until(due))),
            Some(thread) => Timer::Thread(ThreadTimer { thread: Arc::clone(thread), due, entry: None }),
        }
    }

    /// Number of timers of its thread that were waited for so far.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.thread.as_ref().map_or(0, |thread| thread.timers.pending().count)
    }
}

impl Timer {
    /// Sets another time; the present one changes nothing.
    pub(crate) fn set(&mut self, due: Instant) {
        match self {
            Self::Tokio(sleep) if sleep.deadline() != due => sleep.as_mut().reset(due),
            Self::Thread(timer) if timer.due != due => {
                timer.cancel();
                timer.due = due;
            }
            Self::Tokio(_) | Self::Thread(_) => {}
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Self::Tokio(sleep) => sleep.as_mut().poll(cx),
            Self::Thread(timer) => timer.poll(cx),
        }
    }
}

// === impl ThreadTimer ===

impl ThreadTimer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            self.cancel();
            return Poll::Ready(());
        }
        // Tasks are polled for other reasons too: a timer that waits already needs no lock.
        if !self.entry.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker())) {
            self.cancel();
            let timers = &self.thread.timers;
            let (number, is_first) = timers.pending().insert(self.due, cx.waker().clone());
            if is_first {
                timers.changed.notify_one();
            }
            self.entry = Some((number, cx.waker().clone()));
        }
        Poll::Pending
    }

    /// Cancels the timer without waking the thread, which would have nothing to do.
    fn cancel(&mut self) {
        if let Some((number, _)) = self.entry.take() {
            let removed = self.thread.timers.pending().wakers.remove(&(self.due, number));
            // The lock is free by now.
            drop(removed);
        }
    }
}

impl Drop for ThreadTimer {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.timers.pending().is_over = true;
        self.timers.changed.notify_one();
    }
}

// === impl TimerQueue ===

impl TimerQueue {
    fn pending(&self) -> MutexGuard<'_, PendingTimers> {
        lock(&self.pending)
    }

    /// Wakes due timers until the service and its timers are dropped.
    fn run(&self) {
        let mut due = Vec::new();
        let mut pending = self.pending();
        while !pending.is_over {
            let next = pending.take_due(Instant::now(), &mut due);
            if !due.is_empty() {
                drop(pending);
                due.drain(..).for_each(Waker::wake);
                pending = self.pending();
                continue;
            }
            // Poisoned or not, as for `lock`.
            pending = match next {
                None => self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let time = next.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(pending, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

// === impl PendingTimers ===

impl PendingTimers {
    /// Inserts a timer; returns its number, and whether it is the first one due.
    fn insert(&mut self, due: Instant, waker: Waker) -> (u64, bool) {
        let number = self.count;
        self.count += 1;
        let is_first = self.wakers.first_key_value().is_none_or(|(&(first, _), _)| due < first);
        self.wakers.insert((due, number), waker);
        (number, is_first)
    }

    /// Removes the timers due at `now` in their order; returns the time of the next.
    fn take_due(&mut self, now: Instant, due: &mut Vec<Waker>) -> Option<Instant> {
        while let Some(first) = self.wakers.first_entry() {
            let (at, _) = *first.key();
            if at > now {
                return Some(at);
            }
            due.push(first.remove());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Waker that records its number.
    struct NumberedWaker(u32, Sender<u32>);

    impl Wake for NumberedWaker {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0).expect("the test listens");
        }
    }

    fn wakers() -> (impl Fn(u32) -> Waker, Receiver<u32>) {
        let (sender, woken) = channel();
        (move |number| Waker::from(Arc::new(NumberedWaker(number, sender.clone()))), woken)
    }

    fn poll(timer: &mut Timer) -> Poll<()> {
        Pin::new(timer).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn timers_complete_in_the_order_of_their_times_and_never_early() {
        let timers = TimerService::exact().unwrap();
        let start = Instant::now();
        let at = |micros| timers.at(start + Duration::from_micros(micros));
        let (an_hour, sooner, past) = (at(3_600_000_000), at(700), timers.at(start));
        past.await;
        tokio::select! {
            () = an_hour => panic!("the one that is not due"),
            () = sooner => assert!(start.elapsed() >= Duration::from_micros(700)),
        }
    }

    #[tokio::test]
    async fn one_that_is_set_anew_completes_at_the_new_time() {
        let timers = TimerService::exact().unwrap();
        let start = Instant::now();
        let mut timer = timers.at(start + HOUR);
        assert_eq!(poll(&mut timer), Poll::Pending);
        for micros in [300, 900] {
            timer.set(start + Duration::from_micros(micros));
            (&mut timer).await;
            assert!(start.elapsed() >= Duration::from_micros(micros));
        }
        timer.set(start + HOUR);
        assert_eq!(poll(&mut timer), Poll::Pending);
    }

    #[tokio::test(start_paused = true)]
    async fn due_timers_are_woken_together_in_their_order() {
        let (waker, woken) = wakers();
        let (mut pending, start) = (PendingTimers::default(), Instant::now());
        let at = |micros| start + Duration::from_micros(micros);
        let mut is_first = |micros, number| pending.insert(at(micros), waker(number)).1;
        let firsts = [is_first(500, 3), is_first(200, 1), is_first(900, 4), is_first(200, 2)];
        assert_eq!(firsts, [true, true, false, false], "the thread is to know of an earlier one");
        let mut timer = |micros| {
            let mut due = Vec::new();
            let next = pending.take_due(at(micros), &mut due);
            due.into_iter().for_each(Waker::wake);
            (next, woken.try_iter().collect::<Vec<_>>())
        };
        assert_eq!(timer(199), (Some(at(200)), vec![]));
        assert_eq!(timer(500), (Some(at(900)), vec![1, 2, 3]));
        assert_eq!(timer(899), (Some(at(900)), vec![]));
        assert_eq!(timer(2000), (None, vec![4]));
    }

    #[tokio::test]
    async fn cancelled_timers_are_not_kept() {
        let service = TimerService::exact().unwrap();
        let timers = Arc::clone(&service.thread.as_ref().expect("an exact one").timers);
        let held = || timers.pending().wakers.len();
        let later = Instant::now() + HOUR;
        let mut some: Vec<Timer> = (0..10).map(|_| service.at(later)).collect();
        assert_eq!(held(), 0, "no timer waits yet");
        for timer in &mut some {
            assert_eq!((poll(timer), poll(timer)), (Poll::Pending, Poll::Pending));
        }
        assert_eq!(held(), 10, "polling again takes no second entry");
        some[0].set(later);
        some[1].set(later + HOUR);
        assert_eq!(held(), 9, "one is not waited for at its new time yet");
        assert!(some.iter_mut().all(|timer| poll(timer).is_pending()));
        assert_eq!(held(), 10);
        some.truncate(3);
        assert_eq!(held(), 3);
        drop(service);
        assert!(!timers.pending().is_over, "three timers still hold the thread");
        drop(some);
        assert!(timers.pending().wakers.is_empty() && timers.pending().is_over);
    }

    #[tokio::test(start_paused = true)]
    async fn coarse_timers_have_the_clock_of_tests() {
        let start = Instant::now();
        let mut timer = TimerService::coarse().at(start + 2 * HOUR);
        timer.set(start + HOUR);
        timer.await;
        assert_eq!(start.elapsed(), HOUR);
    }
}
