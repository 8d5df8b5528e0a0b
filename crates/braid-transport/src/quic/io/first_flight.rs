//! PINGs behind the first packets of a client that nothing acknowledges. Pure.
//!
//! The probe timeout of the library holds the 25 ms by which the peer may delay an acknowledgement, doubled if one of
//! the handshake went before. A lost packet of the first flight costs many times a short round trip then, and so do
//! packets that are whole, but come before the lost end of the handshake, when the server has no keys for them. A PING
//! behind them is acknowledged at once, but behind the very first packet, and shows that they are lost.

use std::time::{Duration, Instant};

/// Time after the handshake in which packets are the first ones.
const FIRST: Duration = Duration::from_secs(1);

/// Round trips without an acknowledgement before a PING, and the least time: the server may need some for its response.
const ROUND_TRIPS: u32 = 3;
const LEAST: Duration = Duration::from_millis(4);

/// Longest round trip for which PINGs are sent. With a longer one they would gain little beside it.
const SHORT: Duration = Duration::from_millis(10);

/// PINGs in a row, each after twice the time of the one before.
const PINGS: u32 = 3;

/// State of a connection at the end of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// The server has the end of the handshake.
    pub(super) is_confirmed: bool,
    pub(super) rtt: Duration,
    /// Frames that were sent and are to be acknowledged.
    pub(super) sent: u64,
    /// ACK frames that have come.
    pub(super) answers: u64,
}

/// First packets of one client.
#[derive(Debug, Default)]
pub(super) struct FirstFlight {
    /// End of the time in which packets are the first ones; `None` before the handshake is complete.
    end: Option<Instant>,
    /// Turn before.
    before: Option<Turn>,
    /// Time at which packets left that are to be acknowledged.
    sent_at: Option<Instant>,
    /// Time at which a PING is due.
    due: Option<Instant>,
    /// PINGs since the last acknowledgement.
    pings: u32,
}

impl FirstFlight {
    /// True if turns need not be reported any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now > end)
    }

    /// Time at which a PING is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes a turn after the handshake.
    pub(super) fn handle_turn(&mut self, turn: Turn, now: Instant) {
        let end = *self.end.get_or_insert(now + FIRST);
        let before = self.before.replace(turn);
        if before.is_none_or(|before| turn.answers > before.answers) {
            // One that comes sooner than its packets can have arrived is for others.
            if self.sent_at.is_none_or(|at| now - at > turn.rtt / 2) {
                (self.sent_at, self.due) = (None, None);
            }
            self.pings = 0;
        }
        if before.is_none_or(|before| turn.sent > before.sent) {
            self.sent_at = Some(now);
            let wait = LEAST.max(turn.rtt * ROUND_TRIPS) * (1 << self.pings);
            self.due = Some(now + wait);
        }
        // Until now the server may have had no keys for what has come.
        if turn.is_confirmed && before.is_some_and(|before| !before.is_confirmed) && self.due.is_some() {
            self.due = Some(now);
        }
        if turn.rtt > SHORT || self.pings >= PINGS || now > end {
            self.due = None;
        }
    }

    /// Takes the PING that is due.
    pub(super) fn take_ping(&mut self, now: Instant) -> bool {
        let is_due = self.due.take_if(|due| *due <= now).is_some();
        self.pings += u32::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A client whose handshake is just complete, with a packet that is to be acknowledged.
    struct Client {
        first: FirstFlight,
        turn: Turn,
        begun: Instant,
    }

    impl Client {
        fn new(rtt: Duration) -> Self {
            let turn = Turn { is_confirmed: false, rtt, sent: 1, answers: 1 };
            let mut new = Self { first: FirstFlight::default(), turn, begun: Instant::now() };
            new.turn(Duration::ZERO);
            new
        }

        fn turn(&mut self, after: Duration) {
            self.first.handle_turn(self.turn, self.begun + after);
        }

        /// ms after the handshake.
        fn due(&self) -> Option<u128> {
            self.first.due().map(|due| (due - self.begun).as_millis())
        }
    }

    #[test]
    fn pings_follow_packets_that_nothing_acknowledges_ever_later() {
        let mut client = Client::new(MS);
        for (due, next) in [(4, Some(12)), (12, Some(28)), (28, None)] {
            assert!(!client.first.take_ping(client.begun + (due - 1) * MS));
            assert!(client.first.take_ping(client.begun + due * MS));
            client.turn.sent += 1;
            client.turn(due * MS);
            assert_eq!(client.due(), next);
        }
    }

    #[test]
    fn an_acknowledgement_ends_the_wait_unless_it_comes_too_soon_for_the_packet() {
        for (after, due) in [(1, Some(18)), (4, None)] {
            let mut client = Client::new(6 * MS);
            client.turn.answers += 1;
            client.turn(after * MS);
            assert_eq!(client.due(), due);
        }
    }

    #[test]
    fn the_end_of_the_handshake_shows_that_packets_before_it_were_dropped() {
        let mut client = Client::new(MS);
        client.turn.is_confirmed = true;
        client.turn(3 * MS);
        assert_eq!(client.due(), Some(3));
        let mut client = Client::new(MS);
        client.turn.is_confirmed = true;
        client.turn.answers += 1;
        client.turn(3 * MS);
        assert_eq!(client.due(), None, "it has acknowledged them");
    }

    #[test]
    fn on_a_long_path_and_after_a_second_there_are_none() {
        assert_eq!(Client::new(SHORT + MS).due(), None);
        let mut client = Client::new(MS);
        client.turn(FIRST + MS);
        assert_eq!(client.due(), None);
        assert!(client.first.is_over(client.begun + FIRST + MS));
    }
}
