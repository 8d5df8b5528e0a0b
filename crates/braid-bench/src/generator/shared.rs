use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::{Alarm, Board, Dialer, Plan, Work};
use crate::emqtt::{Identity, PayloadTemplate, TopicSpec};

/// What all clients of a run have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) dialer: Dialer,
    /// Paced messages wait for it.
    pub(super) alarm: Alarm,
    pub(super) board: Board,
    pub(super) budget: Budget,
    /// The run is over.
    pub(super) stop: watch::Sender<bool>,
    /// Publishing may begin.
    pub(super) gate: watch::Sender<bool>,
    /// Locked by every client once, when it is made.
    pages: Mutex<crate::emqtt::Pages>,
    /// Messages that all clients have published, for `%s`.
    sequence: AtomicU64,
    /// Clients that have neither connected nor given up.
    expected: AtomicU64,
    /// Clients that may still publish something.
    unsettled: AtomicU64,
}

impl Shared {
    pub(super) fn new(plan: Plan, dialer: Dialer, alarm: Alarm, board: Board) -> Self {
        let (limit, waits) = match &plan.work {
            Work::Publish(publish) => (publish.limit, publish.wait_for_all),
            Work::Subscribe(_) | Work::Connect => (0, false),
        };
        let clients = plan.clients.count;
        board.set_wanted(clients);
        Self {
            plan,
            dialer,
            alarm,
            board,
            budget: Budget::new(limit),
            stop: watch::Sender::new(false),
            gate: watch::Sender::new(!waits),
            pages: Mutex::default(),
            sequence: AtomicU64::new(0),
            expected: AtomicU64::new(clients),
            unsettled: AtomicU64::new(clients),
        }
    }

    /// A client's payload; its large parts are everybody's.
    pub(super) fn payload(&self, spec: &TopicSpec, identity: Identity<'_>) -> PayloadTemplate {
        spec.payload(identity, &mut self.pages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What `%s` shows in the next message.
    pub(super) fn next_in_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A client has connected for the first time, or given up.
    pub(super) fn arrived(&self) {
        if self.expected.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.gate.send_replace(true);
        }
    }

    /// A client will publish nothing any more.
    pub(super) fn settled(&self) {
        if self.unsettled.fetch_sub(1, Ordering::Relaxed) == 1 && self.budget.is_spent() {
            self.board.set_complete();
        }
    }
}

/// What is left of `-L`.
#[derive(Debug)]
pub(super) struct Budget {
    /// `None`: there is no limit, and nothing that all threads would write to.
    left: Option<AtomicU64>,
}

impl Budget {
    fn new(limit: u64) -> Self {
        Self { left: (limit > 0).then(|| AtomicU64::new(limit)) }
    }

    /// Takes up to so many; the answer is how many there were.
    pub(super) fn take(&self, wanted: u64) -> u64 {
        let Some(left) = &self.left else { return wanted };
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| left.saturating_sub(wanted))
        });
        before.map_or(0, |before| before.min(wanted))
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0)
    }
}
