use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::{Dialer, Plan, RunStatistics, TimerService, Work};
use crate::emqtt::{Identity, PayloadTemplate, TopicSpec, go_line};
use crate::lock::lock;

/// Topics whose counters all subscribers of a run follow, each client and stream counted: about 150 MB.
pub(super) const MOST_TRACKED: u64 = 1_000_000;

/// State shared by all clients of a run.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) dialer: Dialer,
    /// Timers for paced messages.
    pub(super) timers: TimerService,
    pub(super) statistics: RunStatistics,
    /// Rest of `-L`; `None` without a limit, so that threads share no counter.
    left: Option<AtomicU64>,
    /// Phase of the run.
    pub(super) phase: watch::Sender<Phase>,
    /// Set when publishing may begin.
    pub(super) gate: watch::Sender<bool>,
    /// Locked by every client once, when it is created.
    pages: Mutex<crate::emqtt::Pages>,
    /// Messages that all clients have published, for `%s`.
    sequence: AtomicU64,
    /// Rest of [`MOST_TRACKED`].
    trackable: AtomicU64,
    /// Clients that have neither connected nor given up.
    expected: AtomicU64,
    /// Clients that may still publish.
    publishing_clients: AtomicU64,
    /// Number of workers in the line at the beginning of publishing; 0 prints no line.
    workers: u64,
}

/// Phase of a run, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The load may not have begun.
    Load,
    /// The last message of `-L` was taken.
    Spent,
    /// Ended.
    Over,
}

impl Shared {
    pub(super) fn new(plan: Plan, dialer: Dialer, timers: TimerService, statistics: RunStatistics) -> Self {
        let (limit, waits, workers) = match &plan.work {
            Work::Publish(publish) => (publish.limit, publish.wait_for_all, publish.workers),
            Work::Subscribe(_) | Work::Connect => (0, false, 0),
        };
        let clients = plan.clients.count;
        statistics.set_wanted(clients);
        Self {
            plan,
            dialer,
            timers,
            statistics,
            left: (limit > 0).then(|| AtomicU64::new(limit)),
            phase: watch::Sender::new(Phase::Load),
            gate: watch::Sender::new(!waits),
            pages: Mutex::default(),
            sequence: AtomicU64::new(0),
            trackable: AtomicU64::new(MOST_TRACKED),
            expected: AtomicU64::new(clients),
            publishing_clients: AtomicU64::new(clients),
            workers: if waits { workers } else { 0 },
        }
    }

    /// True after the end of the run.
    pub(super) fn end(&self) {
        self.advance(Phase::Over);
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_next = *phase < to;
            *phase = to.max(*phase);
            is_next
        });
    }

    /// Takes up to this many messages of `-L`; returns their number.
    pub(super) fn take(&self, wanted: u64) -> u64 {
        let Some(left) = &self.left else { return wanted };
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| left.saturating_sub(wanted))
        });
        let Ok(before) = before else { return 0 };
        if before <= wanted {
            self.advance(Phase::Spent);
        }
        before.min(wanted)
    }

    /// Takes a topic of [`MOST_TRACKED`]; false if none is left.
    pub(super) fn track_topic(&self) -> bool {
        let rest = |left: u64| left.checked_sub(1);
        self.trackable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
    }

    /// True if `-L` is used up.
    pub(super) fn is_spent(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == 0)
    }

    /// Payload of a client; clients share its large parts.
    pub(super) fn payload(&self, spec: &TopicSpec, identity: Identity<'_>) -> PayloadTemplate {
        spec.payload(identity, &mut lock(&self.pages))
    }

    /// Value of `%s` in the next message.
    pub(super) fn next_in_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that a client has connected for the first time, or given up.
    pub(super) fn arrived(&self) {
        if self.expected.fetch_sub(1, Ordering::Relaxed) == 1 {
            if self.workers > 0 && *self.phase.borrow() < Phase::Over {
                self.statistics.add_event(go_line(self.workers));
            }
            self.gate.send_replace(true);
        }
    }

    /// Records clients that will publish no more.
    pub(super) fn finished(&self, clients: u64) {
        if self.publishing_clients.fetch_sub(clients, Ordering::Relaxed) == clients && self.is_spent() {
            self.statistics.set_complete();
        }
    }
}

/// Completes when a run has reached a phase; returns the current one.
pub(super) async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) -> Phase {
    let found = phase.wait_for(|phase| *phase >= wanted).await.map(|phase| *phase);
    match found {
        Ok(phase) => phase,
        // The run has ended, and this task ends with it.
        Err(_) => pending().await,
    }
}
