//! What was decided about each packet.

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
    /// What became of it.
    pub fate: Fate,
}

/// What can become of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was sent, due at this time.
    Sent {
        /// When it had to leave.
        due: Duration,
    },
    /// It was sent ahead of those being delayed, by `reorder`.
    Overtook {
        /// When it had to leave.
        due: Duration,
    },
    /// It is not what `match` selects, and passed at once.
    Unmatched,
    /// The policer had no token for it.
    Policed,
    /// Lost.
    Lost,
    /// The queue was full.
    QueueFull,
    /// The NAT has forgotten its flow.
    Forgotten,
    /// It exceeds the MTU.
    TooBig,
}
