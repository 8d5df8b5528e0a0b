//! Rates: of a line that packets wait for, and of a policer that refuses them.

use std::fmt;

use crate::emulator::spec::error::{Fault, quoted};
use crate::emulator::spec::quantity::{scaled, split_unit};

/// Rate of a link. Sizes are those of IP packets, without link headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Bits per second, above 0.
    Bits(u64),
    /// Packets per second, above 0, whatever their size.
    Packets(u64),
}

impl Rate {
    /// Nanoseconds that a packet of `size` bytes occupies the line.
    pub(crate) fn occupancy(self, size: usize) -> u64 {
        const SECOND: u128 = 1_000_000_000;
        let nanos = match self {
            Self::Bits(rate) => size as u128 * 8 * SECOND / u128::from(rate.max(1)),
            Self::Packets(rate) => SECOND / u128::from(rate.max(1)),
        };
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let (number, unit) = split_unit(value);
        let remedy = "write for example 10mbit, 64kbit or 29pps";
        let places = match unit {
            "bit" | "pps" => 0,
            "kbit" => 3,
            "mbit" => 6,
            "gbit" => 9,
            "" => return Err(Fault::new("no unit", remedy)),
            other => return Err(Fault::new(format!("unknown unit \"{}\"", quoted(other)), remedy)),
        };
        let Some(rate) = scaled(number, places) else {
            return Err(Fault::new(format!("bad number \"{}\"", quoted(number)), remedy));
        };
        match (rate, unit) {
            (0, _) => Err(Fault::new("a rate of 0", "write loss=100% for a link that passes nothing")),
            (_, "pps") => Ok(Self::Packets(rate)),
            _ => Ok(Self::Bits(rate)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Packets(rate) => write!(f, "{rate}pps"),
            Self::Bits(rate) if rate.is_multiple_of(1_000_000_000) => {
                write!(f, "{}gbit", rate / 1_000_000_000)
            }
            Self::Bits(rate) if rate.is_multiple_of(1_000_000) => write!(f, "{}mbit", rate / 1_000_000),
            Self::Bits(rate) if rate.is_multiple_of(1000) => write!(f, "{}kbit", rate / 1000),
            Self::Bits(rate) => write!(f, "{rate}bit"),
        }
    }
}
