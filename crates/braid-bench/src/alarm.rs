//! Timers of high precision.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes tasks at given times. Clones share one thread.
#[derive(Clone, Debug)]
pub struct Alarm {
    /// `None` is tokio's timer.
    thread: Option<Arc<Thread>>,
}

/// Timer that completes at its time. Dropping it or setting another time cancels it.
#[derive(Debug)]
pub(crate) enum Ring {
    Timer(Pin<Box<Sleep>>),
    Thread(ThreadRing),
}

/// Timer of an exact alarm.
#[derive(Debug)]
pub(crate) struct ThreadRing {
    thread: Arc<Thread>,
    due: Instant,
    /// Number and waker while it waits.
    entry: Option<(u64, Waker)>,
}

/// Thread of an exact alarm. It ends when the alarm and all its rings are dropped.
#[derive(Debug)]
struct Thread {
    rings: Arc<Rings>,
}

#[derive(Debug, Default)]
struct Rings {
    /// A std lock: it is held for an insertion, a removal, or taking due timers. No waker is woken or dropped under
    /// it, because that may drop a task with a timer of its own.
    waiting: Mutex<Waiting>,
    /// Signals an earlier ring, or that none is left.
    changed: Condvar,
}

/// Timers in the order of time.
#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<(Instant, u64), Waker>,
    /// Number of the next timer. Numbers tell timers of one time apart.
    count: u64,
    is_over: bool,
}

impl Alarm {
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
        let rings = Arc::new(Rings::default());
        let theirs = Arc::clone(&rings);
        std::thread::Builder::new().name("alarm".to_owned()).spawn(move || theirs.ring_all())?;
        Ok(Self { thread: Some(Arc::new(Thread { rings })) })
    }

    /// Timer for this time.
    #[must_use]
    pub(crate) fn at(&self, due: Instant) -> Ring {
        match &self.thread {
            None => Ring::Timer(Box::pin(sleep_until(due))),
            Some(thread) => Ring::Thread(ThreadRing { thread: Arc::clone(thread), due, entry: None }),
        }
    }

    /// Number of timers of its thread that were waited for so far.
    #[cfg(test)]
    pub(crate) fn rings(&self) -> u64 {
        self.thread.as_ref().map_or(0, |thread| thread.rings.waiting().count)
    }
}

impl Ring {
    /// Sets another time; the present one changes nothing.
    pub(crate) fn set(&mut self, due: Instant) {
        match self {
            Self::Timer(sleep) if sleep.deadline() != due => sleep.as_mut().reset(due),
            Self::Thread(ring) if ring.due != due => {
                ring.leave();
                ring.due = due;
            }
            Self::Timer(_) | Self::Thread(_) => {}
        }
    }
}

impl Future for Ring {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.get_mut() {
            Self::Timer(sleep) => sleep.as_mut().poll(cx),
            Self::Thread(ring) => ring.poll(cx),
        }
    }
}

// === impl ThreadRing ===

impl ThreadRing {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.due {
            self.leave();
            return Poll::Ready(());
        }
        // Tasks are polled for other reasons too: a timer that waits already needs no lock.
        if !self.entry.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker())) {
            self.leave();
            let rings = &self.thread.rings;
            let (number, is_first) = rings.waiting().insert(self.due, cx.waker().clone());
            if is_first {
                rings.changed.notify_one();
            }
            self.entry = Some((number, cx.waker().clone()));
        }
        Poll::Pending
    }

    /// Cancels the timer without waking the thread, which would have nothing to do.
    fn leave(&mut self) {
        if let Some((number, _)) = self.entry.take() {
            let removed = self.thread.rings.waiting().wakers.remove(&(self.due, number));
            // The lock is free by now.
            drop(removed);
        }
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.rings.waiting().is_over = true;
        self.rings.changed.notify_one();
    }
}

// === impl Rings ===

impl Rings {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rings until no ring is left.
    fn ring_all(&self) {
        let mut due = Vec::new();
        let mut waiting = self.waiting();
        while !waiting.is_over {
            let next = waiting.take_due(Instant::now(), &mut due);
            if !due.is_empty() {
                drop(waiting);
                due.drain(..).for_each(Waker::wake);
                waiting = self.waiting();
                continue;
            }
            waiting = match next {
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let time = next.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(waiting, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

// === impl Waiting ===

impl Waiting {
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
    struct Told(u32, Sender<u32>);

    impl Wake for Told {
        fn wake(self: Arc<Self>) {
            self.1.send(self.0).expect("the test listens");
        }
    }

    fn wakers() -> (impl Fn(u32) -> Waker, Receiver<u32>) {
        let (sender, told) = channel();
        (move |number| Waker::from(Arc::new(Told(number, sender.clone()))), told)
    }

    fn poll(ring: &mut Ring) -> Poll<()> {
        Pin::new(ring).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn rings_come_in_the_order_of_their_times_and_never_early() {
        let alarm = Alarm::exact().unwrap();
        let start = Instant::now();
        let at = |micros| alarm.at(start + Duration::from_micros(micros));
        let (an_hour, sooner, past) = (at(3_600_000_000), at(700), alarm.at(start));
        past.await;
        tokio::select! {
            () = an_hour => panic!("the one that is not due"),
            () = sooner => assert!(start.elapsed() >= Duration::from_micros(700)),
        }
    }

    #[tokio::test]
    async fn one_that_is_set_anew_rings_at_the_new_time() {
        let alarm = Alarm::exact().unwrap();
        let start = Instant::now();
        let mut ring = alarm.at(start + HOUR);
        assert_eq!(poll(&mut ring), Poll::Pending);
        for micros in [300, 900] {
            ring.set(start + Duration::from_micros(micros));
            (&mut ring).await;
            assert!(start.elapsed() >= Duration::from_micros(micros));
        }
        ring.set(start + HOUR);
        assert_eq!(poll(&mut ring), Poll::Pending);
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_is_due_rings_together_in_its_order() {
        let (waker, told) = wakers();
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        let at = |micros| start + Duration::from_micros(micros);
        let mut is_first = |micros, number| waiting.insert(at(micros), waker(number)).1;
        let firsts = [is_first(500, 3), is_first(200, 1), is_first(900, 4), is_first(200, 2)];
        assert_eq!(firsts, [true, true, false, false], "the thread is to know of an earlier one");
        let mut ring = |micros| {
            let mut due = Vec::new();
            let next = waiting.take_due(at(micros), &mut due);
            due.into_iter().for_each(Waker::wake);
            (next, told.try_iter().collect::<Vec<_>>())
        };
        assert_eq!(ring(199), (Some(at(200)), vec![]));
        assert_eq!(ring(500), (Some(at(900)), vec![1, 2, 3]));
        assert_eq!(ring(899), (Some(at(900)), vec![]));
        assert_eq!(ring(2000), (None, vec![4]));
    }

    #[tokio::test]
    async fn cancelled_alarms_are_not_kept() {
        let alarm = Alarm::exact().unwrap();
        let rings = Arc::clone(&alarm.thread.as_ref().expect("an exact one").rings);
        let held = || rings.waiting().wakers.len();
        let later = Instant::now() + HOUR;
        let mut some: Vec<Ring> = (0..10).map(|_| alarm.at(later)).collect();
        assert_eq!(held(), 0, "no ring waits yet");
        for ring in &mut some {
            assert_eq!((poll(ring), poll(ring)), (Poll::Pending, Poll::Pending));
        }
        assert_eq!(held(), 10, "who asks again takes no second place");
        some[0].set(later);
        some[1].set(later + HOUR);
        assert_eq!(held(), 9, "one is not waited for at its new time yet");
        assert!(some.iter_mut().all(|ring| poll(ring).is_pending()));
        assert_eq!(held(), 10);
        some.truncate(3);
        assert_eq!(held(), 3);
        drop(alarm);
        assert!(!rings.waiting().is_over, "three rings have the thread still");
        drop(some);
        assert!(rings.waiting().wakers.is_empty() && rings.waiting().is_over);
    }

    #[tokio::test(start_paused = true)]
    async fn the_coarse_alarm_has_the_clock_of_tests() {
        let start = Instant::now();
        let mut ring = Alarm::coarse().at(start + 2 * HOUR);
        ring.set(start + HOUR);
        ring.await;
        assert_eq!(start.elapsed(), HOUR);
    }
}
