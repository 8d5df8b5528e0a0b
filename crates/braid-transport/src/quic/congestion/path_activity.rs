//! Acknowledgements of each path of a connection, as its congestion controllers see them.
//!
//! The library tells its application neither when a path has packets in flight, nor when the last was acknowledged. Its
//! controllers are told both, so one that only listens stands around each.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// Window that does not limit.
const UNLIMITED: u64 = 1 << 40;

/// Resolution of timers (RFC 9002, 6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);

/// Activities that are kept until they are taken. Without the extension nothing takes them, and each change of the
/// peer's address builds a controller.
const MAX_UNTAKEN: usize = 8;

/// Acknowledgements of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::quic) struct Activity {
    /// Time since which packets are in flight and nothing was acknowledged.
    pub(in crate::quic) unanswered_since: Option<Instant>,
    /// Time of the last acknowledgement.
    pub(in crate::quic) answered_at: Option<Instant>,
    /// Packets in flight, without probes of the path MTU: the library does not tell when those are lost.
    in_flight: u64,
    /// Number of the last such probe.
    probe: Option<u64>,
    /// The window does not limit any more: the path is given up, and carries PINGs only.
    is_open: bool,
    /// Mean deviation of the round-trip time.
    deviation: Option<Duration>,
    /// Smoothed round-trip time at the last acknowledgement.
    smoothed: Duration,
    /// The next packet is the first of an acknowledgement.
    is_first: bool,
}

impl Activity {
    /// Probe timeout (RFC 9002, 6.2.1) of a path with this smoothed round-trip time, without the delay of an
    /// acknowledgement.
    pub(in crate::quic) fn longest_round_trip(&self, srtt: Duration) -> Duration {
        srtt + (4 * self.deviation.unwrap_or(srtt / 2)).max(GRANULARITY)
    }

    /// `is_probe`: the packet is a probe of the path MTU.
    fn handle_sent(&mut self, number: u64, is_probe: bool, now: Instant) {
        if is_probe {
            self.probe = Some(number);
        } else {
            self.in_flight += 1;
            self.unanswered_since.get_or_insert(now);
        }
    }

    fn handle_packet_acked(&mut self, number: u64) {
        if self.probe != Some(number) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// A packet that is lost is not waited for: what it held is repeated, on this path or another.
    fn handle_lost(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.in_flight == 0 {
            self.unanswered_since = None;
        }
    }

    /// The library does not tell the deviation, but its smoothed round trip takes an eighth of that of each sample,
    /// which is without the delay of the acknowledgement (RFC 9002, 5.3).
    fn handle_rtt(&mut self, smoothed: Duration) {
        if !std::mem::replace(&mut self.is_first, false) {
            return;
        }
        self.deviation = Some(match self.deviation {
            Some(before) => (3 * before + 8 * smoothed.abs_diff(self.smoothed)) / 4,
            None => smoothed / 2,
        });
        self.smoothed = smoothed;
    }

    /// `in_flight`: bytes that the library has in flight. Packets from before a move are not acknowledged one by one.
    fn handle_end_of_acks(&mut self, in_flight: u64, now: Instant) {
        self.answered_at = Some(now);
        self.is_first = true;
        if in_flight == 0 {
            self.in_flight = 0;
        }
        self.unanswered_since = (self.in_flight > 0).then_some(now);
    }
}

/// Activity of one path, shared with its controller.
#[derive(Clone, Debug, Default)]
pub(in crate::quic) struct SharedActivity(Arc<Mutex<Activity>>);

impl SharedActivity {
    pub(in crate::quic) fn read(&self) -> Activity {
        *self.lock()
    }

    /// Has the window limit nothing from now on.
    pub(in crate::quic) fn open_window(&self) {
        self.lock().is_open = true;
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        // Poisoning is harmless: each change is of single fields.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Activities of the controllers of one connection that were built and not taken yet, in the order of their building.
#[derive(Clone, Debug, Default)]
pub(in crate::quic) struct PathActivities(Arc<Mutex<Vec<SharedActivity>>>);

impl PathActivities {
    /// A factory of controllers with activities in here.
    pub(in crate::quic) fn around(
        &self,
        inner: Arc<dyn ControllerFactory + Send + Sync>,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        Arc::new(Observed { inner, activities: self.clone() })
    }

    /// Takes that of the oldest controller.
    pub(in crate::quic) fn take(&self) -> Option<SharedActivity> {
        let mut built = self.lock();
        (!built.is_empty()).then(|| built.remove(0))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SharedActivity>> {
        // Poisoning is harmless: each change is one push or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Observed {
    inner: Arc<dyn ControllerFactory + Send + Sync>,
    activities: PathActivities,
}

impl ControllerFactory for Observed {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let activity = SharedActivity::default();
        let mut built = self.activities.lock();
        if built.len() >= MAX_UNTAKEN {
            built.remove(0);
        }
        built.push(activity.clone());
        drop(built);
        Box::new(ObservedController { inner: Arc::clone(&self.inner).build(now, mtu), mtu, activity })
    }
}

#[derive(Debug)]
struct ObservedController {
    inner: Box<dyn Controller>,
    mtu: u16,
    activity: SharedActivity,
}

impl Controller for ObservedController {
    fn on_sent(&mut self, now: Instant, bytes: u64, largest_pn: u64) {
        self.inner.on_sent(now, bytes, largest_pn);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.activity.lock().handle_sent(pn, bytes > self.mtu, now);
        self.inner.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
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
        let mut activity = self.activity.lock();
        activity.handle_rtt(rtt.get());
        activity.handle_packet_acked(pn);
        drop(activity);
        self.inner.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        self.activity.lock().handle_end_of_acks(in_flight, now);
        self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
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
        self.inner.on_congestion_event(now, sent, is_persistent, is_ecn, lost_bytes, largest_lost_pn);
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        // One without data was not counted when it was sent.
        if lost_bytes > 0 {
            self.activity.lock().handle_lost();
        }
        self.inner.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.inner.on_mtu_update(new_mtu);
    }

    fn on_ack_frequency_update(&mut self, ack_eliciting_threshold: u64, requested_max_ack_delay: Duration) {
        self.inner.on_ack_frequency_update(ack_eliciting_threshold, requested_max_ack_delay);
    }

    fn window(&self) -> u64 {
        let window = self.inner.window();
        if self.activity.lock().is_open { UNLIMITED } else { window }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    /// Builds the controller of a path that has moved: what was in flight on it stays unanswered until something is.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), mtu: self.mtu, activity: self.activity.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn silence_begins_with_a_packet_and_ends_with_an_acknowledgement_or_a_loss() {
        let (mut activity, begin) = (Activity::default(), Instant::now());
        activity.handle_sent(0, false, begin);
        activity.handle_sent(1, false, begin + MS);
        assert_eq!(activity.unanswered_since, Some(begin));
        activity.handle_packet_acked(1);
        activity.handle_end_of_acks(1200, begin + 9 * MS);
        assert_eq!(activity.unanswered_since, Some(begin + 9 * MS), "the other one is on its way");
        assert_eq!(activity.answered_at, Some(begin + 9 * MS));
        activity.handle_lost();
        assert_eq!(activity.unanswered_since, None);
    }

    #[test]
    fn a_lost_packet_of_acknowledgements_alone_ends_no_silence() {
        let (activities, begin) = (PathActivities::default(), Instant::now());
        let mut controller =
            activities.around(Arc::new(noq_proto::congestion::CubicConfig::default())).build(begin, 1200);
        controller.on_packet_sent(begin, 1200, 1);
        controller.on_packet_lost(0, 0, begin);
        let activity = activities.take().expect("one was built");
        assert_eq!(activity.read().unanswered_since, Some(begin));
        controller.on_packet_lost(1200, 1, begin);
        assert_eq!(activity.read().unanswered_since, None);
    }

    #[test]
    fn a_probe_of_the_path_mtu_that_is_lost_is_no_silence() {
        let (mut activity, begin) = (Activity::default(), Instant::now());
        activity.handle_sent(0, true, begin);
        assert_eq!(activity.unanswered_since, None);
        activity.handle_sent(1, false, begin);
        activity.handle_packet_acked(1);
        activity.handle_end_of_acks(1452, begin + MS);
        assert_eq!(activity.unanswered_since, None, "although the library has it in flight");
        activity.handle_sent(2, false, begin);
        activity.handle_packet_acked(0);
        activity.handle_end_of_acks(1200, begin + 2 * MS);
        assert_eq!(activity.unanswered_since, Some(begin + 2 * MS));
    }

    #[test]
    fn round_trips_that_differ_make_the_longest_one_longer() {
        let mut activity = Activity::default();
        assert_eq!(activity.longest_round_trip(40 * MS), 120 * MS, "none is known");
        let mut acknowledge = |smoothed| {
            activity.handle_end_of_acks(0, Instant::now());
            activity.handle_rtt(smoothed);
            activity.handle_rtt(smoothed);
            activity.longest_round_trip(smoothed)
        };
        assert_eq!(acknowledge(40 * MS), 120 * MS);
        for _ in 0..20 {
            acknowledge(40 * MS);
        }
        assert!(acknowledge(40 * MS) < 42 * MS);
        // A sample of 48 ms.
        assert!(acknowledge(41 * MS) > 48 * MS);
    }
}
