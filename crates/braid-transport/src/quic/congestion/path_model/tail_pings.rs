//! PINGs behind a packet that no other follows, on a path that loses packets.
//!
//! A packet is found to be lost when a later one was acknowledged. Behind the last one there is none before the probe
//! timeout, which holds four times the deviation of round trips and the 25 ms by which a peer may delay an
//! acknowledgement, and the library's probe is a PING: data that were lost leave another round trip later. A PING that
//! leaves earlier has them leave earlier. Unlike the tail loss probe of RFC 8985, 7, it repeats no data, which the
//! library cannot.

use crate::quic::congestion::bbr_extensions::PROBE;

/// Packets after a lost one that PINGs follow, and the longest time (s) for which they do.
const FOLLOWED: u32 = 64;
const LASTS: f64 = 60.0;

/// PINGs behind a packet.
const PINGS: u32 = 3;

/// Round trips, and least time (s), before the first: a packet is lost after 9/8 of a round trip (RFC 9002, 6.1.2), if
/// a later one is acknowledged.
const BEFORE: f64 = 0.125;
const LEAST_BEFORE: f64 = 0.002;

/// Round trips, and least time (s), between two.
const BETWEEN: f64 = 1.0;
const LEAST_BETWEEN: f64 = 0.004;

/// Upper bound of the bytes of a PING with an acknowledgement.
const WITH_ACK: u64 = 64;

/// Packets of a path that may have to be followed by PINGs.
#[derive(Clone, Debug, Default)]
pub(super) struct TailPings {
    /// Packets that will be followed.
    left: u32,
    /// Time (s) of the last loss.
    lost_at: Option<f64>,
    tail: Option<Tail>,
    /// A PING is to leave.
    is_next: bool,
}

/// Packet that no other with data has followed.
#[derive(Clone, Copy, Debug)]
struct Tail {
    number: u64,
    /// Time (s) at which it left, or the last PING behind it.
    at: f64,
    /// PINGs behind it.
    pings: u32,
}

impl TailPings {
    /// Notes a packet of so many bytes that leaves. True: it is a PING that was taken here.
    pub(super) fn handle_packet(&mut self, number: u64, bytes: u64, now: f64) -> bool {
        let is_ping = std::mem::take(&mut self.is_next) && bytes <= WITH_ACK;
        if is_ping || bytes <= PROBE.into() {
            return is_ping;
        }
        let is_followed = self.left > 0 && self.lost_at.is_some_and(|at| now - at < LASTS);
        self.tail = is_followed.then_some(Tail { number, at: now, pings: 0 });
        self.left = self.left.saturating_sub(1);
        false
    }

    /// Notes an acknowledged packet. Once one behind the tail was, the library knows the time at which it is lost.
    pub(super) fn handle_acked(&mut self, number: u64) {
        self.tail.take_if(|tail| tail.number <= number);
    }

    /// Notes a packet that is lost at random.
    pub(super) fn handle_random_loss(&mut self, now: f64) {
        (self.left, self.lost_at) = (FOLLOWED, Some(now));
    }

    /// Time (s) of the next PING.
    pub(super) fn due(&self, rtt: f64) -> Option<f64> {
        let Tail { at, pings, .. } = self.tail.filter(|tail| tail.pings < PINGS)?;
        Some(match pings {
            0 => at + (rtt * BEFORE).max(LEAST_BEFORE),
            _ => at + (rtt * BETWEEN).max(LEAST_BETWEEN),
        })
    }

    /// Takes the PING that is due.
    pub(super) fn take(&mut self, now: f64) {
        if let Some(tail) = &mut self.tail {
            (tail.at, tail.pings) = (now, tail.pings + 1);
            self.is_next = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: f64 = 0.02;

    /// Bytes of a message, and of a PING with an acknowledgement.
    const MESSAGE: u64 = 300;
    const PING: u64 = 40;

    /// Time (ms) of the next PING.
    fn due(pings: &TailPings) -> Option<f64> {
        pings.due(RTT).map(|due| (due * 10_000.0).round() / 10.0)
    }

    /// Packet 7 has left at 0 of a path that loses packets.
    fn lossy() -> TailPings {
        let mut pings = TailPings::default();
        pings.handle_random_loss(0.0);
        pings.handle_packet(7, MESSAGE, 0.0);
        pings
    }

    #[test]
    fn pings_follow_a_packet_and_each_other_by_a_round_trip() {
        let mut pings = lossy();
        for (number, at, left) in [(8, 2.5, 3.0), (9, 23.0, 25.0), (10, 45.0, 45.0)] {
            assert_eq!(due(&pings), Some(at));
            pings.take(left / 1000.0);
            assert!(pings.handle_packet(number, PING, left / 1000.0));
        }
        assert_eq!(due(&pings), None);
    }

    #[test]
    fn another_packet_with_data_is_followed_in_its_place() {
        let mut pings = lossy();
        assert!(!pings.handle_packet(8, PROBE.into(), 0.002), "a probe of the library");
        assert_eq!(due(&pings), Some(2.5));
        pings.take(0.0025);
        assert!(!pings.handle_packet(9, MESSAGE, 0.003), "it holds the PING as well");
        assert_eq!(due(&pings), Some(5.5));
    }

    #[test]
    fn an_acknowledgement_of_it_or_of_a_later_packet_ends_them() {
        for (number, is_over) in [(6, false), (7, true), (8, true)] {
            let mut pings = lossy();
            pings.handle_acked(number);
            assert_eq!(due(&pings).is_none(), is_over, "{number}");
        }
    }

    #[test]
    fn they_follow_packets_for_a_while_after_a_loss() {
        let followed = |pings: &mut TailPings, now: f64| {
            let is_followed = |number: &u64| {
                pings.handle_packet(*number, MESSAGE, now);
                due(pings).is_some()
            };
            (0..100).take_while(is_followed).count()
        };
        let mut pings = TailPings::default();
        assert_eq!(followed(&mut pings, 0.0), 0, "nothing was lost");
        pings.handle_random_loss(7.0);
        assert_eq!(followed(&mut pings.clone(), 68.0), 0, "too long ago");
        assert_eq!(followed(&mut pings, 7.0), 64);
    }
}
