//! Waking at exact times.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes tasks at given times. Clones are the same.
#[derive(Clone, Debug)]
pub struct Alarm {
    /// `None`: tokio's timer.
    thread: Option<Sender<Entry>>,
}

#[derive(Debug)]
struct Entry {
    due: Instant,
    ring: oneshot::Sender<()>,
}

/// Resolves when its time has come.
#[derive(Debug)]
pub struct Ring {
    due: Instant,
    kind: RingKind,
}

#[derive(Debug)]
enum RingKind {
    Timer(Pin<Box<Sleep>>),
    Thread(oneshot::Receiver<()>),
}

impl Alarm {
    /// Wakes by tokio's clock, which tests can hold. It ticks in milliseconds, so a ring may be two late.
    #[must_use]
    pub fn coarse() -> Self {
        Self { thread: None }
    }

    /// Wakes by a thread of its own, which is late by some 60 µs on an idle machine.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn exact() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().name("alarm".to_owned()).spawn(move || ring_all(&receiver))?;
        Ok(Self { thread: Some(sender) })
    }

    /// A ring at this time.
    #[must_use]
    pub fn at(&self, due: Instant) -> Ring {
        let Some(thread) = &self.thread else {
            return Ring { due, kind: RingKind::Timer(Box::pin(sleep_until(due))) };
        };
        let (ring, rung) = oneshot::channel();
        // The thread lives as long as there is a sender.
        let _ = thread.send(Entry { due, ring });
        Ring { due, kind: RingKind::Thread(rung) }
    }
}

impl Ring {
    /// When it is due.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }
}

impl Future for Ring {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.kind {
            RingKind::Timer(sleep) => sleep.as_mut().poll(cx),
            RingKind::Thread(rung) => Pin::new(rung).poll(cx).map(drop),
        }
    }
}

/// Rings until nobody can set the alarm any more.
fn ring_all(entries: &Receiver<Entry>) {
    let mut waiting: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0.. {
        let entry = loop {
            let Some(next) = waiting.first_entry() else {
                break entries.recv().map_err(|_| RecvTimeoutError::Disconnected);
            };
            let time = next.key().0.saturating_duration_since(Instant::now());
            if !time.is_zero() {
                match entries.recv_timeout(time) {
                    Err(RecvTimeoutError::Timeout) => continue,
                    entry => break entry,
                }
            }
            // Nobody listens to a ring that was given up.
            let _ = next.remove().send(());
        };
        let Ok(Entry { due, ring }) = entry else { return };
        waiting.insert((due, number), ring);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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

    #[tokio::test(start_paused = true)]
    async fn the_coarse_alarm_has_the_clock_of_tests() {
        let start = Instant::now();
        Alarm::coarse().at(start + Duration::from_secs(3600)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(3600));
    }
}
