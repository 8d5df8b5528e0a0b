//! Packets inside a direction: reused slots, the order of departures, and the limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::stage::{Limit, Order};
use super::verdict::PacketCount;

/// A packet inside.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) index: u64,
    pub(crate) copy: bool,
    /// Arrival time, ns.
    pub(crate) at: u64,
    /// Departure time, ns.
    pub(crate) due: u64,
    /// Bytes without link header.
    pub(crate) size: usize,
    pub(crate) corrupted: Option<u64>,
    /// Whether it carries a mark of congestion, from here or before.
    pub(crate) is_marked: bool,
    pub(crate) handling: Handling,
    /// Link header and IP packet.
    pub(crate) bytes: Vec<u8>,
}

/// Handling of a packet inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    Delayed,
    /// Before the line, in a queue that is managed; then as delayed.
    Waiting,
    Overtaking,
    Unmatched,
    /// Delayed, and dropped when it is due.
    TooBig,
}

/// Packets that may be due and not taken; an owner that serves what is due never comes near.
const UNSERVED: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct Queue {
    slots: Vec<Option<Queued>>,
    free: Vec<u32>,
    /// Buffers of packets that have left.
    buffers: Vec<Vec<u8>>,
    schedule: Schedule,
    /// Due packets, in the order of leaving.
    ready: VecDeque<u32>,
    entered: u64,
    delayed: PacketCount,
    /// Times at which the packets before and on the line leave it, and their sizes; only for `Order::Line`.
    line: VecDeque<(u64, usize)>,
    line_load: PacketCount,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            buffers: Vec::new(),
            schedule: Schedule::default(),
            ready: VecDeque::new(),
            entered: 0,
            delayed: PacketCount::default(),
            line: VecDeque::new(),
            line_load: PacketCount::default(),
        }
    }

    /// Lets everything become ready that is due at `now` (ns); from then on the limit no longer counts it.
    pub(crate) fn advance(&mut self, now: u64) {
        while let Some(entry) = self.schedule.pop_due(now) {
            if let Some(Some(queued)) = self.slots.get(entry.slot as usize) {
                self.delayed.remove(queued.size);
            }
            self.ready.push_back(entry.slot);
        }
        while let Some(&(_, size)) = self.line.front().filter(|(leaves, _)| *leaves <= now) {
            self.line.pop_front();
            self.line_load.remove(size);
        }
    }

    /// Whether a packet of `size` bytes fits.
    pub(crate) fn admits(&self, limit: Limit, order: Order, size: usize) -> bool {
        let load = match order {
            Order::Netem => &self.delayed,
            Order::Line => &self.line_load,
        };
        !self.is_unserved() && limit.admits(load.packets, load.bytes, size)
    }

    /// Whether so much is due and not taken that nothing more may come in.
    pub(crate) fn is_unserved(&self) -> bool {
        self.ready.len() >= UNSERVED
    }

    /// Counts a packet on the line until `leaves` (ns), which never falls.
    pub(crate) fn occupy_line(&mut self, leaves: u64, size: usize) {
        self.line.push_back((leaves, size));
        self.line_load.add(size);
    }

    /// An empty buffer, of a packet that has left if there is one.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < self.slots.len() {
            self.buffers.push(buffer);
        }
    }

    /// Takes a packet in; `now` is that of the last `advance`.
    pub(crate) fn enter(&mut self, queued: Queued, now: u64) {
        let (due, size) = (queued.due, queued.size);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(queued);
                slot
            }
            None => {
                self.slots.push(Some(queued));
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if due <= now {
            self.ready.push_back(slot);
            return;
        }
        self.entered += 1;
        self.delayed.add(size);
        self.schedule.push(Entry { due, n: self.entered, slot });
    }

    /// Time at which the next packet leaves, in ns.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let ready =
            self.ready.front().and_then(|&slot| self.slots[slot as usize].as_ref()).map(|queued| queued.due);
        ready.or_else(|| self.schedule.next_due())
    }

    /// The next packet that became ready.
    pub(crate) fn take_ready(&mut self) -> Option<Queued> {
        let slot = self.ready.pop_front()?;
        self.free.push(slot);
        self.slots[slot as usize].take()
    }
}

/// Time at which a packet leaves; packets due at the same time leave in the order of their coming.
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
    /// Adds an entry; its `n` is above all before.
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.line.back().is_none_or(|last| last.due <= entry.due) {
            self.line.push_back(entry);
        } else {
            self.early.push(Reverse(entry));
        }
    }

    /// Due time of the next one, in ns.
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
