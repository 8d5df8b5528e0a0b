//! Lower limit of window and rate on a path that loses without a queue.
//!
//! BBR version 3 takes 30 % off its rate for each round trip with losses above 2 %, and counts what little it sends
//! then as all that the path can carry: on a path that loses one packet in five at random, the last packets of a page
//! are paced seconds apart. A window-based sender cannot be that slow: RFC 9002 (7.2, 7.7) allows two packets in flight
//! whatever was lost, and a pace of 1.25 windows in a round trip.

use std::time::{Duration, Instant};

use super::Floor;

/// Packets in flight that are allowed in any case, as by BBR (`BBRMinPipeCwnd`).
const LEAST_PACKETS: u64 = 4;

/// Initial windows to which the floor grows while round trips show no queue.
const MOST_WINDOWS: u64 = 2;

/// Pace in windows per round trip [RFC 9002, 7.7].
const PACE: f64 = 1.25;

/// A round trip that takes longer than twice the shortest one and this time shows a queue.
const QUEUE: Duration = Duration::from_millis(10);

/// Lower limit of a connection, from its round trips.
#[derive(Clone, Debug, Default)]
pub(super) struct LossFloor {
    shortest: Option<Duration>,
    smoothed: Duration,
    /// Bytes that were acknowledged since a queue was seen.
    acknowledged: u64,
    /// Nothing has passed since persistent congestion.
    is_collapsed: bool,
}

impl LossFloor {
    /// Notes an acknowledgement of a packet of so many bytes that was sent at this time.
    pub(super) fn handle_acked(&mut self, sent: Instant, bytes: u64, smoothed: Duration, now: Instant) {
        let took = now.saturating_duration_since(sent);
        self.shortest = Some(self.shortest.map_or(took, |shortest| shortest.min(took)));
        self.smoothed = smoothed;
        self.is_collapsed = false;
        self.acknowledged = if self.has_queue() { 0 } else { self.acknowledged.saturating_add(bytes) };
    }

    /// Persistent congestion [RFC 9002, 7.6]: nothing has passed for a time.
    pub(super) fn handle_collapse(&mut self) {
        self.is_collapsed = true;
    }

    fn has_queue(&self) -> bool {
        self.shortest.is_none_or(|shortest| self.smoothed > shortest * 2 + QUEUE)
    }

    /// Lower limit for packets of `mtu` bytes; `None` until a round trip is known. Without a queue it is the initial
    /// window, which each new connection may send, and grows as in slow start to a few of them.
    pub(super) fn floor(&self, mtu: u16, initial_window: u64) -> Option<Floor> {
        self.shortest?;
        let least = LEAST_PACKETS * u64::from(mtu);
        let grown = initial_window.saturating_add(self.acknowledged).min(initial_window * MOST_WINDOWS);
        let window = if self.is_collapsed || self.has_queue() { least } else { grown.max(least) };
        let round_trip = self.smoothed.max(Duration::from_micros(100)).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate of bytes per second"
        )]
        let rate = (window as f64 * PACE / round_trip) as u64;
        Some(Floor { window, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_grows_from_the_initial_window_until_there_is_a_queue() {
        let (mut floor, now) = (LossFloor::default(), Instant::now());
        assert_eq!(floor.floor(1200, 12_000), None);
        let ms = Duration::from_millis;
        for (took, bytes, smoothed, window, rate) in [
            (100, 0, 100, 12_000, 150_000),
            (50, 1200, 110, 13_200, 150_000),
            (300, 1200, 111, 4800, 54_054),
            (300, 1200, 220, 4800, 27_272),
            (50, 1200, 60, 13_200, 275_000),
            (50, 9000, 60, 22_200, 462_500),
            (50, 30_000, 60, 24_000, 500_000),
        ] {
            floor.handle_acked(now, bytes, ms(smoothed), now + ms(took));
            assert_eq!(floor.floor(1200, 12_000), Some(Floor { window, rate }), "{took} {smoothed}");
        }
        floor.handle_collapse();
        assert_eq!(floor.floor(1200, 12_000), Some(Floor { window: 4800, rate: 100_000 }));
        floor.handle_acked(now, 0, Duration::ZERO, now);
        assert_eq!(floor.floor(1400, 1000).map(|floor| floor.window), Some(5600), "four packets in any case");
        assert_eq!(
            floor.floor(1200, 12_000).map(|floor| floor.rate),
            Some(300_000_000),
            "10,000 windows a second"
        );
    }
}
