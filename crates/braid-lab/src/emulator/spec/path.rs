//! Specification of one direction of a link.

use std::time::Duration;

use crate::emulator::nat::Nat;
use crate::emulator::spec::Probability;
use crate::emulator::stage::{Distribution, Limit, Loss, Order, Policer, Rate, Selector};

/// The stages of one direction, in the order in which packets meet them. A stage that is `None` does nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathSpec {
    /// `match=udp,tcp:1883`: which packets are treated at all; the others pass untouched and at once.
    pub selector: Option<Selector>,
    /// `policer=29pps/5`: what has no token is dropped.
    pub policer: Option<Policer>,
    /// `dup=2%`: a second copy, which is not duplicated again but meets all later stages for itself.
    pub duplicate: Option<Probability>,
    /// `loss=1%`.
    pub loss: Option<Loss>,
    /// `corrupt=0.1%`: one random bit of the IP packet flips.
    pub corrupt: Option<Probability>,
    /// `limit=1000p/64kb`: how much may wait; [`Limit::DEFAULT`] if `None`.
    pub limit: Option<Limit>,
    /// `rate=10mbit`: packets wait for each other.
    pub rate: Option<Rate>,
    /// `delay=50ms`.
    pub delay: Option<Duration>,
    /// `jitter=10ms`: packets overtake when theirs is smaller.
    pub jitter: Option<Duration>,
    /// `dist=normal`: the shape of the jitter, uniform if `None`.
    pub distribution: Option<Distribution>,
    /// `reorder=25%`: this share is sent at once, before those being delayed.
    pub reorder: Option<Probability>,
    /// `nat=rebind:30s`: the sender of this direction is behind a NAT.
    pub nat: Option<Nat>,
    /// `mtu=1400`: larger IP packets vanish.
    pub mtu: Option<u16>,
    /// `order=line`: netem's if `None`.
    pub order: Option<Order>,
}
