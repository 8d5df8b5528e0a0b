//! Parts of a batch that do not leave although the library has sent them.
//!
//! A probe timeout sends two packets past the congestion window. Behind a policer whose bucket is empty they are lost,
//! and keep it empty. The congestion controller sees each packet just before the library hands the batch to the socket,
//! on the same thread and with nothing in between; so it leaves its verdict here. To the library the withheld packets
//! are lost.
//!
//! One of them may hold urgent bytes, since the library puts pending data into such a packet. Its datagram is deferred.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::shared_gate::SharedGate;

/// Verdict on a batch.
#[derive(Debug)]
struct Verdict {
    /// Ranges of bytes that do not leave, in order.
    withheld: Vec<Range<usize>>,
    /// The one of them that is deferred.
    deferred: Option<DeferredPart>,
    /// Bytes of the batch, once it is complete.
    length: Option<usize>,
}

/// Datagram of a batch that is deferred.
#[derive(Debug)]
pub(in crate::quic) struct DeferredPart {
    pub(in crate::quic) range: Range<usize>,
    /// Packet number.
    pub(in crate::quic) number: u64,
    pub(in crate::quic) gate: Arc<SharedGate>,
}

/// Parts of a batch.
#[derive(Debug)]
pub(in crate::quic) struct Filtered {
    /// Ranges of bytes that leave, in order.
    pub(in crate::quic) permitted: VecDeque<Range<usize>>,
    pub(in crate::quic) deferred: Option<DeferredPart>,
}

thread_local! {
    static VERDICT: RefCell<Verdict> =
        const { RefCell::new(Verdict { withheld: Vec::new(), deferred: None, length: None }) };
}

/// Withholds a part of the batch. Parts are given in order.
pub(in crate::quic) fn withhold(range: Range<usize>) {
    VERDICT.with_borrow_mut(|verdict| {
        if verdict.length.take().is_some() {
            verdict.reset();
        }
        verdict.withheld.push(range);
    });
}

/// Defers a withheld part.
pub(in crate::quic) fn defer(part: DeferredPart) {
    VERDICT.with_borrow_mut(|verdict| verdict.deferred = Some(part));
}

/// Completes the batch, which has so many bytes and is handed to the socket next.
pub(in crate::quic) fn complete(bytes: usize) {
    VERDICT.with_borrow_mut(|verdict| {
        if verdict.length.is_some() {
            verdict.reset();
        }
        verdict.length = (!verdict.withheld.is_empty()).then_some(bytes);
    });
}

impl Verdict {
    fn reset(&mut self) {
        self.withheld.clear();
        self.deferred = None;
    }
}

/// Takes the verdict on a batch of so many bytes; `None`: all of it leaves.
pub(in crate::quic) fn take(bytes: usize) -> Option<Filtered> {
    VERDICT.with_borrow_mut(|verdict| {
        let length = verdict.length.take()?;
        let (withheld, deferred) = (std::mem::take(&mut verdict.withheld), verdict.deferred.take());
        if length != bytes {
            return None;
        }
        let mut start = 0;
        let gap = |range: Range<usize>| std::mem::replace(&mut start, range.end)..range.start;
        let permitted = withheld.into_iter().chain(std::iter::once(bytes..bytes)).map(gap);
        Some(Filtered { permitted: permitted.filter(|range| !range.is_empty()).collect(), deferred })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<Range<usize>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
    }

    fn leaving(bytes: usize) -> Option<Vec<Range<usize>>> {
        take(bytes).map(|filtered| filtered.permitted.into())
    }

    #[test]
    fn parts_that_are_not_withheld_leave_in_order() {
        let cases = [
            (&[][..], None),
            (&[0, 100, 200], Some(Vec::new())),
            (&[0], Some(ranges(&[(100, 300)]))),
            (&[100], Some(ranges(&[(0, 100), (200, 300)]))),
            (&[100, 200], Some(ranges(&[(0, 100)]))),
        ];
        for (withheld, expected) in cases {
            withheld.iter().for_each(|start| withhold(*start..start + 100));
            complete(300);
            assert_eq!(leaving(300), expected);
            assert_eq!(leaving(300), None, "the verdict is taken once");
        }
    }

    #[test]
    fn the_verdict_on_another_batch_does_not_count() {
        withhold(0..100);
        complete(100);
        assert_eq!(leaving(150), None);
        assert_eq!(leaving(100), None);
        withhold(0..100);
        complete(100);
        complete(100);
        assert_eq!(leaving(100), None, "the last verdict counts");
        withhold(0..100);
        complete(100);
        withhold(50..100);
        complete(100);
        assert_eq!(leaving(100), Some(ranges(&[(0, 50)])));
    }

    #[test]
    fn the_deferred_part_belongs_to_its_batch() {
        let one = || DeferredPart { range: 0..100, number: 7, gate: SharedGate::new(0, 2, None) };
        for (bytes, expected) in [(300, Some((0..100, 7))), (150, None)] {
            withhold(0..100);
            defer(one());
            complete(300);
            let found =
                take(bytes).and_then(|filtered| filtered.deferred).map(|part| (part.range, part.number));
            assert_eq!(found, expected);
        }
        withhold(0..100);
        defer(one());
        complete(300);
        withhold(100..200);
        complete(300);
        assert!(take(300).is_some_and(|filtered| filtered.deferred.is_none()), "of the batch before");
    }
}
