//! Packets that the gate keeps back although the library has sent them.
//!
//! A probe timeout sends two packets past the congestion window. Behind a policer whose bucket is empty they are lost, and
//! keep it empty. The congestion controller sees each packet just before the library hands all of them to the socket, on
//! the same thread and with nothing in between; so it leaves word here which of them are not to leave. To the library they
//! are lost.

use std::cell::RefCell;
use std::ops::Range;

/// Bytes of a batch that are kept back.
#[derive(Debug)]
struct Word {
    withheld: Vec<Range<usize>>,
    /// Bytes of the batch, once all of them are known.
    length: Option<usize>,
}

thread_local! {
    static WORD: RefCell<Word> = const { RefCell::new(Word { withheld: Vec::new(), length: None }) };
}

/// This part of the batch stays here. Parts are told in order.
pub(super) fn part(range: Range<usize>) {
    WORD.with_borrow_mut(|word| {
        if word.length.take().is_some() {
            word.withheld.clear();
        }
        word.withheld.push(range);
    });
}

/// The batch has so many bytes, and is handed over next.
pub(super) fn batch(bytes: usize) {
    WORD.with_borrow_mut(|word| {
        if word.length.is_some() {
            word.withheld.clear();
        }
        word.length = (!word.withheld.is_empty()).then_some(bytes);
    });
}

/// What of a batch of so many bytes is to leave, in order; `None`: all of it.
pub(in crate::quic) fn kept(bytes: usize) -> Option<Vec<Range<usize>>> {
    WORD.with_borrow_mut(|word| {
        let length = word.length.take()?;
        let withheld = std::mem::take(&mut word.withheld);
        if length != bytes {
            return None;
        }
        let mut kept = Vec::new();
        let mut start = 0;
        for range in withheld {
            if range.start > start {
                kept.push(start..range.start);
            }
            start = range.end;
        }
        if start < bytes {
            kept.push(start..bytes);
        }
        Some(kept)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pairs: &[(usize, usize)]) -> Vec<Range<usize>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
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
            assert_eq!(kept(300), expected);
            assert_eq!(kept(300), None, "word is taken once");
        }
    }

    #[test]
    fn word_of_another_batch_does_not_count() {
        part(0..100);
        batch(100);
        assert_eq!(kept(150), None);
        assert_eq!(kept(100), None);
        part(0..100);
        batch(100);
        batch(100);
        assert_eq!(kept(100), None, "the last word counts");
        part(0..100);
        batch(100);
        part(50..100);
        batch(100);
        assert_eq!(kept(100), Some(ranges(&[(0, 50)])));
    }
}
