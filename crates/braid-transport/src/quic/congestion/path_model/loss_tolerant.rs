//! A path that loses at random: whatever is lost, more is sent until a queue shows.

use super::whole;

/// Packets on their way at first.
const FIRST: f64 = 8.0;

/// The share of the last 64 packets that may be lost. Above it more is lost than by chance.
const MOST_LOST: u32 = 28;

#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    window: f64,
    /// A bit for each of the last packets: it is lost.
    lost: u64,
}

impl Search {
    pub(super) fn new() -> Self {
        Self { window: FIRST, lost: 0 }
    }

    /// Packets that may be on their way.
    pub(super) fn window(&self) -> u64 {
        whole(self.window)
    }

    pub(super) fn passed(&mut self, is_full: bool) {
        self.lost <<= 1;
        if is_full {
            self.window += 1.0;
        }
    }

    /// True: this is no chance.
    pub(super) fn dropped(&mut self) -> bool {
        self.lost = self.lost << 1 | 1;
        self.lost.count_ones() > MOST_LOST
    }
}
