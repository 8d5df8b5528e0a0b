//! Certainty of a node about its sessions: the lease, kept from the moment it is taken, and the verification of all
//! records after a time for which other nodes could take sessions over.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use braid_broker::node_handle::NodeHandle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, timeout};

use crate::nodes::{Lease, LeaseLost, LeaseWatcher};
use crate::store::NodeState;

/// Time between two looks at the connection to NATS, and looks after which it counts as lost: together less than the
/// time for which other nodes ask for a session.
const CONNECTION_LOOK: Duration = Duration::from_millis(250);
const CONNECTION_LOST: u32 = 3;

/// Time to give the name of the node back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// Ownership of the sessions of a node.
#[derive(Debug)]
struct Ownership {
    /// Time until which other nodes leave the sessions alone.
    until: Instant,
    /// Times at which that had passed, or the connection was lost.
    lapses: u64,
    /// True while the records of all sessions are written again.
    is_verifying: bool,
}

/// Consequence of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewed {
    /// The sessions are this node's.
    Owns,
    /// The records have to be written again, since so many lapses.
    Verify(u64),
    /// The records are being written.
    Verifying,
}

impl Ownership {
    const fn new(until: Instant) -> Self {
        Self { until, lapses: 0, is_verifying: false }
    }

    /// The connection is lost: a node that finds no answer takes sessions over.
    const fn lose(&mut self, now: Instant) {
        self.until = now;
        self.lapses += 1;
    }

    /// The lease is renewed.
    fn renew(&mut self, now: Instant, until: Instant) -> Renewed {
        let is_lapsed = now >= std::mem::replace(&mut self.until, until);
        self.lapses += u64::from(is_lapsed);
        if self.is_verifying {
            return Renewed::Verifying;
        }
        self.is_verifying = is_lapsed;
        if is_lapsed { Renewed::Verify(self.lapses) } else { Renewed::Owns }
    }

    /// The records are written again since `lapses`. `Some`: there were others meanwhile, and they have to be written
    /// once more.
    const fn note_verified(&mut self, lapses: u64) -> Option<u64> {
        if self.lapses != lapses {
            return Some(self.lapses);
        }
        self.is_verifying = false;
        None
    }
}

/// Effect of the lease on a node, whose broker may begin later.
#[derive(Clone)]
pub(crate) struct Renewals(Arc<Shared>);

struct Shared {
    ownership: Mutex<Ownership>,
    broker: OnceLock<(Arc<NodeState>, NodeHandle)>,
}

impl Renewals {
    fn new(until: Instant) -> Self {
        Self(Arc::new(Shared { ownership: Mutex::new(Ownership::new(until)), broker: OnceLock::new() }))
    }

    /// Locks the ownership, also while the broker is told: the last of two changes is the last one told.
    fn ownership(&self) -> MutexGuard<'_, Ownership> {
        self.0.ownership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to tell the broker.
    pub(crate) fn begin(&self, state: Arc<NodeState>, handle: NodeHandle) {
        let ownership = self.ownership();
        handle.set_owns_until(ownership.until.into_std());
        let _ = self.0.broker.set((state, handle));
    }

    /// Ends the certainty of the node while it has no connection to NATS.
    pub(crate) async fn watch_connection(self, client: Client) {
        let mut look = interval(CONNECTION_LOOK);
        let mut lost = 0;
        loop {
            look.tick().await;
            lost = if client.connection_state() == State::Connected { 0 } else { lost + 1 };
            if lost == CONNECTION_LOST
                && let Some((_, handle)) = self.0.broker.get()
            {
                let (mut ownership, now) = (self.ownership(), Instant::now());
                ownership.lose(now);
                handle.set_owns_until(now.into_std());
            }
        }
    }

    /// Writes the records of all sessions, until no lapse falls into it. Other nodes may have taken over sessions:
    /// writes of their records are refused, and their connections closed, before anything is delivered to them.
    async fn verify(self, state: Arc<NodeState>, handle: NodeHandle, mut lapses: u64) {
        loop {
            state.verify_all().await;
            let mut ownership = self.ownership();
            match ownership.note_verified(lapses) {
                Some(later) => lapses = later,
                None => return handle.set_owns_until(ownership.until.into_std()),
            }
        }
    }
}

impl LeaseWatcher for Renewals {
    fn positions(&self) -> Vec<u64> {
        // Without positions the node holds the log: its retained messages are as of an earlier one.
        self.0.broker.get().map_or_else(Vec::new, |(state, _)| state.positions().to_vec())
    }

    fn note_renewed(&self, until: Instant) {
        let mut ownership = self.ownership();
        let Some((state, handle)) = self.0.broker.get() else {
            // No session is here yet.
            *ownership = Ownership::new(until);
            return;
        };
        state.is_reachable.store(true, Ordering::Relaxed);
        handle.set_reachable(true);
        match ownership.renew(Instant::now(), until) {
            Renewed::Owns => handle.set_owns_until(until.into_std()),
            Renewed::Verify(lapses) => {
                drop(tokio::spawn(self.clone().verify(state.clone(), handle.clone(), lapses)));
            }
            Renewed::Verifying => {}
        }
    }

    fn note_unreachable(&self) {
        if let Some((state, handle)) = self.0.broker.get() {
            state.is_reachable.store(false, Ordering::Relaxed);
            handle.set_reachable(false);
        }
    }
}

/// Lease that is renewed by a task of its own. Dropped, it gives the name of the node back.
pub(crate) struct KeptLease {
    pub(crate) renewals: Renewals,
    /// True when another process has the name of the node.
    is_lost: watch::Receiver<bool>,
    leaving: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl KeptLease {
    /// Renews a lease from now on.
    pub(crate) fn keep(lease: Lease) -> Self {
        let renewals = Renewals::new(lease.until());
        let ((lost, is_lost), (leaving, left)) = (watch::channel(false), oneshot::channel());
        let task = tokio::spawn(keep_lease(lease, renewals.clone(), left, lost));
        Self { renewals, is_lost, leaving, task }
    }

    /// Waits until another process has the name of the node.
    pub(crate) async fn lost(&mut self) {
        // The sender lives as long as the renewal, which ends with that.
        let _ = self.is_lost.wait_for(|is_lost| *is_lost).await;
    }

    /// Gives the name back, for a bounded time.
    pub(crate) async fn give_back(self) {
        // A lease that is lost is not renewed any more.
        let _ = self.leaving.send(());
        let _ = timeout(GIVE_BACK, self.task).await;
    }
}

/// Keeps a lease until it is lost, or the node leaves.
async fn keep_lease(
    mut lease: Lease,
    renewals: Renewals,
    leaving: oneshot::Receiver<()>,
    is_lost: watch::Sender<bool>,
) {
    tokio::select! {
        LeaseLost = lease.keep(&renewals) => drop(is_lost.send(true)),
        _ = leaving => lease.give_back().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_verified_again_after_an_outage_during_the_verification() {
        let began = Instant::now();
        let at = |secs| began + Duration::from_secs(secs);
        let mut ownership = Ownership::new(at(9));
        assert_eq!(ownership.renew(at(3), at(12)), Renewed::Owns);
        // A pause of the process.
        assert_eq!(ownership.renew(at(20), at(29)), Renewed::Verify(1));
        assert_eq!(ownership.renew(at(23), at(32)), Renewed::Verifying);
        // A loss of the connection, and a second pause.
        ownership.lose(at(24));
        assert_eq!(ownership.renew(at(26), at(35)), Renewed::Verifying);
        assert_eq!(ownership.note_verified(1), Some(3));
        assert_eq!(ownership.renew(at(40), at(49)), Renewed::Verifying);
        assert_eq!(ownership.note_verified(3), Some(4));
        assert_eq!(ownership.renew(at(43), at(52)), Renewed::Verifying);
        assert_eq!((ownership.note_verified(4), ownership.until), (None, at(52)));
        assert_eq!(ownership.renew(at(46), at(55)), Renewed::Owns);
        // One that ends after the verification is found by the next renewal.
        ownership.lose(at(47));
        assert_eq!(ownership.renew(at(49), at(58)), Renewed::Verify(6));
    }
}
