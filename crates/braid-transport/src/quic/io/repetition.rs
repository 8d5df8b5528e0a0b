//! Repetition of the datagrams that validate a client's new address. Pure.
//!
//! Until a PATH_RESPONSE has come, a server sends a new address nothing but PATH_CHALLENGE frames: a client that has
//! moved gets no acknowledgement. The library repeats a PATH_CHALLENGE after a probe timeout of the path, which is a
//! second if the IP address is new, and a PATH_RESPONSE never. Here the datagram is repeated as it is, as a network may
//! do: the receiver discards what it has already got, and to the sender it is one packet.

use std::time::{Duration, Instant};

use noq_udp::Transmit;

use super::batch::Batch;

/// Bounds of the time before the first repetition, which is a round trip and a half.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(100);

/// Repetitions, each after twice the time of the one before.
const REPEATS: u32 = 4;

/// Least bytes of a datagram that validates an address (RFC 9000, 8.2.1).
const PADDED: usize = 1200;

/// Bytes that an address may be sent for each that came from there (RFC 9000, 8.1).
const FACTOR: u64 = 3;

/// Counts of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// ACK frames: of a server those that it has sent, of a client those that have come. None is sent before the
    /// address is validated.
    pub(super) acknowledgements: u64,
    /// Bytes that have come.
    pub(super) received: u64,
    /// Bytes that the library has sent.
    pub(super) sent: u64,
}

/// A datagram that is repeated.
#[derive(Debug)]
pub(super) struct Repetition {
    datagram: Batch,
    bytes: u64,
    /// Counts after it was sent for the first time.
    before: Counts,
    /// Repetitions are limited by what has come since. The library does not count them, but those are few.
    is_limited: bool,
    due: Instant,
    wait: Duration,
    repeats: u32,
}

/// Action for a repetition that is due.
#[derive(Debug)]
pub(super) enum Action<'a> {
    Send(Transmit<'a>),
    /// The address has sent too little.
    Wait,
    /// The address is validated, or there were enough.
    End,
}

impl Repetition {
    /// Repetition of a padded datagram that was sent. `is_limited`: its destination is not validated. `more`: time that
    /// is added to that before the first repetition.
    pub(super) fn new(
        datagram: &Transmit<'_>,
        before: Counts,
        is_limited: bool,
        rtt: Duration,
        more: Duration,
        now: Instant,
    ) -> Self {
        let wait = (rtt * 3 / 2).clamp(SHORTEST, LONGEST) + more;
        Self {
            datagram: Batch::of(datagram),
            bytes: datagram.contents.len() as u64,
            before,
            is_limited,
            due: now + wait,
            wait,
            repeats: 0,
        }
    }

    /// Time of the next repetition.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Notes another padded datagram to the same address, which takes the place of this one.
    pub(super) fn handle_sent(&mut self, datagram: &Transmit<'_>, now: Instant) {
        self.datagram = Batch::of(datagram);
        self.due = now + self.wait;
    }

    /// Decides about a repetition that is due.
    pub(super) fn handle_due(&mut self, counts: Counts, now: Instant) -> Action<'_> {
        if counts.acknowledgements != self.before.acknowledgements || self.repeats == REPEATS {
            return Action::End;
        }
        let received = counts.received.saturating_sub(self.before.received);
        let sent = counts.sent.saturating_sub(self.before.sent) + u64::from(self.repeats) * self.bytes;
        if self.is_limited && received.saturating_mul(FACTOR) < sent + self.bytes {
            self.due = now + self.wait;
            return Action::Wait;
        }
        self.repeats += 1;
        self.wait *= 2;
        self.due = now + self.wait;
        Action::Send(self.datagram.transmit())
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

    fn repetition(is_limited: bool, now: Instant) -> Repetition {
        let datagram = Transmit {
            destination: SocketAddr::from(([10, 0, 0, 1], 2)),
            ecn: None,
            contents: &[7; PADDED],
            segment_size: None,
            src_ip: None,
        };
        assert!(is_padded(&datagram));
        Repetition::new(&datagram, counts(0, 0), is_limited, RTT, Duration::ZERO, now)
    }

    fn counts(acknowledgements: u64, received: u64) -> Counts {
        Counts { acknowledgements, received, sent: 0 }
    }

    #[test]
    fn it_is_repeated_four_times_in_longer_and_longer_intervals() {
        let begun = Instant::now();
        let mut repetition = repetition(false, begun);
        let mut waits = Vec::new();
        loop {
            let due = repetition.due();
            waits.push((due - begun).as_millis());
            match repetition.handle_due(counts(0, 0), due) {
                Action::Send(datagram) => assert_eq!(datagram.contents.len(), PADDED),
                Action::Wait => panic!("there is no limit"),
                Action::End => break,
            }
        }
        assert_eq!(waits, [60, 180, 420, 900, 1860]);
    }

    #[test]
    fn an_acknowledgement_ends_it() {
        let begun = Instant::now();
        let mut repetition = repetition(false, begun);
        assert!(matches!(repetition.handle_due(counts(1, 0), begun + RTT), Action::End));
    }

    #[test]
    fn an_address_gets_three_times_what_it_has_sent() {
        let begun = Instant::now();
        let mut repetition = repetition(true, begun);
        for (received, is_sent) in [(0, false), (399, false), (400, true), (799, false), (800, true)] {
            let action = repetition.handle_due(counts(0, received), begun);
            assert_eq!(matches!(action, Action::Send(_)), is_sent, "{received}");
        }
    }
}
