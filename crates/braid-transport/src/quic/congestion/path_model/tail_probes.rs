//! Tail loss probes: PINGs behind a packet that no other follows, on a path that loses packets.
//!
//! A packet is found to be lost when a later one was acknowledged. Behind the last one there is none before the probe
//! timeout, which holds four times the deviation of round trips and the 25 ms by which a peer may delay an
//! acknowledgement, and the library's probe is a PING: data that were lost leave another round trip later. A PING that
//! leaves earlier has them leave earlier. Unlike the probe of RFC 8985, 7, it repeats no data, which the library cannot.

use super::startup::INDEPENDENT;

/// Packets after a lost one that probes follow.
const FOLLOWED: u32 = 64;

/// Probes behind a packet.
const PROBES: u32 = 3;

/// Round trips, and least time (s), before the first: a packet is lost after 9/8 of a round trip (RFC 9002, 6.1.2), if a
/// later one is acknowledged.
const ROUND_TRIPS: f64 = 0.125;
const LEAST: f64 = 0.002;

/// Least time (s) between two, which is a round trip.
const BETWEEN: f64 = 0.004;

/// Packets of a path that may have to be followed by probes.
#[derive(Clone, Debug, Default)]
pub(super) struct TailProbes {
    /// Packets that will be followed.
    left: u32,
    /// Number and time (s) of a packet that no other has followed.
    tail: Option<(u64, f64)>,
    /// Probes behind it.
    sent: u32,
    /// The next packet is a probe.
    is_next: bool,
    /// Time (s) of the last loss.
    lost_at: f64,
}

impl TailProbes {
    /// Notes a packet that leaves.
    pub(super) fn handle_packet(&mut self, number: u64, now: f64) {
        if std::mem::take(&mut self.is_next) {
            return;
        }
        self.tail = (self.left > 0).then_some((number, now));
        self.left = self.left.saturating_sub(1);
        self.sent = 0;
    }

    /// Notes an acknowledged packet. Once one behind the tail was, the library knows the time at which it is lost.
    pub(super) fn handle_acked(&mut self, number: u64) {
        self.tail.take_if(|(tail, _)| *tail <= number);
    }

    /// Notes a lost packet. `is_random`: losses of this path are not those of a policer.
    pub(super) fn handle_lost(&mut self, is_random: bool, now: f64) {
        let is_alone = now - std::mem::replace(&mut self.lost_at, now) > INDEPENDENT;
        if is_random || is_alone {
            self.left = FOLLOWED;
        }
    }

    /// Time (s) of the next probe.
    pub(super) fn due(&self, rtt: f64) -> Option<f64> {
        let (_, at) = self.tail.filter(|_| self.sent < PROBES)?;
        Some(at + (rtt * ROUND_TRIPS).max(LEAST) + rtt.max(BETWEEN) * f64::from(self.sent))
    }

    /// Notes that the next packet is a probe.
    pub(super) fn handle_probe(&mut self) {
        self.sent += 1;
        self.is_next = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: f64 = 0.02;

    /// Times (ms) of the probes behind packet 7, which leaves at 0.
    fn due(probes: &TailProbes) -> Option<f64> {
        probes.due(RTT).map(|due| (due * 10_000.0).round() / 10.0)
    }

    fn lossy() -> TailProbes {
        let mut probes = TailProbes::default();
        probes.handle_lost(true, 0.0);
        probes.handle_packet(7, 0.0);
        probes
    }

    #[test]
    fn probes_follow_a_packet_a_round_trip_apart() {
        let mut probes = lossy();
        for (number, at) in [(8, 2.5), (9, 22.5), (10, 42.5)] {
            assert_eq!(due(&probes), Some(at));
            probes.handle_probe();
            probes.handle_packet(number, at / 1000.0);
        }
        assert_eq!(due(&probes), None);
    }

    #[test]
    fn another_packet_is_followed_in_its_place() {
        let mut probes = lossy();
        probes.handle_packet(8, 0.003);
        assert_eq!(due(&probes), Some(5.5));
    }

    #[test]
    fn an_acknowledgement_of_it_or_of_a_later_packet_ends_them() {
        for (number, is_over) in [(6, false), (7, true), (8, true)] {
            let mut probes = lossy();
            probes.handle_acked(number);
            assert_eq!(due(&probes).is_none(), is_over, "{number}");
        }
    }

    #[test]
    fn they_follow_packets_for_a_while_after_a_loss() {
        let mut probes = TailProbes::default();
        probes.handle_packet(1, 0.0);
        assert_eq!(due(&probes), None, "nothing was lost");
        probes.handle_lost(true, 0.0);
        let followed = (2..).take_while(|number| {
            probes.handle_packet(*number, 0.0);
            due(&probes).is_some()
        });
        assert_eq!(followed.count(), 64);
    }
}
