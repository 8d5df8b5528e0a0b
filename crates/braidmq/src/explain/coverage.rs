//! Which bytes of a stream have been sent before.

use std::collections::BTreeMap;

/// Ranges of offsets, apart from each other: first offset to the offset behind the last.
#[derive(Debug, Default)]
pub(super) struct Coverage(BTreeMap<u64, u64>);

impl Coverage {
    /// Adds the bytes from `start` up to `end` and returns how many of them were there already.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let (mut first, mut last, mut known) = (start, end, 0);
        // Touching ranges merge, so that a stream sent in order stays one range.
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            known += to.min(end).saturating_sub(from.max(start));
            first = first.min(from);
            last = last.max(to);
            self.0.remove(&from);
        }
        self.0.insert(first, last);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_as_known_once_they_were_there() {
        let mut sent = Coverage::default();
        assert_eq!(sent.insert(0, 100), 0);
        assert_eq!(sent.insert(100, 200), 0);
        assert_eq!(sent.insert(300, 400), 0);
        assert_eq!(sent.insert(50, 350), 200);
        assert_eq!(sent.0, BTreeMap::from([(0, 400)]));
        assert_eq!(sent.insert(10, 20), 10);
        assert_eq!(sent.insert(5, 5), 0);
        assert_eq!(sent.insert(390, u64::MAX), 10);
    }

    #[test]
    fn it_agrees_with_a_set_of_bytes() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut sent, mut model) = (Coverage::default(), std::collections::BTreeSet::new());
        for _ in 0..2_000 {
            let start = random.u64(..500);
            let end = start + random.u64(..20);
            let known = (start..end).filter(|offset| !model.insert(*offset)).count();
            assert_eq!(sent.insert(start, end), known as u64);
        }
    }
}
