//! Conditions of one direction of a link, as a specification of the emulator.

use std::time::Duration;

pub use braid_emulator::Direction;
use braid_emulator::{self as emulator, Limit, LineRate, Loss, Order, PathCounters, PathSpec, Probability};

/// Bytes of the headers of IPv4 and UDP.
pub(super) const HEADERS: usize = 28;

/// One direction of a link. The default carries everything at once.
///
/// A datagram meets the fields in this order: `policer`, `loss`, `shaper`, `latency` and `jitter`, `mtu`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Nothing passes; datagrams that have entered the link still do.
    pub cut: bool,
    /// Bytes of UDP payload that fit; larger datagrams are lost.
    pub mtu: usize,
    /// The share of datagrams that is lost at random, 0 to 1.
    pub loss: f64,
    /// Drops datagrams above its rate.
    pub policer: Option<Policer>,
    /// Queues datagrams above its rate.
    pub shaper: Option<Shaper>,
    /// Delay of every datagram.
    pub latency: Duration,
    /// Upper bound of a random further delay. Datagrams that are sent within it overtake each other.
    pub jitter: Duration,
}

/// A token bucket without a queue: nftables' `limit rate 29/second burst 5`. Every datagram takes
/// one token, whatever its size, or is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// Tokens per second, a whole number.
    pub rate: f64,
    /// Tokens that the bucket holds; it starts full.
    pub burst: u32,
}

/// A queue that lets datagrams out one at a time, whatever their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Datagrams per second, a whole number.
    pub rate: f64,
    /// Datagrams that wait; more are dropped.
    pub queue: u32,
}

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that passed, or are on their way.
    pub packets: u64,
    /// The UDP payload of those that passed.
    pub bytes: u64,
    /// Datagrams that did not pass, for whatever reason.
    pub dropped: u64,
}

impl From<&PathCounters> for Counters {
    fn from(path: &PathCounters) -> Self {
        let packets = path.sent.packets + path.queued.packets;
        let bytes = path.sent.bytes + path.queued.bytes;
        let dropped = path.drops().iter().map(|(_, count)| count.packets).sum();
        Self { packets, bytes: bytes - packets * HEADERS as u64, dropped }
    }
}

impl Conditions {
    /// A delay of `latency`, and no loss.
    #[must_use]
    pub fn delayed(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    /// Specification for the emulator.
    pub(super) fn path(&self) -> PathSpec {
        let loss = if self.cut { 1.0 } else { self.loss };
        let policer = self.policer.map(|Policer { rate, burst }| emulator::Policer::Packets {
            rate: whole(rate),
            burst: burst.into(),
        });
        let half = self.jitter / 2;
        PathSpec {
            policer,
            loss: (loss > 0.0).then(|| Loss::Independent(probability(loss))),
            // The one in service does not wait.
            limit: self
                .shaper
                .map(|shaper| Limit { packets: Some(u64::from(shaper.queue) + 1), bytes: None }),
            rate: self.shaper.map(|shaper| LineRate::Fixed(emulator::Rate::Packets(whole(shaper.rate)))),
            order: Some(Order::Line),
            delay: Some(self.latency + half),
            jitter: (!half.is_zero()).then_some(half),
            mtu: u16::try_from(self.mtu + HEADERS).ok(),
            ..PathSpec::default()
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large or too small is cut off"
)]
fn whole(rate: f64) -> u64 {
    (rate.round() as u64).max(1)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is too large or too small is cut off"
)]
fn probability(share: f64) -> Probability {
    Probability::from_billionths((share * 1e9).round() as u32)
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
