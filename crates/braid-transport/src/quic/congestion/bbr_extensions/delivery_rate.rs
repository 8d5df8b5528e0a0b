//! Delivery rate and losses of the last two seconds.

use std::time::{Duration, Instant};

/// Length of an interval.
const INTERVAL: Duration = Duration::from_millis(250);

/// Intervals of a window: two seconds.
const INTERVALS: usize = 8;

/// Counts acknowledged and lost packets over a sliding window.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    epoch: Instant,
    intervals: [Interval; INTERVALS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    /// Since the epoch.
    number: usize,
    acked_bytes: u64,
    acked: u32,
    lost: u32,
}

/// Sum over the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Part of the window that has passed.
    pub(super) span: Duration,
    /// Acknowledged packets.
    pub(super) acked: u32,
    /// Lost packets.
    pub(super) lost: u32,
    /// Acknowledged bytes per second.
    pub(super) rate: u64,
    /// True if the whole window has passed, in each whole interval at least half of the average was acknowledged, and
    /// most of them have losses.
    pub(super) is_steady: bool,
}

impl Sum {
    pub(super) fn packets(&self) -> u32 {
        self.acked.saturating_add(self.lost)
    }

    /// Lost packets in a thousand.
    pub(super) fn lost_permille(&self) -> u32 {
        let all = u64::from(self.packets().max(1));
        u32::try_from(u64::from(self.lost) * 1000 / all).unwrap_or(1000)
    }
}

impl DeliveryRate {
    pub(super) fn new(now: Instant) -> Self {
        Self { epoch: now, intervals: <[Interval; INTERVALS]>::default() }
    }

    /// Resets the window.
    pub(super) fn clear(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub(super) fn count_acked(&mut self, bytes: u64, now: Instant) {
        let interval = self.interval(now);
        interval.acked_bytes = interval.acked_bytes.saturating_add(bytes);
        interval.acked = interval.acked.saturating_add(1);
    }

    pub(super) fn count_lost(&mut self, now: Instant) {
        let interval = self.interval(now);
        interval.lost = interval.lost.saturating_add(1);
    }

    pub(super) fn sum(&self, now: Instant) -> Sum {
        let current = self.number(now);
        let oldest = current.saturating_sub(INTERVALS - 1);
        let recent =
            || self.intervals.iter().filter(|interval| (oldest..=current).contains(&interval.number));
        let acked: u32 = recent().map(|interval| interval.acked).sum();
        let lost = recent().map(|interval| interval.lost).sum();
        let bytes = recent().map(|interval| interval.acked_bytes).sum();
        let elapsed = now.saturating_duration_since(self.epoch);
        let span = elapsed.saturating_sub(intervals(oldest));
        let whole = current - oldest;
        let (mut busy, mut lossy) = (0, 0);
        for interval in recent().filter(|interval| interval.number < current) {
            let on_average = u64::from(acked) * u64::from(millis(INTERVAL)) / u64::from(millis(span).max(1));
            busy += usize::from(interval.acked > 0 && u64::from(interval.acked) * 2 >= on_average);
            lossy += usize::from(interval.lost > 0);
        }
        let is_steady = whole == INTERVALS - 1 && busy == whole && lossy * 2 > whole;
        Sum { span, acked, lost, rate: per_second(bytes, span), is_steady }
    }

    fn number(&self, now: Instant) -> usize {
        let intervals = millis(now.saturating_duration_since(self.epoch)) / millis(INTERVAL);
        usize::try_from(intervals).unwrap_or(usize::MAX)
    }

    fn interval(&mut self, now: Instant) -> &mut Interval {
        let number = self.number(now);
        // The remainder is an index into the array.
        let interval = &mut self.intervals[number % INTERVALS];
        if interval.number != number {
            *interval = Interval { number, ..Interval::default() };
        }
        interval
    }
}

fn intervals(count: usize) -> Duration {
    INTERVAL.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Milliseconds, at most 49 days.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn per_second(count: u64, span: Duration) -> u64 {
    count.saturating_mul(1000) / u64::from(millis(span).max(1))
}
