//! When a NAT rebinds, and what it does about it.

use std::fmt;
use std::time::Duration;

use crate::emulator::spec::error::{Fault, quoted};
use crate::emulator::spec::quantity::{duration_text, parse_duration};

/// A NAT between the sender of a direction and its link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Nat {
    /// Change at a rebind.
    pub kind: NatKind,
    /// When it happens.
    pub times: NatTimes,
}

/// Handling of flows whose binding the NAT has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// UDP gets a new port. TCP segments are dropped silently, but for a SYN.
    Rebind,
    /// As `Rebind`, with another address too: the last byte of the inside address XOR 64 to 127, so the hosts inside
    /// must be numbered below 64, and the other end must have a route to the whole network.
    Move,
    /// As `Rebind`, but TCP segments are answered with RST, from both sides.
    Reset,
}

/// The times of the rebinds, since the start of the link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NatTimes {
    /// Again and again.
    Every(Duration),
    /// At these times, rising.
    At(Vec<Duration>),
}

impl Nat {
    /// Number of rebinds until `at`. Ports are unchanged before the first.
    pub fn epoch(&self, at: Duration) -> u64 {
        match &self.times {
            NatTimes::Every(period) => {
                u64::try_from(at.as_nanos() / period.as_nanos().max(1)).unwrap_or(u64::MAX)
            }
            NatTimes::At(times) => times.partition_point(|&time| time <= at) as u64,
        }
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write rebind:30s for every 30 s, rebind@30s,75s for these times; also rst and move";
        let (name, rest, every) = match (value.split_once(':'), value.split_once('@')) {
            (Some((name, rest)), None) => (name, rest, true),
            (None, Some((name, rest))) => (name, rest, false),
            _ => return Err(Fault::new("no times", remedy)),
        };
        let kind = match name {
            "rebind" => NatKind::Rebind,
            "move" => NatKind::Move,
            "rst" => NatKind::Reset,
            other => return Err(Fault::new(format!("unknown kind of NAT \"{}\"", quoted(other)), remedy)),
        };
        let times = rest.split(',').map(parse_duration).collect::<Result<Vec<_>, _>>()?;
        let rising = times.windows(2).all(|pair| pair[0] < pair[1]) && times[0] > Duration::ZERO;
        match (every, times.as_slice()) {
            (_, _) if !rising => Err(Fault::new("times that do not rise from above 0", remedy)),
            (true, &[period]) => Ok(Self { kind, times: NatTimes::Every(period) }),
            (true, _) => Err(Fault::new("more than one period", remedy)),
            (false, _) => Ok(Self { kind, times: NatTimes::At(times) }),
        }
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            NatKind::Rebind => "rebind",
            NatKind::Move => "move",
            NatKind::Reset => "rst",
        })?;
        match &self.times {
            NatTimes::Every(period) => write!(f, ":{}", duration_text(*period)),
            NatTimes::At(times) => {
                for (place, time) in times.iter().enumerate() {
                    write!(f, "{}{}", if place == 0 { "@" } else { "," }, duration_text(*time))?;
                }
                Ok(())
            }
        }
    }
}
