use std::cell::Cell;
use std::rc::Rc;

use tokio::time::Instant;

use super::account::{Account, Answer};
use super::worker::Worker;

/// One connection of a client, and the requests in flight on it.
pub(super) struct Link {
    account: Rc<Account>,
    is_quic: bool,
    /// No request is begun any more: another connection is ready.
    is_moving: Cell<bool>,
    /// Requests in flight that count.
    in_flight: Cell<u64>,
    /// Last byte, either way.
    active_at: Cell<Instant>,
}

/// Request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    at: Instant,
    /// False during the warm-up.
    is_counted: bool,
}

impl Link {
    /// Connection over TCP or QUIC that begins to serve.
    pub(super) fn new(account: Rc<Account>, is_quic: bool) -> Self {
        account.begin_serving(is_quic);
        let active_at = Cell::new(Instant::now());
        Self { account, is_quic, is_moving: Cell::new(false), in_flight: Cell::new(0), active_at }
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    pub(super) fn worker(&self) -> &Worker {
        self.account.worker()
    }

    pub(super) fn is_quic(&self) -> bool {
        self.is_quic
    }

    pub(super) fn active_at(&self) -> Instant {
        self.active_at.get()
    }

    /// Another connection is ready: no request is begun on this one.
    pub(super) fn begin_moving(&self) {
        self.is_moving.set(true);
    }

    /// True if no request is begun on it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_moving.get() || self.account.is_exhausted()
    }

    /// Bytes were received, of whatever kind.
    pub(super) fn received(&self, bytes: usize, now: Instant) {
        self.active_at.set(now);
        self.account.received(bytes);
    }

    pub(super) fn sent(&self, now: Instant) {
        self.active_at.set(now);
    }

    /// Takes a request from the budget; `None` if no request is to be begun on this connection.
    pub(super) fn begin(&self, now: Instant) -> Option<Started> {
        if self.is_moving.get() || !self.account.take_request() {
            return None;
        }
        let is_counted = self.worker().is_counting();
        if is_counted {
            self.in_flight.set(self.in_flight.get() + 1);
            self.account.started();
        }
        Some(Started { at: now, is_counted })
    }

    /// Counts a whole response.
    pub(super) fn finish(&self, started: Started, answer: Answer, now: Instant) {
        if started.is_counted {
            self.in_flight.set(self.in_flight.get() - 1);
            self.account.finished(now.saturating_duration_since(started.at), answer, self.is_quic, now);
        }
    }

    /// Counts a request whose stream was reset.
    pub(super) fn fail(&self, started: Started) {
        if started.is_counted {
            self.in_flight.set(self.in_flight.get() - 1);
            self.account.failed();
        }
    }

    /// Counts the requests in flight as failed: the connection has ended, the others have another one.
    pub(super) fn abandon_in_flight(&self) {
        self.account.abandon_requests(self.in_flight.take());
    }

    /// Gives back the requests in flight: they go over another connection.
    pub(super) fn repeat_in_flight(&self) {
        self.account.repeat_requests(self.in_flight.take());
    }
}
