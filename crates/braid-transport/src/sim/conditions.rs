//! What one direction of a host's link does to datagrams, and what it has done.

use std::time::Duration;

/// Which way, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host into the network.
    Up,
    /// From the network to the host.
    Down,
}

/// One direction of a link. The default carries everything at once.
///
/// A datagram meets the fields in this order: `cut`, `mtu`, `loss`, `policer`, `shaper`, `latency`
/// and `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Nothing passes; what is on its way still arrives.
    pub cut: bool,
    /// Bytes of UDP payload that fit; larger datagrams are lost.
    pub mtu: usize,
    /// The share of datagrams that is lost at random, 0 to 1.
    pub loss: f64,
    /// Drops what comes faster than its rate.
    pub policer: Option<Policer>,
    /// Queues what comes faster than its rate.
    pub shaper: Option<Shaper>,
    /// What every datagram takes.
    pub latency: Duration,
    /// What a datagram takes on top, at random between nothing and this. Datagrams that are sent
    /// within it overtake each other.
    pub jitter: Duration,
}

/// A token bucket without a queue: nftables' `limit rate 29/second burst 5`. Every datagram takes
/// one token, whatever its size, or is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// Tokens per second.
    pub rate: f64,
    /// Tokens that the bucket holds; it starts full.
    pub burst: u32,
}

/// A queue that lets datagrams out one at a time, whatever their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Datagrams per second.
    pub rate: f64,
    /// Datagrams that wait; more are dropped.
    pub queue: u32,
}

/// What one direction of a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that passed.
    pub packets: u64,
    /// The UDP payload of those that passed.
    pub bytes: u64,
    /// Datagrams that did not pass, for whatever reason.
    pub dropped: u64,
}

impl Conditions {
    /// Everything takes `latency`, nothing is lost.
    #[must_use]
    pub fn delayed(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            cut: false,
            mtu: 1472,
            loss: 0.0,
            policer: None,
            shaper: None,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
        }
    }
}
