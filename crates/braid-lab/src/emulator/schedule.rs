//! The order of departures.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// When something leaves; what is due at the same time leaves in the order of its coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// In ns.
    pub(crate) due: u64,
    /// Rises with every entry.
    pub(crate) n: u64,
    pub(crate) slot: u32,
}

/// A timer queue keyed (due, n). What comes in order of its due time, which is nearly everything, costs no heap.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    line: VecDeque<Entry>,
    early: BinaryHeap<Reverse<Entry>>,
}

impl Schedule {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self { line: VecDeque::with_capacity(entries), early: BinaryHeap::with_capacity(entries) }
    }

    /// Adds an entry; its `n` is above all before.
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.line.back().is_none_or(|last| last.due <= entry.due) {
            self.line.push_back(entry);
        } else {
            self.early.push(Reverse(entry));
        }
    }

    /// When the next one is due, in ns.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.first().map(|entry| entry.due)
    }

    /// Takes the first one, if it is due at `now` (ns).
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Entry> {
        let first = self.first().filter(|entry| entry.due <= now)?;
        if self.line.front() == Some(&first) {
            self.line.pop_front();
        } else {
            self.early.pop();
        }
        Some(first)
    }

    fn first(&self) -> Option<Entry> {
        let line = self.line.front().copied();
        let early = self.early.peek().map(|entry| entry.0);
        match (line, early) {
            (Some(line), Some(early)) => Some(line.min(early)),
            (line, early) => line.or(early),
        }
    }
}
