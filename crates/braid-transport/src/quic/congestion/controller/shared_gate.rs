//! Gate of a connection as its users share it, the task that wakes the library when it opens, and the deferred
//! datagram.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use noq::udp::{EcnCodepoint, Transmit};
use noq::{UdpSender, VarInt, WeakConnectionHandle};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::state_log;
use crate::quic::congestion::path_model::{Class, Gate, GateState, Release};
use crate::quic::panic_guard::{guarded, is_sound};

/// Resolution of timers.
const TICK: Duration = Duration::from_millis(1);

/// Gate of one connection: the congestion controller asks it, the owner of the connection reports urgent bytes to it,
/// and a task wakes the library when it opens.
#[derive(Debug)]
pub(in crate::quic) struct SharedGate {
    gate: Mutex<Gate>,
    /// The gate decides, in place of the congestion controller.
    is_active: AtomicBool,
    /// The gate only watches the path.
    is_passthrough: AtomicBool,
    has_wakeup_task: AtomicBool,
    /// The handshake is over, and each datagram has one packet.
    is_established: AtomicBool,
    /// The connection is at its end, or the gate has failed: the congestion controller decides alone.
    is_abandoned: AtomicBool,
    /// Notified when a packet was refused.
    refused: Notify,
    /// Unidirectional streams as the connection is configured.
    uni_streams: u32,
    /// Tokens of a policer's bucket that bulk leaves for urgent packets.
    reserve: u8,
    /// File of the gate log.
    log: Option<Arc<Path>>,
    library: OnceLock<Library>,
    deferred: Mutex<Deferred>,
}

impl SharedGate {
    pub(in crate::quic) fn new(uni_streams: u32, reserve: u8, log: Option<Arc<Path>>) -> Arc<Self> {
        Arc::new(Self {
            gate: Mutex::new(Gate::new(now(), 1200, reserve)),
            is_active: AtomicBool::new(false),
            is_passthrough: AtomicBool::new(false),
            has_wakeup_task: AtomicBool::new(false),
            is_established: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            refused: Notify::new(),
            uni_streams,
            reserve,
            log,
            library: OnceLock::new(),
            deferred: Mutex::default(),
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

    /// True once a panic has left the gate half changed.
    pub(super) fn has_failed(&self) -> bool {
        self.gate.is_poisoned()
    }

    /// True while the gate decides, in place of the congestion controller.
    pub(in crate::quic) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire) && !self.is_abandoned()
    }

    pub(super) fn reserve(&self) -> u8 {
        self.reserve
    }

    /// Sets the connection. Only the first call has an effect.
    pub(in crate::quic) fn set_connection(self: &Arc<Self>, connection: &noq::Connection, peer: SocketAddr) {
        let _ = self.library.set(Library::new(connection, self.uni_streams));
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

    /// True if urgent bytes have to be reported.
    pub(in crate::quic) fn wants_urgent(&self) -> bool {
        !self.is_passthrough()
    }

    /// Forgets the urgent bytes that were reported.
    pub(in crate::quic) fn forget_urgent(&self) {
        self.lock().forget_urgent();
    }

    /// Notes urgent bytes that were written.
    pub(in crate::quic) fn handle_urgent(&self, bytes: usize) {
        self.lock().handle_urgent(u64::try_from(bytes).unwrap_or(u64::MAX), now());
        if self.is_active() {
            self.wake();
        }
    }

    /// Notes an ack-eliciting arrival.
    pub(in crate::quic) fn handle_received(&self) {
        if self.is_active() {
            self.lock().handle_received(now());
        }
    }

    /// Bytes that may be written and not be acknowledged, unless the congestion controller decides.
    pub(in crate::quic) fn pending_limit(&self) -> Option<u64> {
        if self.is_abandoned() || self.is_passthrough() { None } else { self.lock().send_limit() }
    }

    /// Stands aside for good: the congestion controller decides about the rest.
    pub(in crate::quic) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.refuse();
    }

    /// Follows a new class of the path.
    pub(super) fn set_class(self: &Arc<Self>, class: Class) {
        self.is_active.store(class.is_limited(), Ordering::Release);
        self.is_passthrough.store(class == Class::Passthrough, Ordering::Release);
        if class.is_limited() {
            self.spawn_wakeup_task();
        }
        // The task ends when the gate no longer decides.
        self.refuse();
    }

    /// Takes the gate of a new path.
    pub(super) fn replace(&self, gate: Gate) {
        *self.lock() = gate;
        self.is_active.store(false, Ordering::Release);
        self.is_passthrough.store(false, Ordering::Release);
    }

    fn is_passthrough(&self) -> bool {
        self.is_passthrough.load(Ordering::Acquire)
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Notes that a packet was refused, or that the deferred datagram has changed.
    pub(super) fn refuse(&self) {
        self.refused.notify_one();
    }

    /// Notes a new socket: the deferred datagram of the one before is discarded.
    pub(in crate::quic) fn handle_rebind(&self) {
        *self.deferred() = Deferred::default();
        self.lock().handle_rebind(now());
    }

    /// Wakes the library, which then tests whether it may send. False: the connection is gone.
    fn wake(&self) -> bool {
        self.library.get().is_none_or(Library::wake)
    }

    /// Spawns the task that wakes the library while the gate decides: the library knows windows and acknowledgements,
    /// but not time that makes room.
    fn spawn_wakeup_task(self: &Arc<Self>) {
        if self.has_wakeup_task.swap(true, Ordering::AcqRel) {
            return;
        }
        let gate = Arc::clone(self);
        tokio::spawn(async move {
            let mut is_there = true;
            while is_there && gate.is_active() {
                gate.refused.notified().await;
                // Each further refusal may be for another time, or for none: then acknowledgements make room.
                while let Some(wait) = gate.next().filter(|_| is_there) {
                    tokio::select! {
                        () = sleep(wait.max(TICK)) => {
                            let is_waiting = gate.send_deferred().await;
                            is_there = gate.wake();
                            if !is_waiting {
                                break;
                            }
                        }
                        () = gate.refused.notified() => {
                            gate.send_deferred().await;
                        }
                    }
                }
            }
            // Nothing limits it any more.
            gate.send_deferred().await;
            gate.has_wakeup_task.store(false, Ordering::Release);
            if is_there && gate.is_active() {
                // The gate decides again since the loop ended.
                gate.spawn_wakeup_task();
            }
        });
    }

    /// Time until more is permitted; `None` if time alone makes no room.
    fn next(&self) -> Option<Duration> {
        self.is_active().then(|| self.lock().next(now())).flatten()
    }

    /// Locks the deferred datagram. After a panic it is discarded: a lost datagram is sent again.
    fn deferred(&self) -> MutexGuard<'_, Deferred> {
        self.deferred.lock().unwrap_or_else(|poisoned| {
            let mut deferred = poisoned.into_inner();
            *deferred = Deferred::default();
            self.deferred.clear_poison();
            deferred
        })
    }

    /// Stores a datagram in place of the one before. `sender`: a sender of its socket, if that is a new one.
    pub(in crate::quic) fn defer(&self, datagram: Datagram, sender: Option<Pin<Box<dyn UdpSender>>>) {
        let mut deferred = self.deferred();
        deferred.datagram = Some(datagram);
        deferred.sender = sender.or_else(|| deferred.sender.take());
        drop(deferred);
        self.refuse();
    }

    /// Sends the deferred datagram if it may leave now. True: it has to wait. A datagram that cannot be sent is lost,
    /// as in a network.
    async fn send_deferred(&self) -> bool {
        let Some(number) = self.deferred().datagram.as_ref().map(|datagram| datagram.number) else {
            return false;
        };
        let release = self.lock().release(number, now());
        if release == Release::Wait {
            return true;
        }
        let (datagram, sender) = {
            let mut deferred = self.deferred();
            let datagram = deferred.datagram.take_if(|datagram| datagram.number == number);
            let leaves = datagram.is_some() && release == Release::Send;
            (datagram, leaves.then(|| deferred.sender.take()).flatten())
        };
        let (Some(datagram), Some(mut sender)) = (datagram, sender) else { return false };
        let Datagram { contents, destination, source, ecn, .. } = datagram;
        let transmit = Transmit { destination, ecn, contents: &contents, segment_size: None, src_ip: source };
        if let Err(error) = poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx)).await {
            tracing::debug!(%error, "a deferred datagram is lost");
        }
        self.deferred().sender.get_or_insert(sender);
        false
    }

    /// Number of the packet whose datagram is deferred.
    #[cfg(test)]
    pub(in crate::quic) fn take_deferred(&self) -> Option<u64> {
        self.deferred().datagram.take().map(|datagram| datagram.number)
    }
}

/// Datagram that was not sent with its batch.
#[derive(Debug)]
pub(in crate::quic) struct Datagram {
    /// Packet number.
    number: u64,
    contents: Vec<u8>,
    destination: SocketAddr,
    source: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
}

impl Datagram {
    /// Copies the datagram of a packet. `batch`: its addresses are used.
    pub(in crate::quic) fn new(number: u64, contents: &[u8], batch: &Transmit<'_>) -> Self {
        let (destination, source, ecn) = (batch.destination, batch.src_ip, batch.ecn);
        Self { number, contents: contents.to_vec(), destination, source, ecn }
    }
}

/// Deferred datagram, and a sender for it: the library's own sender is not accessible between its batches.
#[derive(Debug, Default)]
struct Deferred {
    sender: Option<Pin<Box<dyn UdpSender>>>,
    datagram: Option<Datagram>,
}

/// Handle that wakes the library.
#[derive(Debug)]
struct Library {
    connection: WeakConnectionHandle,
    /// Value of the connection's configuration: setting it again wakes the library and changes nothing.
    uni_streams: VarInt,
}

impl Library {
    fn new(connection: &noq::Connection, uni_streams: u32) -> Self {
        Self { connection: connection.weak_handle(), uni_streams: VarInt::from_u32(uni_streams) }
    }

    fn wake(&self) -> bool {
        let Some(connection) = self.connection.upgrade() else { return false };
        let set = || connection.set_max_concurrent_uni_streams(self.uni_streams);
        if is_sound(&connection) && guarded(set).is_ok() {
            return true;
        }
        // Dropping the handle of a broken connection would end the process.
        std::mem::forget(connection);
        false
    }
}

/// Clock of the runtime, which the library uses too.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use noq::congestion::{ControllerFactory, CubicConfig};

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
    async fn a_gate_that_panicked_stands_aside() {
        let gate = SharedGate::new(0, 2, None);
        let inner = Arc::new(CubicConfig::default());
        let window = Arc::clone(&inner).build(now(), 1200).window();
        let factory = Arc::new(Gated { inner, found: Arc::default(), gate: Arc::clone(&gate) });
        let mut controller = factory.build(now(), 1200);
        gate.set_class(Class::Policed);
        assert!(gate.is_active());
        poison(&gate.gate);
        gate.handle_urgent(100);
        assert!(!gate.is_active());
        assert_eq!((gate.state(), gate.pending_limit()), (None, None));
        controller.on_end_acks(now(), 0, true, None);
        assert!(!gate.wants_urgent(), "the controller follows");
        assert_eq!(controller.window(), window);
    }

    #[test]
    fn a_panic_discards_the_deferred_datagram() {
        let gate = SharedGate::new(0, 2, None);
        let datagram = |number| Datagram {
            number,
            contents: Vec::new(),
            destination: SocketAddr::from(([127, 0, 0, 1], 1)),
            source: None,
            ecn: None,
        };
        gate.defer(datagram(1), None);
        poison(&gate.deferred);
        assert_eq!(gate.take_deferred(), None);
        gate.defer(datagram(2), None);
        assert_eq!(gate.take_deferred(), Some(2));
    }
}
