//! Verdict of the emulator about a packet.

use std::time::Duration;

/// One packet's lot; every packet, and every duplicate, gets one once it is settled: when it is dropped or has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The packet's number in its direction; the first is 1.
    pub index: u64,
    /// Whether it is a duplicate.
    pub copy: bool,
    /// When the packet came.
    pub at: Duration,
    /// Its bytes, without link header.
    pub size: usize,
    /// Which bit was flipped, counted from the first bit of the IP header, the most significant of a byte first.
    pub corrupted: Option<u64>,
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
    /// Not selected by `match`, and sent at once.
    Unmatched,
    /// The policer had no token for it.
    Policed,
    /// Lost.
    Lost,
    /// The queue was full.
    QueueFull,
    /// The NAT has forgotten its flow.
    Forgotten,
    /// Larger than the MTU.
    TooBig,
}
