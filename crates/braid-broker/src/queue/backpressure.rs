//! How quickly a client answers, and since when it does not.

use std::time::{Duration, Instant};

use braid_proto::packet::PacketId;

/// A client that answers at once and has sent nothing for so long is not slow but stuck: nobody is slowed down for it.
const LEAST: Duration = Duration::from_millis(50);

/// The same for one on the worst of links, or of which nothing is known yet. Nobody waits longer for a client that has
/// died.
pub(crate) const MOST: Duration = Duration::from_secs(2);

/// How many of its round trips a client may take for the next sign that it goes on.
const ROUND_TRIPS: u32 = 4;

/// What is known of the pace of a connection's client.
///
/// An acknowledgement tells how long it takes to answer, over any transport, its own work included. One delivery at a
/// time is watched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckRttEstimator {
    /// When something was last sent to it.
    progress_at: Option<Instant>,
    /// From a delivery to its acknowledgement, smoothed.
    round_trip: Option<Duration>,
    /// The delivery whose acknowledgement is watched for, and when it was sent.
    watched: Option<(PacketId, Instant)>,
}

impl AckRttEstimator {
    /// When something was last sent.
    pub(crate) fn progress_at(&self) -> Option<Instant> {
        self.progress_at
    }

    /// Something was sent.
    pub(crate) fn note_progress(&mut self, now: Instant) {
        self.progress_at = Some(now);
    }

    /// A delivery was sent that is to be acknowledged.
    pub(crate) fn note_sent(&mut self, packet_id: PacketId, now: Instant) {
        let is_watching = |(_, since): (PacketId, Instant)| now.saturating_duration_since(since) < MOST;
        if !self.watched.is_some_and(is_watching) {
            self.watched = Some((packet_id, now));
        }
    }

    /// Whether the delivery of this identifier is watched.
    pub(crate) fn watches(&self, packet_id: PacketId) -> bool {
        self.watched.is_some_and(|(watched, _)| watched == packet_id)
    }

    /// The delivery that is watched is acknowledged.
    pub(crate) fn note_complete(&mut self, now: Instant) {
        let Some((_, since)) = self.watched.take() else { return };
        let sample = now.saturating_duration_since(since);
        self.round_trip = Some(self.round_trip.map_or(sample, |smoothed| (smoothed * 7 + sample) / 8));
    }

    /// How long the client may send nothing and still be waited for.
    pub(crate) fn patience(&self) -> Duration {
        match (self.round_trip, self.watched) {
            (Some(round_trip), _) => (round_trip * ROUND_TRIPS).clamp(LEAST, MOST),
            (None, Some(_)) => MOST,
            // QoS 0 alone: nothing of it has to be delivered.
            (None, None) => LEAST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: PacketId = PacketId::FIRST;

    #[test]
    fn patience_follows_the_round_trip_within_its_bounds() {
        let (mut pulse, mut now) = (AckRttEstimator::default(), Instant::now());
        assert_eq!(pulse.patience(), LEAST, "only QoS 0 was ever sent");
        for (round_trip, patience) in [(1, 50), (600, 303), (600, 565)] {
            let round_trip = Duration::from_millis(round_trip);
            pulse.note_sent(FIRST, now);
            pulse.note_sent(FIRST.next(), now + round_trip / 2);
            assert!(pulse.watches(FIRST) && !pulse.watches(FIRST.next()), "one at a time");
            if pulse.round_trip.is_none() {
                assert_eq!(pulse.patience(), MOST, "nothing is known yet");
            }
            now += round_trip;
            pulse.note_complete(now);
            assert_eq!(pulse.patience().as_millis(), patience);
        }
        for _ in 0..100 {
            pulse.note_sent(FIRST, now);
            now += Duration::from_secs(1);
            pulse.note_complete(now);
        }
        assert_eq!(pulse.patience(), MOST);
    }

    #[test]
    fn a_delivery_that_is_never_acknowledged_is_not_watched_for_ever() {
        let (mut pulse, now) = (AckRttEstimator::default(), Instant::now());
        pulse.note_sent(FIRST, now);
        pulse.note_sent(FIRST.next(), now + MOST);
        assert!(pulse.watches(FIRST.next()));
    }
}
