//! Counters of messages, one for each topic, which every load fills and every summary shows.

use std::time::Duration;

use braid_measure::Latencies;

use crate::summary::{TopicSummary, Trace};

/// Seconds of a year, the longest measurement.
const MOST: usize = 366 * 24 * 3600;
/// Messages of a topic of which single times are kept.
const MOST_TRACED: usize = 100_000;

/// Messages of one topic on one stream, or requests for one object: a summary without its latencies, and these.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// The trace is `None` unless a caller wants it.
    pub(crate) counts: TopicSummary,
    pub(crate) latencies: Latencies,
}

impl Tally {
    /// Records messages of `bytes` altogether that were acknowledged, or taken by the transport.
    pub(crate) fn acknowledged(&mut self, second: usize, messages: u64, bytes: u64) {
        self.counts.acked += messages;
        self.counts.bytes += bytes;
        add_at(&mut self.counts.per_second, second, messages);
    }

    /// Records the receipt of a message of `bytes`.
    pub(crate) fn received(&mut self, second: usize, bytes: u64) {
        self.counts.received += 1;
        self.counts.bytes += bytes;
        add_at(&mut self.counts.per_second, second, 1);
    }

    /// Records the time between two messages of one topic.
    pub(crate) fn gap(&mut self, gap: Duration) {
        let gap = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
        self.counts.longest_gap_us = self.counts.longest_gap_us.max(Some(gap));
    }

    /// Records the due time of a message since the Unix epoch, and its latency at a receiver.
    pub(crate) fn was_due(&mut self, unix: Duration, took: Option<Duration>) {
        if let Some(trace) = &mut self.counts.trace {
            trace.note(unix, took);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add_counts(&other.counts);
        self.latencies.add(&other.latencies);
    }

    pub(crate) fn summary(self, topic: String, stream: u64, priority: Option<u16>) -> TopicSummary {
        let (latency_us, latency_cdf) = (self.latencies.quantiles_us(), self.latencies.curve_us());
        TopicSummary { topic, stream, priority, latency_us, latency_cdf, ..self.counts }
    }
}

impl TopicSummary {
    /// Adds the counts and single messages of another topic; the latencies stay.
    pub fn add_counts(&mut self, other: &Self) {
        self.sent += other.sent;
        self.acked += other.acked;
        self.received += other.received;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.longest_gap_us = self.longest_gap_us.max(other.longest_gap_us);
        add_all(&mut self.per_second, &other.per_second);
        if let Some(trace) = &other.trace {
            self.trace.get_or_insert_default().add(trace);
        }
    }
}

impl Trace {
    /// Appends a message, unless there are enough.
    pub(crate) fn note(&mut self, unix: Duration, took: Option<Duration>) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if self.due_unix_us.len() < MOST_TRACED {
            self.due_unix_us.push(micros(unix));
            self.took_us.extend(took.map(micros));
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.due_unix_us.extend(&other.due_unix_us);
        self.took_us.extend(&other.took_us);
    }
}

/// Adds to the count of a second.
pub(crate) fn add_at(seconds: &mut Vec<u64>, second: usize, by: u64) {
    let second = second.min(MOST);
    if seconds.len() <= second {
        seconds.resize(second + 1, 0);
    }
    seconds[second] += by;
}

/// Adds another list second by second.
pub(crate) fn add_all(seconds: &mut Vec<u64>, others: &[u64]) {
    if seconds.len() < others.len() {
        seconds.resize(others.len(), 0);
    }
    seconds.iter_mut().zip(others).for_each(|(second, other)| *second += other);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_to_the_last_second_and_no_further_than_a_year() {
        let mut seconds = Vec::new();
        add_at(&mut seconds, 2, 5);
        add_at(&mut seconds, 0, 1);
        assert_eq!(seconds, [1, 0, 5]);
        add_all(&mut seconds, &[1, 2]);
        add_all(&mut seconds, &[0, 0, 0, 7]);
        assert_eq!(seconds, [2, 2, 5, 7]);
        add_at(&mut seconds, usize::MAX, 1);
        assert_eq!(seconds.len(), MOST + 1);
    }
}
