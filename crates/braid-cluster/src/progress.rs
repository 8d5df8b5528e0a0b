//! Progress of a session in one shard of the log: the position up to which all is complete, and the complete messages
//! beyond it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Ranges of a checkpoint from which on it has as few as possible: the record of a session is one message of NATS.
const RANGES: usize = 2000;

/// Progress of a session in a shard, by sequence numbers of its stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Position of the node: what the session has to get up to there is known.
    seen: u64,
    /// Messages of the session that are not complete.
    outstanding: BTreeSet<u64>,
    /// Complete ones behind the first that is not, as ranges: first and last number.
    complete: BTreeMap<u64, u64>,
}

/// Progress as the record of a session has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// All up to this number is complete.
    #[serde(rename = "d")]
    pub done: u64,
    /// Ranges beyond it that are complete too: first and last number, ascending.
    #[serde(rename = "b", default, skip_serializing_if = "Vec::is_empty")]
    pub beyond: Vec<(u64, u64)>,
}

impl Checkpoint {
    /// Tests whether the session still has to get a message.
    #[must_use]
    pub fn is_needed(&self, sequence: u64) -> bool {
        let after = self.beyond.partition_point(|(first, _)| *first <= sequence);
        let within = after.checked_sub(1).is_some_and(|at| sequence <= self.beyond[at].1);
        sequence > self.done && !within
    }

    /// The progress where all up to `done` is complete too.
    #[must_use]
    pub fn advanced(&self, done: u64) -> Self {
        let mut advanced = Self { done: self.done.max(done), beyond: Vec::new() };
        for (first, last) in &self.beyond {
            if *first <= advanced.done.saturating_add(1) {
                advanced.done = advanced.done.max(*last);
            } else {
                advanced.beyond.push((*first, *last));
            }
        }
        advanced
    }
}

impl Progress {
    /// Progress of a session that goes on from a checkpoint.
    #[must_use]
    pub fn resume(from: &Checkpoint) -> Self {
        let complete = from.beyond.iter().copied().collect();
        let seen = from.beyond.last().map_or(from.done, |(_, last)| from.done.max(*last));
        Self { seen, outstanding: BTreeSet::new(), complete }
    }

    /// Notes that the session has to get this message. In any order, but before [`see`](Self::see) has passed it.
    pub fn queue(&mut self, sequence: u64) {
        self.outstanding.insert(sequence);
    }

    /// Notes that everything up to this number has been queued that the session has to get.
    pub fn see(&mut self, sequence: u64) {
        self.seen = self.seen.max(sequence);
    }

    /// Notes that the client has acknowledged a message, or does not get it.
    pub fn complete(&mut self, sequence: u64) {
        if !self.outstanding.remove(&sequence) {
            return;
        }
        self.insert(sequence);
        // All before the first outstanding one is complete anyway.
        let first = self.outstanding.first().copied().unwrap_or(u64::MAX);
        while let Some(entry) = self.complete.first_entry() {
            if *entry.get() >= first {
                break;
            }
            entry.remove();
        }
    }

    fn insert(&mut self, sequence: u64) {
        let (mut first, mut last) = (sequence, sequence);
        if let Some((before, end)) = self.complete.range(..sequence).next_back().map(|(a, b)| (*a, *b))
            && end + 1 >= sequence
        {
            (first, last) = (before, end.max(sequence));
        }
        if let Some(end) = self.complete.remove(&(sequence + 1)) {
            last = end;
        }
        self.complete.insert(first, last);
    }

    /// Number of messages that are not complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Tests whether a message was queued since the progress was resumed, or is complete beyond the first that is not.
    #[must_use]
    pub fn is_known(&self, sequence: u64) -> bool {
        let is_complete =
            || self.complete.range(..=sequence).next_back().is_some_and(|(_, last)| sequence <= *last);
        self.outstanding.contains(&sequence) || is_complete()
    }

    /// The progress for the record, where everything up to `seen` has been queued. It has no more ranges than messages
    /// that are not complete, however many are complete behind them.
    #[must_use]
    pub fn checkpoint_at(&self, seen: u64) -> Checkpoint {
        self.checkpoint_within(seen, RANGES)
    }

    /// The progress for the record, which has the complete messages alone where there would be more than `most` ranges
    /// and that are fewer: then those between them that the session does not get are looked at once more.
    fn checkpoint_within(&self, seen: u64, most: usize) -> Checkpoint {
        let seen = self.seen.max(seen);
        let Some(first) = self.outstanding.first().copied() else {
            return Checkpoint { done: seen, beyond: Vec::new() };
        };
        let mut beyond = Vec::new();
        let mut after = first;
        let open = self.outstanding.range(first.saturating_add(1)..).copied();
        for next in open.take_while(|next| *next <= seen).chain([seen.saturating_add(1)]) {
            if next > after + 1 {
                beyond.push((after + 1, next - 1));
            }
            after = after.max(next);
        }
        if beyond.len() > most && self.complete.len() < beyond.len() {
            beyond = self.complete_ranges(seen);
        }
        // Some that are being delivered now may be complete.
        let later = self.complete.iter().filter(|(_, last)| **last > seen);
        beyond.extend(later.map(|(first, last)| ((*first).max(seen + 1), *last)));
        Checkpoint { done: first - 1, beyond }
    }

    /// Ranges up to `seen` of which each has a complete message, and all behind the last one that is not.
    fn complete_ranges(&self, seen: u64) -> Vec<(u64, u64)> {
        let last = self.outstanding.range(..=seen).next_back().copied().unwrap_or(0);
        let complete = self.complete.range(..last).map(|(first, end)| (*first, *end));
        let mut ranges: Vec<_> = complete.filter(|(first, _)| *first <= seen).collect();
        if last < seen {
            ranges.push((last + 1, seen));
        }
        ranges
    }

    /// The progress for the record.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        self.checkpoint_at(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_message_that_is_not_complete_holds_the_position() {
        let mut progress = Progress::default();
        [5, 7, 8, 9, 20].into_iter().for_each(|sequence| progress.queue(sequence));
        progress.see(30);
        assert_eq!(progress.checkpoint().beyond, [(6, 6), (10, 19), (21, 30)]);
        [8, 7, 20].into_iter().for_each(|sequence| progress.complete(sequence));
        assert_eq!(progress.checkpoint(), Checkpoint { done: 4, beyond: vec![(6, 8), (10, 30)] });
        progress.complete(5);
        assert_eq!(progress.checkpoint(), Checkpoint { done: 8, beyond: vec![(10, 30)] });
        progress.complete(9);
        assert_eq!(progress.checkpoint(), Checkpoint { done: 30, beyond: vec![] });
    }

    #[test]
    fn every_other_message_that_waits_makes_no_long_record() {
        let mut progress = Progress::resume(&Checkpoint { done: 10, beyond: Vec::new() });
        (10..=60_000).for_each(|number| progress.queue(2 * number));
        progress.see(130_000);
        [30, 31, 60_000].into_iter().for_each(|number| progress.complete(2 * number));
        let checkpoint = progress.checkpoint();
        assert_eq!(checkpoint.done, 19);
        assert_eq!(checkpoint.beyond, [(60, 60), (62, 62), (119_999, 130_000)]);
    }

    // A list of them would take all memory.
    #[test]
    fn messages_of_a_long_range_are_known_one_by_one() {
        let checkpoint = Checkpoint { done: 4, beyond: vec![(6, 8), (10, 1 << 60)] };
        let mut progress = Progress::resume(&checkpoint);
        progress.queue(5);
        let known = [4, 5, 6, 8, 9, 10, 1 << 59, 1 << 60, (1 << 60) + 1].map(|at| progress.is_known(at));
        assert_eq!(known, [false, true, true, true, false, true, true, true, false]);
    }

    /// Operation on a session: a message that it gets or not, or the end of one that it has.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Log { matches: bool },
        Complete { nth: usize },
        Move,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(|matches| Step::Log { matches }),
            3 => (0..50_usize).prop_map(|nth| Step::Complete { nth }),
            1 => Just(Step::Move),
        ]
    }

    proptest! {
        /// A session that moves to another node at any time gets exactly what is not complete.
        #[test]
        fn a_checkpoint_says_exactly_what_is_needed(
            steps in proptest::collection::vec(step(), 0..200),
            most in prop_oneof![Just(RANGES), 0..4_usize],
        ) {
            let (mut progress, mut last, mut matching, mut open) = (Progress::default(), 0, vec![], vec![]);
            for step in steps {
                match step {
                    Step::Log { matches } => {
                        last += 1;
                        if matches {
                            matching.push(last);
                            open.push(last);
                            progress.queue(last);
                        }
                        progress.see(last);
                    }
                    Step::Complete { nth } if !open.is_empty() => {
                        progress.complete(open.remove(nth % open.len()));
                    }
                    Step::Complete { .. } => {}
                    Step::Move => {
                        let checkpoint = progress.checkpoint_within(0, most);
                        progress = Progress::resume(&checkpoint);
                        for sequence in matching.iter().filter(|sequence| checkpoint.is_needed(**sequence)) {
                            progress.queue(*sequence);
                        }
                        progress.see(last);
                    }
                }
                let checkpoint = progress.checkpoint_within(0, most);
                let needed: Vec<_> =
                    matching.iter().copied().filter(|sequence| checkpoint.is_needed(*sequence)).collect();
                prop_assert_eq!(&needed, &open);
                prop_assert_eq!(progress.outstanding(), open.len());
                let ranges = checkpoint.beyond.iter().flat_map(|(first, last)| [*first, *last]);
                prop_assert!(ranges.is_sorted(), "{:?}", checkpoint);
                prop_assert!(checkpoint.beyond.iter().all(|(first, _)| *first > checkpoint.done));
            }
        }
    }
}
