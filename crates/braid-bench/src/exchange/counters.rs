use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use braid_measure::{Latencies, Quantiles};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::lock::lock;
use crate::pace::Schedule;
use crate::summary::{ConnectionsSummary, Event, Role, RunSummary, StreamSummary, TopicSummary};
use crate::tally::{Tally, add_at};

/// Most kinds of events of one run.
const MOST: usize = 16;

/// Counters of all connections of a requesting or responding side.
#[derive(Debug)]
pub(super) struct Counters {
    clock: Clock,
    /// A std lock: it is held for a few additions.
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Established connections, and the times that took.
    pub(super) established: u64,
    pub(super) connects: Latencies,
    /// Failed connections of a responding side.
    pub(super) failed: u64,
    /// Requests by the size of the object; a responding side has one entry for all.
    pub(super) objects: BTreeMap<u64, Tally>,
    bytes_per_second: BTreeMap<u64, Vec<u64>>,
    events: DistinctEvents,
}

/// Events besides the counters, each text once: where one connection fails, many do.
#[derive(Debug, Default)]
struct DistinctEvents {
    texts: BTreeSet<String>,
    kept: Vec<Event>,
}

impl Counters {
    /// Counters that have a topic in the summary for each of these sizes.
    pub(super) fn new(sizes: &[u64]) -> Self {
        let objects = sizes.iter().map(|size| (*size, Tally::default())).collect();
        Self { clock: Clock::now(), counts: Mutex::new(Counts { objects, ..Counts::default() }) }
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    pub(super) fn started(&self) -> Instant {
        self.clock.start()
    }

    fn seconds(&self) -> f64 {
        self.started().elapsed().as_secs_f64()
    }

    /// Counts an established connection and its duration.
    pub(super) fn connected(&self, time: Duration) {
        let mut counts = self.counts();
        counts.established += 1;
        counts.connects.record(time);
    }

    /// Counts a request for an object of this size.
    pub(super) fn requested(&self, size: u64) {
        self.counts().objects.entry(size).or_default().counts.sent += 1;
    }

    /// Counts requests that were due until `end` and never began, of a schedule of `rate` requests per second for the
    /// `sizes` in turn, with `most` requests altogether.
    pub(super) fn add_overdue(&self, rate: f64, end: Duration, most: u64, sizes: &[u64]) {
        let due = Schedule::new(rate, 0).due_before(end).min(most);
        let mut counts = self.counts();
        let begun: u64 = counts.objects.values().map(|object| object.counts.sent).sum();
        let count = sizes.len() as u64;
        for (size, place) in sizes.iter().zip(0..) {
            // Requests below a number whose object is at this place.
            let of_place = |below: u64| below.saturating_sub(place).div_ceil(count);
            let overdue = of_place(due).saturating_sub(of_place(begun));
            counts.objects.entry(*size).or_default().counts.sent += overdue;
        }
    }

    /// Counts a complete response of so many bytes to a request for `size`, due at `due`.
    pub(super) fn answered(&self, size: u64, bytes: u64, due: Instant) {
        let (second, latency) = (self.clock.second(Instant::now()), due.elapsed());
        let mut counts = self.counts();
        let object = counts.objects.entry(size).or_default();
        object.acknowledged(second, 1, bytes);
        object.latencies.record(latency);
    }

    /// Responses so far.
    pub(super) fn answers(&self) -> u64 {
        self.counts().objects.values().map(|object| object.counts.acked).sum()
    }

    /// Counts bytes received on a stream.
    pub(super) fn received(&self, stream: u64, bytes: usize) {
        let second = self.clock.second(Instant::now());
        let mut counts = self.counts();
        add_at(counts.bytes_per_second.entry(stream).or_default(), second, bytes as u64);
    }

    pub(super) fn note(&self, what: &str) {
        let at = self.seconds();
        self.counts().events.note(at, what);
    }

    /// Summary of the requesting side, which wanted so many connections.
    pub(super) fn requests(&self, wanted: usize) -> RunSummary {
        let counts = self.counts();
        let failed = counts.objects.values().map(|object| object.counts.failed).sum();
        let topics = counts.objects.iter().map(|(size, object)| TopicSummary {
            received: object.counts.acked,
            ..object.clone().summary(size.to_string(), 0, None)
        });
        let connect_us = counts.connects.quantiles_us();
        self.summary(Role::Request, &counts, (failed, failed), (wanted as u64, connect_us), topics.collect())
    }

    /// Summary of the responding side.
    pub(super) fn responses(&self) -> RunSummary {
        let counts = self.counts();
        let all = counts.objects.values().next().cloned().unwrap_or_default().counts;
        let (received, sent) = (all.sent, all.acked);
        let topic = TopicSummary { topic: "objects".to_owned(), received, sent, acked: 0, failed: 0, ..all };
        self.summary(Role::Reply, &counts, (counts.failed, 0), (counts.established, None), vec![topic])
    }

    /// Summary of a side: what failed, and of that the requests that are neither answered nor unfinished; the wanted
    /// connections and the times to establish them.
    fn summary(
        &self,
        role: Role,
        counts: &Counts,
        (failed, given_up): (u64, u64),
        (wanted, connect_us): (u64, Option<Quantiles>),
        topics: Vec<TopicSummary>,
    ) -> RunSummary {
        let sum = |of: fn(&TopicSummary) -> u64| counts.objects.values().map(|tally| of(&tally.counts)).sum();
        let (requests, responses): (u64, u64) = (sum(|object| object.sent), sum(|object| object.acked));
        let counters = [
            ("requests", requests),
            ("responses", responses),
            ("failed", failed),
            ("unfinished", requests.saturating_sub(responses + given_up)),
            ("connections", counts.established),
        ];
        let streams = counts.bytes_per_second.iter();
        RunSummary {
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
            connections: ConnectionsSummary {
                wanted,
                established: counts.established,
                connect_us,
                ..ConnectionsSummary::default()
            },
            topics,
            streams: streams
                .map(|(stream, bytes)| StreamSummary { stream: *stream, bytes_per_second: bytes.clone() })
                .collect(),
            events: counts.events.kept.clone(),
            ..RunSummary::new(role, &self.clock, self.seconds())
        }
    }
}

impl DistinctEvents {
    /// `at`: seconds since the start of the run.
    fn note(&mut self, at: f64, what: &str) {
        if self.texts.len() < MOST && self.texts.insert(what.to_owned()) {
            self.kept.push(Event { at, what: what.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_kept_once_and_only_so_many() {
        let mut events = DistinctEvents::default();
        for number in 0..100 {
            events.note(1.0, "refused");
            events.note(2.0, &number.to_string());
        }
        let events = events.kept;
        assert_eq!((events.len(), &*events[0].what, events[0].at), (MOST, "refused", 1.0));
    }

    #[test]
    fn overdue_requests_are_counted_by_their_size() {
        let counters = Counters::new(&[10, 20]);
        // Objects in turn: 10, 20, 10, 30, ...
        let sizes = [10, 20, 10, 30];
        sizes.iter().chain(&sizes[..2]).for_each(|size| counters.requested(*size));
        counters.add_overdue(10.0, Duration::from_millis(901), 100, &sizes);
        let sent = || counters.counts().objects.values().map(|object| object.counts.sent).collect::<Vec<_>>();
        assert_eq!(sent(), [5, 3, 2], "ten were due");
        counters.add_overdue(10.0, Duration::from_millis(901), 100, &sizes);
        assert_eq!(sent(), [5, 3, 2], "none is counted twice");
        counters.add_overdue(10.0, Duration::from_secs(9), 12, &sizes);
        assert_eq!(sent(), [6, 3, 3], "there are no more than twelve");
    }
}
