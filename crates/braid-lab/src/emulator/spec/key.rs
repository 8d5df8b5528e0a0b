//! The keys of a path: their names, and how the text of a value and the field of a [`PathSpec`] become each other.

use super::error::{Fault, quoted};
use super::path::PathSpec;
use super::probability::Probability;
use super::quantity::{duration_text, parse_duration};
use crate::emulator::nat::Nat;
use crate::emulator::stage::{Distribution, Limit, Loss, Order, Policer, Rate, Selector};

/// Value that switches a stage off, in a change.
pub(crate) const NONE: &str = "none";

/// One per stage setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Match,
    Policer,
    Dup,
    Loss,
    Corrupt,
    Limit,
    Rate,
    Delay,
    Jitter,
    Dist,
    Reorder,
    Nat,
    Mtu,
    Order,
}

impl Key {
    /// All, in the order in which they are written.
    pub(crate) const ALL: [Self; 14] = [
        Self::Match,
        Self::Policer,
        Self::Dup,
        Self::Loss,
        Self::Corrupt,
        Self::Limit,
        Self::Rate,
        Self::Delay,
        Self::Jitter,
        Self::Dist,
        Self::Reorder,
        Self::Nat,
        Self::Mtu,
        Self::Order,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Policer => "policer",
            Self::Dup => "dup",
            Self::Loss => "loss",
            Self::Corrupt => "corrupt",
            Self::Limit => "limit",
            Self::Rate => "rate",
            Self::Delay => "delay",
            Self::Jitter => "jitter",
            Self::Dist => "dist",
            Self::Reorder => "reorder",
            Self::Nat => "nat",
            Self::Mtu => "mtu",
            Self::Order => "order",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self, Fault> {
        Self::ALL.into_iter().find(|key| key.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|key| key.name()).collect();
            Fault::new(
                format!("unknown key \"{}\"", quoted(name)),
                format!("write one of {}, seed", names.join(", ")),
            )
        })
    }

    /// Sets the field of `path` from the text of a value.
    pub(crate) fn set(self, path: &mut PathSpec, value: &str) -> Result<(), Fault> {
        let value = (value != NONE).then_some(value);
        match self {
            Self::Match => path.selector = value.map(Selector::parse).transpose()?,
            Self::Policer => path.policer = value.map(Policer::parse).transpose()?,
            Self::Dup => path.duplicate = value.map(Probability::parse).transpose()?,
            Self::Loss => path.loss = value.map(Loss::parse).transpose()?,
            Self::Corrupt => path.corrupt = value.map(Probability::parse).transpose()?,
            Self::Limit => path.limit = value.map(Limit::parse).transpose()?,
            Self::Rate => path.rate = value.map(Rate::parse).transpose()?,
            Self::Delay => path.delay = value.map(parse_duration).transpose()?,
            Self::Jitter => path.jitter = value.map(parse_duration).transpose()?,
            Self::Dist => path.distribution = value.map(Distribution::parse).transpose()?,
            Self::Reorder => path.reorder = value.map(Probability::parse).transpose()?,
            Self::Nat => path.nat = value.map(Nat::parse).transpose()?,
            Self::Mtu => path.mtu = value.map(mtu).transpose()?,
            Self::Order => path.order = value.map(Order::parse).transpose()?,
        }
        Ok(())
    }

    /// The text of the field of `path`, if it is set.
    pub(crate) fn text(self, path: &PathSpec) -> Option<String> {
        fn shown<T: ToString>(value: Option<&T>) -> Option<String> {
            value.map(T::to_string)
        }
        match self {
            Self::Match => shown(path.selector.as_ref()),
            Self::Policer => shown(path.policer.as_ref()),
            Self::Dup => shown(path.duplicate.as_ref()),
            Self::Loss => shown(path.loss.as_ref()),
            Self::Corrupt => shown(path.corrupt.as_ref()),
            Self::Limit => shown(path.limit.as_ref()),
            Self::Rate => shown(path.rate.as_ref()),
            Self::Delay => path.delay.map(duration_text),
            Self::Jitter => path.jitter.map(duration_text),
            Self::Dist => shown(path.distribution.as_ref()),
            Self::Reorder => shown(path.reorder.as_ref()),
            Self::Nat => shown(path.nat.as_ref()),
            Self::Mtu => shown(path.mtu.as_ref()),
            Self::Order => shown(path.order.as_ref()),
        }
    }
}

fn mtu(value: &str) -> Result<u16, Fault> {
    // Below 68 bytes no IPv4 packet is sure to pass (RFC 791).
    value
        .parse()
        .ok()
        .filter(|&mtu| mtu >= 68)
        .ok_or_else(|| Fault::new("no number of bytes from 68 to 65535", "write for example mtu=1400"))
}
