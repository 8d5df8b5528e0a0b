//! Bytes of a stream that were taken out of the QUIC library before they are read: the next ones, and some behind gaps.

use std::collections::BTreeMap;

use bytes::BytesMut;
use tokio::io::ReadBuf;

/// Bytes of a block from which on the next piece begins another: memory is given back in such steps.
const BLOCK: usize = 64 << 10;

/// Memory of a block beside its bytes, about.
const OVERHEAD: usize = 96;

/// Bytes of one frame at most.
const FRAME: u64 = 1472;

/// Bytes by offset, each once.
#[derive(Default)]
pub(super) struct Reassembly {
    /// Offset of the next byte to be read.
    next: u64,
    blocks: BTreeMap<u64, BytesMut>,
    bytes: usize,
    /// Runs of bytes without a gap in them.
    runs: usize,
}

impl Reassembly {
    /// Bytes that are held, with what it takes to hold them.
    pub(super) fn held(&self) -> usize {
        self.bytes + self.blocks.len() * OVERHEAD
    }

    /// Runs of bytes that are held: no fewer than there are gaps.
    pub(super) fn runs(&self) -> usize {
        self.runs
    }

    /// Blocks that begin within the bytes of one frame from the next byte on.
    pub(super) fn blocks_of_frame(&self) -> usize {
        self.blocks.range(self.next..self.next + FRAME).count()
    }

    /// Offset of the next byte to be read.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Offset of the next byte, if it is missing before others.
    pub(super) fn gap(&self) -> Option<u64> {
        self.blocks.first_key_value().filter(|(start, _)| **start > self.next).map(|_| self.next)
    }

    /// Counts bytes that were read past it, while it was empty.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.next += bytes as u64;
    }

    /// Moves bytes that are next into `buffer`; true if there were some.
    pub(super) fn read(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let before = self.next;
        while buffer.remaining() > 0
            && let Some(mut first) = self.blocks.first_entry().filter(|first| *first.key() == self.next)
        {
            let block = first.get_mut();
            let taken = block.len().min(buffer.remaining());
            buffer.put_slice(&block.split_to(taken));
            self.next += taken as u64;
            self.bytes -= taken;
            let rest = first.remove();
            if !rest.is_empty() {
                self.blocks.insert(self.next, rest);
            } else if !self.blocks.contains_key(&self.next) {
                self.runs -= 1;
            }
        }
        self.next > before
    }

    /// Takes a piece behind all that follows the last read byte without a gap.
    pub(super) fn append(&mut self, piece: &[u8]) {
        let end = self.blocks.last_key_value().map_or(self.next, |(start, block)| start + block.len() as u64);
        self.insert(end, piece);
    }

    /// Takes a piece that was not here before.
    pub(super) fn insert(&mut self, offset: u64, piece: &[u8]) {
        self.bytes += piece.len();
        let is_continued = self.blocks.contains_key(&(offset + piece.len() as u64));
        let before = self.blocks.range_mut(..offset).next_back();
        let before = before.filter(|(start, block)| **start + block.len() as u64 == offset);
        self.runs = self.runs + 1 - usize::from(is_continued) - usize::from(before.is_some());
        match before {
            Some((_, block)) if block.len() + piece.len() <= BLOCK => block.extend_from_slice(piece),
            _ => _ = self.blocks.insert(offset, BytesMut::from(piece)),
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        (self.bytes, self.runs) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of random lengths in random order, read in between, against the plain bytes.
    #[test]
    fn bytes_come_in_order_whatever_the_order_of_the_pieces() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let plain: Vec<u8> = (0..random.usize(1..200_000))
                .map(|at| u8::try_from(at / 7 % 251).expect("below 251"))
                .collect();
            let mut pieces = Vec::new();
            let mut at = 0;
            while at < plain.len() {
                let end = plain.len().min(at + random.usize(1..3_000));
                pieces.push(at..end);
                at = end;
            }
            for at in 1..pieces.len() {
                let other = at - random.usize(0..=at.min(20));
                pieces.swap(at, other);
            }
            let (mut reassembly, mut read, mut memory) = (Reassembly::default(), Vec::new(), vec![0; 5_000]);
            let mut received = vec![false; plain.len()];
            for piece in pieces {
                let size = random.usize(0..memory.len());
                received[piece.clone()].fill(true);
                let mut buffer = ReadBuf::new(&mut memory[..size]);
                reassembly.insert(piece.start as u64, &plain[piece]);
                reassembly.read(&mut buffer);
                read.extend_from_slice(buffer.filled());
                assert!(plain.starts_with(&read), "seed {seed}");
                let held = &received[read.len()..];
                let runs = held.chunk_by(|one, next| one == next).filter(|run| run[0]).count();
                assert_eq!(reassembly.runs(), runs, "seed {seed}");
            }
            while read.len() < plain.len() {
                let mut buffer = ReadBuf::new(&mut memory);
                assert!(reassembly.read(&mut buffer), "seed {seed}");
                read.extend_from_slice(buffer.filled());
            }
            assert!(read == plain, "seed {seed}");
            assert_eq!((reassembly.held(), reassembly.runs()), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn pieces_that_follow_each_other_are_one_block() {
        let mut reassembly = Reassembly::default();
        for at in 0..10_000 {
            reassembly.insert(100 + at * 10, &[7; 10]);
        }
        assert!(reassembly.held() <= 100_000 + 2 * OVERHEAD, "{}", reassembly.held());
        reassembly.clear();
        assert_eq!(reassembly.held(), 0);
    }
}
