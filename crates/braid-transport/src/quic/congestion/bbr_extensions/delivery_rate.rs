//! Delivery rate and losses of the last two seconds.

use std::time::{Duration, Instant};

/// Length of a slot.
const SLOT: Duration = Duration::from_millis(250);

/// Slots of a window: two seconds.
const SLOTS: usize = 8;

/// Counts acknowledged and lost packets over a sliding window.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    epoch: Instant,
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
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
    /// True if the whole window has passed, in each whole slot at least half of the average was acknowledged, and most of them
    /// have losses.
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
        Self { epoch: now, slots: <[Slot; SLOTS]>::default() }
    }

    /// Resets the window.
    pub(super) fn clear(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub(super) fn count_acked(&mut self, bytes: u64, now: Instant) {
        let slot = self.slot(now);
        slot.acked_bytes = slot.acked_bytes.saturating_add(bytes);
        slot.acked = slot.acked.saturating_add(1);
    }

    pub(super) fn count_lost(&mut self, now: Instant) {
        let slot = self.slot(now);
        slot.lost = slot.lost.saturating_add(1);
    }

    pub(super) fn sum(&self, now: Instant) -> Sum {
        let current = self.number(now);
        let oldest = current.saturating_sub(SLOTS - 1);
        let recent = || self.slots.iter().filter(|slot| (oldest..=current).contains(&slot.number));
        let acked: u32 = recent().map(|slot| slot.acked).sum();
        let lost = recent().map(|slot| slot.lost).sum();
        let bytes = recent().map(|slot| slot.acked_bytes).sum();
        let elapsed = now.saturating_duration_since(self.epoch);
        let span = elapsed.saturating_sub(slots(oldest));
        let whole = current - oldest;
        let (mut busy, mut lossy) = (0, 0);
        for slot in recent().filter(|slot| slot.number < current) {
            let on_average = u64::from(acked) * u64::from(millis(SLOT)) / u64::from(millis(span).max(1));
            busy += usize::from(slot.acked > 0 && u64::from(slot.acked) * 2 >= on_average);
            lossy += usize::from(slot.lost > 0);
        }
        let is_steady = whole == SLOTS - 1 && busy == whole && lossy * 2 > whole;
        Sum { span, acked, lost, rate: per_second(bytes, span), is_steady }
    }

    fn number(&self, now: Instant) -> usize {
        let slots = millis(now.saturating_duration_since(self.epoch)) / millis(SLOT);
        usize::try_from(slots).unwrap_or(usize::MAX)
    }

    fn slot(&mut self, now: Instant) -> &mut Slot {
        let number = self.number(now);
        // The remainder is an index into the array.
        let slot = &mut self.slots[number % SLOTS];
        if slot.number != number {
            *slot = Slot { number, ..Slot::default() };
        }
        slot
    }
}

fn slots(count: usize) -> Duration {
    SLOT.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Milliseconds, at most 49 days.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

fn per_second(count: u64, span: Duration) -> u64 {
    count.saturating_mul(1000) / u64::from(millis(span).max(1))
}
