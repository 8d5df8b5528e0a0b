use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// When a commit is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the fsync of the group that it is in: what is acknowledged then survives a power failure.
    #[default]
    Sync,
    /// After it was handed over. A crash loses at most what was handed over in the last `at_risk`, and never a
    /// part of a batch or a batch without those after it.
    Async {
        /// How long a batch waits for others until its group is written.
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
    /// Bytes of the file that are kept in memory.
    pub cache: usize,
    /// Told of everything that takes long: opening and recovering.
    pub progress: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            linger: Duration::ZERO,
            lazy: Duration::from_millis(50),
            changes: 4096,
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
    /// Sessions and queue entries are counted.
    Loading,
    /// Sessions and queue entries are shown to the broker.
    Recovering,
}

/// Tells progress, not too often.
pub(super) struct Teller<'a> {
    options: &'a Options,
    progress: Progress,
}

/// Rows between two reports.
const EVERY: u64 = 1 << 16;

impl<'a> Teller<'a> {
    pub(super) fn new(options: &'a Options, stage: Stage, of: u64) -> Self {
        let teller = Self { options, progress: Progress { stage, done: 0, of } };
        teller.tell();
        teller
    }

    pub(super) fn step(&mut self) {
        self.progress.done += 1;
        if self.progress.done.is_multiple_of(EVERY) {
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
