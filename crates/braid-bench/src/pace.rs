use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::alarm::{Alarm, Ring};

/// A schedule of equal steps: open loop, so that steps which were missed are still due.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    /// Steps per second.
    rate: f64,
    next: u64,
    /// Distance to the step after the next.
    stride: u64,
    alarm: Alarm,
    /// Timer of the next step, once one was waited for.
    ring: Option<Ring>,
}

impl Pace {
    /// Schedule in which step `n`, counted from 1, is due `n / rate` seconds after `start`. `rate` is above 0.
    #[must_use]
    pub fn new(start: Instant, rate: f64, alarm: &Alarm) -> Self {
        Self { start, rate, next: 1, stride: 1, alarm: alarm.clone(), ring: None }
    }

    /// Part of a schedule whose steps, counted from 0, `of` parts take in turn: those of part `number`.
    pub(crate) fn in_turn(start: Instant, rate: f64, alarm: &Alarm, number: u64, of: u64) -> Self {
        Self { next: number, stride: of, ..Self::new(start, rate, alarm) }
    }

    /// Due time of the next step, once it has come. Ready again at once for every late step.
    pub fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        // A double holds seconds to the nanosecond for months.
        let due = self.start + Duration::from_secs_f64(self.next as f64 / self.rate);
        // The clock is read first: a late step needs no timer.
        if Instant::now() < due {
            let ring = self.ring.get_or_insert_with(|| self.alarm.at(due));
            ring.set(due);
            ready!(Pin::new(ring).poll(cx));
        }
        self.next += self.stride;
        Poll::Ready(due)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn steps_come_when_they_are_due() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 10.0, &Alarm::coarse());
        for step in 1..=5 {
            let due = poll_fn(|cx| pace.poll_step(cx)).await;
            assert_eq!(due - start, Duration::from_millis(100 * step));
            assert_eq!(Instant::now(), due);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_messages_keep_their_due_times() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 1000.0, &Alarm::coarse());
        advance(Duration::from_millis(3)).await;
        for step in 1..=3 {
            assert_eq!(poll_fn(|cx| pace.poll_step(cx)).await - start, Duration::from_millis(step));
        }
        assert_eq!(start.elapsed(), Duration::from_millis(3), "none of them waited");
        poll_fn(|cx| pace.poll_step(cx)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(4));
    }
}
