//! Backpressure on publishers while a subscriber's queue is congested: their acknowledgements are held back.
//!
//! An acknowledgement is held back until the queue has room again, for at most four of the subscriber's round trips,
//! but no less than 100 ms ([`MIN_HOLD`]) and no more than 2 s ([`MAX_STUCK_TIMEOUT`]). A subscriber to which nothing
//! was sent for four of its round trips, no less than 50 ms ([`MIN_STUCK_TIMEOUT`]) and no more than 2 s, is stuck:
//! nothing more is held back for it. With QoS 0 alone no round trip is measured, and 50 ms count.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use braid_proto::packet::PacketId;
use hashbrown::HashMap;

use crate::lock_order::{Ordered, Rank};

/// Shortest time for which an acknowledgement is held back, whatever the subscriber's pace.
const MIN_HOLD: Duration = Duration::from_millis(100);

/// Shortest time without progress after which a subscriber is stuck.
const MIN_STUCK_TIMEOUT: Duration = Duration::from_millis(50);

/// Longest time without progress after which a subscriber is stuck: on the slowest links, or before its round trip
/// is known. No acknowledgement is held back for longer.
const MAX_STUCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Round trips without progress after which a subscriber is stuck.
const STUCK_ROUND_TRIPS: u32 = 4;

/// Deadline for acknowledgements to a congested queue; `None` if the subscriber is stuck.
///
/// `progress_at`: when the subscriber last made progress. `stuck_timeout`: its [`AckRttEstimator::stuck_timeout`].
pub(crate) fn hold_until(progress_at: Instant, stuck_timeout: Duration, now: Instant) -> Option<Instant> {
    let stuck_at = progress_at + stuck_timeout;
    (now < stuck_at).then(|| stuck_at.max(now + MIN_HOLD))
}

/// Estimates a subscriber's round trip from its acknowledgements, its own work included, over any transport.
///
/// One delivery at a time is measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckRttEstimator {
    /// Time of the last send to the subscriber.
    progress_at: Option<Instant>,
    /// From a delivery to its acknowledgement, smoothed with weight 1/8 (RFC 6298).
    smoothed: Option<Duration>,
    /// The delivery that is measured, and when it was sent.
    measured: Option<(PacketId, Instant)>,
}

impl AckRttEstimator {
    /// Time of the last send to the subscriber.
    pub(crate) fn progress_at(&self) -> Option<Instant> {
        self.progress_at
    }

    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.progress_at = Some(now);
    }

    /// Starts a measurement with a delivery of QoS 1 or 2, unless one is running.
    pub(crate) fn note_sent(&mut self, packet_id: PacketId, now: Instant) {
        let is_running =
            |(_, since): (PacketId, Instant)| now.saturating_duration_since(since) < MAX_STUCK_TIMEOUT;
        if !self.measured.is_some_and(is_running) {
            self.measured = Some((packet_id, now));
        }
    }

    /// Whether the delivery with this identifier is measured.
    pub(crate) fn watches(&self, packet_id: PacketId) -> bool {
        self.measured.is_some_and(|(measured, _)| measured == packet_id)
    }

    /// Ends the measurement: the delivery is acknowledged.
    pub(crate) fn note_complete(&mut self, now: Instant) {
        let Some((_, since)) = self.measured.take() else { return };
        let sample = now.saturating_duration_since(since);
        self.smoothed = Some(self.smoothed.map_or(sample, |smoothed| (smoothed * 7 + sample) / 8));
    }

    /// Time without progress after which the subscriber is stuck.
    pub(crate) fn stuck_timeout(&self) -> Duration {
        match (self.smoothed, self.measured) {
            (Some(round_trip), _) => {
                (round_trip * STUCK_ROUND_TRIPS).clamp(MIN_STUCK_TIMEOUT, MAX_STUCK_TIMEOUT)
            }
            (None, Some(_)) => MAX_STUCK_TIMEOUT,
            // QoS 0 alone: no acknowledgement is due.
            (None, None) => MIN_STUCK_TIMEOUT,
        }
    }
}

/// Wakers of connections that hold acknowledgements back until one queue has room.
///
/// Poisoning does no harm: each change is one operation of the map.
#[derive(Debug, Default)]
pub(crate) struct RoomWaiters(Mutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    wakers: HashMap<u64, Waker>,
    next_id: u64,
}

/// Guard of a registration in [`RoomWaiters`]: the waker is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct RoomRegistration {
    waiters: Arc<RoomWaiters>,
    id: u64,
}

impl RoomWaiters {
    fn lock(&self) -> Ordered<MutexGuard<'_, Registered>> {
        Ordered::acquire(Rank::Leaf, || self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a waker, or replaces that of a registration with this queue.
    pub(crate) fn register(self: &Arc<Self>, registration: &mut Option<RoomRegistration>, waker: &Waker) {
        let mut registered = self.lock();
        let own = registration.get_or_insert_with(|| {
            registered.next_id += 1;
            RoomRegistration { waiters: self.clone(), id: registered.next_id }
        });
        let replaced = registered.wakers.insert(own.id, waker.clone());
        drop(registered);
        drop(replaced); // Outside of the lock: the last waker of a task drops the task.
    }

    /// Removes all wakers, for the caller to wake outside of every lock.
    #[must_use]
    pub(crate) fn take(&self) -> Vec<Waker> {
        std::mem::take(&mut self.lock().wakers).into_values().collect()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().wakers.len()
    }
}

impl Drop for RoomRegistration {
    fn drop(&mut self) {
        let _waker = self.waiters.lock().wakers.remove(&self.id); // Dropped outside of the lock.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: PacketId = PacketId::FIRST;

    #[test]
    fn stuck_timeout_follows_the_round_trip_within_its_bounds() {
        let (mut estimator, mut now) = (AckRttEstimator::default(), Instant::now());
        assert_eq!(estimator.stuck_timeout(), MIN_STUCK_TIMEOUT, "only QoS 0 was sent");
        for (round_trip, timeout) in [(1, 50), (600, 303), (600, 565)] {
            let round_trip = Duration::from_millis(round_trip);
            estimator.note_sent(FIRST, now);
            estimator.note_sent(FIRST.next(), now + round_trip / 2);
            assert!(estimator.watches(FIRST) && !estimator.watches(FIRST.next()), "one at a time");
            if estimator.smoothed.is_none() {
                assert_eq!(estimator.stuck_timeout(), MAX_STUCK_TIMEOUT, "no sample yet");
            }
            now += round_trip;
            estimator.note_complete(now);
            assert_eq!(estimator.stuck_timeout().as_millis(), timeout);
        }
        for _ in 0..100 {
            estimator.note_sent(FIRST, now);
            now += Duration::from_secs(1);
            estimator.note_complete(now);
        }
        assert_eq!(estimator.stuck_timeout(), MAX_STUCK_TIMEOUT);
    }

    #[test]
    fn measurement_without_acknowledgement_is_given_up() {
        let (mut estimator, now) = (AckRttEstimator::default(), Instant::now());
        estimator.note_sent(FIRST, now);
        estimator.note_sent(FIRST.next(), now + MAX_STUCK_TIMEOUT);
        assert!(estimator.watches(FIRST.next()));
    }

    #[test]
    fn acknowledgements_are_held_for_100_ms_to_2_s_while_the_subscriber_makes_progress() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let hold = |stuck_timeout, millis| hold_until(start, stuck_timeout, at(millis));
        assert_eq!(hold(MIN_STUCK_TIMEOUT, 0), Some(at(100)));
        assert_eq!(hold(MIN_STUCK_TIMEOUT, 49), Some(at(149)));
        assert_eq!(hold(MIN_STUCK_TIMEOUT, 50), None, "stuck");
        assert_eq!(hold(MAX_STUCK_TIMEOUT, 0), Some(at(2000)));
        assert_eq!(hold(MAX_STUCK_TIMEOUT, 2000), None, "stuck");
    }

    #[test]
    fn registration_leaves_no_waker_behind() {
        let waiters = Arc::new(RoomWaiters::default());
        let (mut first, mut second) = (None, None);
        waiters.register(&mut first, Waker::noop());
        waiters.register(&mut second, Waker::noop());
        waiters.register(&mut second, Waker::noop());
        assert_eq!(waiters.len(), 2, "one waker for each registration");
        drop(first);
        assert_eq!(waiters.take().len(), 1);
        waiters.register(&mut second, Waker::noop());
        assert_eq!(waiters.len(), 1, "a registration outlives its wake-up");
        drop(second);
        assert_eq!(waiters.len(), 0);
    }
}
