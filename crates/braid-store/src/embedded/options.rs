use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// When a commit is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the fsync of the group that it is in: what is acknowledged then survives a power failure.
    #[default]
    Sync,
    /// After it was handed over, as long as the device keeps up: once the oldest batch that is not durable was handed
    /// over `at_risk` ago, no more are done until it is. What a crash loses of what was done was thus done within
    /// `at_risk`, and it never loses a part of a batch or a batch without those after it.
    Async {
        /// A group is written after half of it, the other half is for the device.
        at_risk: Duration,
    },
}

/// How an [`EmbeddedStore`](super::EmbeddedStore) works.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// When a commit is done.
    pub durability: Durability,
    /// How long a group waits for more batches before it is written. Zero: what comes while a group is being
    /// written is the next group, which is enough whenever writing takes longer than handing over.
    pub linger: Duration,
    /// How long a lazy batch waits for a group that it can join.
    pub lazy: Duration,
    /// With so many changes a group waits no longer.
    pub changes: usize,
    /// Bytes of the journal: two halves that take turns. What is in one of them and still wanted is in memory too, until
    /// it is in the tables. A group that is larger than a half waits until it is in the tables itself.
    pub journal: usize,
    /// How long something is in the journal alone, unless its half is full before.
    pub checkpoint: Duration,
    /// A payload that has more bytes is stored in parts of so many: as much of it is in memory at once.
    pub part: usize,
    /// Bytes of the file that are kept in memory.
    pub cache: usize,
    /// Told of everything that takes long: opening and recovering.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

/// With its key and what redb puts before it, a page of 256 KiB has room for so much.
pub(super) const PART: usize = 255 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            linger: Duration::ZERO,
            lazy: Duration::from_millis(50),
            changes: 4096,
            journal: 16 << 20,
            checkpoint: Duration::from_secs(1),
            part: PART,
            cache: 64 << 20,
            progress: Arc::new(|_| {}),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("durability", &self.durability)
            .field("linger", &self.linger)
            .field("lazy", &self.lazy)
            .field("changes", &self.changes)
            .field("journal", &self.journal)
            .field("checkpoint", &self.checkpoint)
            .field("part", &self.part)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// How far opening or recovering is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub of: u64,
}

/// What takes long, in the order in which it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Every page is compared with its checksum; in percent.
    Checking,
    /// Free space is given back; in steps.
    Compacting,
    /// What is in the journal alone is brought into the tables; in groups.
    Replaying,
    /// Sessions and queue entries are counted.
    Loading,
    /// Sessions and queue entries are shown to the broker.
    Recovering,
    /// Rows are read to be checked, counted or exported.
    Reading,
    /// Records are imported; `of` is 0, since nobody knows how many there are.
    Importing,
}

/// Tells progress, not too often.
pub(super) struct Teller<'a> {
    options: &'a Options,
    progress: Progress,
    /// Rows since the last report, and as many more as their size counts for.
    untold: u64,
}

/// Rows between two reports.
const EVERY: u64 = 1 << 16;
/// Bytes that count for a row: a report comes every 64 MiB, however few messages that are.
const ROW: usize = 1 << 10;

impl<'a> Teller<'a> {
    pub(super) fn new(options: &'a Options, stage: Stage, of: u64) -> Self {
        let teller = Self { options, progress: Progress { stage, done: 0, of }, untold: 0 };
        teller.tell();
        teller
    }

    pub(super) fn step(&mut self) {
        self.step_over(0);
    }

    /// A step over a row that has `size` bytes to read or write.
    pub(super) fn step_over(&mut self, size: usize) {
        self.progress.done += 1;
        self.untold += 1 + (size / ROW) as u64;
        if self.untold >= EVERY {
            self.untold = 0;
            self.tell();
        }
    }

    pub(super) fn end(mut self) {
        self.progress.done = self.progress.of;
        self.tell();
    }

    fn tell(&self) {
        (self.options.progress)(self.progress);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Done at each report, when rows of this size are stepped over.
    fn told(size: usize, rows: u64) -> Vec<u64> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let progress = {
            let told = Arc::clone(&told);
            Arc::new(move |progress: Progress| told.lock().unwrap().push(progress.done))
        };
        let options = Options { progress, ..Options::default() };
        let mut teller = Teller::new(&options, Stage::Reading, rows);
        (0..rows).for_each(|_| teller.step_over(size));
        teller.end();
        told.lock().unwrap().clone()
    }

    #[test]
    fn many_rows_and_large_rows_are_reported() {
        assert_eq!(told(0, 140_000), [0, 65_536, 131_072, 140_000]);
        assert_eq!(told(1 << 20, 130), [0, 64, 128, 130]);
        assert_eq!(told(1 << 30, 2), [0, 1, 2, 2]);
    }
}
