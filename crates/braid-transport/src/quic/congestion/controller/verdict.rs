//! Parts of a batch that do not leave although the library has sent them.
//!
//! A probe timeout sends two packets past the congestion window. Behind a policer whose bucket is empty they are lost,
//! and keep it empty. The congestion controller sees each packet while the library builds a batch, and gives its
//! verdict to the shared gate, from which the sender of the connection takes it with the batch. To the library the
//! withheld packets are lost.

use std::iter;
use std::ops::Range;

/// Verdict on a batch.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Bytes of the batch.
    length: usize,
    /// Ranges of bytes that leave, in order.
    permitted: Vec<Range<usize>>,
}

impl Verdict {
    /// Withholds parts of a batch of so many bytes. Parts are given in order.
    pub(super) fn new(withheld: impl Iterator<Item = Range<usize>>, length: usize) -> Self {
        let mut start = 0;
        let gap = |range: Range<usize>| std::mem::replace(&mut start, range.end)..range.start;
        let permitted = withheld.chain(iter::once(length..length)).map(gap).filter(|range| !range.is_empty());
        Self { length, permitted: permitted.collect() }
    }

    /// Number of bytes that do not leave.
    pub(super) fn withheld(&self) -> usize {
        self.length - self.permitted.iter().map(ExactSizeIterator::len).sum::<usize>()
    }

    /// Ranges of a batch of so many bytes that leave, in order. `None`: all of it leaves.
    pub(super) fn permitted(self, bytes: usize) -> Option<Vec<Range<usize>>> {
        (self.length == bytes && self.withheld() > 0).then_some(self.permitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<Range<usize>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn parts_that_are_not_withheld_leave_in_order() {
        let cases = [
            (&[][..], None),
            (&[(0, 100), (100, 300)], Some(Vec::new())),
            (&[(0, 100), (300, 300)], Some(ranges(&[(100, 300)]))),
            (&[(100, 200)], Some(ranges(&[(0, 100), (200, 300)]))),
            (&[(100, 200), (200, 300)], Some(ranges(&[(0, 100)]))),
        ];
        for (withheld, expected) in cases {
            let verdict = Verdict::new(ranges(withheld).into_iter(), 300);
            assert_eq!(verdict.permitted(300), expected);
        }
    }
}
