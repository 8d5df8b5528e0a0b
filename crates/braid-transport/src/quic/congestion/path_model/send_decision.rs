//! What a gate permits, and when.

use std::time::{Duration, Instant};

use super::policer_model::{Bucket, STARVED};
use super::queue_model::OUTSTANDING;
use super::startup::Start;
use super::{
    ACK_SOON, AHEAD, AHEAD_AT_FIRST, Gate, LIMITED_SILENCE, PATIENCE, Permit, SILENCE, State, whole,
};

impl Gate {
    /// Whether the next packet may leave.
    pub(in crate::quic) fn permit(&mut self, now: Instant) -> Permit {
        let now = self.seconds(now);
        let owes_ack = self.owes_ack.is_some_and(|due| now + ACK_SOON >= due);
        let is_urgent = self.urgent > 0;
        self.ledger.forget(now);
        let on_the_way = self.ledger.on_the_way();
        let is_unheard = self.is_unheard();
        let is_silent = self.is_silent(now);
        let is_kept = self.is_kept(now);
        let may = match &mut self.state {
            State::Open(_) => return Permit::Open,
            State::Start(_) if is_silent => return Permit::One,
            State::Start(start) => return Permit::Window(start.window()),
            _ if is_silent => true,
            // What is kept comes first.
            State::Policed(_) | State::Queued(_) if is_kept => false,
            State::Search(search) => on_the_way < search.window(),
            _ if is_unheard => false,
            State::Policed(bucket) => {
                let is_starved = self.urgent_since.is_some_and(|since| now - since > STARVED);
                if is_starved {
                    bucket.probe(now);
                } else if !is_urgent {
                    bucket.look(self.rhythm.last(), now);
                }
                let may = (is_urgent && bucket.permits_urgent(now)) || bucket.permits_bulk(owes_ack, now);
                if !may && !is_urgent {
                    bucket.refuse_bulk(now);
                }
                may
            }
            State::Queued(queue) => {
                (is_urgent && queue.permits_urgent(now))
                    || queue.permits_bulk(self.rhythm.next(), owes_ack, now)
            }
        };
        if may { Permit::Yes } else { Permit::No }
    }

    /// All that was acknowledged at once has been told.
    pub(in crate::quic) fn handle_end_of_acks(&mut self) {
        if let Some(newest) = &mut self.newest {
            newest.is_single = std::mem::take(&mut self.acked) == 1;
        }
    }

    /// So many packets of an open path were acknowledged and lost. `smoothed`: the round trip as the library knows it,
    /// if it has told.
    pub(in crate::quic) fn handle_open(
        &mut self,
        acked: u32,
        lost: u32,
        smoothed: Option<f64>,
        app_limited: bool,
        now: Instant,
    ) {
        let now = self.seconds(now);
        self.smoothed = smoothed.or(self.smoothed);
        let State::Open(open) = &mut self.state else { return };
        open.handle(acked, lost);
        let trip = self.smoothed.unwrap_or(0.0);
        if let Some(packets) = open.judge(trip, now < self.blind_until, app_limited, now) {
            self.state = State::Start(Start::again(packets, now));
        }
    }

    /// The congestion controller of an open path has found a policer that lets so many bytes a second through.
    pub(in crate::quic) fn handle_policer(&mut self, bytes: u64, now: Instant) {
        let now = self.seconds(now);
        if matches!(self.state, State::Open(_)) && now >= self.deaf_until {
            let rate = bytes as f64 / self.mtu.max(1) as f64;
            self.state = State::Policed(Bucket::new(rate, self.reserve, now));
        }
    }

    /// Bytes that may be written and not be acknowledged; `None`: as many as the congestion controller makes of it.
    pub(in crate::quic) fn backlog(&self) -> Option<u64> {
        match &self.state {
            State::Open(_) => return None,
            State::Start(start) => return Some((start.window() * 2).max(AHEAD_AT_FIRST) * self.mtu),
            State::Search(_) | State::Policed(_) | State::Queued(_) => {}
        }
        let ahead = self.rate().map_or(0, |rate| whole(rate * AHEAD));
        let packets = self.ledger.on_the_way() * 2 + ahead.max(6);
        Some(packets * self.mtu)
    }

    /// Nothing was sent for so long that the peer may miss something: the library holds acknowledgements and answers to
    /// PATH_CHALLENGE back while there is something else to send that does not fit into the window.
    pub(super) fn is_silent(&self, now: f64) -> bool {
        now - self.last_sent > self.silence()
    }

    fn silence(&self) -> f64 {
        self.rate().map_or(SILENCE, |rate| (4.0 / rate).clamp(LIMITED_SILENCE, 2.0))
    }

    /// Nothing is heard of what was sent: more would be lost as well, or wait behind it.
    fn is_unheard(&self) -> bool {
        let (on_the_way, most) = (self.ledger.on_the_way(), self.most_on_the_way());
        on_the_way > most * 2 || (on_the_way > most && self.urgent == 0)
    }

    /// Packets that can be on their way if all is well.
    fn most_on_the_way(&self) -> u64 {
        let (Some(rate), Some(base)) = (self.rate(), self.trip.base()) else { return u64::MAX / 2 };
        (whole(rate * (base * 2.0 + PATIENCE)) + 10).min(OUTSTANDING as u64 / 2)
    }

    /// When more is permitted than now, if nothing happens before.
    pub(in crate::quic) fn next(&self, now: Instant) -> Option<Duration> {
        let now = self.seconds(now);
        let ack = self.owes_ack.map(|due| due - ACK_SOON);
        let later = self.leaves_at(now);
        let at = match (&self.state, later) {
            (_, Some(later)) => later,
            (State::Start(_) | State::Open(_) | State::Search(_), _) => return None,
            _ if self.is_unheard() => self.last_sent + self.silence(),
            (State::Policed(bucket), _) => bucket.next(self.rhythm.last(), ack, now),
            (State::Queued(queue), _) => queue.next(self.rhythm.next(), ack, now),
        };
        Some(Duration::from_secs_f64((at - now).clamp(0.0, 10.0)))
    }
}
