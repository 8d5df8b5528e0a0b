//! What a gate makes of round trips.

use super::min_rtt::Trip;
use super::queue_model::Queue;
use super::sent_packets::Sent;
use super::startup::Start;
use super::{DEAF, DELAYED, DELAYED_FOR, ENOUGH, FAST, Gate, Heard, QUEUED, State};

/// A path slower than this share of [`FAST`] is not left alone: its rate is not known well at first.
const CLEARLY: f64 = 0.7;

/// A round trip is shorter by this (s) once it was adjusted.
const ADJUSTED: f64 = 0.002;

/// A peer holds an acknowledgement back for so long (s): 25 ms, and what its timer is late.
const HELD_BACK: f64 = 0.03;

impl Gate {
    /// The smoothed round trip tells the last one: an eighth of it is new.
    pub(super) fn handle_smoothed(&mut self, smoothed: f64, now: f64) {
        let before = self.smoothed.replace(smoothed);
        let Some(heard) = self.newest.filter(|_| before != Some(smoothed)) else { return };
        self.newest = None;
        let sent = heard.sent;
        // Before the first there is only a guess.
        let trip = match before {
            Some(before) if self.trip.base().is_some() => (smoothed * 8.0 - before * 7.0).max(0.0),
            _ => smoothed,
        };
        // What was kept left later than the library knows.
        let trip = trip.min(heard.at - sent.at);
        if self.may_be_held_back(&heard, trip) {
            return;
        }
        let is_alone = self.left.is_none_or(|(_, left)| sent.at >= left);
        let wait = self.trip.wait(trip, is_alone);
        if sent.expected.is_some_and(|wait| wait < QUEUED / 2.0) && self.trip.is_longer(trip, now) {
            self.state = State::Start(Start::again(self.ledger.on_the_way() as f64, now));
            self.left = None;
            return;
        }
        // What found nothing of ours before it did not wait for us.
        let before = self.left.replace((sent.place, sent.at + wait)).filter(|_| !is_alone);
        self.handle_wait(&sent, wait, before, now);
    }

    /// The library subtracts for how long the peer held an acknowledgement back, unless a round trip shorter than its least
    /// one would come out: that includes what the handshake cost the processor. Such a round trip says nothing.
    fn may_be_held_back(&mut self, heard: &Heard, trip: f64) -> bool {
        let unadjusted = heard.at - heard.sent.at;
        let was_adjusted = trip + ADJUSTED < unadjusted;
        // Without one the round trip is a guess.
        let Some(base) = self.trip.base() else { return false };
        self.peer_waits |= was_adjusted && heard.is_single;
        self.peer_waits && heard.is_single && !was_adjusted && base < trip && trip < base + HELD_BACK
    }

    /// A policer delays nothing: where packets wait, another bottleneck has taken its place.
    fn handle_delay(&mut self, wait: f64, now: f64) {
        if wait <= QUEUED {
            self.delayed = None;
            return;
        }
        let (count, since) = self.delayed.get_or_insert((0, now));
        *count += 1;
        if *count >= DELAYED && now - *since > DELAYED_FOR {
            self.delayed = None;
            self.left = None;
            // Few packets empty a queue, if it is one; a peer that is late stays late.
            self.trip = Trip::default();
            self.state = State::Start(Start::new(now));
        }
    }

    /// `before`: place and departure of the packet whose round trip was known before.
    fn handle_wait(&mut self, sent: &Sent, wait: f64, before: Option<(u64, f64)>, now: f64) {
        let first = (sent.place, sent.at + wait);
        if wait <= QUEUED || before.is_none() {
            self.queued_since = None;
        }
        let is_ours = sent.is_full;
        if let State::Start(start) = &mut self.state
            && is_ours
            && wait > QUEUED / 2.0
        {
            start.handle_queue();
        }
        match &mut self.state {
            State::Policed(_) => self.handle_delay(wait, now),
            State::Queued(queue) => {
                let is_sure = !std::mem::take(&mut self.has_lost) && !self.ledger.is_open_before(sent.number);
                queue.handle_wait(sent, wait, is_sure, now);
                if queue.is_too_noisy(now) {
                    self.blind_until = now + DEAF;
                    self.open(now);
                }
            }
            State::Start(_) | State::Search(_) if wait > QUEUED && is_ours && now >= self.blind_until => {
                let (place, left) = *self.queued_since.get_or_insert(before.unwrap_or(first));
                let span = sent.at + wait - left;
                let rate = sent.place.saturating_sub(place) as f64 / span.max(1e-6);
                if span < ENOUGH {
                    return;
                }
                if rate < FAST * CLEARLY {
                    let last = (sent.place, sent.at + wait);
                    self.state = State::Queued(Queue::new(rate, last, self.ledger.after(sent.place)));
                } else {
                    self.open(now);
                }
            }
            _ => {}
        }
    }
}

/// Of at least one.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
