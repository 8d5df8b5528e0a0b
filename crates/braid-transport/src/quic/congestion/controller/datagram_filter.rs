//! Packets that the gate keeps back although the library has sent them.
//!
//! A probe timeout sends two packets past the congestion window. Behind a policer whose bucket is empty they are lost, and
//! keep it empty. The congestion controller sees each packet just before the library hands all of them to the socket, on
//! the same thread and with nothing in between; so it leaves word here which of them are not to leave. To the library they
//! are lost.
//!
//! One of them may hold something urgent, since the library puts into such a packet whatever is there. It is kept until
//! it may leave, and only late.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::shared::SharedGate;

/// Bytes of a batch that are kept back.
#[derive(Debug)]
struct Word {
    withheld: Vec<Range<usize>>,
    /// The one of them that leaves later.
    later: Option<Later>,
    /// Bytes of the batch, once all of them are known.
    length: Option<usize>,
}

/// A datagram of a batch that stays here until the gate lets it leave.
#[derive(Debug)]
pub(in crate::quic) struct Later {
    pub(in crate::quic) range: Range<usize>,
    /// Of its packet.
    pub(in crate::quic) number: u64,
    pub(in crate::quic) gate: Arc<SharedGate>,
}

/// What becomes of a batch.
#[derive(Debug)]
pub(in crate::quic) struct Kept {
    /// What leaves now, in order.
    pub(in crate::quic) now: Vec<Range<usize>>,
    pub(in crate::quic) later: Option<Later>,
}

thread_local! {
    static WORD: RefCell<Word> = const { RefCell::new(Word { withheld: Vec::new(), later: None, length: None }) };
}

/// This part of the batch stays here. Parts are told in order.
pub(super) fn part(range: Range<usize>) {
    WORD.with_borrow_mut(|word| {
        if word.length.take().is_some() {
            word.forget();
        }
        word.withheld.push(range);
    });
}

/// A part that was told before leaves later.
pub(super) fn later(later: Later) {
    WORD.with_borrow_mut(|word| word.later = Some(later));
}

/// The batch has so many bytes, and is handed over next.
pub(super) fn batch(bytes: usize) {
    WORD.with_borrow_mut(|word| {
        if word.length.is_some() {
            word.forget();
        }
        word.length = (!word.withheld.is_empty()).then_some(bytes);
    });
}

impl Word {
    fn forget(&mut self) {
        self.withheld.clear();
        self.later = None;
    }
}

/// What becomes of a batch of so many bytes; `None`: all of it leaves.
pub(in crate::quic) fn kept(bytes: usize) -> Option<Kept> {
    WORD.with_borrow_mut(|word| {
        let length = word.length.take()?;
        let (withheld, later) = (std::mem::take(&mut word.withheld), word.later.take());
        if length != bytes {
            return None;
        }
        let mut now = Vec::new();
        let mut start = 0;
        for range in withheld {
            if range.start > start {
                now.push(start..range.start);
            }
            start = range.end;
        }
        if start < bytes {
            now.push(start..bytes);
        }
        Some(Kept { now, later })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<Range<usize>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
    }

    fn leaving(bytes: usize) -> Option<Vec<Range<usize>>> {
        kept(bytes).map(|kept| kept.now)
    }

    #[test]
    fn what_was_not_withheld_is_kept_in_order() {
        let cases = [
            (&[][..], None),
            (&[0, 100, 200], Some(Vec::new())),
            (&[0], Some(ranges(&[(100, 300)]))),
            (&[100], Some(ranges(&[(0, 100), (200, 300)]))),
            (&[100, 200], Some(ranges(&[(0, 100)]))),
        ];
        for (withheld, expected) in cases {
            withheld.iter().for_each(|start| part(*start..start + 100));
            batch(300);
            assert_eq!(leaving(300), expected);
            assert_eq!(leaving(300), None, "word is taken once");
        }
    }

    #[test]
    fn word_of_another_batch_does_not_count() {
        part(0..100);
        batch(100);
        assert_eq!(leaving(150), None);
        assert_eq!(leaving(100), None);
        part(0..100);
        batch(100);
        batch(100);
        assert_eq!(leaving(100), None, "the last word counts");
        part(0..100);
        batch(100);
        part(50..100);
        batch(100);
        assert_eq!(leaving(100), Some(ranges(&[(0, 50)])));
    }

    #[test]
    fn what_leaves_later_belongs_to_its_batch() {
        let one = || Later { range: 0..100, number: 7, gate: SharedGate::new(0, 2, None) };
        for (bytes, expected) in [(300, Some((0..100, 7))), (150, None)] {
            part(0..100);
            later(one());
            batch(300);
            let found = kept(bytes).and_then(|kept| kept.later).map(|later| (later.range, later.number));
            assert_eq!(found, expected);
        }
        part(0..100);
        later(one());
        batch(300);
        part(100..200);
        batch(300);
        assert!(kept(300).is_some_and(|kept| kept.later.is_none()), "of the batch before");
    }
}
