//! Gate of a connection as its users share it, and its verdict on the batch that is being built.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::state_log;
use super::verdict::Verdict;
use crate::quic::congestion::path_model::{Class, Gate, GateState};
use crate::quic::io::now;

/// Resolution of timers.
const TICK: Duration = Duration::from_millis(1);

/// Gate of one connection: the congestion controller asks it, the owner of the connection reports urgent bytes to it
/// and tries again when it opens.
#[derive(Debug)]
pub(in crate::quic) struct SharedGate {
    gate: Mutex<Gate>,
    /// The gate decides, in place of the congestion controller.
    is_active: AtomicBool,
    /// The gate only watches the path.
    is_passthrough: AtomicBool,
    /// The handshake is over, and each datagram has one packet.
    is_established: AtomicBool,
    /// The connection is at its end, has had another path, or the gate has failed: the congestion controller decides
    /// alone.
    is_abandoned: AtomicBool,
    /// The connection may have further paths.
    expects_paths: AtomicBool,
    /// The next packet leaves in any case.
    is_open: AtomicBool,
    /// A packet was refused since the last try.
    is_refused: AtomicBool,
    /// Tokens of a policer's bucket that bulk leaves for urgent packets.
    reserve: u8,
    /// File of the gate log.
    log: Option<Arc<Path>>,
    /// Verdict on the batch that leaves next, if a part of it stays.
    verdict: Mutex<Option<Verdict>>,
}

impl SharedGate {
    pub(in crate::quic) fn new(reserve: u8, log: Option<Arc<Path>>) -> Arc<Self> {
        Arc::new(Self {
            gate: Mutex::new(Gate::new(now(), 1200, reserve)),
            is_active: AtomicBool::new(false),
            is_passthrough: AtomicBool::new(false),
            is_established: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            expects_paths: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            reserve,
            log,
            verdict: Mutex::default(),
        })
    }

    /// Locks the gate. A panic while it was locked may have left its model half changed, and a wrong model can keep
    /// packets back for ever: the gate stands aside then.
    pub(super) fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(|poisoned| {
            if !self.is_abandoned() {
                tracing::error!("the gate of a connection panicked; its congestion controller decides alone");
                self.abandon();
            }
            poisoned.into_inner()
        })
    }

    /// Notes that the next controller is for another path.
    pub(in crate::quic) fn expect_paths(&self) {
        self.expects_paths.store(true, Ordering::Release);
    }

    /// True if a controller is built for another path.
    pub(super) fn expects_paths(&self) -> bool {
        self.expects_paths.load(Ordering::Acquire)
    }

    /// True while the gate decides, in place of the congestion controller.
    pub(in crate::quic) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire) && !self.is_abandoned()
    }

    /// Writes the states of the gate to its log from now on, if there is one.
    pub(in crate::quic) fn begin_log(self: &Arc<Self>, peer: SocketAddr) {
        if let Some(path) = &self.log {
            let gate = Arc::downgrade(self);
            state_log::follow(move || gate.upgrade()?.state(), path, peer);
        }
    }

    /// Returns a snapshot; `None` once the gate is abandoned.
    pub(in crate::quic) fn state(&self) -> Option<GateState> {
        (!self.is_abandoned()).then(|| self.lock().state(now()))
    }

    /// Notes the end of the handshake.
    pub(in crate::quic) fn set_established(&self) {
        self.is_established.store(true, Ordering::Release);
    }

    /// Forgets the urgent bytes that were reported.
    pub(in crate::quic) fn forget_urgent(&self) {
        self.lock().forget_urgent();
    }

    /// Notes urgent bytes that were written.
    pub(in crate::quic) fn handle_urgent(&self, bytes: usize) {
        self.lock().handle_urgent(u64::try_from(bytes).unwrap_or(u64::MAX), now());
    }

    /// Notes that the next packet has no room for another datagram.
    pub(in crate::quic) fn handle_filled(&self) {
        self.lock().handle_filled();
    }

    /// Bytes that may be written and not be acknowledged, unless the congestion controller decides.
    pub(in crate::quic) fn pending_limit(&self) -> Option<u64> {
        if self.is_abandoned() || self.is_passthrough() { None } else { self.lock().send_limit() }
    }

    /// Stands aside for good: the congestion controller decides about the rest.
    pub(in crate::quic) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Follows a new class of the path.
    pub(super) fn set_class(&self, class: Class) {
        self.is_active.store(class.is_limited(), Ordering::Release);
        self.is_passthrough.store(class == Class::Passthrough, Ordering::Release);
    }

    /// Begins with the gate of a new path.
    pub(super) fn replace(&self, now: Instant, mtu: u16, prepare: impl FnOnce(Gate) -> Gate) {
        let gate = prepare(Gate::new(now, mtu, self.reserve));
        *self.lock() = gate;
        self.set_class(Class::Startup);
    }

    /// True while the gate only watches: no urgent bytes have to be reported.
    pub(in crate::quic) fn is_passthrough(&self) -> bool {
        self.is_passthrough.load(Ordering::Acquire)
    }

    /// True if a probe may stay.
    pub(super) fn may_withhold(&self) -> bool {
        self.is_established.load(Ordering::Acquire) && !self.is_abandoned() && !self.is_open()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Lets packets pass or not, whatever gate and congestion controller say. For a PATH_RESPONSE, one packet: its peer
    /// sends nothing but challenges until it has one, so that nothing is acknowledged and both would wait for ever.
    pub(in crate::quic) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Notes that a packet was refused.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }

    /// Time until which timeouts of the library wait.
    pub(in crate::quic) fn timeouts_wait(&self) -> Option<Instant> {
        if !self.is_active() {
            return None;
        }
        let now = now();
        self.lock().timeouts_wait(now).map(|wait| now + wait)
    }

    /// Notes that the library is asked for packets again.
    pub(in crate::quic) fn begin_try(&self) {
        if self.is_active() {
            self.is_refused.store(false, Ordering::Release);
        }
    }

    /// True if the gate decides, and has refused nothing since the last [`Self::begin_try`].
    pub(in crate::quic) fn is_idle(&self) -> bool {
        self.is_active() && !self.is_refused.load(Ordering::Acquire)
    }

    /// Time of the next try, if something was refused: the library knows windows and acknowledgements, but not time
    /// that makes room. `None` if time alone makes none.
    pub(in crate::quic) fn next_try(&self) -> Option<Instant> {
        if !self.is_active() || !self.is_refused.load(Ordering::Acquire) {
            return None;
        }
        let now = now();
        self.lock().next(now).map(|wait| now + wait.max(TICK))
    }

    /// Time at which a PING is due behind the last packet.
    pub(in crate::quic) fn ping_due(&self) -> Option<Instant> {
        if self.is_active() { self.lock().ping_due() } else { None }
    }

    /// Takes the PING that is due.
    pub(in crate::quic) fn take_ping(&self, now: Instant) -> bool {
        self.is_active() && self.lock().take_ping(now)
    }

    /// Sets the verdict on the batch that leaves next.
    pub(super) fn set_verdict(&self, verdict: Verdict) {
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
    }

    /// Takes the verdict on a batch of so many bytes; `None`: all of it leaves.
    pub(in crate::quic) fn take_verdict(&self, bytes: usize) -> Option<Vec<Range<usize>>> {
        if self.is_passthrough() {
            return None;
        }
        // Poisoning is harmless: a verdict is replaced or taken as a whole.
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).take()?.permitted(bytes)
    }
}

#[cfg(test)]
mod tests {
    use noq_proto::congestion::{ControllerFactory, CubicConfig};

    use super::super::Gated;
    use super::*;

    fn poison<T: Send>(lock: &Mutex<T>) {
        std::thread::scope(|scope| {
            let panic = scope.spawn(|| {
                let _guard = lock.lock();
                panic!("a panic on purpose");
            });
            panic.join().expect_err("it panics");
        });
    }

    #[tokio::test]
    async fn the_last_verdict_counts_for_the_next_batch() {
        let gate = SharedGate::new(2, None);
        let withhold = |range| gate.set_verdict(Verdict::new(std::iter::once(range), 100));
        withhold(0..100);
        withhold(50..100);
        let permitted = gate.take_verdict(100).expect("half of it stays");
        assert_eq!(permitted, Vec::from_iter(std::iter::once(0..50)));
        assert_eq!(gate.take_verdict(100), None, "it is taken once");
        withhold(0..100);
        assert_eq!(gate.take_verdict(150), None, "it is about another batch");
        assert_eq!(gate.take_verdict(100), None);
    }

    #[tokio::test]
    async fn a_gate_that_panicked_stands_aside() {
        let gate = SharedGate::new(2, None);
        let inner = Arc::new(CubicConfig::default());
        let window = Arc::clone(&inner).build(now(), 1200).window();
        let factory = Arc::new(Gated::new(inner, Arc::clone(&gate), None));
        let mut controller = factory.build(now(), 1200);
        gate.set_class(Class::Policed);
        assert!(gate.is_active());
        poison(&gate.gate);
        gate.handle_urgent(100);
        assert!(!gate.is_active());
        assert_eq!((gate.state(), gate.pending_limit()), (None, None));
        controller.on_end_acks(now(), 0, true, None);
        assert!(gate.is_passthrough(), "the controller follows");
        assert_eq!(controller.window(), window);
    }
}
