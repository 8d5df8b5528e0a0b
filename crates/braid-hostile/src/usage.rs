//! Memory, descriptors and processor time of the broker during a row.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use braid_measure::process::{CpuReading, CpuShares, Resident, descriptors};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(50);
/// Bytes of a mebibyte.
const MIB: f64 = 1_048_576.0;

/// Use of the broker's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Anonymous resident memory, MiB: heap and stacks, without mapped files.
    pub(crate) memory: f64,
    /// Open file descriptors.
    pub(crate) descriptors: usize,
}

impl Sample {
    /// Sample of a process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn of(process_id: u32) -> Result<Self, String> {
        let ended = |error| format!("the broker has ended: {error}");
        let resident = Resident::of(process_id).map_err(ended)?;
        let descriptors = descriptors(process_id).map_err(ended)?;
        Ok(Self { memory: resident.anonymous as f64 / MIB, descriptors })
    }

    /// The larger value of each resource.
    fn max(self, other: Self) -> Self {
        let descriptors = self.descriptors.max(other.descriptors);
        Self { memory: self.memory.max(other.memory), descriptors }
    }
}

/// Sampler of a process; it ends when it is dropped.
pub(crate) struct Sampler {
    peak: Rc<Cell<Sample>>,
    task: JoinHandle<()>,
}

impl Sampler {
    /// Begins to sample a process, until it ends.
    pub(crate) fn start(process_id: u32) -> Self {
        let peak = Rc::new(Cell::new(Sample::default()));
        let seen = Rc::clone(&peak);
        let task = tokio::task::spawn_local(async move {
            while let Ok(sample) = Sample::of(process_id) {
                seen.set(seen.get().max(sample));
                sleep(PERIOD).await;
            }
        });
        Self { peak, task }
    }

    /// Largest value of each resource so far.
    pub(crate) fn peak(&self) -> Sample {
        self.peak.get()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Processor time of a broker since `earlier`, and the reading at the end.
///
/// # Errors
/// The process has ended.
pub(crate) fn shares_since(earlier: &CpuReading, process_id: u32) -> Result<(CpuShares, CpuReading), String> {
    let now = reading(process_id)?;
    Ok((now.since(earlier), now))
}

/// Processor time of a broker so far.
///
/// # Errors
/// The process has ended.
pub(crate) fn reading(process_id: u32) -> Result<CpuReading, String> {
    CpuReading::of(process_id).map_err(|error| format!("the broker has ended: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_each_resource() {
        let [a, b] = [(1.0, 9), (5.0, 3)].map(|(memory, descriptors)| Sample { memory, descriptors });
        assert_eq!(a.max(b), Sample { memory: 5.0, descriptors: 9 });
        let own = Sample::of(std::process::id()).expect("this process runs");
        assert!(own.memory > 0.0 && own.descriptors > 2, "{own:?}");
        assert!(Sample::of(u32::MAX).is_err());
    }
}
