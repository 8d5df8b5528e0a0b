//! Standing queue of ours: the part of the least round trip that sending less takes away.
//!
//! The least RTT of a round trip does not have the queue of a burst, nor most of the jitter. What it has beyond the
//! shortest RTT is drained: for three rounds as much is in flight as the path holds without a queue, and half as much
//! in the last. What is left then is no queue of ours, but a longer path, jitter, or other senders: it is tolerated on
//! trial, and sending more has to deliver more. So is a short wait that stays.

use std::collections::VecDeque;

use super::rtt_samples::push_bounded;

/// Queue above which it is drained: packets, at most so long (s), and time (s).
const DEEP: f64 = 4.0;
const DEEP_MOST: f64 = 0.012;
const DEEP_TIME: f64 = 0.003;

/// Share of the noise that is no deep queue.
const NOISE: f64 = 0.4;

/// Queue below which it counts as empty: packets, and time (s).
const EMPTY: f64 = 1.5;
const EMPTY_TIME: f64 = 0.001;

/// Rounds of draining, and packets beyond those that the path holds.
const DRAINING: u32 = 3;
const BESIDE: f64 = 2.0;

/// Rounds after which a tolerance is confirmed or taken back, growth of the excess that takes it back at once, and
/// share of the growth of the window that the delivery rate has to follow.
const TRIAL: u32 = 2;
const WORSE: f64 = 1.5;
const ELASTIC: f64 = 0.5;

/// Rounds until the next trial after one that was taken back.
const BARRED: u32 = 8;

/// Rounds after which a part of the tolerance has to be tried again, and share that is left: where the rate varies,
/// some of it is a queue of ours.
const AGE: u32 = 32;
const AGED: f64 = 0.95;

/// Most (s) of an excess that is tolerated at once, where no queue can be ours.
const NOT_OURS: f64 = 0.03;

/// Rounds whose highest excess bounds the tolerance.
const ROUNDS: usize = 8;

/// Measurements of a round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Least RTT (s).
    pub(super) least: f64,
    /// Packets per second that were delivered.
    pub(super) rate: f64,
    /// Packets that were permitted in flight.
    pub(super) window: f64,
    /// Service time (s) of a packet.
    pub(super) service: f64,
    /// False if no queue can be ours.
    pub(super) may_queue: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Empty,
    Shallow,
    Deep,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StandingQueue {
    /// Shortest RTT (s).
    base: f64,
    /// Excess (s) over it that is no queue of ours.
    tolerance: f64,
    /// Excesses (s) of recent rounds without a deep queue.
    excesses: VecDeque<f64>,
    /// Wait (s) of the last round.
    wait: f64,
    /// Average difference (s) between the waits of two rounds.
    noise: f64,
    draining: Option<Draining>,
    trial: Option<Trial>,
    barred: u32,
    rounds: u32,
}

#[derive(Clone, Copy, Debug)]
struct Draining {
    /// Packets per second that the path passes.
    rate: f64,
    rounds: u32,
}

/// State before a tolerance that is tried.
#[derive(Clone, Copy, Debug)]
struct Trial {
    tolerance: f64,
    window: f64,
    rate: f64,
    rounds: u32,
}

impl StandingQueue {
    /// `base`: round trip (s) without a queue.
    pub(super) fn new(base: f64) -> Self {
        Self { base, ..Self::default() }
    }

    /// Round trip (s) without a queue of ours.
    pub(super) fn base(&self) -> f64 {
        self.base + self.tolerance
    }

    /// Wait (s) of the last round.
    pub(super) fn wait(&self) -> f64 {
        self.wait
    }

    pub(super) fn handle_rtt(&mut self, rtt: f64) {
        self.base = self.base.min(rtt);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Packets that may be in flight, if the queue is drained.
    pub(super) fn drain_window(&self) -> Option<f64> {
        let Draining { rate, rounds } = self.draining?;
        let product = rate * self.base();
        Some(if rounds == DRAINING { product / 2.0 } else { product + BESIDE })
    }

    /// Notes many losses: what is tolerated may be a queue of others that overflows.
    pub(super) fn handle_losses(&mut self) {
        self.tolerance /= 2.0;
        (self.trial, self.barred) = (None, BARRED);
    }

    /// Drains nothing and tries nothing any more.
    pub(super) fn reset(&mut self) {
        (self.draining, self.trial) = (None, None);
    }

    pub(super) fn handle_round(&mut self, sample: &Sample) -> Depth {
        let excess = sample.least - self.base;
        let before = std::mem::replace(&mut self.wait, excess - self.tolerance);
        self.noise += ((self.wait - before).abs() - self.noise) / 8.0;
        let empty = sample.service * EMPTY + EMPTY_TIME;
        let deep = (sample.service * DEEP).min(DEEP_MOST) + DEEP_TIME + self.noise * NOISE;
        self.barred = self.barred.saturating_sub(1);
        self.rounds += 1;
        if self.rounds.is_multiple_of(AGE) {
            self.tolerance *= AGED;
        }
        if !sample.may_queue {
            self.reset();
            self.tolerance = self.tolerance.max(excess.min(NOT_OURS));
            self.wait = excess - self.tolerance;
        } else if !self.is_tried(sample, excess, deep) && self.wait > deep {
            self.drain(sample, excess);
            return Depth::Deep;
        }
        self.draining = None;
        push_bounded(&mut self.excesses, ROUNDS, excess);
        if self.excesses.len() == ROUNDS {
            self.tolerance = self.tolerance.min(self.excesses.iter().copied().fold(0.0, f64::max));
            self.try_what_stays(sample, empty);
        }
        if self.wait < empty { Depth::Empty } else { Depth::Shallow }
    }

    /// Tests whether a tolerance is tried in this round, or was confirmed.
    fn is_tried(&mut self, sample: &Sample, excess: f64, deep: f64) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        trial.rounds += 1;
        let is_worse = excess > self.tolerance * WORSE + deep;
        if !is_worse && trial.rounds < TRIAL {
            return true;
        }
        let (growth, gain) = (sample.window / trial.window - 1.0, sample.rate / trial.rate - 1.0);
        let is_confirmed = !is_worse && gain >= growth * ELASTIC;
        if !is_confirmed {
            (self.tolerance, self.barred) = (trial.tolerance, BARRED);
        }
        self.trial = None;
        is_confirmed
    }

    /// Tries to tolerate a wait that is not empty in all recent rounds but one.
    fn try_what_stays(&mut self, sample: &Sample, empty: f64) {
        if self.barred > 0 || self.trial.is_some() {
            return;
        }
        let mut excesses: Vec<f64> = self.excesses.iter().copied().collect();
        excesses.sort_by(f64::total_cmp);
        let stays = excesses.get(1).copied().unwrap_or(0.0);
        if stays - self.tolerance > empty {
            self.try_tolerance(sample, stays);
        }
    }

    fn drain(&mut self, sample: &Sample, excess: f64) {
        let draining = self.draining.get_or_insert(Draining { rate: sample.rate, rounds: 0 });
        draining.rounds += 1;
        draining.rate = draining.rate.min(sample.rate);
        if draining.rounds <= DRAINING {
            return;
        }
        self.draining = None;
        if self.barred == 0 {
            self.try_tolerance(sample, excess);
        }
    }

    /// Tolerates so much excess (s) on trial. The path becomes at most twice as long.
    fn try_tolerance(&mut self, sample: &Sample, excess: f64) {
        let tolerance = self.tolerance;
        self.trial = Some(Trial { tolerance, window: sample.window, rate: sample.rate, rounds: 0 });
        self.tolerance = excess.min(self.base + tolerance * 2.0);
        self.excesses.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_is_no_queue_of_ours_is_tolerated() {
        let mut queue = StandingQueue::new(0.001);
        let round = |may_queue| Sample { least: 0.02, rate: 50.0, window: 2.0, service: 0.004, may_queue };
        assert_eq!(queue.handle_round(&round(true)), Depth::Deep);
        assert!(queue.is_draining());
        assert_eq!(queue.handle_round(&round(false)), Depth::Empty);
        assert!(!queue.is_draining());
        assert!((queue.base() - 0.02).abs() < 1e-9, "{}", queue.base());
        queue.handle_round(&Sample { least: 0.2, ..round(false) });
        assert!((queue.base() - 0.031).abs() < 1e-9, "{}", queue.base());
        assert!(queue.wait() > 0.1, "{}", queue.wait());
    }
}
