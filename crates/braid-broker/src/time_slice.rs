//! Time slices of busy connections.
//!
//! The runtime polls tasks in the order in which they were woken, and a connection that has more to do is woken at
//! once. A message waits, at every task on its way, for a slice of each busy connection. The more of them there are,
//! the shorter their slices become, as those of a fair process scheduler do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Time in which a thread polls each of its busy connections once, unless slices of [`MIN_SLICE`] take longer.
const ROUND: Duration = Duration::from_micros(500);

const MIN_SLICE: Duration = Duration::from_micros(50);

const MAX_SLICE: Duration = Duration::from_micros(500);

/// Bytes that the first turn reads.
const INITIAL_READ: u32 = 64 * 1024;

const MIN_READ: u32 = 2 * 1024;

/// Upper bound of the bytes that a turn reads from all streams together.
const MAX_READ: u32 = 256 * 1024;

/// Number of connections that used up their last slice, and of the threads that serve them.
#[derive(Debug)]
pub(crate) struct BusyConnections {
    count: AtomicUsize,
    threads: u32,
}

impl Default for BusyConnections {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { count: AtomicUsize::new(0), threads: u32::try_from(threads).unwrap_or(u32::MAX) }
    }
}

impl BusyConnections {
    /// Time that a poll of a connection may take by now.
    pub(crate) fn slice(&self) -> Duration {
        let busy = u32::try_from(self.count.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (ROUND * self.threads / busy.max(1)).clamp(MIN_SLICE, MAX_SLICE)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Share of a connection in the time of its thread: whether it used up its last slice, and the bytes that a turn may
/// read for a slice.
///
/// A turn is not interrupted: how long it takes depends on what is in the bytes. Of PINGREQ, 64 KiB take several times
/// as long as of most messages.
pub(crate) struct TimeSlice {
    /// Counted in [`BusyConnections`].
    is_busy: bool,
    /// Bytes that a turn may read.
    bytes: u32,
    /// Bytes that this turn may still read.
    left: u32,
}

impl TimeSlice {
    pub(crate) const fn new() -> Self {
        Self { is_busy: false, bytes: INITIAL_READ, left: INITIAL_READ }
    }

    /// Ends a poll; `is_busy`: the connection has more to do.
    pub(crate) fn end(&mut self, is_busy: bool, busy: &BusyConnections) {
        match (std::mem::replace(&mut self.is_busy, is_busy), is_busy) {
            (false, true) => busy.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => busy.count.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    // -- Reads of a turn ---------------------------------------------------------------------------

    pub(crate) fn begin_turn(&mut self) {
        self.left = self.bytes;
    }

    /// Bytes that the next read of this turn may take; 0 ends the reads of the turn.
    pub(crate) fn read_size(&self) -> usize {
        self.left as usize
    }

    pub(crate) fn note_read(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// Adapts the bytes of later turns to the time that this one took.
    pub(crate) fn end_turn(&mut self, took: Duration, slice: Duration) {
        if took > slice {
            let read = self.bytes - self.left;
            self.bytes = if read > 0 { (read / 2).max(MIN_READ) } else { self.bytes };
        } else if self.left == 0 && took < slice / 4 {
            self.bytes = (self.bytes * 2).min(MAX_READ);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy_of(threads: u32) -> BusyConnections {
        BusyConnections { count: AtomicUsize::new(0), threads }
    }

    #[test]
    fn slices_become_shorter_the_more_connections_are_busy() {
        let busy = busy_of(2);
        let mut slices: Vec<TimeSlice> = (0..100).map(|_| TimeSlice::new()).collect();
        let mut lengths = Vec::new();
        for slice in &mut slices {
            lengths.push(busy.slice());
            // Counted once, however often its slice is used up.
            slice.end(true, &busy);
            slice.end(true, &busy);
        }
        assert_eq!((lengths[0], lengths[2], lengths[3]), (MAX_SLICE, MAX_SLICE, ROUND * 2 / 3));
        assert_eq!((lengths[16], lengths[99]), (ROUND / 8, MIN_SLICE));
        slices.iter_mut().for_each(|slice| slice.end(false, &busy));
        assert_eq!(busy.slice(), MAX_SLICE);
    }

    #[test]
    fn a_turn_reads_as_much_as_fits_into_a_slice() {
        let mut slice = TimeSlice::new();
        let turn = |slice: &mut TimeSlice, bytes: u32, took: Duration| {
            slice.begin_turn();
            slice.note_read(bytes as usize);
            slice.end_turn(took, MAX_SLICE);
            slice.bytes
        };
        assert_eq!(turn(&mut slice, INITIAL_READ, MAX_SLICE), INITIAL_READ, "as long as the slice");
        assert_eq!(turn(&mut slice, INITIAL_READ, MAX_SLICE * 2), INITIAL_READ / 2);
        assert_eq!(turn(&mut slice, 0, MAX_SLICE * 2), INITIAL_READ / 2, "reads are not the reason");
        assert_eq!(turn(&mut slice, 10, MAX_SLICE * 2), MIN_READ);
        assert_eq!(turn(&mut slice, MIN_READ - 1, Duration::ZERO), MIN_READ, "more would not have been read");
        for doubled in [2, 4, 8, 16, 32, 64, 128, 128] {
            assert_eq!(turn(&mut slice, 1 << 20, Duration::ZERO), MIN_READ * doubled);
        }
        assert_eq!(slice.bytes, MAX_READ);
        assert_eq!(turn(&mut slice, MAX_READ, MAX_SLICE / 4), MAX_READ);
    }
}
