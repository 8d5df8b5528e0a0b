use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Above this the buffer is given back once it is empty: ten thousand receivers of one burst must not keep it.
const KEEP_CAPACITY: usize = 8 * 1024;

/// The bytes that one stream has to send: small packets side by side, large payloads by reference.
///
/// It implements [`Buf`], so that a shell writes it with vectored writes and advances it by what was taken.
#[derive(Debug, Default)]
pub struct Outbox {
    /// What was closed behind a large payload, oldest first.
    closed: VecDeque<Part>,
    closed_len: usize,
    /// Bytes in it that are payloads by reference.
    shared_len: usize,
    /// Where packets are appended.
    open: BytesMut,
    /// The most that `open` could hold since it was made: advancing and splitting hide it.
    peak_capacity: usize,
    /// Bytes that were taken since the stream began.
    taken: u64,
}

/// A part that is closed.
#[derive(Debug)]
struct Part {
    bytes: Bytes,
    /// A payload by reference.
    is_shared: bool,
}

impl Outbox {
    /// The buffer to append encoded packets to.
    pub(crate) fn open(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    /// Appends bytes by reference.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        self.closed_len += self.open.len() + bytes.len();
        if !self.open.is_empty() {
            self.peak_capacity = self.peak_capacity.max(self.open.capacity());
            self.closed.push_back(Part { bytes: self.open.split().freeze(), is_shared: false });
        }
        self.shared_len += bytes.len();
        self.closed.push_back(Part { bytes, is_shared: true });
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.closed_len + self.open.len()
    }

    /// Bytes waiting without the payloads by reference: acknowledgements and small messages.
    pub fn packets_len(&self) -> usize {
        self.len() - self.shared_len
    }

    /// Bytes that were taken since the stream began.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Where on the stream the next byte will be.
    pub(crate) fn end(&self) -> u64 {
        self.taken + self.len() as u64
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops everything that waits.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.closed.front().map_or(&self.open, |part| &part.bytes)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = self.closed.iter().map(|part| &part.bytes[..]).chain([&self.open[..]]);
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.taken += count as u64;
        while let Some(front) = self.closed.front_mut() {
            let taken = count.min(front.bytes.len());
            self.closed_len -= taken;
            if front.is_shared {
                self.shared_len -= taken;
            }
            count -= taken;
            if taken < front.bytes.len() {
                front.bytes.advance(taken);
                return;
            }
            self.closed.pop_front();
        }
        self.peak_capacity = self.peak_capacity.max(self.open.capacity());
        self.open.advance(count);
        if self.open.is_empty() && (self.peak_capacity > KEEP_CAPACITY || self.closed.capacity() > 64) {
            *self = Self { taken: self.taken, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_no_memory_behind() {
        for step in [1, 1000, 65_536] {
            let mut outbox = Outbox::default();
            outbox.open().extend_from_slice(&vec![0; 65_536]);
            while !outbox.is_empty() {
                outbox.advance(step.min(outbox.len()));
            }
            assert!(!outbox.open.try_reclaim(KEEP_CAPACITY + 1), "written in steps of {step}");
        }
        let mut outbox = Outbox::default();
        (0..100).for_each(|_| outbox.push_shared(Bytes::from_static(&[0; 2000])));
        outbox.advance(200_000);
        assert!(outbox.is_empty() && outbox.closed.capacity() <= 64);
    }

    #[test]
    fn parts_keep_their_order_and_their_length() {
        let mut outbox = Outbox::default();
        outbox.push_shared(Bytes::from_static(b"ab"));
        outbox.open().extend_from_slice(b"cd");
        outbox.push_shared(Bytes::from_static(b"ef"));
        outbox.open().extend_from_slice(b"gh");
        assert_eq!(outbox.len(), 8);
        outbox.advance(3);
        assert_eq!((outbox.len(), outbox.chunk()), (5, &b"d"[..]));
        assert_eq!((outbox.taken(), outbox.end()), (3, 8));
        assert_eq!(outbox.copy_to_bytes(5), &b"defgh"[..]);
        assert!(outbox.is_empty() && outbox.taken() == 8);
    }
}
