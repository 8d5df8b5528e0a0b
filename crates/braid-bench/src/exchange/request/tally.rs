use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::source::Ask;
use super::{Failure, Load};
use crate::clock::Clock;
use crate::exchange::remarks::Remarks;
use crate::seconds::add_at;
use crate::summary::{
    ConnectionsSummary, HeadersSummary, Role, RunSummary, SCHEMA, StreamSummary, TopicSummary,
};
use braid_measure::Latencies;

/// Least rise of a curve from one point to the next, in messages of 1,000.
const RISE: u64 = 1;
/// Number of the slowest messages that have points of their own in a curve.
const SLOWEST: u64 = 500;

/// Counters of all connections of a run.
#[derive(Debug)]
pub(super) struct Tally {
    clock: Clock,
    wanted: usize,
    /// A std lock: it is held for a few additions.
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    established: u64,
    connects: Latencies,
    objects: BTreeMap<u64, Object>,
    bytes_per_second: BTreeMap<u64, Vec<u64>>,
    remarks: Remarks,
}

/// Counters of requests for objects of one size.
#[derive(Debug, Default)]
struct Object {
    asked: u64,
    answered: u64,
    failed: u64,
    per_second: Vec<u64>,
    latencies: Latencies,
}

impl Tally {
    pub(super) fn new(load: &Load) -> Self {
        let objects = load.sizes.iter().map(|size| (*size, Object::default())).collect();
        let counts = Mutex::new(Counts { objects, ..Counts::default() });
        Self { clock: Clock::now(), wanted: load.connections, counts }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn started(&self) -> Instant {
        self.clock.start()
    }

    fn seconds(&self) -> f64 {
        self.started().elapsed().as_secs_f64()
    }

    fn second(&self) -> usize {
        self.clock.second(Instant::now())
    }

    /// Counts an established connection and its duration.
    pub(super) fn connected(&self, time: Duration) {
        let mut counts = self.counts();
        counts.established += 1;
        counts.connects.record(time);
    }

    /// Counts a request that has begun.
    pub(super) fn asked(&self, ask: &Ask) {
        self.counts().objects.entry(ask.request.size).or_default().asked += 1;
    }

    /// Counts a complete response.
    pub(super) fn answered(&self, ask: &Ask) {
        let second = self.second();
        let latency = ask.due.elapsed();
        let mut counts = self.counts();
        let object = counts.objects.entry(ask.request.size).or_default();
        object.answered += 1;
        object.latencies.record(latency);
        add_at(&mut object.per_second, second, 1);
    }

    /// Counts requests that will not be answered.
    pub(super) fn failed(&self, asks: &VecDeque<Ask>, why: &Failure) {
        let mut counts = self.counts();
        for ask in asks {
            counts.objects.entry(ask.request.size).or_default().failed += 1;
        }
        counts.remarks.note(self.seconds(), &why.to_string());
    }

    /// Counts bytes received on a stream.
    pub(super) fn received(&self, stream: u64, bytes: usize) {
        let second = self.second();
        let mut counts = self.counts();
        add_at(counts.bytes_per_second.entry(stream).or_default(), second, bytes as u64);
    }

    pub(super) fn note(&self, what: &str) {
        self.counts().remarks.note(self.seconds(), what);
    }

    pub(super) fn summary(&self) -> RunSummary {
        let counts = self.counts();
        let sum = |of: fn(&Object) -> u64| counts.objects.values().map(of).sum::<u64>();
        let (requests, responses, failed) =
            (sum(|object| object.asked), sum(|object| object.answered), sum(|object| object.failed));
        let counters = [
            ("requests", requests),
            ("responses", responses),
            ("failed", failed),
            ("unfinished", requests.saturating_sub(responses + failed)),
            ("connections", counts.established),
        ];
        let streams = counts.bytes_per_second.iter();
        RunSummary {
            schema: SCHEMA.to_owned(),
            role: Role::Request,
            started_unix_us: self.clock.started_unix_us(),
            seconds: self.seconds(),
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into_iter().collect(),
            connections: ConnectionsSummary {
                wanted: self.wanted as u64,
                established: counts.established,
                connect_us: counts.connects.quantiles_us(),
            },
            pingresp_us: None,
            pings: None,
            lateness_us: None,
            headers: HeadersSummary::default(),
            topics: counts.objects.iter().map(|(size, object)| object.summary(*size)).collect(),
            streams: streams
                .map(|(stream, bytes)| StreamSummary { stream: *stream, bytes_per_second: bytes.clone() })
                .collect(),
            events: counts.remarks.events(),
        }
    }
}

impl Object {
    fn summary(&self, size: u64) -> TopicSummary {
        TopicSummary {
            trace: None,
            topic: size.to_string(),
            sent: self.asked,
            acked: self.answered,
            received: self.answered,
            failed: self.failed,
            bytes: self.answered * size,
            per_second: self.per_second.clone(),
            latency_us: self.latencies.quantiles_us(),
            latency_cdf: curve(&self.latencies),
            ..TopicSummary::default()
        }
    }
}

/// Latency curve, fine enough to tell the share of requests above any bound: slow ones are few.
fn curve(latencies: &Latencies) -> Vec<(u64, f64)> {
    let all = latencies.arrived();
    let mut next = 0;
    let mut points = Vec::new();
    for (micros, seen) in latencies.steps_us() {
        if seen >= next || all - seen < SLOWEST {
            points.push((micros, seen as f64 / all as f64));
            next = seen + (all * RISE).div_ceil(1000);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_short_and_knows_each_of_the_slowest() {
        let mut latencies = Latencies::default();
        for micros in 0..200_000 {
            latencies.record(Duration::from_micros(1_000 + micros));
        }
        for second in 1..=10 {
            latencies.record(Duration::from_secs(second));
        }
        let points = curve(&latencies);
        assert!(points.len() <= 1500, "{} points", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        let slower_than = |micros| {
            let share =
                points.iter().take_while(|point| point.0 <= micros).last().map_or(0.0, |point| point.1);
            ((1.0 - share) * 200_010.0).round()
        };
        assert_eq!([slower_than(500_000), slower_than(5_500_000), slower_than(11_000_000)], [10.0, 5.0, 0.0]);
    }
}
