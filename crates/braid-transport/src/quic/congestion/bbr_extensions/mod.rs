//! Extensions of BBR version 3: a start that is quicker, and one that remembers the path, a cap behind policers, a new
//! begin on a path that has become longer, a lower limit on one that loses without a queue, and a packet beyond the
//! window on a silent one.

mod careful_resume;
mod delivery_rate;
mod extra_packet;
mod loss_floor;
mod policer_cap;
mod rtt_step;
mod startup_growth;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::quic::known_paths::KnownPath;
use careful_resume::CarefulResume;
use extra_packet::ExtraPacket;
use loss_floor::LossFloor;
use policer_cap::PolicerCap;
use rtt_step::RttStep;
use startup_growth::StartupGrowth;

/// Size (bytes) up to which a packet may be a probe that the PTO filter kept back: its loss shows nothing about the
/// network.
pub(in crate::quic) const PROBE: u16 = 30;

/// Factory of extended controllers of another kind.
pub(in crate::quic) struct BbrExtensions {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    has_loss_floor: bool,
    /// Path of the first controller. Those of further paths have others.
    path: Mutex<Option<KnownPath>>,
    /// A controller was built. Later ones are for paths that have shown a limit, or that are not alone.
    has_built: AtomicBool,
}

/// Lower limit of what a controller allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Floor {
    /// Bytes per second.
    rate: u64,
    /// Bytes in flight.
    window: u64,
}

/// Present state of a controller.
#[derive(Clone, Copy, Debug)]
struct PathNow {
    /// Estimate of the capacity, and pacing rate, bytes per second.
    rate: Option<u64>,
    pacing: Option<u64>,
    /// Window and initial window, bytes.
    window: u64,
    initial_window: u64,
}

impl PathNow {
    fn of(controller: &dyn Controller) -> Self {
        let metrics = controller.metrics();
        let (window, initial_window) = (controller.window(), controller.initial_window());
        let rate = metrics.bandwidth_estimate.map(|bits| bits / 8);
        Self { rate, pacing: metrics.pacing_rate, window, initial_window }
    }
}

impl BbrExtensions {
    /// `path`: path that may be resumed.
    pub(in crate::quic) fn new(
        inner: Arc<dyn ControllerFactory + Send + Sync>,
        path: Option<KnownPath>,
    ) -> Self {
        Self { inner, has_loss_floor: false, path: Mutex::new(path), has_built: AtomicBool::new(false) }
    }

    /// Adds the lower limit on a path that loses without a queue.
    #[must_use]
    pub(in crate::quic) fn with_loss_floor(self, has_loss_floor: bool) -> Self {
        Self { has_loss_floor, ..self }
    }
}

impl ControllerFactory for BbrExtensions {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.inner).build(now, mtu);
        let (cap, rtt_step) = (PolicerCap::new(now), RttStep::new(now));
        let loss_floor = self.has_loss_floor.then(LossFloor::default);
        let path = self.path.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut growth = StartupGrowth::new(inner.initial_window());
        if self.has_built.swap(true, Ordering::Relaxed) {
            growth.end();
        }
        Box::new(ExtendedController {
            factory: self,
            inner,
            growth,
            cap,
            rtt_step,
            loss_floor,
            resume: path.map(CarefulResume::new),
            extra: ExtraPacket::default(),
            mtu,
            ack_frequency: None,
        })
    }
}

/// Permits a packet beyond the window, if the path is silent and `controller` is an extended one. Returns whether that
/// is so.
pub(in crate::quic) fn permit_extra_packet(controller: Box<dyn Controller>, now: Instant) -> bool {
    controller
        .into_any()
        .downcast::<ExtendedController>()
        .is_ok_and(|controller| controller.extra.permit(now))
}

struct ExtendedController {
    factory: Arc<BbrExtensions>,
    inner: Box<dyn Controller>,
    cap: PolicerCap,
    rtt_step: RttStep,
    loss_floor: Option<LossFloor>,
    resume: Option<CarefulResume>,
    growth: StartupGrowth,
    extra: ExtraPacket,
    // Settings of the next inner controller.
    mtu: u16,
    ack_frequency: Option<(u64, Duration)>,
}

impl ExtendedController {
    /// Replaces the inner controller, which forgets the path.
    fn begin_anew(&mut self, now: Instant) {
        self.growth.end();
        self.inner = Arc::clone(&self.factory.inner).build(now, self.mtu);
        if let Some((threshold, delay)) = self.ack_frequency {
            self.inner.on_ack_frequency_update(threshold, delay);
        }
    }

    /// Lower limit of the path, unless a policer is known.
    fn floor(&self) -> Option<Floor> {
        let of_loss = self.loss_floor.as_ref().filter(|_| self.cap.held().is_none());
        let of_loss = of_loss.and_then(|floor| floor.floor(self.mtu, self.inner.initial_window()));
        let resumed = self.resume.as_ref().and_then(CarefulResume::floor);
        let floors = [of_loss, self.rtt_step.floor(), resumed, self.growth.floor()];
        floors
            .into_iter()
            .flatten()
            .reduce(|a, b| Floor { rate: a.rate.max(b.rate), window: a.window.max(b.window) })
    }
}

impl Controller for ExtendedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.cap.handle_sent(pn);
        self.growth.handle_sent(pn);
        if let Some(resume) = &mut self.resume {
            resume.handle_sent(pn, now);
        }
        self.rtt_step.handle_sent(now);
        self.extra.handle_sent(bytes, now);
        self.inner.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.rtt_step.handle_full();
        if let Some(resume) = &mut self.resume {
            resume.handle_full();
        }
        self.inner.on_cwnd_limited();
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
        if bytes > PROBE.into() {
            self.cap.handle_acked(pn, bytes, now);
        }
        self.rtt_step.handle_acked(sent, bytes, now);
        self.extra.handle_acked(rtt.get());
        self.growth.handle_acked(pn, bytes, now.saturating_duration_since(sent), app_limited);
        if let Some(floor) = &mut self.loss_floor {
            floor.handle_acked(sent, bytes, rtt.get(), now);
        }
        if let Some(resume) = &mut self.resume {
            resume.handle_acked(pn, bytes, now.saturating_duration_since(sent), now);
        }
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
        if app_limited {
            // The library's BBR3 ends an application-limited phase with these acknowledgements, and would begin the
            // next only with others: every other message would count as all that the path can carry, and after a few of
            // them the next burst is paced at their rate. So the first call ends the phase, and the second begins the
            // next.
            self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
        }
        self.cap.handle_end_of_acks(app_limited, now);
        self.extra.handle_end_of_acks(in_flight, now);
        if self.cap.held().is_some() {
            self.growth.end();
            self.resume.iter_mut().for_each(CarefulResume::handle_policer);
        } else {
            let mut path = PathNow::of(&*self.inner);
            self.growth.handle_end_of_acks(&path, in_flight, app_limited);
            path.window = path.window.max(self.growth.floor().map_or(0, |floor| floor.window));
            if let Some(resume) = &mut self.resume {
                resume.handle_end_of_acks(&path, app_limited, now);
            }
        }
        if self.rtt_step.handle_end_of_acks(app_limited, now) {
            self.begin_anew(now);
        }
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
        if is_ecn {
            self.growth.handle_limit();
        }
        if is_persistent_congestion || is_ecn {
            self.rtt_step.handle_lost(now);
            self.resume.iter_mut().for_each(CarefulResume::handle_lost);
        }
        if is_persistent_congestion {
            self.growth.end();
            self.loss_floor.iter_mut().for_each(LossFloor::handle_collapse);
        }
        self.inner.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        if lost_bytes > PROBE {
            self.growth.handle_lost(pn);
            self.cap.handle_lost(pn, now);
            self.rtt_step.handle_lost(now);
            self.resume.iter_mut().for_each(CarefulResume::handle_lost);
        }
        self.extra.handle_lost(lost_bytes);
        self.inner.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.growth.handle_late();
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.ack_frequency = Some((ack_eliciting_threshold, requested_max_ack_delay));
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        let floor = self.floor().map_or(0, |floor| floor.window);
        self.inner.window().min(self.growth.ceiling()).max(floor).max(self.extra.window(self.mtu))
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.congestion_window = self.window();
        if let Some(floor) = self.floor() {
            metrics.pacing_rate = metrics.pacing_rate.map(|rate| rate.max(floor.rate));
        }
        if let Some(cap) = self.cap.rate() {
            metrics.pacing_rate = Some(metrics.pacing_rate.map_or(cap, |rate| rate.min(cap)));
        }
        metrics
    }

    /// Builds the controller of a path that replaces this one, and whose capacity is not known.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            factory: Arc::clone(&self.factory),
            inner: self.inner.clone_box(),
            cap: self.cap.clone(),
            rtt_step: self.rtt_step.clone(),
            loss_floor: self.loss_floor.clone(),
            resume: None,
            growth: StartupGrowth::new(self.inner.initial_window()),
            extra: self.extra.clone(),
            ..*self
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl fmt::Debug for ExtendedController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedController")
            .field("inner", &self.inner)
            .field("cap", &self.cap)
            .field("rtt_step", &self.rtt_step)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use noq_proto::congestion::CubicConfig;

    use super::*;

    const MTU: u16 = 1200;

    /// Controller in a trial: the path had 10 ms, now has 100 ms and passes less.
    fn on_trial() -> (Box<ExtendedController>, Instant) {
        let mut now = Instant::now();
        let factory = Arc::new(BbrExtensions::new(Arc::new(CubicConfig::default()), None));
        let built = ControllerFactory::build(factory, now, MTU).into_any();
        let mut controller = built.downcast::<ExtendedController>().expect("of its kind");
        // Round trip (ms) and packets in it.
        for (round_trip, packets) in [(10, 40), (100, 40)] {
            for _ in 0..7 {
                let sent = now;
                now += Duration::from_millis(round_trip);
                controller.on_cwnd_limited();
                for _ in 0..packets {
                    controller.rtt_step.handle_acked(sent, MTU.into(), now);
                }
                assert!(!controller.rtt_step.handle_end_of_acks(false, now));
            }
        }
        assert!(controller.window() > controller.inner.window());
        (controller, now)
    }

    #[test]
    fn signs_of_congestion_end_a_trial() {
        for sign in ["loss", "persistent congestion", "ECN", "silence"] {
            let (mut controller, now) = on_trial();
            match sign {
                "loss" => controller.on_packet_lost(MTU, 1, now),
                "silence" => controller.on_packet_sent(now + Duration::from_secs(10), MTU, 1000),
                _ => controller.on_congestion_event(now, now, sign != "ECN", sign == "ECN", 0, 1),
            }
            assert_eq!(controller.window(), controller.inner.window(), "{sign}");
        }
    }

    #[test]
    fn a_lost_probe_is_no_sign_of_congestion() {
        let (mut controller, now) = on_trial();
        controller.on_packet_lost(PROBE, 1, now);
        assert!(controller.window() > controller.inner.window());
    }
}
