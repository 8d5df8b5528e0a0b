//! Options of the embedded store, and its progress reports.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Time at which a commit is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the fsync of its group: acknowledged batches survive a power failure.
    #[default]
    Sync,
    /// At once, while the oldest unsynced batch is younger than `loss_window`; otherwise when that one is durable. So a
    /// crash loses only batches that were acknowledged within `loss_window`, whole ones, and no earlier batch without
    /// the later ones.
    Async {
        /// Longest time for which an acknowledged batch may be unsynced. A group is written after half of it; the other
        /// half is for the device.
        loss_window: Duration,
    },
}

/// Options of an [`EmbeddedStore`](super::EmbeddedStore).
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Time at which a commit is done.
    pub durability: Durability,
    /// Delay of a group, for more batches to join it. With zero the batches that arrive while a group is written are
    /// the next one, which is enough whenever writes take longer than arrivals.
    pub linger: Duration,
    /// Longest wait of a lazy batch for a group that it can join.
    pub lazy: Duration,
    /// Number of changes at which a group is written without delay.
    pub changes: usize,
    /// Bytes of the journal's two segments together. Their changes that did not cancel out are in memory too, until a
    /// checkpoint. A group that is larger than a segment is written to the tables directly.
    pub journal: usize,
    /// Interval of checkpoints; a full segment causes one earlier.
    pub checkpoint: Duration,
    /// Payloads of more bytes are stored in chunks of this many; one chunk of a payload is in memory at a time.
    pub chunk: usize,
    /// Bytes of the page cache.
    pub cache: usize,
    /// Receives the progress of long operations.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
    /// Check of the identity of a session, for imports and integrity checks: the reason for which no broker could read
    /// it. The default takes all.
    pub check_identity: fn(&str) -> Result<(), String>,
    /// As `check_identity`, of the publisher of a retained message.
    pub check_publisher: fn(&str) -> Result<(), String>,
}

/// Largest value that, with its key and redb's header, fits into a page of 256 KiB.
pub(super) const CHUNK: usize = 255 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            linger: Duration::ZERO,
            lazy: Duration::from_millis(50),
            changes: 4096,
            journal: 16 << 20,
            checkpoint: Duration::from_secs(1),
            chunk: CHUNK,
            cache: 64 << 20,
            progress: Arc::new(|_| {}),
            check_identity: |_| Ok(()),
            check_publisher: |_| Ok(()),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("durability", &self.durability).finish_non_exhaustive()
    }
}

/// Progress of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Units that are done.
    pub done: u64,
    /// Units of the whole stage.
    pub of: u64,
}

/// Stages of long operations, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Verification of every page's checksum; in percent.
    Checking,
    /// Return of free space to the file system; in steps.
    Compacting,
    /// Replay of the journal into the tables; in groups.
    Replaying,
    /// Loading of the index; in sessions and queue entries.
    Loading,
    /// Recovery of the broker; in sessions and queue entries.
    Recovering,
    /// Check, count or export; in rows.
    Reading,
    /// Import; in records, with `of` 0, since their number is not known.
    Importing,
}

/// Progress reporter with a limited rate.
pub(super) struct ProgressReporter<'a> {
    options: &'a Options,
    progress: Progress,
    /// Rows since the last report, plus one for each [`ROW`] of their bytes.
    unreported: u64,
}

/// Rows between two reports.
const EVERY: u64 = 1 << 16;
/// Bytes that count as a row, so that large messages are reported every 64 MiB.
const ROW: usize = 1 << 10;

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(options: &'a Options, stage: Stage, of: u64) -> Self {
        let reporter = Self { options, progress: Progress { stage, done: 0, of }, unreported: 0 };
        reporter.report();
        reporter
    }

    /// Counts a row that has `size` bytes beside its key.
    pub(super) fn step(&mut self, size: usize) {
        self.progress.done += 1;
        self.unreported += 1 + (size / ROW) as u64;
        if self.unreported >= EVERY {
            self.unreported = 0;
            self.report();
        }
    }

    pub(super) fn end(mut self) {
        self.progress.done = self.progress.of;
        self.report();
    }

    fn report(&self) {
        (self.options.progress)(self.progress);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Values of `done` in the reports of this many rows of this size.
    fn reported(size: usize, rows: u64) -> Vec<u64> {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let progress = {
            let reports = Arc::clone(&reports);
            Arc::new(move |progress: Progress| reports.lock().unwrap().push(progress.done))
        };
        let options = Options { progress, ..Options::default() };
        let mut reporter = ProgressReporter::new(&options, Stage::Reading, rows);
        (0..rows).for_each(|_| reporter.step(size));
        reporter.end();
        reports.lock().unwrap().clone()
    }

    #[test]
    fn many_rows_and_large_rows_are_reported() {
        assert_eq!(reported(0, 140_000), [0, 65_536, 131_072, 140_000]);
        assert_eq!(reported(1 << 20, 130), [0, 64, 128, 130]);
        assert_eq!(reported(1 << 30, 2), [0, 1, 2, 2]);
    }
}
