use std::cell::Cell;
use std::rc::Rc;

use http::header::{ALT_SVC, HeaderMap};
use tokio::time::Instant;

use super::body::ReceivedBody;
use super::failure::Ended;
use super::tally::ClientSample;
use super::worker::Worker;

/// Requests of one client: how many are left, and what became of the others.
pub(super) struct Account {
    worker: Rc<Worker>,
    /// Requests to start; `None` without a limit.
    remaining: Cell<Option<u64>>,
    /// Requests in flight that count.
    in_flight: Cell<u64>,
    /// Requests with a whole response that count.
    completed: Cell<u64>,
    times: Cell<Times>,
    way: Cell<Way>,
    /// Last byte, either way.
    active_at: Cell<Instant>,
}

/// Connection that serves the requests.
#[derive(Clone, Copy, Default)]
struct Way {
    /// False before the first one.
    has_begun: bool,
    is_quic: bool,
    /// No request is begun any more: another connection is ready.
    is_moving: bool,
}

#[derive(Clone, Copy)]
struct Times {
    begun: Instant,
    connected: Option<Instant>,
    first_byte: Option<Instant>,
    ended: Option<Instant>,
}

/// Request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    at: Instant,
    /// False during the warm-up.
    is_counted: bool,
}

/// Whole response.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Bytes of the header fields as they came, and without compression.
    pub(super) header_bytes: u64,
    pub(super) plain_header_bytes: u64,
    pub(super) body: ReceivedBody,
}

impl Account {
    pub(super) fn new(worker: Rc<Worker>, requests: Option<u64>) -> Self {
        let now = Instant::now();
        let times = Times { begun: now, connected: None, first_byte: None, ended: None };
        Self {
            worker,
            remaining: Cell::new(requests),
            in_flight: Cell::new(0),
            completed: Cell::new(0),
            times: Cell::new(times),
            way: Cell::default(),
            active_at: Cell::new(now),
        }
    }

    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// True if no request is left to start.
    pub(super) fn is_exhausted(&self) -> bool {
        self.remaining.get() == Some(0)
    }

    /// Requests with a whole response.
    pub(super) fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// True if requests that are left go over another connection.
    pub(super) fn is_moving(&self) -> bool {
        self.way.get().is_moving
    }

    /// End of a connection on which no request is in flight.
    pub(super) fn end_of_connection(&self) -> Ended {
        if self.is_moving() && !self.is_exhausted() { Ended::Moving } else { Ended::Complete }
    }

    /// Requests that can be in flight at once, at most `depth`.
    pub(super) fn width(&self, depth: usize) -> usize {
        let left =
            self.remaining.get().map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        depth.min(left)
    }

    pub(super) fn active_at(&self) -> Instant {
        self.active_at.get()
    }

    // === Events of the connection ===

    /// A connection begins; the times of the client are those of its last one.
    pub(super) fn begin_connection(&self) {
        let now = Instant::now();
        self.active_at.set(now);
        self.times.set(Times { begun: now, connected: None, first_byte: None, ended: None });
    }

    /// A connection over TCP or QUIC begins to serve.
    pub(super) fn begin_serving(&self, is_quic: bool) {
        let before = self.way.replace(Way { has_begun: true, is_quic, is_moving: false });
        if before.has_begun && before.is_quic != is_quic {
            self.worker.tally().counts.switches += 1;
        }
    }

    /// Another connection is ready: no request is begun on this one.
    pub(super) fn begin_moving(&self) {
        self.way.set(Way { is_moving: true, ..self.way.get() });
    }

    /// Notes a value of `Alt-Svc`.
    pub(super) fn learn(&self, value: &str, now: Instant) {
        if let Some((cache, _)) = self.worker.alt_svc() {
            cache.learn(value, now);
        }
    }

    /// Notes the alternatives in the header fields of a response.
    pub(super) fn learn_from(&self, headers: &HeaderMap, now: Instant) {
        if self.worker.alt_svc().is_some() && headers.contains_key(ALT_SVC) {
            let values = headers.get_all(ALT_SVC).iter().filter_map(|value| value.to_str().ok());
            self.learn(&values.collect::<Vec<_>>().join(", "), now);
        }
    }

    /// Requests can be sent.
    pub(super) fn connected(&self) {
        let now = Instant::now();
        self.active_at.set(now);
        let mut times = self.times.get();
        times.connected.get_or_insert(now);
        self.times.set(times);
        self.worker.tally().counts.connections += 1;
    }

    /// Bytes were received, of whatever kind.
    pub(super) fn received(&self, bytes: usize, now: Instant) {
        self.active_at.set(now);
        if self.worker.is_counting() {
            self.worker.tally().traffic.bytes += bytes as u64;
        }
    }

    pub(super) fn sent(&self, now: Instant) {
        self.active_at.set(now);
    }

    /// A response begins.
    pub(super) fn responded(&self, now: Instant) {
        let mut times = self.times.get();
        if times.first_byte.is_none() {
            times.first_byte = Some(now);
            self.times.set(times);
        }
    }

    // === Events of requests ===

    /// Takes a request from the budget; `None` once it is exhausted.
    pub(super) fn begin(&self, now: Instant) -> Option<Started> {
        let remaining = self.remaining.get();
        if remaining == Some(0) || self.is_moving() {
            return None;
        }
        self.remaining.set(remaining.map(|remaining| remaining - 1));
        let is_counted = self.worker.is_counting();
        if is_counted {
            self.in_flight.set(self.in_flight.get() + 1);
            self.worker.tally().counts.started += 1;
        }
        Some(Started { at: now, is_counted })
    }

    /// Counts a whole response.
    pub(super) fn finish(&self, started: Started, answer: Answer, now: Instant) {
        if !started.is_counted {
            return;
        }
        self.in_flight.set(self.in_flight.get() - 1);
        self.completed.set(self.completed.get() + 1);
        let expectation = &self.worker.load().expectation;
        let mut tally = self.worker.tally();
        tally.traffic.header_bytes += answer.header_bytes;
        tally.traffic.plain_header_bytes += answer.plain_header_bytes;
        tally.traffic.body_bytes += answer.body.len();
        tally.counts.over_quic += u64::from(self.way.get().is_quic);
        let is_success = tally.counts.complete(answer.status);
        if is_success && expectation.is_given() && !answer.body.matches(expectation) {
            tally.counts.wrong_bodies += 1;
        }
        tally.request.record(now.saturating_duration_since(started.at));
        tally.done_after(self.worker.since_begin(now));
        self.worker.progress(&tally.counts);
    }

    /// Counts a request whose stream was reset.
    pub(super) fn fail(&self, started: Started) {
        if started.is_counted {
            self.in_flight.set(self.in_flight.get() - 1);
            let mut tally = self.worker.tally();
            tally.counts.fail_stream();
            self.worker.progress(&tally.counts);
        }
    }

    /// Counts the requests in flight as failed: their connection has ended, the others have another one.
    pub(super) fn abandon_in_flight(&self) {
        let mut tally = self.worker.tally();
        tally.counts.abandon(self.in_flight.take());
        self.worker.progress(&tally.counts);
    }

    /// Takes back the requests in flight: they go over another connection.
    pub(super) fn repeat_in_flight(&self) {
        let in_flight = self.in_flight.take();
        self.remaining.set(self.remaining.get().map(|remaining| remaining + in_flight));
        let mut tally = self.worker.tally();
        tally.counts.started -= in_flight;
        tally.counts.repeated += in_flight;
    }

    /// Counts all requests without a response as failed. `is_timeout`: those in flight as timed out, too.
    pub(super) fn abandon(&self, is_timeout: bool, cause: String) {
        let in_flight = self.in_flight.take();
        let unsent = self.remaining.get().unwrap_or_default();
        self.remaining.set(Some(0));
        let mut tally = self.worker.tally();
        if is_timeout {
            tally.counts.timed_out += in_flight;
        }
        tally.counts.abandon(in_flight + unsent);
        tally.error(cause);
        self.worker.progress(&tally.counts);
    }

    /// The client is done.
    pub(super) fn end(&self) {
        let mut times = self.times.get();
        times.ended = Some(Instant::now());
        self.times.set(times);
    }

    /// Times of the client, seen at the end of the run.
    pub(super) fn sample(&self, main: Instant, now: Instant) -> ClientSample {
        let times = self.times.get();
        let since_begin = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(times.begun));
        let measured =
            times.ended.unwrap_or(now).saturating_duration_since(times.begun.max(main)).as_secs_f64();
        let requests_per_second = if measured > 0.0 { self.completed.get() as f64 / measured } else { 0.0 };
        let (connect, first_byte) = (since_begin(times.connected), since_begin(times.first_byte));
        ClientSample { connect, first_byte, requests_per_second }
    }
}
