//! Delay of packets: constant, uniform around the mean, or by a table of deviations.

use std::time::Duration;

use super::distribution::Distribution;
use crate::emulator::prf::share_of;
use crate::emulator::spec::quantity::nanos;

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
