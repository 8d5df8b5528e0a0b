//! Window for a bottleneck with a queue whose rate is high, or changes, and for random losses.
//!
//! In each round trip the delivery rate and the least wait are measured. The window is the highest recent rate times
//! the round trip without a queue, and a few packets, which show a rate that has risen: one or two, and twice as many
//! with each round in which the queue is empty. The [standing queue](StandingQueue) tells whether the window is too
//! large, [losses](LossIntervals) whether there is a policer.

use std::collections::VecDeque;

use super::TICK;
use super::loss_intervals::{LossIntervals, Losses};
use super::standing_queue::{Depth, Sample, StandingQueue};

/// Packets beyond the product of rate and round trip: those of this time (s), within bounds.
const EXTRA_TIME: f64 = 0.01;
const LEAST_EXTRA: f64 = 1.0;
const MOST_EXTRA: f64 = 2.0;

/// Share of the window to which they grow while the queue is empty, and number to which they may in any case.
const GROWTH: f64 = 0.5;
const LEAST_GROWTH: f64 = 4.0;

/// Least packets and time (s) of a round.
const ROUND_PACKETS: f64 = 8.0;
const ROUND_TIME: f64 = 0.01;

/// Rounds whose highest rate counts, and the least time (s) that they take.
const ROUNDS: usize = 8;
const MEMORY: f64 = 0.5;

/// Share of the rate that is left by losses that are many, and by marks of congestion.
const AFTER_LOSSES: f64 = 0.7;
const AFTER_MARKS: f64 = 0.85;

/// Spread (s), and share of a service time, below which round trips are flat, as behind a policer.
const FLAT: f64 = 0.002;
const FLAT_SHARE: f64 = 0.4;

/// Losses and share of a queue of ours that overflows, if it is not empty, and of one that is tolerated.
const OVERFLOW: u32 = 2;
const OVERFLOW_SHARE: f64 = 0.03;
const MANY: u32 = 3;
const MANY_SHARE: f64 = 0.05;

/// Time (s) for which the window grows slowly after losses or marks that lower the rate.
const SLOW_TIME: f64 = 0.3;

/// Rounds in a row with marks, after which there are no packets beyond the product.
const MARKED: u32 = 4;

/// Time (s) for which losses count as late packets after some were late.
const LATE: f64 = 2.0;

/// Time (s) for which a path reorders after that, and share of the rate that makes no queue.
const REORDERS: f64 = 8.0;
const SLOW_SENDER: f64 = 0.5;

/// Pace of bulk, of the rate.
const PACE: f64 = 1.25;

/// Least window in packets.
const LEAST: f64 = 2.0;

/// Windows that may be in flight with urgent packets, and packets beyond.
const URGENT_WINDOWS: f64 = 2.0;
const URGENT: f64 = 8.0;

/// Bounds of the rate in packets per second.
const SLOWEST: f64 = 1.0;
const FASTEST: f64 = 1e6;

#[derive(Clone, Debug, Default)]
pub(super) struct WindowModel {
    /// Packets that may be in flight.
    window: f64,
    /// Packets beyond the product.
    extra: f64,
    /// Times (s) and delivery rates (packets per second) of recent rounds.
    rates: VecDeque<(f64, f64)>,
    /// Highest of them: it is asked for with each packet.
    rate: f64,
    round: Round,
    queue: StandingQueue,
    /// Average excess (s) of round trips over the least one of their round.
    spread: f64,
    losses: LossIntervals,
    /// Time (s) until which the window grows slowly.
    slow_until: f64,
    /// Time (s) until which packets that count as lost are late.
    late_until: f64,
    /// Time (s) at which paced bulk may leave.
    paced_at: f64,
    /// Rounds in a row with marks.
    marked: u32,
}

/// Packets of a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Ordinal of the first packet that was sent in it.
    first: Option<u64>,
    /// Begin (s).
    begun: f64,
    delivered: u32,
    lost: u32,
    /// Least RTT (s) of packets that were sent in it, sum (s) and number.
    least: f64,
    sum: f64,
    samples: f64,
    /// The window has refused bulk.
    is_full: bool,
    /// A packet was marked: there is congestion.
    is_marked: bool,
}

impl Round {
    fn new(now: f64) -> Self {
        Self { begun: now, least: f64::INFINITY, ..Self::default() }
    }

    /// Tests whether at least so many packets are lost, and more than this share.
    fn loses(&self, least: u32, share: f64) -> bool {
        self.lost >= least && f64::from(self.lost) > f64::from(self.delivered) * share
    }
}

impl WindowModel {
    /// `rate`: packets per second. `base`: round trip (s) without a queue.
    pub(super) fn new(rate: f64, base: f64, now: f64) -> Self {
        let mut new = Self {
            extra: MOST_EXTRA,
            round: Round::new(now),
            queue: StandingQueue::new(base),
            late_until: f64::NEG_INFINITY,
            paced_at: now,
            ..Self::default()
        };
        new.replace_rates(rate, now);
        new.set_window();
        new
    }

    /// Highest recent delivery rate in packets per second.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Forgets the rates before this one.
    fn replace_rates(&mut self, rate: f64, now: f64) {
        self.rates.clear();
        self.push_rate(rate, now);
    }

    fn push_rate(&mut self, rate: f64, now: f64) {
        self.rates.push_back((now, rate));
        while self.rates.len() > ROUNDS && self.rates.front().is_some_and(|(at, _)| now - at > MEMORY) {
            self.rates.pop_front();
        }
        self.rate = self.rates.iter().map(|(_, rate)| *rate).fold(SLOWEST, f64::max).min(FASTEST);
    }

    /// Wait (s) in the standing queue.
    pub(super) fn wait(&self) -> f64 {
        self.queue.wait()
    }

    /// Wait (s) that the window aims at.
    pub(super) fn aim(&self) -> f64 {
        self.least_extra() / self.rate()
    }

    fn least_extra(&self) -> f64 {
        (self.rate() * EXTRA_TIME).clamp(LEAST_EXTRA, MOST_EXTRA)
    }

    /// Packets that the path holds without a queue.
    fn product(&self) -> f64 {
        self.rate() * self.queue.base()
    }

    fn set_window(&mut self) {
        let window = self.queue.drain_window().unwrap_or_else(|| self.product() + self.extra);
        self.window = window.max(LEAST);
    }

    /// Notes a packet that leaves. `in_flight`: with it.
    pub(super) fn charge(&mut self, ordinal: u64, in_flight: u64, now: f64) {
        // Before the window holds, packets wait in a queue that it drains. Urgent ones may keep it full for long.
        if self.round.first.is_none()
            && (in_flight as f64 <= self.window + 1.0 || now - self.round.begun > MEMORY)
        {
            // A mark and losses may be reported after the acknowledgement that ended the round before.
            let Round { is_marked, lost, .. } = self.round;
            self.round = Round { first: Some(ordinal), is_marked, lost, ..Round::new(now) };
        }
        let service = 1.0 / (self.rate() * PACE);
        self.paced_at = self.paced_at.max(now - service - TICK) + service;
    }

    /// Notes a packet that was delivered within `rtt` s. Returns the packets per second that a policer passes, if there
    /// seems to be one and losses may show one (`may_be_policed`).
    pub(super) fn passed(&mut self, ordinal: u64, rtt: f64, may_be_policed: bool, now: f64) -> Option<f64> {
        self.queue.handle_rtt(rtt);
        let round = &mut self.round;
        round.delivered += 1;
        if round.first.is_none_or(|first| ordinal < first) {
            return None;
        }
        round.least = round.least.min(rtt);
        round.sum += rtt;
        round.samples += 1.0;
        let is_over = round.samples >= ROUND_PACKETS.min(self.window / 2.0) && now - round.begun > ROUND_TIME;
        if is_over { self.end_round(may_be_policed, now) } else { None }
    }

    /// Notes a packet that counts as lost.
    pub(super) fn lost(&mut self, now: f64) {
        if now < self.late_until {
            self.round.delivered += 1;
        } else if self.round.first.is_some() || now <= self.round.begun {
            self.round.lost += 1;
        }
    }

    /// Notes that lost packets were late.
    pub(super) fn handle_late(&mut self, now: f64) {
        self.late_until = now + LATE;
    }

    /// Notes a mark of congestion [RFC 9002, 7.1].
    pub(super) fn handle_mark(&mut self) {
        self.round.is_marked = true;
    }

    /// Begins with the least window again, after persistent congestion [RFC 9002, 7.6.2].
    pub(super) fn collapse(&mut self, now: f64) {
        (self.extra, self.spread) = (0.0, 0.0);
        self.round = Round::new(now);
        self.queue.reset();
        self.replace_rates(LEAST / self.queue.base().max(TICK), now);
        self.set_window();
    }

    fn end_round(&mut self, may_be_policed: bool, now: f64) -> Option<f64> {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let time = now - round.begun;
        let rate = f64::from(round.delivered) / time;
        let was_draining = self.queue.is_draining();
        self.marked = if round.is_marked { self.marked + 1 } else { 0 };
        // The shortest round trip of a path that reorders is that of packets ahead of others.
        let may_queue = round.is_full || rate > self.rate() * SLOW_SENDER || now > self.late_until + REORDERS;
        let sample =
            Sample { least: round.least, rate, window: self.window, service: 1.0 / self.rate(), may_queue };
        let depth = self.queue.handle_round(&sample);
        if round.loses(MANY, MANY_SHARE) {
            self.queue.handle_losses();
        }
        // Losses of few packets say nothing about a limit: all that there was to send has left.
        let may_be_policed = may_be_policed
            && round.is_full
            && depth == Depth::Empty
            && self.spread < FLAT + sample.service * FLAT_SHARE;
        let losses = match self.losses.handle_round(round.delivered, round.lost, time) {
            Losses::Policed(rate) if may_be_policed => return Some(rate),
            Losses::Policed(_) => Losses::Many,
            Losses::Once if !may_be_policed => Losses::Many,
            losses => losses,
        };
        // A round that was not full shows what there was to send.
        let shown = if round.is_full { rate } else { rate.max(self.rate() * AFTER_MARKS) };
        let lower = match losses {
            _ if round.is_marked => Some(shown * AFTER_MARKS),
            Losses::Many if round.is_full => Some(rate.max(self.rate() * AFTER_LOSSES)),
            _ if depth != Depth::Empty && round.loses(OVERFLOW, OVERFLOW_SHARE) => Some(shown),
            _ => None,
        };
        if let Some(lower) = lower {
            self.replace_rates(lower, now);
            self.slow_until = now + SLOW_TIME;
        } else if (round.is_full && !was_draining) || rate > self.rate() {
            self.push_rate(rate, now);
        }
        self.spread += (round.sum / round.samples - round.least - self.spread) / 8.0;
        let least = self.least_extra();
        self.extra = match depth {
            // With packets beyond, a path that marks all the time would keep a dozen in flight.
            _ if self.marked > MARKED => 0.0,
            _ if lower.is_some() || depth == Depth::Deep => least,
            _ if matches!(losses, Losses::Once | Losses::Pending) => self.extra,
            Depth::Empty if round.is_full && now < self.slow_until => self.extra + 1.0,
            Depth::Empty if round.is_full => {
                (self.extra * 2.0).min((self.window * GROWTH).max(LEAST_GROWTH)).max(least)
            }
            Depth::Empty => self.extra,
            Depth::Shallow | Depth::Deep => (self.extra / 2.0).max(least),
        };
        self.set_window();
        None
    }

    pub(super) fn permits_bulk(&mut self, in_flight: u64, now: f64) -> bool {
        let may = (in_flight as f64) < self.window && self.paced_at <= now + 1e-9;
        self.round.is_full |= !may;
        may
    }

    /// True if the two highest rates of the last rounds are above this one: acknowledgements come in bursts.
    pub(super) fn is_faster_than(&self, rate: f64) -> bool {
        self.rate > rate && self.rates.iter().filter(|(_, measured)| *measured > rate).count() > 1
    }

    pub(super) fn permits_urgent(&self, in_flight: u64) -> bool {
        (in_flight as f64) < (self.product() + self.extra) * URGENT_WINDOWS + URGENT
    }

    /// Time (s) at which bulk is permitted; `None` if time alone does not permit any.
    pub(super) fn next(&self, in_flight: u64, now: f64) -> Option<f64> {
        ((in_flight as f64) < self.window).then_some(self.paced_at.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: f64 = 0.04;

    #[test]
    fn losses_behind_the_end_of_a_round_count_in_the_next() {
        let mut path = WindowModel::new(1000.0, RTT, 0.0);
        path.charge(1, 1, 0.0);
        (1..=8).for_each(|ordinal| assert_eq!(path.passed(ordinal, RTT, true, RTT), None));
        assert_eq!(path.round.first, None, "it is over");
        // With the same acknowledgement, and a late one.
        (0..5).for_each(|_| path.lost(RTT));
        path.lost(RTT * 2.0);
        path.charge(9, 1, RTT * 2.0);
        assert_eq!(path.round.lost, 5);
    }

    #[test]
    fn urgent_packets_beyond_the_window_do_not_end_the_measurement() {
        let mut path = WindowModel::new(50.0, RTT, 0.0);
        let begins = |path: &mut WindowModel, now| {
            path.charge(1, 12, now);
            path.round.first.is_some()
        };
        assert!(!begins(&mut path, RTT) && begins(&mut path, MEMORY + RTT));
    }
}
