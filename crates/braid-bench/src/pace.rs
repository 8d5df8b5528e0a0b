use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A schedule of equal steps on tokio's clock: open loop, so that steps which were missed are still due.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    /// Steps per second.
    rate: f64,
    next: u64,
    timer: std::pin::Pin<Box<Sleep>>,
}

impl Pace {
    /// Schedule in which step `n`, counted from 1, is due `n / rate` seconds after `start`. `rate` is above 0.
    #[must_use]
    pub fn new(start: Instant, rate: f64) -> Self {
        let mut pace = Self { start, rate, next: 1, timer: Box::pin(sleep_until(start)) };
        let due = pace.due(1);
        pace.timer.as_mut().reset(due);
        pace
    }

    /// Due time of step `n`.
    fn due(&self, n: u64) -> Instant {
        // A double holds seconds to the nanosecond for months.
        let seconds = n as f64 / self.rate;
        self.start + Duration::from_secs_f64(seconds)
    }

    /// Due time of the next step, once it has come. Ready again at once for every late step.
    pub fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let due = self.due(self.next);
        // The clock is read first: a late step needs no timer.
        if Instant::now() < due {
            if self.timer.deadline() != due {
                self.timer.as_mut().reset(due);
            }
            ready!(Future::poll(self.timer.as_mut(), cx));
        }
        self.next += 1;
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
        let mut pace = Pace::new(start, 10.0);
        for step in 1..=5 {
            let due = poll_fn(|cx| pace.poll_step(cx)).await;
            assert_eq!(due - start, Duration::from_millis(100 * step));
            assert_eq!(Instant::now(), due);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_messages_keep_their_due_times() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 1000.0);
        advance(Duration::from_millis(3)).await;
        for step in 1..=3 {
            assert_eq!(poll_fn(|cx| pace.poll_step(cx)).await - start, Duration::from_millis(step));
        }
        assert_eq!(start.elapsed(), Duration::from_millis(3), "none of them waited");
        poll_fn(|cx| pace.poll_step(cx)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(4));
    }
}
