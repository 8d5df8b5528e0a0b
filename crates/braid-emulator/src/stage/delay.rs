//! Delay of packets and its jitter: constant, uniform, or by a table of deviations.

use std::fmt;
use std::time::Duration;

use crate::prf::share_of;
use crate::spec::quantity::{Fault, nanos, quoted, scaled, unscaled};

/// A delay with jitter, ready to be asked.
#[derive(Debug, Clone)]
pub struct Delay {
    mean: u64,
    jitter: u64,
    /// Deviations in millionths of the jitter, each as likely as the others; empty for an even spread.
    table: Vec<i32>,
}

impl Delay {
    /// `mean` plus deviations of the size of `jitter`.
    pub fn new(mean: Duration, jitter: Duration, distribution: &Distribution) -> Self {
        Self { mean: nanos(mean), jitter: nanos(jitter), table: distribution.table() }
    }

    /// The delay in ns that belongs to `roll`: for an even spread in `mean - jitter .. mean + jitter`, the upper end
    /// excluded; never below 0.
    pub fn sample(&self, roll: u64) -> u64 {
        if self.jitter == 0 {
            return self.mean;
        }
        if self.table.is_empty() {
            let spread = share_of(roll, self.jitter.saturating_mul(2));
            return self.mean.saturating_add(spread).saturating_sub(self.jitter);
        }
        let place = usize::try_from(share_of(roll, self.table.len() as u64)).unwrap_or(0);
        let deviation = i128::from(self.jitter) * i128::from(self.table[place]) / 1_000_000;
        u64::try_from((i128::from(self.mean) + deviation).max(0)).unwrap_or(u64::MAX)
    }
}

/// Distribution of deviations from the mean delay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Distribution {
    /// Evenly, from one jitter below the mean to one above.
    #[default]
    Uniform,
    /// Normally; the jitter is the standard deviation, and no deviation exceeds four of it.
    Normal,
    /// Pareto of shape 3, moved to mean 0; the jitter is the standard deviation, and none exceeds four of it.
    Pareto,
    /// One of these, each as likely as the others, in millionths of the jitter.
    Table(Vec<i32>),
}

/// Entries of the computed tables.
const ENTRIES: u32 = 4096;
/// The largest deviation of a computed table, in jitters.
const WIDEST: f64 = 4.0;

impl Distribution {
    /// The deviations in millionths of the jitter; empty for `Uniform`, which needs none.
    pub(crate) fn table(&self) -> Vec<i32> {
        match self {
            Self::Uniform => Vec::new(),
            Self::Normal => normal(),
            Self::Pareto => pareto(),
            Self::Table(deviations) => deviations.clone(),
        }
    }

    pub(crate) fn parse(value: &str) -> Result<Self, Fault> {
        match value.split_once(':') {
            None if value == "uniform" => Ok(Self::Uniform),
            None if value == "normal" => Ok(Self::Normal),
            None if value == "pareto" => Ok(Self::Pareto),
            Some(("table", list)) => {
                list.split(',').map(deviation).collect::<Result<_, _>>().map(Self::Table)
            }
            _ => Err(Fault::new(
                format!("unknown distribution \"{}\"", quoted(value)),
                "write uniform, normal, pareto or table:-1,0,0,2.5",
            )),
        }
    }
}

fn deviation(text: &str) -> Result<i32, Fault> {
    let (sign, number) = text.strip_prefix('-').map_or((1, text), |number| (-1, number));
    let millionths = scaled(number, 6).and_then(|millionths| i32::try_from(millionths).ok());
    millionths.map(|millionths| sign * millionths).ok_or_else(|| {
        let remedy = "write multiples of the jitter, for example table:-1,0,0,2.5";
        Fault::new(format!("bad deviation \"{}\"", quoted(text)), remedy)
    })
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Normal => f.write_str("normal"),
            Self::Pareto => f.write_str("pareto"),
            Self::Table(deviations) => {
                for (place, deviation) in deviations.iter().enumerate() {
                    let before = if place == 0 { "table:" } else { "," };
                    let sign = if *deviation < 0 { "-" } else { "" };
                    write!(f, "{before}{sign}{}", unscaled(deviation.unsigned_abs().into(), 6))?;
                }
                Ok(())
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "limited to WIDEST")]
fn millionths(deviation: f64) -> i32 {
    (deviation.clamp(-WIDEST, WIDEST) * 1e6).round() as i32
}

/// The middle of each of the equal shares of probability.
fn quantiles() -> impl Iterator<Item = f64> {
    (0..ENTRIES).map(|entry| (f64::from(entry) + 0.5) / f64::from(ENTRIES))
}

/// The quantiles of the normal distribution, by walking along its density.
fn normal() -> Vec<i32> {
    const STEP: f64 = 1e-4;
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let (mut x, mut below) = (-6.0, 0.0);
    let quantile = |share: f64| {
        while below < share && x < 6.0 {
            below += density(x + STEP / 2.0) * STEP;
            x += STEP;
        }
        millionths(x)
    };
    quantiles().map(quantile).collect()
}

fn pareto() -> Vec<i32> {
    const SHAPE: f64 = 3.0;
    const MEAN: f64 = 1.5;
    let deviation = 0.75_f64.sqrt();
    quantiles().map(|share| millionths(((1.0 - share).powf(-1.0 / SHAPE) - MEAN) / deviation)).collect()
}
