//! Congestion controller of a connection, with the gate in place of its window.

mod shared_gate;
mod state_log;
mod verdict;

use std::any::Any;
use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use super::bbr_extensions::PROBE;
use super::path_model::{Class, FateCounts, Gate, SendDecision};
use crate::quic::io::now;
use crate::quic::known_paths::{KnownPath, PARTS};
pub(in crate::quic) use shared_gate::SharedGate;
use verdict::Verdict;

/// Window that never limits: the library then paces nothing.
const UNLIMITED: u64 = 1 << 40;

/// Bytes that may be in flight beyond the window of the congestion controller.
const MARGIN: u64 = 64 << 10;

/// Packets that may be in flight at first on a path that replaces another: answers that validate it must not wait.
const MIGRATED: u64 = 32;

/// Window that holds no packet.
const CLOSED: u64 = 1;

/// Factory of the controllers of one connection.
pub(in crate::quic) struct Gated {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    gate: Arc<SharedGate>,
    /// Path of the first controller, which may be resumed.
    path: Mutex<Option<KnownPath>>,
}

impl Gated {
    pub(in crate::quic) fn new(
        inner: Arc<dyn ControllerFactory + Send + Sync>,
        gate: Arc<SharedGate>,
        path: Option<KnownPath>,
    ) -> Self {
        Self { inner, gate, path: Mutex::new(path) }
    }
}

impl ControllerFactory for Gated {
    /// Builds the controller of a new path, with a new gate, or without one if it is a path beside others.
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        // The gate is a model of one path.
        if self.gate.expects_paths() {
            self.gate.abandon();
            return Arc::clone(&self.inner).build(now, mtu);
        }
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.gate.replace(now, mtu, |gate| match path.as_ref().and_then(|path| path.capacity(now)) {
            // The first packets of a connection that resumes.
            Some(known) => gate.resumed(known.window() / u64::from(mtu), PARTS[1]),
            None => gate,
        });
        let inner = Arc::clone(&self.inner).build(now, mtu);
        Box::new(GatedController { path, ..GatedController::new(self, inner, mtu) })
    }
}

struct GatedController {
    factory: Arc<Gated>,
    inner: Box<dyn Controller>,
    mtu: u16,
    class: Class,
    /// Packets in passthrough that were not reported to the gate yet.
    unreported: FateCounts,
    /// Path whose capacity is noted while the gate decides.
    path: Option<KnownPath>,
    /// Question of the library about the next packet: [`NOTHING`], [`WINDOW`] or [`BOTH`].
    asked: AtomicU8,
    /// Probes of the present batch.
    probes: Vec<Probe>,
    /// Bytes of the present batch so far.
    batch: usize,
}

/// Packet of a probe timeout.
#[derive(Clone, Debug)]
struct Probe {
    number: u64,
    /// Bytes in the batch.
    range: Range<usize>,
}

/// Questions of the library about the next packet. It asks for the metrics, then for the window, and for the metrics
/// again. Before a probe it does not ask for the window: a batch begins with the metrics, and each datagram asks for
/// them again.
///
/// Other questions change nothing: statistics ask for the window and then for the metrics, qlog for the metrics. They
/// come before or after a batch, never within one, because one task drives the connection. The first
/// question of a batch, for the metrics, follows them, and two questions for the metrics in succession always lead to
/// [`NOTHING`].
const NOTHING: u8 = 0;
const WINDOW: u8 = 1;
const BOTH: u8 = 2;

impl GatedController {
    fn new(factory: Arc<Gated>, inner: Box<dyn Controller>, mtu: u16) -> Self {
        Self {
            factory,
            inner,
            mtu,
            class: Class::Startup,
            unreported: FateCounts::default(),
            path: None,
            asked: AtomicU8::new(NOTHING),
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

    /// True while the gate only watches: fates are reported to it once per acknowledgement, and sent packets are not.
    fn is_passthrough(&self) -> bool {
        self.class == Class::Passthrough
    }

    /// Tests whether the library has sent a packet without asking for the window: a probe, which may stay.
    fn is_probe(&self) -> bool {
        let was_asked = self.asked.swap(NOTHING, Ordering::Relaxed) == BOTH;
        !was_asked && self.factory.gate.may_withhold()
    }

    /// Withholds probes of a batch but one. If urgent bytes are pending, it is the first, into which the library puts
    /// them. Otherwise it is the last: its acknowledgement shows that those before it are lost, and nothing has to be
    /// probed again. Without segmentation offload each is a batch of its own, and the second finds no token. With it,
    /// the library fills the batch behind them, up to ten datagrams, with padding.
    fn thin_probes(&mut self, bytes: u64, now: Instant) {
        let known = std::mem::take(&mut self.batch);
        let mut withheld = std::mem::take(&mut self.probes);
        if withheld.is_empty() {
            return;
        }
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Datagrams without an ack-eliciting packet stand behind the others.
        let are_alone = withheld.iter().map(|probe| probe.range.len()).sum::<usize>() == known;
        let is_known = known == length || (are_alone && known < length);
        let shared = Arc::clone(&self.factory.gate);
        let mut gate = shared.lock();
        if !is_known || gate.timeouts_wait(now).is_none() {
            let kept = withheld.remove(if gate.has_urgent() { 0 } else { withheld.len() - 1 });
            gate.handle_packet(kept.number, kept.range.len() as u64, now);
        }
        if is_known {
            let withheld = withheld.into_iter().map(|probe| probe.range).chain(iter::once(known..length));
            let verdict = Verdict::new(withheld, length);
            gate.handle_withheld(verdict.withheld() as u64);
            shared.set_verdict(verdict);
        }
    }

    /// Notes the capacity of the path while a window limits.
    fn observe(&mut self, app_limited: bool, now: Instant) {
        let capacity = if self.class == Class::Windowed { self.gate().capacity() } else { None };
        if let (Some((rate, round_trip)), Some(path)) = (capacity, &mut self.path) {
            path.observe(rate, round_trip, !app_limited, now);
        }
    }

    /// Follows the class of the path. A gate that is abandoned is in passthrough.
    fn follow(&mut self, now: Instant) {
        let class = self.gate().class();
        let class = if self.factory.gate.is_abandoned() { Class::Passthrough } else { class };
        if class == self.class {
            return;
        }
        if self.class.is_limited() && !class.is_limited() {
            // The old one saw no packets meanwhile.
            self.inner = Arc::clone(&self.factory.inner).build(now, self.mtu);
        }
        if let Some(path) = self.path.as_ref().filter(|_| matches!(class, Class::Policed | Class::Queued)) {
            path.forget_capacity();
        }
        self.class = class;
        self.factory.gate.set_class(class);
    }
}

impl Controller for GatedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        if !self.is_passthrough() {
            self.thin_probes(bytes, now);
            self.gate().handle_transmit(bytes, now);
        }
        if !self.is_active() {
            self.inner.on_sent(now, bytes, largest_pn);
        }
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if !self.is_passthrough() {
            let start = self.batch;
            let fits = bytes <= self.mtu;
            self.batch += if fits { usize::from(bytes) } else { 0 };
            if fits && self.is_probe() {
                self.probes.push(Probe { number: pn, range: start..self.batch });
            } else {
                self.gate().handle_packet(pn, bytes.into(), now);
            }
        }
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
        if self.is_passthrough() {
            self.unreported.acked += 1;
            self.unreported.smoothed = Some(smoothed);
        } else {
            self.gate().handle_acked(pn, smoothed, now);
        }
        if !self.is_active() {
            self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        if self.is_passthrough() {
            let fates = std::mem::take(&mut self.unreported);
            self.gate().handle_passthrough(fates, app_limited, now);
        } else {
            self.gate().handle_end_of_acks();
            self.observe(app_limited, now);
        }
        if !self.is_active() {
            self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
        }
        self.follow(now);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        if is_ecn || is_persistent {
            self.gate().handle_congestion(is_persistent, now);
        }
        if !self.is_active() {
            self.inner.on_congestion_event(now, sent, is_persistent, is_ecn, lost_bytes, largest_lost_pn);
        }
        self.follow(now);
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        if self.is_passthrough() {
            self.unreported.lost += u32::from(lost_bytes > PROBE);
        } else if lost_bytes > PROBE {
            self.gate().handle_lost(pn, now);
        } else {
            self.gate().handle_lost_bare(pn, now);
        }
        if !self.is_active() {
            self.inner.on_packet_lost(lost_bytes, pn, now);
        }
    }

    fn on_spurious_congestion_event(&mut self) {
        self.gate().handle_late(now());
        if !self.is_active() {
            self.inner.on_spurious_congestion_event();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.gate().handle_mtu(new_mtu);
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.asked.store(WINDOW, Ordering::Relaxed);
        if self.factory.gate.is_open() {
            return UNLIMITED;
        }
        if self.is_passthrough() || self.factory.gate.is_abandoned() {
            return self.inner.window();
        }
        let decision = self.gate().decide(now());
        match decision {
            SendDecision::Controller => self.inner.window(),
            SendDecision::Window(packets) => self.inner.window().min(packets.saturating_mul(self.mtu.into())),
            SendDecision::UrgentWindow(packets) => packets.saturating_mul(self.mtu.into()),
            SendDecision::One => self.inner.window().saturating_add(MARGIN),
            SendDecision::Send => UNLIMITED,
            SendDecision::Wait => {
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

    /// Builds the controller of a path that replaces this one, with a new gate. The library reports no more packets of
    /// this path.
    fn clone_box(&self) -> Box<dyn Controller> {
        let now = now();
        self.factory.gate.replace(now, self.mtu, |gate| gate.with_window(MIGRATED));
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

impl fmt::Debug for GatedController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use noq_proto::congestion::CubicConfig;
    use tokio::time::advance;

    use super::*;

    const MTU: u16 = 1200;

    /// Questions of statistics, of qlog and of a batch that was blocked do not change whether the next packet is a
    /// probe.
    #[test]
    fn questions_before_a_batch_do_not_tell_probes_from_packets() {
        let gate = SharedGate::new(2, None);
        let inner = Arc::new(CubicConfig::default());
        let factory = Arc::new(Gated::new(Arc::clone(&inner) as _, Arc::clone(&gate), None));
        gate.set_established();
        let mut controller = GatedController::new(factory, inner.build(now(), MTU), MTU);
        let ask = |controller: &GatedController, questions: &str| {
            for question in questions.chars() {
                match question {
                    'w' => drop(controller.window()),
                    'm' => drop(controller.metrics()),
                    _ => unreachable!(),
                }
            }
        };
        let statistics = "wm";
        let mut number = 0;
        for before in ["", statistics, "wmwm", "mw", "mwm", "mwwm", "wmm", "mwmm", "w", "m"] {
            for (first, next, is_probe) in [("mwm", "wm", false), ("mm", "m", true)] {
                ask(&controller, before);
                for questions in [first, next, next] {
                    ask(&controller, questions);
                    controller.on_packet_sent(now(), MTU, number);
                    assert_eq!(controller.probes.pop().is_some(), is_probe, "{before} {questions}");
                    number += 1;
                }
            }
        }
    }

    /// Gate and controller behind a policer of some thirty packets a second.
    async fn policed() -> (Arc<SharedGate>, Box<dyn Controller>) {
        let gate = SharedGate::new(2, None);
        let inner = Arc::new(CubicConfig::default());
        let factory = Arc::new(Gated::new(inner, Arc::clone(&gate), None));
        let mut controller = factory.build(now(), MTU);
        // Half of what is sent is dropped.
        for number in 0..40 {
            controller.on_packet_sent(now(), MTU, number);
            controller.on_sent(now(), MTU.into(), number);
            match number % 2 {
                0 => gate.lock().handle_acked(number, 0.001, now()),
                _ => controller.on_packet_lost(MTU, number, now()),
            }
            advance(Duration::from_millis(17)).await;
        }
        controller.on_end_acks(now(), 0, false, None);
        assert_eq!(gate.state().map(|state| state.class), Some(Class::Policed));
        (gate, controller)
    }

    /// A close with much to send takes few round trips on a fast path.
    #[tokio::test(start_paused = true)]
    async fn the_congestion_controller_is_told_everything_once_the_gate_is_abandoned() {
        let (gate, mut controller) = policed().await;
        let lose = |controller: &mut Box<dyn Controller>| {
            let before = controller.window();
            controller.on_congestion_event(now(), now(), false, false, MTU.into(), 40);
            controller.window() < before
        };
        assert!(!lose(&mut controller));
        gate.abandon();
        controller.on_end_acks(now(), 0, false, None);
        assert!(lose(&mut controller));
    }

    /// Without segmentation offload each probe is a batch of its own.
    #[tokio::test(start_paused = true)]
    async fn a_probe_without_a_token_does_not_leave() {
        let (gate, mut controller) = policed().await;
        gate.set_established();
        advance(Duration::from_millis(60)).await;
        let mut left = 0;
        for number in 40..60 {
            controller.metrics();
            controller.metrics();
            controller.on_packet_sent(now(), MTU, number);
            controller.on_sent(now(), MTU.into(), number);
            match gate.take_verdict(MTU.into()) {
                None => left += 1,
                Some(permitted) => assert!(permitted.is_empty(), "{permitted:?}"),
            }
        }
        assert!((1..=5).contains(&left), "{left} of a bucket of five");
    }

    /// The library puts urgent bytes into the first probe of a batch.
    #[tokio::test(start_paused = true)]
    async fn the_probe_with_urgent_bytes_leaves() {
        for (urgent, expected) in [(0, 1200..2400), (100, 0..1200)] {
            let (gate, mut controller) = policed().await;
            gate.set_established();
            advance(Duration::from_millis(400)).await;
            gate.handle_urgent(urgent);
            controller.metrics();
            for number in 40..42 {
                controller.metrics();
                controller.on_packet_sent(now(), MTU, number);
            }
            controller.on_sent(now(), 2 * u64::from(MTU), 41);
            let permitted = gate.take_verdict(2 * usize::from(MTU)).expect("one stays");
            assert_eq!(permitted, [expected], "{urgent}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_packet_with_a_path_response_leaves_an_empty_bucket() {
        let (gate, mut controller) = policed().await;
        gate.set_established();
        assert_eq!(controller.window(), CLOSED);
        gate.set_open(true);
        assert_eq!(controller.window(), UNLIMITED);
        for _ in 0..2 {
            // As a probe, too.
            controller.metrics();
        }
        controller.on_packet_sent(now(), MTU, 40);
        controller.on_sent(now(), MTU.into(), 40);
        assert_eq!(gate.take_verdict(MTU.into()), None);
        gate.set_open(false);
        assert_eq!(controller.window(), CLOSED);
    }

    /// The library may ask at any time, for statistics too: only a packet that leaves takes a token.
    #[tokio::test(start_paused = true)]
    async fn asking_for_the_window_changes_nothing() {
        let (gate, mut controller) = policed().await;
        let ask = |controller: &dyn Controller| {
            let (window, state) = (controller.window(), gate.state());
            assert!((0..100).all(|_| controller.window() == window));
            assert_eq!(gate.state(), state);
            window
        };
        let mut number = 40;
        for (wait, expected) in [(400, 6), (35, 0), (80, 1)] {
            advance(Duration::from_millis(wait)).await;
            let before = number;
            while ask(&*controller) == UNLIMITED {
                controller.on_packet_sent(now(), MTU, number);
                controller.on_sent(now(), MTU.into(), number);
                number += 1;
            }
            assert_eq!(
                number - before,
                expected,
                "a probe of a full bucket, and then two tokens are reserved"
            );
            assert_eq!(ask(&*controller), CLOSED);
        }
    }
}
