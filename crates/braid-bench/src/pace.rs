//! Open-loop schedules of equal steps: a step that was missed is still due.

use std::iter;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::timer::{Timer, TimerService};

/// Latest due time of a step, 100 years: a clock holds it, whatever the rate.
const LATEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Due times of steps, as durations since the start: step `n` is due after `n / rate` seconds.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Steps per second.
    rate: f64,
    next: u64,
    /// Distance to the step after the next.
    stride: u64,
}

impl Schedule {
    /// Schedule of `rate` steps per second, above 0, that begins with step `first`.
    #[must_use]
    pub fn new(rate: f64, first: u64) -> Self {
        Self { rate, next: first, stride: 1 }
    }

    /// Due time of the next step.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.due_of(self.next)
    }

    /// Due time of step `step`, at most 100 years.
    #[must_use]
    pub fn due_of(&self, step: u64) -> Duration {
        // A double holds seconds to the nanosecond for months.
        Duration::try_from_secs_f64(step as f64 / self.rate).map_or(LATEST, |due| due.min(LATEST))
    }

    /// Number of steps, from step 0, that are due before `end`.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast to u64 saturates")]
    pub(crate) fn due_before(&self, end: Duration) -> u64 {
        let about = (end.as_secs_f64() * self.rate) as u64;
        // The product may be off by its rounding.
        let from = about.saturating_sub(2);
        from + (from..=about.saturating_add(2)).take_while(|step| self.due_of(*step) < end).count() as u64
    }

    /// Takes the next step, if it is not due after `now`; returns its due time.
    pub fn take(&mut self, now: Duration) -> Option<Duration> {
        let due = self.due();
        (due <= now).then(|| {
            self.next += self.stride;
            due
        })
    }
}

/// Waits for the steps of a [`Schedule`].
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    schedule: Schedule,
    timers: TimerService,
    /// Timer of the next step, once one was waited for.
    timer: Option<Timer>,
}

impl Pace {
    /// Schedule in which step `n`, counted from 1, is due `n / rate` seconds after `start`. `rate` is above 0.
    #[must_use]
    pub fn new(start: Instant, rate: f64, timers: &TimerService) -> Self {
        Self { start, schedule: Schedule::new(rate, 1), timers: timers.clone(), timer: None }
    }

    /// Part of a schedule whose steps, counted from 0, `of` parts take in turn: those of part `number`.
    pub(crate) fn in_turn(start: Instant, rate: f64, timers: &TimerService, number: u64, of: u64) -> Self {
        let schedule = Schedule { stride: of, ..Schedule::new(rate, number) };
        Self { schedule, ..Self::new(start, rate, timers) }
    }

    /// Due time of the next step, once it has come. Ready again at once for every late step.
    pub fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let due = self.start + self.schedule.due();
        // The clock is read first: a late step needs no timer.
        if Instant::now() < due {
            let timer = self.timer.get_or_insert_with(|| self.timers.at(due));
            timer.set(due);
            ready!(Pin::new(timer).poll(cx));
        }
        self.schedule.next += self.schedule.stride;
        Poll::Ready(due)
    }
}

impl Pace {
    /// Takes the steps that are due before `end`; returns their due times.
    pub(crate) fn overdue(&mut self, end: Instant) -> impl Iterator<Item = Instant> {
        iter::from_fn(move || {
            let due = self.start + self.schedule.due();
            (due < end).then(|| {
                self.schedule.next += self.schedule.stride;
                due
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    #[test]
    fn a_late_generator_stamps_the_due_times() {
        let at = Duration::from_nanos;
        let mut schedule = Schedule::new(8000.0, 0);
        assert_eq!(schedule.take(at(0)), Some(at(0)));
        assert_eq!(schedule.take(at(124_999)), None);
        // After a pause of a millisecond eight messages are due, each at its own time.
        let due: Vec<_> = iter::from_fn(|| schedule.take(at(1_000_000))).collect();
        assert_eq!(due, (1..=8).map(|message| at(message * 125_000)).collect::<Vec<_>>());
    }

    #[test]
    fn a_step_of_any_rate_has_a_due_time() {
        for rate in [f64::MIN_POSITIVE, 1e-20, 1e-10] {
            assert_eq!(Schedule::new(rate, 1).due(), LATEST, "{rate}");
            assert_eq!(Schedule::new(rate, 0).due_before(LATEST), 1, "{rate}");
        }
        assert_eq!(Schedule::new(f64::MAX, 1).due(), Duration::ZERO);
    }

    #[test]
    fn steps_before_an_end_are_counted_exactly() {
        let before = |rate, millis| Schedule::new(rate, 0).due_before(Duration::from_millis(millis));
        assert_eq!([before(10.0, 0), before(10.0, 1), before(10.0, 100), before(10.0, 101)], [0, 1, 1, 2]);
        assert_eq!((before(0.3, 10_000), before(1e5, 60_000)), (3, 6_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn overdue_steps_are_taken_with_their_due_times() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 10.0, &TimerService::coarse());
        assert_eq!(poll_fn(|cx| pace.poll_step(cx)).await - start, Duration::from_millis(100));
        let due: Vec<_> = pace.overdue(start + Duration::from_millis(400)).map(|due| due - start).collect();
        assert_eq!(due, [200, 300].map(Duration::from_millis));
        assert_eq!(pace.overdue(start + Duration::from_millis(400)).count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn steps_come_when_they_are_due() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 10.0, &TimerService::coarse());
        for step in 1..=5 {
            let due = poll_fn(|cx| pace.poll_step(cx)).await;
            assert_eq!(due - start, Duration::from_millis(100 * step));
            assert_eq!(Instant::now(), due);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_messages_keep_their_due_times() {
        let start = Instant::now();
        let mut pace = Pace::new(start, 1000.0, &TimerService::coarse());
        advance(Duration::from_millis(3)).await;
        for step in 1..=3 {
            assert_eq!(poll_fn(|cx| pace.poll_step(cx)).await - start, Duration::from_millis(step));
        }
        assert_eq!(start.elapsed(), Duration::from_millis(3), "none of them waited");
        poll_fn(|cx| pace.poll_step(cx)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(4));
    }
}
