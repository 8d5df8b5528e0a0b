//! Verdicts about packets, and their counters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Fate of one packet. Every packet and every duplicate gets one when it is dropped or has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The packet's number in its direction; the first is 1.
    pub index: u64,
    /// Whether it is a duplicate.
    pub copy: bool,
    /// Arrival time of the packet.
    pub at: Duration,
    /// Its bytes, without link header.
    pub size: usize,
    /// Which bit was flipped, counted from the first bit of the IP header, the most significant of a byte first.
    pub corrupted: Option<u64>,
    /// Whether it was marked: congestion experienced.
    pub is_marked: bool,
    /// Fate of the packet.
    pub fate: Fate,
}

/// Fate of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Sent.
    Sent {
        /// Due time.
        due: Duration,
    },
    /// Sent ahead of delayed packets, by `reorder`.
    Overtook {
        /// Due time.
        due: Duration,
    },
    /// Outside of `match`, and sent at once.
    Unmatched,
    /// The policer had no token for it.
    Policed,
    /// Lost.
    Lost,
    /// The queue was full.
    QueueFull,
    /// The management of the queue has dropped it.
    Managed,
    /// The NAT has forgotten its flow.
    Forgotten,
    /// Larger than the MTU.
    TooBig,
}

/// Packets and their bytes, link headers not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PacketCount {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl PacketCount {
    /// Counts a packet of `size` bytes.
    pub fn add(&mut self, size: usize) {
        self.packets += 1;
        self.bytes += size as u64;
    }

    pub(crate) fn remove(&mut self, size: usize) {
        self.packets -= 1;
        self.bytes -= size as u64;
    }
}

/// The counters of one direction. At all times
/// `offered + duplicated = sent + policed + lost + queue_full + managed + forgotten + too_big +
/// queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PathCounters {
    /// Packets that arrived.
    pub offered: PacketCount,
    /// Copies, each with loss, corruption, queue and delay of its own.
    pub duplicated: PacketCount,
    /// Packets that left, of all kinds.
    pub sent: PacketCount,
    /// Part of `sent` that `match` does not select.
    pub unmatched: PacketCount,
    /// Dropped for want of a token.
    pub policed: PacketCount,
    /// Dropped by the loss model.
    pub lost: PacketCount,
    /// Dropped because the queue was full.
    pub queue_full: PacketCount,
    /// Dropped by the management of the queue.
    #[serde(default)]
    pub managed: PacketCount,
    /// Dropped by a NAT that has forgotten the flow.
    pub forgotten: PacketCount,
    /// Dropped for their size.
    pub too_big: PacketCount,
    /// Packets without a verdict yet: being delayed, or due and not yet taken.
    pub queued: PacketCount,
    /// Part of the queued packets, with a flipped bit.
    pub corrupted: PacketCount,
    /// Part of `sent`, sent ahead by `reorder`.
    pub overtook: PacketCount,
    /// Part of `sent`, with a mark of congestion.
    #[serde(default)]
    pub marked: PacketCount,
    /// Size of the largest packet, in bytes; above the MTU of the devices it shows that offloads are on.
    pub largest: u64,
    /// Verdicts dropped because they were not taken in time.
    pub verdicts_dropped: u64,
}

impl PathCounters {
    /// Dropped packets by cause.
    #[must_use]
    pub fn drops(&self) -> [(&'static str, PacketCount); 6] {
        [
            ("policed", self.policed),
            ("lost", self.lost),
            ("queue full", self.queue_full),
            ("management of the queue", self.managed),
            ("forgotten by the NAT", self.forgotten),
            ("too big", self.too_big),
        ]
    }

    pub(crate) fn count(&mut self, fate: Fate, size: usize) {
        let (first, second) = match fate {
            Fate::Sent { .. } => (&mut self.sent, None),
            Fate::Overtook { .. } => (&mut self.sent, Some(&mut self.overtook)),
            Fate::Unmatched => (&mut self.sent, Some(&mut self.unmatched)),
            Fate::Policed => (&mut self.policed, None),
            Fate::Lost => (&mut self.lost, None),
            Fate::QueueFull => (&mut self.queue_full, None),
            Fate::Managed => (&mut self.managed, None),
            Fate::Forgotten => (&mut self.forgotten, None),
            Fate::TooBig => (&mut self.too_big, None),
        };
        first.add(size);
        if let Some(second) = second {
            second.add(size);
        }
    }
}
