//! Counters of one direction.

use serde::{Deserialize, Serialize};

use super::verdict::Fate;

/// Packets and their bytes, link headers not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, size: usize) {
        self.packets += 1;
        self.bytes += size as u64;
    }
}

/// The counters of one direction. At all times
/// `offered + duplicated = sent + policed + lost + queue_full + forgotten + too_big + queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PathCounters {
    /// Packets that arrived.
    pub offered: Tally,
    /// Copies, each with loss, corruption, queue and delay of its own.
    pub duplicated: Tally,
    /// Packets that left, of all kinds.
    pub sent: Tally,
    /// Part of `sent` that `match` does not select.
    pub unmatched: Tally,
    /// Dropped for want of a token.
    pub policed: Tally,
    /// Dropped by the loss model.
    pub lost: Tally,
    /// Dropped because the queue was full.
    pub queue_full: Tally,
    /// Dropped by a NAT that has forgotten the flow.
    pub forgotten: Tally,
    /// Dropped for their size.
    pub too_big: Tally,
    /// Not yet settled: being delayed, or due and not yet taken.
    pub queued: Tally,
    /// Part of the queued packets, with a flipped bit.
    pub corrupted: Tally,
    /// Part of `sent`, sent ahead by `reorder`.
    pub overtook: Tally,
    /// Size of the largest packet, in bytes; above the MTU of the devices it shows that offloads are on.
    pub largest: u64,
    /// Verdicts dropped because they were not taken in time.
    pub verdicts_dropped: u64,
}

impl PathCounters {
    pub(crate) fn count(&mut self, fate: Fate, size: usize) {
        let (first, second) = match fate {
            Fate::Sent { .. } => (&mut self.sent, None),
            Fate::Overtook { .. } => (&mut self.sent, Some(&mut self.overtook)),
            Fate::Unmatched => (&mut self.sent, Some(&mut self.unmatched)),
            Fate::Policed => (&mut self.policed, None),
            Fate::Lost => (&mut self.lost, None),
            Fate::QueueFull => (&mut self.queue_full, None),
            Fate::Forgotten => (&mut self.forgotten, None),
            Fate::TooBig => (&mut self.too_big, None),
        };
        first.add(size);
        if let Some(second) = second {
            second.add(size);
        }
    }
}
