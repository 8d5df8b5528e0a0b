//! A probability, exact to 10^-9.

use std::fmt;

use super::error::{Fault, quoted};
use super::quantity::{scaled, unscaled};

const ONE: u32 = 1_000_000_000;

/// Probability from 0 to 1, in units of 10^-9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Probability(u32);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(ONE);

    /// `billionths` of 10^-9; more than 1 counts as 1.
    pub const fn from_billionths(billionths: u32) -> Self {
        Self(if billionths < ONE { billionths } else { ONE })
    }

    /// As a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    /// Whether an evenly distributed `roll` falls inside.
    pub fn hits(self, roll: u64) -> bool {
        (u128::from(roll) * u128::from(ONE)) >> 64 < u128::from(self.0)
    }

    /// The probability of the opposite.
    pub(crate) fn complement(self) -> Self {
        Self(ONE - self.0)
    }

    /// The sum, for branches that exclude each other; `None` above 1.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).filter(|&sum| sum <= ONE).map(Self)
    }

    /// Reads `1%` or `0.25%`.
    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        let remedy = "write a share from 0% to 100%, for example 1% or 0.25%";
        let Some(number) = value.strip_suffix('%') else {
            return Err(Fault::new(format!("no % after \"{}\"", quoted(value)), remedy));
        };
        let bad = || Fault::new(format!("bad share \"{}\"", quoted(value)), remedy);
        let billionths = scaled(number, 7).and_then(|units| u32::try_from(units).ok()).ok_or_else(bad)?;
        if billionths > ONE {
            return Err(Fault::new(format!("{} is more than everything", quoted(value)), remedy));
        }
        Ok(Self(billionths))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", unscaled(self.0.into(), 7))
    }
}
