//! Schedule of the messages of one topic.
//!
//! Not a [`Schedule`](crate::Schedule): the topics of a client have intervals instead of a common rate and share one
//! timer, an interval of zero makes the load closed loop, and overruns and messages that were never sent are counted.

use std::time::Duration;

use tokio::time::Instant;

/// Delay of a wake-up, by a timer of milliseconds or on a busy machine, within which messages leave together.
const GRAIN: Duration = Duration::from_millis(2);

/// Due times of one topic's messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopicSchedule {
    interval: Duration,
    /// Due time of the next message; without an interval, the time the last one left.
    next: Instant,
    /// Time the last message left.
    left: Option<Instant>,
}

impl TopicSchedule {
    /// TopicSchedule whose first message is due at `start` and `first`.
    pub(super) fn new(start: Instant, first: Duration, interval: Duration) -> Self {
        Self { interval, next: start + first, left: None }
    }

    /// Due time of the next message, for the order among topics.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Due time of a message that is sent at `now`.
    pub(super) fn due(&self, now: Instant) -> Instant {
        if self.interval.is_zero() { now } else { self.next }
    }

    /// Records that the next message was sent at `now`. True for an overrun: it had been due while the one before
    /// still waited, and not only because one wake-up served both.
    pub(super) fn hand_over(&mut self, now: Instant) -> bool {
        let has_overrun = !self.interval.is_zero() && self.left.is_some_and(|left| left > self.next + GRAIN);
        self.left = Some(now);
        self.next = if self.interval.is_zero() { now } else { self.next + self.interval };
        has_overrun
    }

    /// Due times of the next messages.
    pub(super) fn dues(self, messages: u64) -> impl Iterator<Item = Instant> {
        let nth =
            move |n: u64| self.next + self.interval.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
        (0..messages).map(nth)
    }

    /// Messages that were due before `end` and have not left.
    pub(super) fn overdue(&self, end: Instant) -> u64 {
        let late = end.saturating_duration_since(self.next).as_nanos();
        // A message due at the end itself is not due before it.
        let steps = late.checked_sub(1).and_then(|late| late.checked_div(self.interval.as_nanos()));
        steps.map_or(0, |steps| u64::try_from(steps).unwrap_or(u64::MAX).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn messages_keep_their_times_however_late_they_leave() {
        let start = Instant::now();
        let mut schedule = TopicSchedule::new(start, TENTH, TENTH);
        let late = start + 7 * TENTH;
        let mut overruns = Vec::new();
        for n in 1..=7 {
            assert_eq!(schedule.due(late), start + n * TENTH);
            overruns.push(schedule.hand_over(late));
        }
        // The first waited for none, and the seventh was due at the time itself.
        assert_eq!(overruns, [false, true, true, true, true, true, false]);
        assert_eq!(schedule.next(), start + 8 * TENTH);
    }

    #[tokio::test(start_paused = true)]
    async fn being_woken_once_for_several_is_no_overrun() {
        let start = Instant::now();
        let mut schedule = TopicSchedule::new(start, Duration::from_micros(100), Duration::from_micros(100));
        let tick = start + Duration::from_millis(1);
        assert!((0..10).all(|_| !schedule.hand_over(tick)));
        assert_eq!(schedule.next(), tick + Duration::from_micros(100));
    }

    #[tokio::test(start_paused = true)]
    async fn messages_due_before_the_end_are_overdue() {
        let start = Instant::now();
        let mut schedule = TopicSchedule::new(start, TENTH, TENTH);
        for (end, overdue) in [(0, 0), (99, 0), (100, 0), (101, 1), (200, 1), (201, 2), (1000, 9), (1001, 10)]
        {
            assert_eq!(schedule.overdue(start + Duration::from_millis(end)), overdue, "{end} ms");
        }
        schedule.hand_over(start + TENTH);
        assert_eq!(schedule.overdue(start + 3 * TENTH), 1);
        assert_eq!(schedule.dues(2).collect::<Vec<_>>(), [start + 2 * TENTH, start + 3 * TENTH]);
        assert_eq!(
            TopicSchedule::new(start, Duration::ZERO, Duration::ZERO).overdue(start + TENTH),
            0,
            "it is due when it can leave"
        );
    }
}
