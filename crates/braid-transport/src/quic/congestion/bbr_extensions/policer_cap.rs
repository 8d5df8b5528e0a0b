//! Upper bound of the sending rate behind a policer.
//!
//! A policer drops what exceeds its rate and delays nothing, so a controller that models queues sends on above that
//! rate and loses a third, urgent packets as well as bulk. It shows as many losses beside a steady delivery, and
//! differs from random losses in one thing: sending less ends them. So a [`PolicerCap`] begins with a trial just below
//! the delivered rate, and is lifted when that did not help.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::delivery_rate::{DeliveryRate, Sum};

/// Interval between evaluations of the last two seconds.
const PERIOD: Duration = Duration::from_millis(500);

/// Least duration and packets of a trial. It has to end two thirds of the losses.
const TRIAL: Duration = Duration::from_secs(1);
const ENOUGH_TRIED: u32 = 40;

/// Least span of a rate.
const ENOUGH_SPAN: Duration = Duration::from_millis(400);

/// Time after which a cap that has limited nothing is lifted: the network may be another by now.
const STALE: Duration = Duration::from_secs(30);

/// Time until the next trial after one that did not help, twice as long after each further one.
const PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);

/// Share of losses above which there may be a policer.
const MANY_LOST_PERMILLE: u32 = 100;

/// Packets and losses below which a share means nothing.
const ENOUGH_PACKETS: u32 = 30;
const ENOUGH_LOST: u32 = 4;

/// Share of losses above which a cap is too high.
const SOME_LOST_PERMILLE: u32 = 50;

/// Share of losses below which a cap may be too low.
const FEW_LOST_PERMILLE: u32 = 20;

#[derive(Clone, Debug)]
pub(super) struct PolicerCap {
    delivery: DeliveryRate,
    evaluated: Instant,
    state: State,
    pause: Duration,
    /// Number of the last sent packet.
    sent: u64,
    /// Number up to which packets do not count: they were sent at another rate.
    ignored: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No cap, and none before `until`.
    Open { until: Instant },
    /// A cap that has to show whether it helps.
    Trial(Capped),
    /// A cap that helps.
    Held(Capped),
}

/// Reason for a change between states.
#[derive(Clone, Copy, Debug)]
enum Reason {
    /// More than a tenth is lost beside a steady delivery: a trial begins.
    ManyLosses,
    /// The trial has ended two thirds of the losses.
    TrialHelped,
    /// The trial has not ended them.
    TrialFailed,
    /// Losses go on well below the delivery rate before.
    LossesBelowCap,
    /// Half as much again passes: the policer is gone, or was none.
    HigherRatePasses,
    /// The cap has limited nothing for 30 s.
    Unused,
}

#[derive(Clone, Copy, Debug)]
struct Capped {
    /// Bytes per second.
    rate: u64,
    /// Time at which the cap last limited.
    reached: Instant,
    /// Delivery rate before, in bytes per second.
    delivered: u64,
    /// Losses in a thousand packets before.
    lost_permille: u32,
}

impl PolicerCap {
    pub(super) fn new(now: Instant) -> Self {
        let state = State::Open { until: now };
        Self { delivery: DeliveryRate::new(now), evaluated: now, state, pause: PAUSE, sent: 0, ignored: 0 }
    }

    pub(super) fn handle_sent(&mut self, number: u64) {
        self.sent = number;
    }

    pub(super) fn handle_acked(&mut self, number: u64, bytes: u64, now: Instant) {
        if number > self.ignored {
            self.delivery.count_acked(bytes, now);
        }
    }

    pub(super) fn handle_lost(&mut self, number: u64, now: Instant) {
        if number > self.ignored {
            self.delivery.count_lost(now);
        }
    }

    /// Ends the packets of one acknowledgement. While the application limits, nothing shows about the network.
    pub(super) fn handle_end_of_acks(&mut self, app_limited: bool, now: Instant) {
        if app_limited {
            self.delivery.clear(now);
        }
        if now.saturating_duration_since(self.evaluated) >= PERIOD {
            self.evaluated = now;
            let sum = self.delivery.sum(now);
            match self.state {
                State::Open { until } if now >= until && is_policed(&sum) => self.begin(&sum, now),
                State::Open { .. } => {}
                State::Trial(capped) => self.conclude(capped, &sum, now),
                State::Held(capped) => self.adjust(capped, &sum, now),
            }
        }
    }

    /// Bytes per second.
    pub(super) fn rate(&self) -> Option<u64> {
        match self.state {
            State::Open { .. } => None,
            State::Trial(capped) | State::Held(capped) => Some(capped.rate),
        }
    }

    /// Rate (bytes per second) of a cap that helps.
    pub(super) fn held(&self) -> Option<u64> {
        match self.state {
            State::Held(capped) => Some(capped.rate),
            State::Open { .. } | State::Trial(_) => None,
        }
    }

    fn enter(&mut self, state: State, reason: Reason) {
        tracing::debug!(?state, ?reason, "the policer cap changes");
        self.state = state;
    }

    fn begin(&mut self, sum: &Sum, now: Instant) {
        let (delivered, lost_permille) = (sum.rate, sum.lost_permille());
        let capped = Capped { rate: below(delivered), reached: now, delivered, lost_permille };
        self.enter(State::Trial(capped), Reason::ManyLosses);
        self.count_from_here(now);
    }

    fn conclude(&mut self, capped: Capped, sum: &Sum, now: Instant) {
        if sum.span < TRIAL || sum.packets() < ENOUGH_TRIED {
            self.lift_if_stale(capped, now);
        } else if sum.lost_permille() * 3 > capped.lost_permille {
            self.give_up(Reason::TrialFailed, now);
        } else {
            self.enter(State::Held(Capped { reached: now, ..capped }), Reason::TrialHelped);
        }
    }

    fn adjust(&mut self, capped: Capped, sum: &Sum, now: Instant) {
        let lost = sum.lost_permille();
        if sum.span < ENOUGH_SPAN {
            self.lift_if_stale(capped, now);
        } else if lost > SOME_LOST_PERMILLE && sum.lost >= 2 {
            let rate = capped.rate.min(below(sum.rate));
            // A policer delivers as much as before when less is sent.
            if rate < capped.delivered / 20 * 17 {
                return self.give_up(Reason::LossesBelowCap, now);
            }
            self.state = State::Held(Capped { rate, reached: now, ..capped });
            self.count_from_here(now);
        } else if sum.rate < capped.rate / 10 * 8 {
            self.lift_if_stale(capped, now);
        } else if lost >= FEW_LOST_PERMILLE {
            self.state = State::Held(Capped { reached: now, ..capped });
        } else if capped.rate < capped.delivered / 2 * 3 {
            self.state = State::Held(Capped { rate: capped.rate + capped.rate / 50, reached: now, ..capped });
        } else {
            self.pause = PAUSE;
            self.enter(State::Open { until: now }, Reason::HigherRatePasses);
        }
    }

    fn lift_if_stale(&mut self, capped: Capped, now: Instant) {
        if now.saturating_duration_since(capped.reached) > STALE {
            self.enter(State::Open { until: now }, Reason::Unused);
        }
    }

    /// Lifts a cap that does not end the losses: they are not a policer's.
    fn give_up(&mut self, reason: Reason, now: Instant) {
        self.enter(State::Open { until: now + self.pause }, reason);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.count_from_here(now);
    }

    /// Ignores the fates of packets in flight: they were sent at another rate.
    fn count_from_here(&mut self, now: Instant) {
        self.delivery.clear(now);
        self.ignored = self.sent;
    }
}

fn is_policed(sum: &Sum) -> bool {
    sum.is_steady
        && sum.packets() >= ENOUGH_PACKETS
        && sum.lost >= ENOUGH_LOST
        && sum.lost_permille() > MANY_LOST_PERMILLE
}

fn below(rate: u64) -> u64 {
    rate / 100 * 95
}
