//! What all clients of the oracle share.

use std::cell::{Ref, RefCell, RefMut};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use braid_transport::{ClientTls, ClientTlsOptions, Target, Transport};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::ledger::Ledger;
use crate::retained::Retained;

/// What the clients are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Counts loads.
    pub(crate) round: u64,
    /// New messages may be sent.
    pub(crate) is_loading: bool,
    /// Readers who are away come back.
    pub(crate) everybody: bool,
}

/// What is known of the broker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broker {
    /// It listens.
    pub(crate) is_up: bool,
    /// How often it has ended.
    pub(crate) ends: u64,
}

/// What all clients share.
pub(crate) struct House {
    ledger: RefCell<Ledger>,
    pub(crate) retained: RefCell<Retained>,
    /// Something came into the books.
    pub(crate) changed: Notify,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) broker: watch::Sender<Broker>,
    random: RefCell<fastrand::Rng>,
    began: Instant,
    /// Each publisher fills its window so often at most.
    pub(crate) pace: Duration,
    /// Loads after which whoever is away comes back at the latest.
    pub(crate) most_away: u64,
}

impl House {
    pub(crate) fn new(seed: u64, pace: Duration, most_away: u64) -> Rc<Self> {
        Rc::new(Self {
            ledger: RefCell::default(),
            retained: RefCell::default(),
            changed: Notify::new(),
            phase: watch::Sender::new(Phase::default()),
            broker: watch::Sender::new(Broker::default()),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            began: Instant::now(),
            pace,
            most_away,
        })
    }

    /// The books, to write in: whoever waits for a change looks again.
    pub(crate) fn ledger(&self) -> RefMut<'_, Ledger> {
        self.changed.notify_waiters();
        let mut ledger = self.ledger.borrow_mut();
        ledger.set_now(self.now());
        ledger
    }

    /// Since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The books, to read in.
    pub(crate) fn books(&self) -> Ref<'_, Ledger> {
        self.ledger.borrow()
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.phase.borrow().is_loading
    }

    /// From now on nobody sends anything new. Whoever is away comes back if everybody is to.
    pub(crate) fn rest(&self, everybody: bool) {
        self.phase.send_modify(|phase| (phase.is_loading, phase.everybody) = (false, everybody));
    }

    /// Below `end`.
    pub(crate) fn draw(&self, end: usize) -> usize {
        self.random.borrow_mut().usize(..end)
    }

    /// Some time below `end`.
    pub(crate) fn draw_time(&self, end: Duration) -> Duration {
        end.mul_f64(self.random.borrow_mut().f64())
    }

    /// Lets some time below `end` pass.
    pub(crate) async fn pause(&self, end: Duration) {
        tokio::time::sleep(self.draw_time(end)).await;
    }

    /// Waits for the next load.
    pub(crate) async fn loading(&self) {
        let mut phase = self.phase.subscribe();
        // It ends with the process.
        let _ = phase.wait_for(|phase| phase.is_loading).await;
    }
}

/// One way to the broker.
pub(crate) struct Way {
    pub(crate) scheme: &'static str,
    pub(crate) target: Target,
    pub(crate) tls: ClientTls,
}

impl Way {
    pub(crate) fn new(scheme: &'static str, port: u16, ca: PathBuf) -> Option<Rc<Self>> {
        let transport = Transport::from_scheme(scheme)?;
        let target = Target { transport, host: "localhost".to_owned(), port, path: String::new() };
        let tls = ClientTls::new(ClientTlsOptions { ca_files: vec![ca], ..ClientTlsOptions::default() });
        Some(Rc::new(Self { scheme, target, tls }))
    }

    /// Nobody tells a client of QUIC that its server was killed.
    pub(crate) fn is_quic(&self) -> bool {
        self.target.transport == Transport::Quic
    }
}
