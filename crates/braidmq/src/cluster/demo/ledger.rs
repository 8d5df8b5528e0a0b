//! Ledger of numbered messages: published, acknowledged, delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Ledger of the messages of one publisher, whose numbers ascend, and one subscriber. Delivered and acknowledged
/// numbers are forgotten.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Numbers without an acknowledgement, with the time of their publication.
    unacknowledged: BTreeMap<u64, Instant>,
    /// Numbers that were not delivered.
    undelivered: BTreeSet<u64>,
    /// Numbers that the broker refused.
    refused: BTreeSet<u64>,
    counts: Counts,
    highest: u64,
    last_acknowledgement: Option<Instant>,
    last_delivery: Option<Instant>,
}

/// Numbers of messages, and the longest waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) published: u64,
    pub(super) acknowledged: u64,
    pub(super) refused: u64,
    /// Messages that came, each counted once.
    pub(super) delivered: u64,
    /// Deliveries of a message that had come before.
    pub(super) duplicates: u64,
    /// First deliveries after that of a later message.
    pub(super) out_of_order: u64,
    /// Acknowledged messages that were passed over: a later one was delivered, and they were not.
    pub(super) lost: u64,
    /// Longest time from a publication to its acknowledgement.
    pub(super) longest_acknowledgement: Duration,
    /// Longest time between two deliveries.
    pub(super) longest_gap: Duration,
}

impl Ledger {
    /// Number for the next message, which is published at `now`.
    pub(super) fn publish(&mut self, now: Instant) -> u64 {
        self.counts.published += 1;
        let number = self.counts.published;
        self.unacknowledged.insert(number, now);
        self.undelivered.insert(number);
        number
    }

    /// Takes note of an acknowledgement, and returns the time since the last one.
    pub(super) fn acknowledge(&mut self, number: u64, now: Instant) -> Duration {
        let last = self.last_acknowledgement.replace(now).unwrap_or(now);
        if let Some(published) = self.unacknowledged.remove(&number) {
            self.counts.acknowledged += 1;
            let waited = now.saturating_duration_since(published);
            self.counts.longest_acknowledgement = self.counts.longest_acknowledgement.max(waited);
        }
        now.saturating_duration_since(last)
    }

    /// Takes note that a message was not acknowledged and will not be: nothing is promised for it.
    pub(super) fn refuse(&mut self, number: u64) {
        if self.unacknowledged.remove(&number).is_some() {
            self.counts.refused += 1;
            self.refused.insert(number);
        }
    }

    /// Takes note of a delivery, and returns the time since the last one.
    pub(super) fn deliver(&mut self, number: u64, now: Instant) -> Duration {
        let last = self.last_delivery.replace(now).unwrap_or(now);
        let gap = now.saturating_duration_since(last);
        self.counts.longest_gap = self.counts.longest_gap.max(gap);
        if self.undelivered.remove(&number) {
            self.counts.delivered += 1;
            self.counts.out_of_order += u64::from(number < self.highest);
            self.highest = self.highest.max(number);
        } else {
            self.counts.duplicates += 1;
        }
        gap
    }

    /// Counts as of now. Messages behind the last delivered one are on their way, and not lost.
    pub(super) fn counts(&self) -> Counts {
        Counts { lost: self.undelivered_up_to(self.highest), ..self.counts }
    }

    /// Counts at the end, when all deliveries have had their time: each acknowledged message that was not delivered is
    /// lost.
    pub(super) fn final_counts(&self) -> Counts {
        Counts { lost: self.undelivered_up_to(u64::MAX), ..self.counts }
    }

    /// True if nothing waits for an acknowledgement, and all that was acknowledged is delivered.
    pub(super) fn is_settled(&self) -> bool {
        self.unacknowledged.is_empty() && self.undelivered_up_to(u64::MAX) == 0
    }

    /// Number of acknowledged messages up to `last` that were not delivered.
    fn undelivered_up_to(&self, last: u64) -> u64 {
        let is_promised =
            |number: &&u64| !self.unacknowledged.contains_key(number) && !self.refused.contains(number);
        self.undelivered.range(..=last).filter(is_promised).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_acknowledged_and_passed_over_is_lost() {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
        for _ in 0..5 {
            ledger.publish(start);
        }
        (1..=3).for_each(|number| assert_eq!(ledger.acknowledge(number, start), Duration::ZERO));
        assert_eq!(ledger.acknowledge(4, start + SECOND), SECOND);
        assert_eq!(ledger.acknowledge(4, start + SECOND * 9), SECOND * 8, "counted once");
        assert_eq!(ledger.deliver(1, start), Duration::ZERO);
        assert_eq!(ledger.deliver(3, start + SECOND * 4), SECOND * 4);
        assert_eq!(ledger.counts().lost, 1, "2 was passed over, 4 is on its way");
        assert_eq!(ledger.final_counts().lost, 2);
        ledger.deliver(2, start + SECOND * 5);
        ledger.deliver(2, start + SECOND * 5);
        ledger.deliver(4, start + SECOND * 6);
        assert!(!ledger.is_settled(), "5 has no acknowledgement");
        ledger.refuse(5);
        assert!(ledger.is_settled());
        ledger.refuse(4);
        let expected = Counts {
            published: 5,
            acknowledged: 4,
            refused: 1,
            delivered: 4,
            duplicates: 1,
            out_of_order: 1,
            lost: 0,
            longest_acknowledgement: SECOND,
            longest_gap: SECOND * 4,
        };
        assert_eq!((ledger.counts(), ledger.final_counts()), (expected, expected));
    }

    /// Random histories against tables without any forgetting.
    #[test]
    fn counts_are_those_of_the_whole_history() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut ledger, mut now) = (Ledger::default(), Instant::now());
            let mut messages: HashMap<u64, (Option<bool>, u32)> = HashMap::new();
            let (mut highest, mut out_of_order) = (0, 0);
            for _ in 0..300 {
                now += Duration::from_millis(random.u64(..50));
                let number = random.u64(1..=(messages.len() as u64).max(1));
                match (random.u8(..5), messages.get_mut(&number)) {
                    (0 | 1, _) | (_, None) => drop(messages.insert(ledger.publish(now), (None, 0))),
                    (2, Some((outcome, _))) => {
                        outcome.get_or_insert(true);
                        ledger.acknowledge(number, now);
                    }
                    (3, Some((outcome, _))) => {
                        outcome.get_or_insert(false);
                        ledger.refuse(number);
                    }
                    (_, Some((_, deliveries))) => {
                        *deliveries += 1;
                        out_of_order += u64::from(*deliveries == 1 && number < highest);
                        highest = highest.max(number);
                        ledger.deliver(number, now);
                    }
                }
            }
            let count = |is: &dyn Fn(u64, Option<bool>, u32) -> bool| {
                messages.iter().filter(|(number, (outcome, times))| is(**number, *outcome, *times)).count()
                    as u64
            };
            let counts = ledger.counts();
            assert_eq!(counts.published, messages.len() as u64, "seed {seed}");
            assert_eq!(counts.acknowledged, count(&|_, outcome, _| outcome == Some(true)));
            assert_eq!(counts.refused, count(&|_, outcome, _| outcome == Some(false)));
            assert_eq!(counts.delivered, count(&|_, _, times| times > 0), "seed {seed}");
            let times: u32 = messages.values().map(|(_, times)| times).sum();
            assert_eq!(counts.duplicates + counts.delivered, u64::from(times), "seed {seed}");
            assert_eq!(counts.out_of_order, out_of_order, "seed {seed}");
            let is_lost = |outcome, times| outcome == Some(true) && times == 0;
            let passed_over = count(&|number, outcome, times| number <= highest && is_lost(outcome, times));
            assert_eq!(counts.lost, passed_over, "seed {seed}");
            let missing = count(&|_, outcome, times| is_lost(outcome, times));
            assert_eq!(ledger.final_counts().lost, missing, "seed {seed}");
            assert_eq!(ledger.is_settled(), missing == 0 && count(&|_, outcome, _| outcome.is_none()) == 0);
        }
    }
}
