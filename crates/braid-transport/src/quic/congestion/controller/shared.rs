//! The gate of one connection, as those share it who have to do with it.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use noq::UdpSender;
use tokio::sync::Notify;

use super::deferred_datagram::{Datagram, Leaving};
use super::state_log;
use super::wakeup_task::{self, Library};
use crate::quic::congestion::path_model::{Class, Gate, GateState, Leave};

/// The gate of one connection: the congestion controller asks it, the owner of the link tells it what is urgent, and a
/// keeper wakes the library when it opens.
pub(in crate::quic) struct SharedGate {
    gate: Mutex<Gate>,
    /// It decides, in place of the congestion controller.
    is_active: AtomicBool,
    /// It only watches how the path does.
    is_open: AtomicBool,
    is_kept: AtomicBool,
    /// The handshake is over, and each datagram has one packet.
    is_established: AtomicBool,
    /// The link is at its end: nothing is urgent any more.
    is_abandoned: AtomicBool,
    /// A packet was refused.
    refused: Notify,
    /// What the connection is configured with.
    uni_streams: u32,
    /// Packets that are left for what is urgent.
    reserve: u8,
    /// Where it is written down what the gate knows.
    log: Option<Arc<Path>>,
    library: OnceLock<Library>,
    leaving: Leaving,
}

impl SharedGate {
    /// `uni_streams`: as the connection is configured. `reserve`: packets that are left for what is urgent. `log`: where it
    /// is written down what the gate knows.
    pub(in crate::quic) fn new(uni_streams: u32, reserve: u8, log: Option<Arc<Path>>) -> Arc<Self> {
        Arc::new(Self {
            gate: Mutex::new(Gate::new(now(), 1200, reserve)),
            is_active: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            is_established: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            refused: Notify::new(),
            uni_streams,
            reserve,
            log,
            library: OnceLock::new(),
            leaving: Leaving::default(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it decides, in place of the congestion controller.
    pub(in crate::quic) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Acquire) && !self.is_abandoned.load(Ordering::Acquire)
    }

    /// Packets that are left for what is urgent.
    pub(super) fn reserve(&self) -> u8 {
        self.reserve
    }

    /// The connection is there.
    pub(in crate::quic) fn set_connection(self: &Arc<Self>, connection: &noq::Connection, peer: SocketAddr) {
        // There is one, so this is the first.
        let _ = self.library.set(Library::new(connection, self.uni_streams));
        if let Some(path) = &self.log {
            state_log::follow(self, path, peer);
        }
    }

    /// What it knows now; `None`: the link is at its end, and nobody asks it any more.
    pub(in crate::quic) fn state(&self) -> Option<GateState> {
        (!self.is_abandoned()).then(|| self.lock().state(now()))
    }

    /// The handshake is over.
    pub(in crate::quic) fn set_established(&self) {
        self.is_established.store(true, Ordering::Release);
    }

    /// Whether it makes a difference what is urgent.
    pub(in crate::quic) fn wants_urgent(&self) -> bool {
        !self.is_open()
    }

    /// What was said to be urgent is not.
    pub(in crate::quic) fn forget_urgent(&self) {
        self.lock().forget_urgent();
    }

    /// So many bytes were written that are more urgent than others.
    pub(in crate::quic) fn handle_urgent(&self, bytes: usize) {
        self.lock().handle_urgent(u64::try_from(bytes).unwrap_or(u64::MAX), now());
        if self.is_active() {
            self.wake();
        }
    }

    /// Something came that has to be acknowledged.
    pub(in crate::quic) fn handle_received(&self) {
        if self.is_active() {
            self.lock().handle_received(now());
        }
    }

    /// Bytes that may be written and not be acknowledged, unless the congestion controller decides.
    pub(in crate::quic) fn backlog(&self) -> Option<u64> {
        if self.is_abandoned() || self.is_open() { None } else { self.lock().backlog() }
    }

    /// The link is at its end: what is left goes as the congestion controller decides.
    pub(in crate::quic) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.refuse();
    }

    /// The path is taken for another kind.
    pub(super) fn set_class(self: &Arc<Self>, class: Class) {
        self.is_active.store(class.is_limited(), Ordering::Release);
        self.is_open.store(class == Class::Open, Ordering::Release);
        if class.is_limited() {
            wakeup_task::keep(self);
        }
        // The keeper of a gate that does not decide any more has nothing to do.
        self.refuse();
    }

    /// A new path: what was known of the old one is forgotten.
    pub(super) fn begin_anew(&self, gate: Gate) {
        *self.lock() = gate;
        self.is_active.store(false, Ordering::Release);
        self.is_open.store(false, Ordering::Release);
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established.load(Ordering::Acquire)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// False if somebody keeps it already.
    pub(super) fn begin_keeping(&self) -> bool {
        !self.is_kept.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end_keeping(&self) {
        self.is_kept.store(false, Ordering::Release);
    }

    /// Waits until a packet is refused that was not heard of.
    pub(super) async fn refused(&self) {
        self.refused.notified().await;
    }

    /// How long it is until more is permitted; `None` if time alone makes no room.
    pub(super) fn next(&self) -> Option<Duration> {
        self.is_active().then(|| self.lock().next(now())).flatten()
    }

    /// Keeps a datagram until it may leave; `sender`: what sends it then, if that is not what sent the last.
    pub(in crate::quic) fn keep(&self, datagram: Datagram, sender: Option<Pin<Box<dyn UdpSender>>>) {
        self.leaving.keep(datagram, sender);
        self.refuse();
    }

    /// Sends what is kept, if it may leave now. True: it waits on.
    pub(super) async fn send_kept(&self) -> bool {
        let Some(number) = self.leaving.number() else { return false };
        let leave = self.lock().leave(number, now());
        match leave {
            Leave::Now => self.leaving.send(number).await,
            Leave::Never => self.leaving.forget(number),
            Leave::Wait => {}
        }
        leave == Leave::Wait
    }

    /// The socket is another one: what is kept for the one before is not sent.
    pub(in crate::quic) fn handle_rebind(&self) {
        self.leaving.reset();
        self.lock().forget_later(now());
    }

    /// Has the library look whether it may send. False: it is gone.
    pub(super) fn wake(&self) -> bool {
        self.library.get().is_none_or(Library::wake)
    }

    /// A packet was refused, or what is kept has changed.
    pub(super) fn refuse(&self) {
        self.refused.notify_one();
    }
}

impl fmt::Debug for SharedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGate").field("is_active", &self.is_active).finish_non_exhaustive()
    }
}

/// The runtime's clock: the library's is the same.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
