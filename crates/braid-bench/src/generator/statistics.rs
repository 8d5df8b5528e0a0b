//! Counters of a run, readable while it runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use braid_measure::Latencies;
use braid_transport::{ConnectTimes, Transport};

use super::Clock;
use crate::emqtt::{Counter, Counters, DurationHistogram, Histograms, Qoe};
use crate::lock::lock;
use crate::summary::{
    ConnectionsSummary, Event, HeadersSummary, Role, RunSummary, Step, StepSummary, StreamSummary,
    TopicSummary, Trace,
};
use crate::tally::{Tally, add_all, add_at};

/// Threads with a shard of their own; further threads share these.
const SHARDS: usize = 16;
/// Topics with counters of their own; a subscriber of everything counts the others together.
const MOST_TOPICS: usize = 256;
/// Name of the topics beyond [`MOST_TOPICS`].
const OTHERS: &str = "(other topics)";
/// Most events kept: each failing client is one line.
const MOST_EVENTS: usize = 10_000;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of this thread's shard.
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// Counters of a run, readable while it runs. Cheap to clone.
///
/// Every thread counts on its own shard, which it locks once for each batch of messages; readers add them up.
#[derive(Clone, Debug)]
pub struct RunStatistics {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    /// Never held across an await; readers hold it only to copy.
    shards: [Mutex<Shard>; SHARDS],
    routes: Mutex<Routes>,
    events: Mutex<Events>,
    wanted: AtomicU64,
    connected: AtomicU64,
    is_complete: AtomicBool,
    /// End of the run.
    ended: Mutex<Option<Duration>>,
}

/// Snapshot of [`RunStatistics`] for a live view: smaller and cheaper than a summary.
#[derive(Clone, Debug, Default)]
pub struct RunSnapshot {
    /// Counters.
    pub counters: Counters,
    /// Topics as in [`RunStatistics::topics`], with their messages acknowledged and received, and latencies.
    pub topics: Vec<TopicSummary>,
}

impl RunStatistics {
    /// Statistics of one run that starts at `clock.start()`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let shared = Shared {
            clock,
            shards: Default::default(),
            routes: Mutex::default(),
            events: Mutex::default(),
            wanted: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            is_complete: AtomicBool::new(false),
            ended: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Clock of the run.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.shared.clock
    }

    /// Time since the start of the run, until its end.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let ended = *lock(&self.shared.ended);
        ended.unwrap_or_else(|| self.shared.clock.start().elapsed())
    }

    /// Sum of the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.sum(|all: &mut Counters, shard| all.add(&shard.counters))
    }

    /// Histograms for Prometheus.
    #[must_use]
    pub fn histograms(&self) -> Histograms {
        self.sum(|all: &mut Histograms, shard| all.add(&shard.histograms))
    }

    /// Number of wanted clients.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        self.shared.wanted.load(Ordering::Relaxed)
    }

    /// Number of clients that are connected now.
    #[must_use]
    pub fn connected(&self) -> u64 {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// True when all messages of `-L` were published and acknowledged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shared.is_complete.load(Ordering::Relaxed)
    }

    /// Events from the number `from` (0 is the first) on, as lines to print.
    ///
    /// The first 10,000 are kept; the summary has the number of the others.
    #[must_use]
    pub fn events(&self, from: usize) -> Vec<Event> {
        lock(&self.shared.events).from(from)
    }

    /// Records single messages from now on, in [`TopicSummary::trace`]: the first
    /// 100,000 of each topic and thread. Call it before the run begins.
    pub fn keep_traces(&self) {
        for shard in &self.shared.shards {
            lock(shard).is_traced = true;
        }
    }

    /// Records the durations of single clients from now on, for repeated calls of [`RunStatistics::take_qoe`].
    pub fn keep_qoe(&self) {
        for shard in &self.shared.shards {
            lock(shard).qoe.get_or_insert_default();
        }
    }

    /// Durations of the clients since the last call.
    #[must_use]
    pub fn take_qoe(&self) -> Qoe {
        let mut all = Qoe::default();
        for shard in &self.shared.shards {
            if let Some(kept) = &mut lock(shard).qoe {
                all.append(std::mem::take(kept));
            }
        }
        all
    }

    // -- Summaries ---------------------------------------------------------------------------------

    /// Snapshot of the counters and the topics.
    #[must_use]
    pub fn snapshot(&self) -> RunSnapshot {
        let topics = self.routes(|all, one| {
            all.counts.acked += one.counts.acked;
            all.counts.received += one.counts.received;
            all.latencies.add(&one.latencies);
        });
        RunSnapshot { counters: self.counters(), topics }
    }

    /// Topics by stream, in the order of their first use. The first 256 have counters of their own.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicSummary> {
        self.routes(Tally::add)
    }

    /// Bytes by stream, written and read together, as the link took or brought them.
    #[must_use]
    pub fn streams(&self) -> Vec<StreamSummary> {
        let all = self.sum(|all: &mut BTreeMap<u64, Vec<u64>>, shard| {
            for (&stream, seconds) in &shard.streams {
                add_all(all.entry(stream).or_default(), seconds);
            }
        });
        all.into_iter().map(|(stream, bytes_per_second)| StreamSummary { stream, bytes_per_second }).collect()
    }

    /// Summary of the run. After [`run`](crate::generator::run) has returned it is final.
    #[must_use]
    pub fn summary(&self, role: Role) -> RunSummary {
        let all = self.sum(|all: &mut Shard, shard| {
            all.connects.add(&shard.connects);
            all.pings.add(&shard.pings);
            all.unanswered_pings += shard.unanswered_pings;
            all.ping_trace.add(&shard.ping_trace);
            all.lateness.add(&shard.lateness);
            all.headers.add(shard.headers);
            for (name, count) in &shard.transports {
                *all.transports.entry(name.clone()).or_default() += count;
            }
            all.steps.iter_mut().zip(&shard.steps).for_each(|(all, one)| all.add(one));
        });
        let counters = self.counters();
        RunSummary {
            counters: counters
                .iter()
                .map(|(counter, value)| (counter.name().to_owned(), value))
                .chain(all.transports)
                .collect(),
            connections: ConnectionsSummary {
                wanted: self.wanted(),
                established: all.connects.arrived(),
                connect_us: all.connects.quantiles_us(),
                steps: steps(all.steps),
            },
            pingresp_us: all.pings.quantiles_us(),
            pings_unanswered: all.unanswered_pings,
            pings: Some(all.ping_trace).filter(|pings| !pings.took_us.is_empty()),
            lateness_us: all.lateness.quantiles_us(),
            headers: all.headers,
            topics: self.topics(),
            streams: self.streams(),
            events: lock(&self.shared.events).all(),
            ..RunSummary::new(role, &self.clock(), self.elapsed().as_secs_f64())
        }
    }

    /// Sum over all shards.
    fn sum<T: Default>(&self, add: impl Fn(&mut T, &Shard)) -> T {
        let mut all = T::default();
        self.shared.shards.iter().for_each(|shard| add(&mut all, &lock(shard)));
        all
    }

    /// Sum over all shards for each route, in the order of their first use.
    fn routes(&self, add: impl Fn(&mut Tally, &Tally)) -> Vec<TopicSummary> {
        let mut all = self.sum(|all: &mut Vec<Tally>, shard| {
            if all.len() < shard.routes.len() {
                all.resize_with(shard.routes.len(), Tally::default);
            }
            for (all, one) in all.iter_mut().zip(&shard.routes) {
                one.iter().for_each(|one| add(all, one));
            }
        });
        let keys = lock(&self.shared.routes).keys.clone();
        all.resize_with(keys.len(), Tally::default);
        let topics = keys.into_iter().zip(all);
        topics.map(|(key, tally)| tally.summary(key.topic, key.stream, key.priority)).collect()
    }

    // -- Counting ----------------------------------------------------------------------------------

    /// Locks the shard of this thread. Drop the guard before any await.
    pub(super) fn shard(&self) -> MutexGuard<'_, Shard> {
        lock(&self.shared.shards[SHARD.with(|shard| *shard)])
    }

    /// Number of a topic on a stream, for [`Shard::route`].
    pub(super) fn route(&self, key: RouteKey) -> RouteId {
        lock(&self.shared.routes).id(key)
    }

    /// Whole second since the start of the run.
    pub(super) fn second(&self, at: tokio::time::Instant) -> usize {
        self.shared.clock.second(at)
    }

    pub(super) fn add_event(&self, what: String) {
        let at = self.elapsed().as_secs_f64();
        lock(&self.shared.events).push(Event { at, what });
    }

    pub(super) fn set_wanted(&self, clients: u64) {
        self.shared.wanted.store(clients, Ordering::Relaxed);
    }

    pub(super) fn client_connected(&self) {
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn client_disconnected(&self) {
        self.shared.connected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_complete(&self) {
        self.shared.is_complete.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        let elapsed = self.elapsed();
        lock(&self.shared.ended).get_or_insert(elapsed);
    }
}

/// Topic and stream with counters of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RouteKey {
    pub(super) topic: String,
    /// Number that the user gave the stream.
    pub(super) stream: u64,
    pub(super) priority: Option<u16>,
}

/// Index of a [`RouteKey`] in every shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RouteId(usize);

/// Routes in the order of their first use.
#[derive(Debug, Default)]
struct Routes {
    ids: HashMap<RouteKey, RouteId>,
    keys: Vec<RouteKey>,
}

impl Routes {
    fn id(&mut self, mut key: RouteKey) -> RouteId {
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        if self.keys.len() >= MOST_TOPICS {
            OTHERS.clone_into(&mut key.topic);
            if let Some(&id) = self.ids.get(&key) {
                return id;
            }
        }
        let id = RouteId(self.keys.len());
        self.keys.push(key.clone());
        self.ids.insert(key, id);
        id
    }
}

/// Events in the order of time.
#[derive(Debug, Default)]
struct Events {
    kept: Vec<Event>,
    dropped: u64,
    last: f64,
}

impl Events {
    fn push(&mut self, event: Event) {
        if self.kept.len() < MOST_EVENTS {
            self.kept.push(event);
        } else {
            self.dropped += 1;
            self.last = event.at;
        }
    }

    fn from(&self, number: usize) -> Vec<Event> {
        self.kept.get(number..).unwrap_or_default().to_vec()
    }

    /// All events, and the number of those that were dropped.
    fn all(&self) -> Vec<Event> {
        let mut all = self.kept.clone();
        if self.dropped > 0 {
            all.push(Event { at: self.last, what: format!("{} more events were not kept", self.dropped) });
        }
        all
    }
}

/// Counters of one thread.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) counters: Counters,
    pub(super) histograms: Histograms,
    /// `None` unless a caller wants them.
    qoe: Option<Qoe>,
    /// Records single messages.
    is_traced: bool,
    /// Time from the start of an attempt to CONNACK.
    connects: Latencies,
    /// Connections by the name of their transport, if clients choose it.
    transports: BTreeMap<String, u64>,
    /// By [`Step::ALL`]: clients by second, and times.
    steps: [Tally; 4],
    /// Delay of messages that waited for nothing but their due time.
    pub(super) lateness: Latencies,
    /// Time from PINGREQ to PINGRESP.
    pings: Latencies,
    /// PINGREQ packets without a PINGRESP.
    pub(super) unanswered_pings: u64,
    /// Single round trips, if a caller wants them.
    ping_trace: Trace,
    /// Headers of received messages.
    pub(super) headers: HeadersSummary,
    routes: Vec<Option<Box<Tally>>>,
    /// Bytes by second, for each number of a stream.
    streams: BTreeMap<u64, Vec<u64>>,
}

/// Steps that at least one client took.
fn steps(all: [Tally; 4]) -> Vec<StepSummary> {
    let taken = Step::ALL.into_iter().zip(all).filter_map(|(step, tally)| {
        let latency_us = tally.latencies.quantiles_us()?;
        let latency_cdf = tally.latencies.curve_us();
        Some(StepSummary { step, per_second: tally.counts.per_second, latency_us, latency_cdf })
    });
    taken.collect()
}

impl Shard {
    /// Records that a client took a step at `second`, `after` it opened its socket.
    pub(super) fn stepped(&mut self, step: Step, second: usize, after: Duration) {
        let tally = &mut self.steps[step as usize];
        tally.latencies.record(after);
        add_at(&mut tally.counts.per_second, second, 1);
    }

    pub(super) fn count(&mut self, counter: Counter, by: u64) {
        self.counters[counter] += by;
    }

    pub(super) fn route(&mut self, RouteId(at): RouteId) -> &mut Tally {
        if self.routes.len() <= at {
            self.routes.resize_with(at + 1, || None);
        }
        let is_traced = self.is_traced;
        self.routes[at].get_or_insert_with(|| {
            let counts = TopicSummary { trace: is_traced.then(Trace::default), ..TopicSummary::default() };
            Box::new(Tally { counts, latencies: Latencies::default() })
        })
    }

    /// Counts messages of a route that were due and are lost.
    pub(super) fn lose(&mut self, route: RouteId, messages: u64) {
        self.route(route).counts.failed += messages;
        self.count(Counter::PubFail, messages);
    }

    /// Records a PINGRESP, or that there was none: the time since the Unix epoch, and that since the due time.
    pub(super) fn answered(&mut self, unix: Duration, after: Duration) {
        self.pings.record(after);
        if self.is_traced {
            self.ping_trace.note(unix.saturating_sub(after), Some(after));
        }
    }

    /// Records bytes on the stream of this number.
    pub(super) fn moved(&mut self, stream: u64, second: usize, bytes: u64) {
        add_at(self.streams.entry(stream).or_default(), second, bytes);
    }

    /// Records a duration of a client.
    pub(super) fn observe(&mut self, which: DurationHistogram, took: Duration) {
        self.histograms.observe(which, took);
        self.keep(which, took);
    }

    fn keep(&mut self, which: DurationHistogram, took: Duration) {
        if let Some(qoe) = &mut self.qoe {
            qoe.observe(which, took);
        }
    }

    /// Counts a connection whose client has chosen this transport.
    pub(super) fn chosen(&mut self, transport: Transport) {
        *self.transports.entry(format!("over_{transport}")).or_default() += 1;
    }

    /// Records the durations of an established connection.
    pub(super) fn connected(&mut self, after: Duration, times: ConnectTimes, carried: Transport) {
        self.connects.record(after);
        self.observe(DurationHistogram::Connect, after);
        if let Some(tcp) = times.tcp {
            self.histograms.observe(DurationHistogram::TcpHandshake, tcp);
        }
        if let Some(secured) = times.secured {
            self.histograms.observe(DurationHistogram::Handshake, secured);
        }
        // To the Erlang client the handshake is all that precedes MQTT, and that of TCP a part of it which only TLS
        // reports.
        let reported = match carried {
            Transport::Tls => times.tcp,
            Transport::Tcp | Transport::Ws | Transport::Wss | Transport::Quic | Transport::Mem => None,
        };
        if let Some(tcp) = reported {
            self.keep(DurationHistogram::TcpHandshake, tcp);
        }
        if let Some(handshake) = times.secured.or(times.tcp) {
            self.keep(DurationHistogram::Handshake, handshake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_keeps_its_beginning_and_its_count() {
        let mut events = Events::default();
        (0..MOST_EVENTS + 7).for_each(|n| events.push(Event { at: 1.0, what: n.to_string() }));
        assert_eq!(events.from(0).len(), MOST_EVENTS);
        assert_eq!(events.from(MOST_EVENTS - 1), [Event { at: 1.0, what: (MOST_EVENTS - 1).to_string() }]);
        assert_eq!(events.from(MOST_EVENTS + 1), []);
        assert_eq!(events.all().last().map(|event| event.what.as_str()), Some("7 more events were not kept"));
    }
}
