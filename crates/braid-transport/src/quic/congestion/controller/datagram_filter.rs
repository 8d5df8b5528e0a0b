//! Parts of a batch that do not leave although the library has sent them.
//!
//! A probe timeout sends two packets past the congestion window. Behind a policer whose bucket is empty they are lost,
//! and keep it empty. The congestion controller sees each packet while the library builds a batch, and leaves its
//! verdict here for the sender of the connection, which takes it with the batch. To the library the withheld packets
//! are lost.

use std::ops::Range;

/// Verdict on the batch that is being built.
#[derive(Debug, Default)]
pub(super) struct DatagramFilter {
    /// Ranges of bytes that do not leave, in order.
    withheld: Vec<Range<usize>>,
    /// Bytes of the batch, once it is complete.
    length: Option<usize>,
}

impl DatagramFilter {
    /// Withholds a part of the batch. Parts are given in order.
    pub(super) fn withhold(&mut self, range: Range<usize>) {
        if self.length.take().is_some() {
            self.withheld.clear();
        }
        self.withheld.push(range);
    }

    /// Completes the batch, which has so many bytes and leaves next.
    pub(super) fn complete(&mut self, bytes: usize) {
        if self.length.is_some() {
            self.withheld.clear();
        }
        self.length = (!self.withheld.is_empty()).then_some(bytes);
    }

    /// Takes the verdict on a batch of so many bytes: ranges of bytes that leave, in order. `None`: all of it leaves.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Vec<Range<usize>>> {
        let length = self.length.take()?;
        let withheld = std::mem::take(&mut self.withheld);
        if length != bytes {
            return None;
        }
        let mut start = 0;
        let gap = |range: Range<usize>| std::mem::replace(&mut start, range.end)..range.start;
        let permitted = withheld.into_iter().chain(std::iter::once(bytes..bytes)).map(gap);
        Some(permitted.filter(|range| !range.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<Range<usize>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
    }

    fn leaving(filter: &mut DatagramFilter, bytes: usize) -> Option<Vec<Range<usize>>> {
        filter.take(bytes)
    }

    #[test]
    fn parts_that_are_not_withheld_leave_in_order() {
        let mut filter = DatagramFilter::default();
        let cases = [
            (&[][..], None),
            (&[0, 100, 200], Some(Vec::new())),
            (&[0], Some(ranges(&[(100, 300)]))),
            (&[100], Some(ranges(&[(0, 100), (200, 300)]))),
            (&[100, 200], Some(ranges(&[(0, 100)]))),
        ];
        for (withheld, expected) in cases {
            withheld.iter().for_each(|start| filter.withhold(*start..start + 100));
            filter.complete(300);
            assert_eq!(leaving(&mut filter, 300), expected);
            assert_eq!(leaving(&mut filter, 300), None, "the verdict is taken once");
        }
    }

    #[test]
    fn the_verdict_on_another_batch_does_not_count() {
        let mut filter = DatagramFilter::default();
        filter.withhold(0..100);
        filter.complete(100);
        assert_eq!(leaving(&mut filter, 150), None);
        assert_eq!(leaving(&mut filter, 100), None);
        filter.withhold(0..100);
        filter.complete(100);
        filter.complete(100);
        assert_eq!(leaving(&mut filter, 100), None, "the last verdict counts");
        filter.withhold(0..100);
        filter.complete(100);
        filter.withhold(50..100);
        filter.complete(100);
        assert_eq!(leaving(&mut filter, 100), Some(ranges(&[(0, 50)])));
    }
}
