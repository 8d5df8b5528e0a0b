//! Congestion controller of a connection, with the gate in place of its window.
//!
//! [`SharedGate`] is the gate as the controller, the owner of the connection and the wake-up task share it.

mod datagram_filter;
mod deferred_datagram;
mod shared;
mod state_log;
mod wakeup_task;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use noq::congestion::{Controller, ControllerFactory, ControllerMetrics};
use noq_proto::RttEstimator;

pub(in crate::quic) use datagram_filter::{Kept, kept};
pub(in crate::quic) use deferred_datagram::Datagram;
pub(in crate::quic) use shared::SharedGate;

use super::bbr_extensions::{Found, PROBE};
use super::path_model::{Class, Gate, Permit};
use datagram_filter::Later;
use shared::now;

/// Larger than anything: the library then paces nothing.
const UNLIMITED: u64 = 1 << 40;

/// What may be on its way beyond the window of the congestion controller: probes.
const MARGIN: u64 = 64 << 10;

/// What cannot hold a packet.
const CLOSED: u64 = 1;

/// Makes controllers behind the gate of one connection.
pub(in crate::quic) struct Gated {
    pub(in crate::quic) inner: Arc<dyn ControllerFactory + Send + Sync>,
    /// What that finds of a policer.
    pub(in crate::quic) found: Found,
    pub(in crate::quic) gate: Arc<SharedGate>,
}

impl ControllerFactory for Gated {
    /// A new path: what was known of the old one is forgotten.
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        self.gate.begin_anew(Gate::new(now, mtu, self.gate.reserve()));
        let inner = Arc::clone(&self.inner).build(now, mtu);
        Box::new(GatedController::new(self, inner, mtu))
    }
}

struct GatedController {
    factory: Arc<Gated>,
    inner: Box<dyn Controller>,
    mtu: u16,
    class: Class,
    /// Packets of an open path that the gate was not told of yet.
    untold: Untold,
    asked: AtomicU8,
    /// Probes of the present batch: where they begin in it, their numbers and sizes.
    probes: Vec<Probe>,
    /// Bytes of the present batch so far.
    batch: usize,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Untold {
    acked: u32,
    lost: u32,
    /// The round trip as the library knew it last (s): an acknowledgement may be of packets that do not ask for one.
    smoothed: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    start: usize,
    number: u64,
    bytes: u16,
}

impl Probe {
    fn range(self) -> Range<usize> {
        self.start..self.start + usize::from(self.bytes)
    }
}

/// These probes stay here, and so does the padding behind all of them, to the end of the batch.
fn withhold(gate: &mut Gate, withheld: &[Probe], padding: Range<usize>) {
    for range in withheld.iter().map(|probe| probe.range()).chain([padding]).filter(|range| !range.is_empty())
    {
        gate.handle_withheld(range.len() as u64);
        datagram_filter::part(range);
    }
}

/// What the library has asked about the next packet. It looks at the metrics, then at the window, and at the metrics
/// again, for any packet but a probe, for which it does not look at the window.
const NOTHING: u8 = 0;
const WINDOW: u8 = 1;
const BOTH: u8 = 2;

impl GatedController {
    fn new(factory: Arc<Gated>, inner: Box<dyn Controller>, mtu: u16) -> Self {
        let asked = AtomicU8::new(NOTHING);
        Self {
            factory,
            inner,
            mtu,
            class: Class::Start,
            untold: Untold::default(),
            asked,
            probes: Vec::new(),
            batch: 0,
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.factory.gate.lock()
    }

    fn is_active(&self) -> bool {
        self.class.is_limited()
    }

    /// The gate only watches how the path does: it is told once for each acknowledgement, and not of what is sent.
    fn is_open(&self) -> bool {
        self.class == Class::Open
    }

    /// Whether the library has sent a packet without asking for the window: a probe.
    fn is_probe(&self) -> bool {
        let was_asked = self.asked.swap(NOTHING, Ordering::Relaxed) == BOTH;
        let gate = &self.factory.gate;
        !was_asked && !self.is_open() && gate.is_established() && !gate.is_abandoned()
    }

    /// Of the probes of a batch the last one leaves, if anything may. Its acknowledgement tells that those before it are
    /// lost; if the last one stayed here, the library would wait for it, and probe again and again. With segmentation
    /// offload the library fills the batch behind them, up to ten datagrams, with such that hold padding only.
    fn thin_probes(&mut self, bytes: u64, now: Instant) {
        let known = std::mem::take(&mut self.batch);
        let Some(last) = self.probes.pop() else { return };
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut withheld: Vec<_> = self.probes.drain(..).collect();
        // What has no packet that asks for an acknowledgement stands behind those that do.
        let are_alone =
            withheld.iter().map(|probe| usize::from(probe.bytes)).sum::<usize>() + usize::from(last.bytes);
        let is_known = known == length || (are_alone == known && known < length);
        let shared = Arc::clone(&self.factory.gate);
        let mut gate = shared.lock();
        let leaves = gate.permits_probe(now) || !is_known;
        if !leaves {
            withheld.push(last);
        }
        // The library puts what is urgent into the first.
        let later = withheld.first().copied().filter(|_| is_known && gate.wants_later());
        if let Some(later) = later {
            gate.handle_later(later.number, later.bytes.into(), now);
        }
        if leaves {
            gate.handle_packet(last.number, last.bytes.into(), now);
        }
        if is_known {
            withhold(&mut gate, &withheld, known..length);
            if let Some(later) = later {
                let gate = Arc::clone(&shared);
                datagram_filter::later(Later { range: later.range(), number: later.number, gate });
            }
            datagram_filter::batch(length);
        }
    }

    /// After what may have changed the class.
    fn follow(&mut self, now: Instant) {
        let class = self.gate().class();
        if class == self.class {
            return;
        }
        tracing::debug!(?class, "the path is taken for another kind");
        if self.class.is_limited() && !class.is_limited() {
            // It was not asked meanwhile, and knows another path.
            self.inner = Arc::clone(&self.factory.inner).build(now, self.mtu);
        }
        self.class = class;
        self.factory.gate.set_class(class);
    }
}

impl Controller for GatedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        if !self.is_open() {
            self.thin_probes(bytes, now);
            self.gate().handle_transmit(bytes, now);
        }
        if !self.is_active() {
            self.inner.on_sent(now, bytes, largest_pn);
        }
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if self.is_open() {
            return self.inner.on_packet_sent(now, bytes, pn);
        }
        if bytes <= self.mtu {
            let start = self.batch;
            self.batch += usize::from(bytes);
            if self.is_probe() {
                self.probes.push(Probe { start, number: pn, bytes });
                if !self.is_active() {
                    self.inner.on_packet_sent(now, bytes, pn);
                }
                return;
            }
        }
        self.gate().handle_packet(pn, bytes.into(), now);
        if !self.is_active() {
            self.inner.on_packet_sent(now, bytes, pn);
        }
    }

    fn on_cwnd_limited(&mut self) {
        if !self.is_active() {
            self.inner.on_cwnd_limited();
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let smoothed = rtt.get().as_secs_f64();
        if self.is_open() {
            self.untold.acked += 1;
            self.untold.smoothed = Some(smoothed);
        } else {
            self.gate().handle_acked(pn, smoothed, now);
        }
        if !self.is_active() {
            self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        if self.is_open() {
            let Untold { acked, lost, smoothed } = std::mem::take(&mut self.untold);
            self.gate().handle_open(acked, lost, smoothed, app_limited, now);
        } else {
            self.gate().handle_end_of_acks();
        }
        if !self.is_active() {
            self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
        }
        let found = self.factory.found.load(Ordering::Relaxed);
        if self.is_open() && found > 0 {
            self.gate().handle_policer(found, now);
        }
        self.follow(now);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        if !self.is_active() {
            self.inner.on_congestion_event(
                now,
                sent,
                is_persistent_congestion,
                is_ecn,
                lost_bytes,
                largest_lost_pn,
            );
        }
        self.follow(now);
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        if self.is_open() {
            self.untold.lost += u32::from(lost_bytes > PROBE);
        } else if lost_bytes > PROBE {
            self.gate().handle_lost(pn, now);
        }
        if !self.is_active() {
            self.inner.on_packet_lost(lost_bytes, pn, now);
        }
    }

    fn on_spurious_congestion_event(&mut self) {
        if !self.is_active() {
            self.inner.on_spurious_congestion_event();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.gate().handle_mtu(new_mtu);
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        self.asked.store(WINDOW, Ordering::Relaxed);
        if self.is_open() || self.factory.gate.is_abandoned() {
            return self.inner.window();
        }
        let permit = self.gate().permit(now());
        match permit {
            Permit::Open => self.inner.window(),
            Permit::Window(packets) => self.inner.window().min(packets.saturating_mul(self.mtu.into())),
            Permit::One => self.inner.window().saturating_add(MARGIN),
            Permit::Yes => UNLIMITED,
            Permit::No => {
                self.factory.gate.refuse();
                CLOSED
            }
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let asked = if self.asked.load(Ordering::Relaxed) == WINDOW { BOTH } else { NOTHING };
        self.asked.store(asked, Ordering::Relaxed);
        if !self.is_active() || self.factory.gate.is_abandoned() {
            return self.inner.metrics();
        }
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = UNLIMITED;
        metrics
    }

    /// For a path that takes the place of this one: what was known of it is forgotten, and what was sent on it is not
    /// told of any more.
    fn clone_box(&self) -> Box<dyn Controller> {
        let now = now();
        let gate = &self.factory.gate;
        gate.begin_anew(Gate::moved(now, self.mtu, gate.reserve()));
        let inner = match self.is_active() {
            true => Arc::clone(&self.factory.inner).build(now, self.mtu),
            false => self.inner.clone_box(),
        };
        Box::new(Self::new(Arc::clone(&self.factory), inner, self.mtu))
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Drop for GatedController {
    fn drop(&mut self) {
        // Its keeper ends with the connection.
        self.factory.gate.refuse();
    }
}

impl fmt::Debug for GatedController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedController")
            .field("class", &self.class)
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
