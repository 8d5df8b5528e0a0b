//! Frames as they are read.

use std::io::{self, IoSliceMut};
use std::time::Duration;

/// Frames per batch: enough to share a system call, few enough that the first does not wait long for the last.
pub(super) const BATCH: usize = 32;
/// The largest IP packet and a link header. Pages that no frame reaches are never touched.
const SLOT: usize = 65_536 + 64;

/// Room for some frames, used again and again.
#[derive(Debug)]
pub struct Batch {
    bytes: Box<[u8]>,
    lengths: [usize; BATCH],
    arrivals: [Option<Duration>; BATCH],
    count: usize,
}

impl Batch {
    /// An empty one.
    #[expect(
        clippy::new_without_default,
        reason = "a default should not take two megabytes of address space"
    )]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * SLOT].into_boxed_slice(),
            lengths: [0; BATCH],
            arrivals: [None; BATCH],
            count: 0,
        }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no more fit.
    pub fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// The frames in the order of their coming.
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(SLOT).zip(&self.lengths[..self.count]).map(|(slot, &length)| &slot[..length])
    }

    /// Times at which the frames reached the kernel, since 1970; `None` where that is not known.
    pub fn arrivals(&self) -> &[Option<Duration>] {
        &self.arrivals[..self.count]
    }

    /// Says when the last frame reached the kernel, since 1970.
    pub fn stamp_last(&mut self, arrival: Duration) {
        if let Some(last) = self.arrivals[..self.count].last_mut() {
            *last = Some(arrival);
        }
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds frames with `read`, which fills the front of what it is given and says how much, until it would block, it
    /// fails or the batch is full. Returns how many were added; an error only if none was.
    pub fn fill(&mut self, mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let before = self.count;
        for slot in self.bytes.chunks_exact_mut(SLOT).skip(before) {
            match read(slot) {
                Ok(length) => {
                    self.lengths[self.count] = length.min(SLOT);
                    self.arrivals[self.count] = None;
                    self.count += 1;
                }
                Err(error) if self.count == before => return Err(error),
                Err(_) => break,
            }
        }
        Ok(self.count - before)
    }

    /// Adds frames with `read`, which is given all free slots and where to write the lengths and arrivals, and says how
    /// many it has filled.
    pub(super) fn fill_slots(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>], &mut [usize], &mut [Option<Duration>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let free = self.count..BATCH;
        let mut slots: [IoSliceMut<'_>; BATCH] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        for (slice, slot) in slots.iter_mut().zip(self.bytes.chunks_exact_mut(SLOT).skip(free.start)) {
            *slice = IoSliceMut::new(slot);
        }
        let filled =
            read(&mut slots[..free.len()], &mut self.lengths[free.clone()], &mut self.arrivals[free])?;
        self.count = (self.count + filled).min(BATCH);
        Ok(filled)
    }
}
