use std::collections::BTreeMap;
use std::time::Duration;

use super::RouteId;
use crate::emqtt::{Counter, CounterOrder, Counters, DurationHistogram, Histograms, Qoe};
use crate::seconds::{add_all, add_at};
use crate::summary::{HeadersSummary, Trace};
use braid_measure::Latencies;

/// Messages of one topic and stream of which a thread keeps single latencies.
const MOST_TRACED: usize = 100_000;

/// Counters of one thread.
#[derive(Debug, Default)]
pub(in crate::generator) struct Tally {
    pub(in crate::generator) counters: Counters,
    pub(in crate::generator) histograms: Histograms,
    /// `None` unless a caller wants them.
    pub(super) qoe: Option<Qoe>,
    pub(super) established: u64,
    /// Records single messages.
    pub(super) is_traced: bool,
    /// Time from the start of an attempt to CONNACK.
    pub(super) connects: Latencies,
    /// Delay of messages that waited for nothing but their due time.
    pub(super) lateness: Latencies,
    /// Time from PINGREQ to PINGRESP.
    pub(super) pings: Latencies,
    /// Single round trips, if a caller wants them.
    pub(super) ping_trace: Trace,
    /// Headers of received messages.
    pub(super) headers: HeadersSummary,
    pub(super) routes: Vec<Option<Box<RouteTally>>>,
    /// Bytes by second, for each number of a stream.
    pub(super) streams: BTreeMap<u64, Vec<u64>>,
}

/// One topic on one stream.
#[derive(Clone, Debug, Default)]
pub(in crate::generator) struct RouteTally {
    pub(in crate::generator) sent: u64,
    pub(in crate::generator) acked: u64,
    pub(in crate::generator) received: u64,
    pub(in crate::generator) failed: u64,
    pub(in crate::generator) bytes: u64,
    pub(super) per_second: Vec<u64>,
    pub(super) latencies: Latencies,
    /// `None` unless a caller wants it.
    pub(super) trace: Option<Trace>,
}

impl Tally {
    pub(in crate::generator) fn count(&mut self, counter: Counter, by: u64) {
        self.counters[counter] += by;
    }

    pub(in crate::generator) fn route(&mut self, RouteId(at): RouteId) -> &mut RouteTally {
        if self.routes.len() <= at {
            self.routes.resize_with(at + 1, || None);
        }
        let is_traced = self.is_traced;
        self.routes[at].get_or_insert_with(|| {
            Box::new(RouteTally { trace: is_traced.then(Trace::default), ..RouteTally::default() })
        })
    }

    /// Records the duration of an established connection.
    pub(in crate::generator) fn established(&mut self, after: Duration) {
        self.established += 1;
        self.connects.record(after);
        self.histograms.observe(DurationHistogram::Connect, after);
    }

    /// Records the delay of a message that waited for its due time alone.
    pub(in crate::generator) fn begun(&mut self, late: Duration) {
        self.lateness.record(late);
    }

    /// Records a PINGRESP: its time since the Unix epoch, and the round trip.
    pub(in crate::generator) fn answered(&mut self, unix: Duration, after: Duration) {
        self.pings.record(after);
        if self.is_traced {
            note(&mut self.ping_trace, unix.saturating_sub(after), Some(after));
        }
    }

    /// Records the relation of a message's counter to the one before.
    pub(in crate::generator) fn followed(&mut self, order: CounterOrder) {
        self.headers.numbered += 1;
        match order {
            CounterOrder::First | CounterOrder::Next => {}
            CounterOrder::Skipped(messages) => {
                self.headers.skipped = self.headers.skipped.saturating_add(messages);
            }
            CounterOrder::NotAbove => self.headers.not_above += 1,
        }
    }

    /// Records a message that arrived before it was sent, by the two clocks.
    pub(in crate::generator) fn skewed(&mut self) {
        self.headers.skewed += 1;
    }

    /// Records bytes on the stream of this number.
    pub(in crate::generator) fn moved(&mut self, stream: u64, second: usize, bytes: u64) {
        add_at(self.streams.entry(stream).or_default(), second, bytes);
    }
}

impl RouteTally {
    /// Records messages of `bytes` altogether that were acknowledged, or taken by the transport.
    pub(in crate::generator) fn acknowledged(&mut self, second: usize, messages: u64, bytes: u64) {
        self.acked += messages;
        self.bytes += bytes;
        add_at(&mut self.per_second, second, messages);
    }

    /// Records the receipt of a message of `bytes`.
    pub(in crate::generator) fn received(&mut self, second: usize, bytes: u64) {
        self.received += 1;
        self.bytes += bytes;
        add_at(&mut self.per_second, second, 1);
    }

    pub(in crate::generator) fn took(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    /// Records the due time of a message since the Unix epoch, and its latency at a receiver.
    pub(in crate::generator) fn was_due(&mut self, unix: Duration, took: Option<Duration>) {
        if let Some(trace) = &mut self.trace {
            note(trace, unix, took);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.acked += other.acked;
        self.received += other.received;
        self.failed += other.failed;
        self.bytes += other.bytes;
        add_all(&mut self.per_second, &other.per_second);
        self.latencies.add(&other.latencies);
        if let Some(trace) = &other.trace {
            let all = self.trace.get_or_insert_default();
            all.due_unix_us.extend(&trace.due_unix_us);
            all.took_us.extend(&trace.took_us);
        }
    }
}

fn note(trace: &mut Trace, unix: Duration, took: Option<Duration>) {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if trace.due_unix_us.len() < MOST_TRACED {
        trace.due_unix_us.push(micros(unix));
        trace.took_us.extend(took.map(micros));
    }
}
