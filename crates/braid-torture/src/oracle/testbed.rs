//! State shared by all clients of the oracle.

use std::cell::{Ref, RefCell, RefMut};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use braid_transport::{ClientTls, ClientTlsOptions, Target};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::ledger::Ledger;
use super::retained_state::Retained;
use crate::plan::Transport;

/// Instructions for the clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Number of loads so far.
    pub(crate) round: u64,
    /// True while new messages may be sent.
    pub(crate) is_loading: bool,
    /// True if subscribers that are offline have to return.
    pub(crate) everyone: bool,
}

/// State of the broker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broker {
    /// True while it listens.
    pub(crate) is_up: bool,
    /// Number of its ends.
    pub(crate) ends: u64,
}

/// State shared by all clients.
pub(crate) struct Testbed {
    ledger: RefCell<Ledger>,
    pub(crate) retained: RefCell<Retained>,
    /// Signals every change of the ledger.
    pub(crate) changed: Notify,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) broker: watch::Sender<Broker>,
    random: RefCell<fastrand::Rng>,
    began: Instant,
    /// Least time between two fillings of a publisher's window.
    pub(crate) pace: Duration,
    /// Loads after which a subscriber that is offline returns at the latest.
    pub(crate) most_offline: u64,
}

impl Testbed {
    pub(crate) fn new(seed: u64, pace: Duration, most_offline: u64) -> Rc<Self> {
        Rc::new(Self {
            ledger: RefCell::default(),
            retained: RefCell::default(),
            changed: Notify::new(),
            phase: watch::Sender::new(Phase::default()),
            broker: watch::Sender::new(Broker::default()),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            began: Instant::now(),
            pace,
            most_offline,
        })
    }

    /// Ledger for writing; wakes every task that waits for a change.
    pub(crate) fn ledger(&self) -> RefMut<'_, Ledger> {
        self.changed.notify_waiters();
        let mut ledger = self.ledger.borrow_mut();
        ledger.set_now(self.now());
        ledger
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ledger for reading.
    pub(crate) fn read_ledger(&self) -> Ref<'_, Ledger> {
        self.ledger.borrow()
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.phase.borrow().is_loading
    }

    /// Begins a load, in which subscribers leave and return anew.
    pub(crate) fn begin_load(&self) {
        self.phase.send_modify(|phase| {
            phase.round += 1;
            (phase.is_loading, phase.everyone) = (true, false);
        });
    }

    /// Ends the load; with `everyone`, subscribers that are offline return.
    pub(crate) fn rest(&self, everyone: bool) {
        self.phase.send_modify(|phase| (phase.is_loading, phase.everyone) = (false, everyone));
    }

    /// Random number below `end`.
    pub(crate) fn draw(&self, end: usize) -> usize {
        self.random.borrow_mut().usize(..end)
    }

    /// Random duration below `end`.
    pub(crate) fn draw_time(&self, end: Duration) -> Duration {
        end.mul_f64(self.random.borrow_mut().f64())
    }

    /// Sleeps for a random duration below `end`.
    pub(crate) async fn pause(&self, end: Duration) {
        tokio::time::sleep(self.draw_time(end)).await;
    }

    /// Waits for the next load.
    pub(crate) async fn loading(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as the testbed.
        let _ = phase.wait_for(|phase| phase.is_loading).await;
    }
}

/// Transport and address of the broker.
pub(crate) struct Endpoint {
    pub(crate) transport: Transport,
    pub(crate) target: Target,
    pub(crate) tls: ClientTls,
}

impl Endpoint {
    pub(crate) fn new(transport: Transport, port: u16, ca: &Path) -> Rc<Self> {
        let scheme = braid_transport::Transport::from_scheme(transport.scheme());
        let scheme = scheme.expect("every transport of a plan has its scheme");
        let target = Target { transport: scheme, host: "localhost".to_owned(), port, path: String::new() };
        let ca_files = vec![ca.to_owned()];
        let tls = ClientTls::new(ClientTlsOptions { ca_files, ..ClientTlsOptions::default() });
        Rc::new(Self { transport, target, tls })
    }

    /// True for QUIC, whose clients do not notice that their server was killed.
    pub(crate) fn is_quic(&self) -> bool {
        self.transport == Transport::Quic
    }
}
