//! Notices a policer, and finds the rate that it lets through.
//!
//! A policer drops what exceeds its rate and delays nothing, so a controller that models queues
//! sends on above that rate and loses a third of it, urgent packets as well as bulk. It shows as
//! many losses beside a steady delivery, and it differs from a link that loses at random in one
//! thing: sending less ends the losses. So a [`Cap`] begins with a trial just below the delivered
//! rate, and is lifted when that did not help.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::delivery_rate::{Sum, Tally};

/// How often the last two seconds are judged.
const PERIOD: Duration = Duration::from_millis(500);

/// A trial of a cap takes so long and so many packets, at least. It must leave a third of the losses.
const TRIAL: Duration = Duration::from_secs(1);
const ENOUGH_TRIED: u32 = 40;

/// Less of a window says too little about a rate.
const ENOUGH_SPAN: Duration = Duration::from_millis(400);

/// A cap that has limited nothing for so long is lifted: the network may be another by now.
const STALE: Duration = Duration::from_secs(30);

/// After losses that a cap did not end, it is so long until the next attempt; twice as long after
/// each further one.
const PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);

/// Above this share of losses there may be a policer.
const MANY_LOST_PERMILLE: u32 = 100;

/// With fewer packets, or fewer losses, a share means nothing.
const ENOUGH_PACKETS: u32 = 30;
const ENOUGH_LOST: u32 = 4;

/// Above this share of losses a cap is too high.
const SOME_LOST_PERMILLE: u32 = 50;

/// Below this share of losses a cap may be too low.
const FEW_LOST_PERMILLE: u32 = 20;

/// The highest rate that may be sent at, once a policer was noticed.
#[derive(Clone, Debug)]
pub(super) struct Cap {
    tally: Tally,
    judged: Instant,
    state: State,
    pause: Duration,
    /// The number of the last packet that was sent.
    sent: u64,
    /// Packets up to this number do not count: they were sent under other circumstances.
    ignored: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No cap. Before `until` there will be none.
    Open { until: Instant },
    /// Whether less is lost than before must show.
    Trial(Capped),
    /// It helps.
    Held(Capped),
}

#[derive(Clone, Copy, Debug)]
struct Capped {
    /// Bytes per second.
    rate: u64,
    /// When it was last seen to limit.
    reached: Instant,
    /// What was delivered before, in bytes per second.
    delivered: u64,
    /// What was lost before.
    lost_permille: u32,
}

impl Cap {
    pub(super) fn new(now: Instant) -> Self {
        let state = State::Open { until: now };
        Self { tally: Tally::new(now), judged: now, state, pause: PAUSE, sent: 0, ignored: 0 }
    }

    pub(super) fn handle_sent(&mut self, number: u64) {
        self.sent = number;
    }

    pub(super) fn handle_acked(&mut self, number: u64, bytes: u64, now: Instant) {
        if number > self.ignored {
            self.tally.count_acked(bytes, now);
        }
    }

    pub(super) fn handle_lost(&mut self, number: u64, now: Instant) {
        if number > self.ignored {
            self.tally.count_lost(now);
        }
    }

    /// All that was acknowledged at once has been counted. With `app_limited` the network is not what
    /// limits, so that nothing can be learnt about it.
    pub(super) fn handle_end_of_acks(&mut self, app_limited: bool, now: Instant) {
        if app_limited {
            self.tally.clear(now);
        }
        if now.saturating_duration_since(self.judged) >= PERIOD {
            self.judged = now;
            let sum = self.tally.sum(now);
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

    /// The same, once it has shown that it helps.
    pub(super) fn held(&self) -> Option<u64> {
        match self.state {
            State::Held(capped) => Some(capped.rate),
            State::Open { .. } | State::Trial(_) => None,
        }
    }

    fn begin(&mut self, sum: &Sum, now: Instant) {
        let (delivered, lost_permille) = (sum.rate, sum.lost_permille());
        self.state = State::Trial(Capped { rate: below(delivered), reached: now, delivered, lost_permille });
        self.count_from_here(now);
    }

    fn conclude(&mut self, capped: Capped, sum: &Sum, now: Instant) {
        if sum.span < TRIAL || sum.packets() < ENOUGH_TRIED {
            self.lift_if_stale(capped, now);
        } else if sum.lost_permille() * 3 > capped.lost_permille {
            self.give_up(now);
        } else {
            self.state = State::Held(Capped { reached: now, ..capped });
        }
    }

    fn adjust(&mut self, capped: Capped, sum: &Sum, now: Instant) {
        let lost = sum.lost_permille();
        if sum.span < ENOUGH_SPAN {
            self.lift_if_stale(capped, now);
        } else if lost > SOME_LOST_PERMILLE && sum.lost >= 2 {
            let rate = capped.rate.min(below(sum.rate));
            // A policer delivers as much as before when less is sent: so far down it is something else.
            if rate < capped.delivered / 20 * 17 {
                return self.give_up(now);
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
            // Half as much again passes, so this is not the limit, or no longer.
            self.pause = PAUSE;
            self.state = State::Open { until: now };
        }
    }

    fn lift_if_stale(&mut self, capped: Capped, now: Instant) {
        if now.saturating_duration_since(capped.reached) > STALE {
            self.state = State::Open { until: now };
        }
    }

    /// What is lost here is not lost to a policer.
    fn give_up(&mut self, now: Instant) {
        self.state = State::Open { until: now + self.pause };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.count_from_here(now);
    }

    /// What happens to packets that are on their way says nothing about the rate from now on.
    fn count_from_here(&mut self, now: Instant) {
        self.tally.clear(now);
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
