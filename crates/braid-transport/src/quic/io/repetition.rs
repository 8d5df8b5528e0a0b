//! Repetition of a client's PATH_RESPONSE. Pure.
//!
//! Until it has come, a server sends a client that has moved nothing but PATH_CHALLENGE frames: no acknowledgement. The
//! library never repeats a PATH_RESPONSE. Here the datagram is repeated as it is, as a network may do: the receiver
//! discards what it has already got, and to the sender it is one packet. A server repeats nothing so: the address that
//! it would validate may be forged.

use std::time::{Duration, Instant};

use noq_udp::Transmit;

use super::batch::Batch;

/// Bounds of the time before the first repetition, which is a round trip and a half.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(100);

/// Time by which a peer delays an acknowledgement at most (RFC 9000, 18.2).
const ACK_DELAY: Duration = Duration::from_millis(25);

/// Repetitions, each after twice the time of the one before.
const REPEATS: u32 = 4;

/// Least bytes of a datagram that validates an address (RFC 9000, 8.2.1).
const PADDED: usize = 1200;

/// A datagram that is repeated until something is acknowledged.
#[derive(Debug)]
pub(super) struct Repetition {
    datagram: Batch,
    /// ACK frames that had come before it was sent.
    acknowledgements: u64,
    due: Instant,
    wait: Duration,
    repeats: u32,
}

impl Repetition {
    /// Repetition of a datagram that was sent.
    pub(super) fn new(datagram: &Transmit<'_>, acknowledgements: u64, rtt: Duration, now: Instant) -> Self {
        let wait = (rtt * 3 / 2).clamp(SHORTEST, LONGEST) + ACK_DELAY;
        Self { datagram: Batch::of(datagram), acknowledgements, due: now + wait, wait, repeats: 0 }
    }

    /// Time of the next repetition.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the datagram that is due. `None`: something was acknowledged, or there were enough.
    pub(super) fn handle_due(&mut self, acknowledgements: u64, now: Instant) -> Option<Transmit<'_>> {
        if acknowledgements != self.acknowledgements || self.repeats == REPEATS {
            return None;
        }
        self.repeats += 1;
        self.wait *= 2;
        self.due = now + self.wait;
        Some(self.datagram.transmit())
    }
}

/// Tests whether a batch is one datagram, as large as one that validates an address.
pub(super) fn is_padded(batch: &Transmit<'_>) -> bool {
    batch.segment_size.is_none() && batch.contents.len() >= PADDED
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    fn repetition(now: Instant) -> Repetition {
        let datagram = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 1], 2)),
            ecn: None,
            contents: &[7; PADDED],
            segment_size: None,
            src_ip: None,
        };
        assert!(is_padded(&datagram));
        Repetition::new(&datagram, 0, RTT, now)
    }

    #[test]
    fn it_is_repeated_four_times_in_longer_and_longer_intervals() {
        let begun = Instant::now();
        let mut repetition = repetition(begun);
        let mut waits = Vec::new();
        loop {
            let due = repetition.due();
            waits.push((due - begun).as_millis());
            let Some(datagram) = repetition.handle_due(0, due) else { break };
            assert_eq!(datagram.contents.len(), PADDED);
        }
        assert_eq!(waits, [85, 255, 595, 1275, 2635]);
    }

    #[test]
    fn an_acknowledgement_ends_it() {
        let begun = Instant::now();
        assert!(repetition(begun).handle_due(1, begun + RTT).is_none());
    }
}
