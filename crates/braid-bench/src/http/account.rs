use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use http::header::{ALT_SVC, HeaderMap};
use tokio::time::Instant;

use super::body::ReceivedBody;
use super::tally::ClientSample;
use super::worker::Worker;

/// Requests of one client: how many are left, and what became of the others.
pub(super) struct Account {
    worker: Rc<Worker>,
    /// Requests to start; `None` without a limit.
    remaining: Cell<Option<u64>>,
    /// Requests in flight that count, on all connections.
    in_flight: Cell<u64>,
    /// Requests with a whole response that count.
    completed: Cell<u64>,
    times: Cell<Times>,
    /// Whether the latest connection is over QUIC; `None` before the first one.
    over_quic: Cell<Option<bool>>,
}

#[derive(Clone, Copy)]
struct Times {
    begun: Instant,
    connected: Option<Instant>,
    first_byte: Option<Instant>,
    ended: Option<Instant>,
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
            over_quic: Cell::new(None),
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

    /// Requests that can be in flight at once, at most `depth`.
    pub(super) fn width(&self, depth: usize) -> usize {
        let left =
            self.remaining.get().map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        depth.min(left)
    }

    // === Events of connections ===

    /// A connection begins; the times of the client are those of its last one.
    pub(super) fn begin_connection(&self) {
        self.times.set(Times { begun: Instant::now(), connected: None, first_byte: None, ended: None });
    }

    /// A connection over TCP or QUIC begins to serve.
    pub(super) fn begin_serving(&self, is_quic: bool) {
        if self.over_quic.replace(Some(is_quic)).is_some_and(|before| before != is_quic) {
            self.worker.tally().counts.switches += 1;
        }
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
        let mut times = self.times.get();
        times.connected.get_or_insert_with(Instant::now);
        self.times.set(times);
        self.worker.tally().counts.connections += 1;
    }

    /// Bytes were received, of whatever kind.
    pub(super) fn received(&self, bytes: usize) {
        if self.worker.is_counting() {
            self.worker.tally().traffic.bytes += bytes as u64;
        }
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

    /// Takes a request from the budget; false once it is exhausted.
    pub(super) fn take_request(&self) -> bool {
        let is_left = !self.is_exhausted();
        self.remaining.set(self.remaining.get().map(|remaining| remaining.saturating_sub(1)));
        is_left
    }

    /// A request that counts is in flight.
    pub(super) fn started(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.worker.tally().counts.started += 1;
    }

    /// Counts a whole response, `after` its request.
    pub(super) fn finished(&self, after: Duration, answer: Answer, over_quic: bool, now: Instant) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.completed.set(self.completed.get() + 1);
        let expectation = &self.worker.load().expectation;
        let mut tally = self.worker.tally();
        tally.traffic.header_bytes += answer.header_bytes;
        tally.traffic.plain_header_bytes += answer.plain_header_bytes;
        tally.traffic.body_bytes += answer.body.len();
        tally.counts.over_quic += u64::from(over_quic);
        let is_success = tally.counts.complete(answer.status);
        if is_success && expectation.is_given() && !answer.body.matches(expectation) {
            tally.counts.wrong_bodies += 1;
        }
        tally.request.record(after);
        tally.done_after(self.worker.since_begin(now));
        self.worker.progress(&tally.counts);
    }

    /// Counts a request whose stream was reset.
    pub(super) fn failed(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        let mut tally = self.worker.tally();
        tally.counts.fail_stream();
        self.worker.progress(&tally.counts);
    }

    /// Counts requests in flight as failed.
    pub(super) fn abandon_requests(&self, in_flight: u64) {
        self.in_flight.set(self.in_flight.get() - in_flight);
        let mut tally = self.worker.tally();
        tally.counts.abandon(in_flight);
        self.worker.progress(&tally.counts);
    }

    /// Takes back requests in flight.
    pub(super) fn repeat_requests(&self, in_flight: u64) {
        self.in_flight.set(self.in_flight.get() - in_flight);
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
