//! Specification of one direction of a link, and the keys that read and write it.

use std::time::Duration;

use super::quantity::{Fault, Probability, duration_text, parse_duration, quoted};
use crate::nat::Nat;
use crate::stage::{
    Aggregate, Distribution, Ecn, Limit, LineRate, LineSpec, Loss, Management, Order, Policer, Replay,
    Selector, Service, Stall, Trace,
};

/// Stages of one direction, in the order in which packets meet them. A stage that is `None` does nothing.
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
    /// `queue=fq_codel`: how the queue before the line is managed; not at all if `None`.
    pub queue: Option<Management>,
    /// `ecn=on`: packets are marked.
    pub ecn: Option<Ecn>,
    /// `rate=10mbit`: packets wait for each other.
    pub rate: Option<LineRate>,
    /// `trace=lte-driving`: a recorded link in place of a rate.
    pub trace: Option<Trace>,
    /// `stall=30ms-300ms/2s`: the line stands still now and then.
    pub stall: Option<Stall>,
    /// `aggregate=2ms-10ms`: packets leave the line together.
    pub aggregate: Option<Aggregate>,
    /// `delay=50ms`.
    pub delay: Option<Duration>,
    /// `jitter=10ms`: packets overtake when theirs is smaller.
    pub jitter: Option<Duration>,
    /// `dist=normal`: the shape of the jitter, uniform if `None`.
    pub distribution: Option<Distribution>,
    /// `reorder=25%`: this share is sent at once, before those being delayed.
    pub reorder: Option<Probability>,
    /// `replay=4p/3s`: the first packets of each UDP flow are sent once more. [`PathSpec::duplicate`] excludes it.
    pub replay: Option<Replay>,
    /// `nat=rebind:30s`: the sender of this direction is behind a NAT.
    pub nat: Option<Nat>,
    /// `mtu=1400`: larger IP packets vanish.
    pub mtu: Option<u16>,
    /// `order=line`: netem's if `None`.
    pub order: Option<Order>,
}

impl PathSpec {
    /// Whether the queue before the line is managed, or marks packets.
    pub(crate) fn is_managed(&self) -> bool {
        self.ecn.is_some() || self.queue.is_some_and(|queue| queue != Management::Fifo)
    }

    /// The line, if there is one.
    pub(crate) fn line(&self) -> Option<LineSpec> {
        let service = self.trace.clone().map(Service::Trace).or(self.rate.map(Service::Rate))?;
        Some(LineSpec { service, stall: self.stall, aggregate: self.aggregate })
    }
}

/// Value that switches a stage off, in a change.
pub(crate) const NONE: &str = "none";

/// Defines [`Key`]: for each key its name, its field of [`PathSpec`], and how the value is parsed and printed. The
/// order is that of printing.
macro_rules! keys {
    ($($key:ident $name:literal $field:ident $parse:expr, $print:expr;)*) => {
        /// Key of a stage setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Key {
            $($key),*
        }

        impl Key {
            pub(crate) const ALL: &[Self] = &[$(Self::$key),*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name),*
                }
            }

            /// Sets the field of `path` from the text of a value.
            pub(crate) fn set(self, path: &mut PathSpec, value: &str) -> Result<(), Fault> {
                let value = (value != NONE).then_some(value);
                match self {
                    $(Self::$key => path.$field = value.map($parse).transpose()?),*
                }
                Ok(())
            }

            /// Text of the field of `path`, if it is set.
            pub(crate) fn text(self, path: &PathSpec) -> Option<String> {
                match self {
                    $(Self::$key => path.$field.as_ref().map($print)),*
                }
            }
        }
    };
}

keys! {
    Match "match" selector Selector::parse, ToString::to_string;
    Policer "policer" policer Policer::parse, ToString::to_string;
    Dup "dup" duplicate Probability::parse, ToString::to_string;
    Loss "loss" loss Loss::parse, ToString::to_string;
    Corrupt "corrupt" corrupt Probability::parse, ToString::to_string;
    Limit "limit" limit Limit::parse, ToString::to_string;
    Queue "queue" queue Management::parse, ToString::to_string;
    Ecn "ecn" ecn Ecn::parse, ToString::to_string;
    Rate "rate" rate LineRate::parse, ToString::to_string;
    Trace "trace" trace Trace::parse, ToString::to_string;
    Stall "stall" stall Stall::parse, ToString::to_string;
    Aggregate "aggregate" aggregate Aggregate::parse, ToString::to_string;
    Delay "delay" delay parse_duration, |delay| duration_text(*delay);
    Jitter "jitter" jitter parse_duration, |jitter| duration_text(*jitter);
    Dist "dist" distribution Distribution::parse, ToString::to_string;
    Reorder "reorder" reorder Probability::parse, ToString::to_string;
    Replay "replay" replay Replay::parse, ToString::to_string;
    Nat "nat" nat Nat::parse, ToString::to_string;
    Mtu "mtu" mtu parse_mtu, ToString::to_string;
    Order "order" order Order::parse, ToString::to_string;
}

impl Key {
    pub(crate) fn parse(name: &str) -> Result<Self, Fault> {
        Self::ALL.iter().copied().find(|key| key.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|key| key.name()).collect();
            let remedy = format!("write one of {}, seed", names.join(", "));
            Fault::new(format!("unknown key \"{}\"", quoted(name)), remedy)
        })
    }
}

fn parse_mtu(value: &str) -> Result<u16, Fault> {
    // Below 68 bytes no IPv4 packet is sure to pass (RFC 791).
    let mtu = value.parse().ok().filter(|&mtu| mtu >= 68);
    mtu.ok_or_else(|| Fault::new("no number of bytes from 68 to 65535", "write for example mtu=1400"))
}
