//! Validity of runs: doubts, lateness, and the statistics that decide.

use std::fmt::{self, Display};
use std::time::Duration;

use crate::wire::{DirectionEnd, Stopped};
use braid_emulator::{Direction, LinkSpec, Timeline};

/// Reason not to use a run, or this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Text for people.
    pub what: String,
    /// Whether the cause is a busy machine, so that a repetition may succeed.
    pub is_busy: bool,
}

impl Doubt {
    /// Doubt whose cause is a busy machine.
    pub(crate) fn busy(what: impl Display) -> Self {
        Self { what: format!("{what}: the machine is too busy"), is_busy: true }
    }

    /// Prefixes the text with a place.
    pub(crate) fn at(self, place: impl Display) -> Self {
        Self { what: format!("{place}{}", self.what), ..self }
    }
}

impl From<String> for Doubt {
    fn from(what: String) -> Self {
        Self { what, is_busy: false }
    }
}

impl Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// Tolerated lateness of any link.
const TOLERANCE: Duration = Duration::from_millis(1);
/// Divisor of a delay for its tolerated lateness: 5 %.
const TOLERANCE_DIVISOR: u32 = 20;

/// Limit of the p99 lateness of a link with `delay`: 1 ms, or 5 % of the delay if that is more.
pub fn lateness_bound(delay: Duration) -> Duration {
    TOLERANCE.max(delay / TOLERANCE_DIVISOR)
}

/// [`lateness_bound`] of a link, for the shorter initial delay of its directions.
pub fn lateness_of(link: &LinkSpec) -> Duration {
    let delay = |timeline: &Timeline| timeline.start.delay.unwrap_or_default();
    lateness_bound(delay(&link.up).min(delay(&link.down)))
}

/// Doubts about a run over a link; empty if it is valid. Causes: p99 lateness above `bound` (usually
/// [`lateness_bound`]), loss outside its 99.9 % interval, packets above the MTU, and packets that were lost outside the
/// emulator.
pub fn validity(stopped: &Stopped, bound: Duration) -> Vec<Doubt> {
    let ends = [(Direction::Up, &stopped.up), (Direction::Down, &stopped.down)];
    let doubts = |(direction, end)| {
        direction_doubts(end, bound).into_iter().map(move |doubt| doubt.at(format_args!("{direction}: ")))
    };
    let log = log_gap(stopped).map(Doubt::from);
    ends.into_iter().flat_map(doubts).chain(log).collect()
}

/// Gap of the packet log, if one was requested.
fn log_gap(stopped: &Stopped) -> Option<String> {
    let unlogged = stopped.up.unlogged + stopped.down.unlogged;
    match (&stopped.log_error, unlogged) {
        (Some(error), _) => Some(format!("the packet log is incomplete: {error}")),
        (None, 0) => None,
        (None, lines) => Some(format!("the packet log lacks {lines} lines: the disk was too slow")),
    }
}

fn direction_doubts(end: &DirectionEnd, bound: Duration) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> = Vec::new();
    if end.lateness.p99_us > bound.as_secs_f64() * 1e6 {
        let (late, bound) = (end.lateness.p99_us / 1e3, bound.as_secs_f64() * 1e3);
        doubts.push(Doubt::busy(format!(
            "99 % of the packets left up to {late:.2} ms late, more than {bound:.2} ms"
        )));
    }
    let counters = &end.counters;
    // Policed packets never reach the loss stage.
    let trials = counters.offered.packets - (counters.unmatched.packets + counters.policed.packets);
    let lost = counters.lost.packets;
    if let Some(share) = end.expected_loss.filter(|&share| !is_plausible(lost, trials, share)) {
        let share = share * 100.0;
        doubts.push(Doubt::from(format!(
            "{lost} of {trials} packets were lost, which is not {share}%: choose another seed or a longer run"
        )));
    }
    if end.above_mtu > 0 {
        let DirectionEnd { above_mtu, mtu, .. } = end;
        let largest = counters.largest;
        doubts.push(Doubt::from(format!(
            "{above_mtu} packets were larger than the MTU of {mtu}, the largest {largest} bytes: an offload is on"
        )));
    }
    if end.missed > 0 {
        doubts.push(Doubt::busy(format!(
            "{} packets were lost before the emulator could read them",
            end.missed
        )));
    }
    let error = end.first_error.as_deref();
    if end.unsent.packets > 0 {
        let because = error.unwrap_or("no reason given");
        doubts
            .push(Doubt::from(format!("the kernel did not take {} packets: {because}", end.unsent.packets)));
    } else if let Some(error) = error {
        doubts.push(Doubt::from(error.to_owned()));
    }
    doubts
}

// === Statistics ===
//
// Tests of shares, which only the selftest and the validity of runs need; quantiles are those of `braid_measure`.

/// Quantile 99.9 % of chi-square with one degree of freedom.
const CHI_SQUARE_LIMIT: f64 = 10.828;
/// Probability outside the 99.9 % interval, on each side.
const TAIL: f64 = 0.0005;
/// Variance from which a binomial distribution is approximated by a normal one.
const NORMAL_FROM: f64 = 25.0;

/// Chi-square of `hits` in `trials` of probability `share`; 0 if they are as expected.
pub(super) fn chi_square(hits: u64, trials: u64, share: f64) -> f64 {
    let (expected, variance) = moments(trials, share);
    let distance = hits as f64 - expected;
    match (distance == 0.0, variance == 0.0) {
        (true, _) => 0.0,
        (false, true) => f64::INFINITY,
        (false, false) => distance * distance / variance,
    }
}

/// Whether `hits` in `trials` of probability `share` is inside the 99.9 % interval.
pub(super) fn is_plausible(hits: u64, trials: u64, share: f64) -> bool {
    if hits > trials {
        return false;
    }
    let (_, variance) = moments(trials, share);
    if variance >= NORMAL_FROM {
        return chi_square(hits, trials, share) <= CHI_SQUARE_LIMIT;
    }
    // The rarer outcome is so rare that its probabilities can be summed from 0.
    let (rare, share) = if share <= 0.5 { (hits, share) } else { (trials - hits, 1.0 - share) };
    let mut probability = (trials as f64 * (-share).ln_1p()).exp();
    let mut below = 0.0;
    for outcome in 0..rare {
        below += probability;
        probability *= (trials - outcome) as f64 / (outcome + 1) as f64 * share / (1.0 - share);
    }
    // P(X <= rare) and P(X >= rare).
    below + probability >= TAIL && 1.0 - below >= TAIL
}

fn moments(trials: u64, share: f64) -> (f64, f64) {
    let expected = trials as f64 * share;
    (expected, expected * (1.0 - share))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact interval, from tables of the binomial distribution.
    #[test]
    fn the_interval_is_that_of_the_binomial_distribution() {
        // By the definition: 0.9^100 = 2.66e-5 is below 0.0005, P(X <= 1) = 3.2e-4 too, P(X <= 2) = 0.0019 is not.
        assert!(!is_plausible(0, 100, 0.1) && !is_plausible(1, 100, 0.1) && is_plausible(2, 100, 0.1));
        // P(X >= 21) = 8.1e-4, P(X >= 22) = 2.9e-4.
        assert!(is_plausible(21, 100, 0.1) && !is_plausible(22, 100, 0.1));
        // The mirror image.
        assert!(!is_plausible(99, 100, 0.9) && is_plausible(98, 100, 0.9));
        assert!(is_plausible(79, 100, 0.9) && !is_plausible(78, 100, 0.9));
    }

    #[test]
    fn impossible_and_certain_outcomes_admit_no_exception() {
        assert!(is_plausible(0, 1_000_000, 0.0) && !is_plausible(1, 1_000_000, 0.0));
        assert!(is_plausible(1000, 1000, 1.0) && !is_plausible(999, 1000, 1.0));
        assert!(is_plausible(0, 0, 0.1) && is_plausible(0, 1, 0.1));
        assert!(!is_plausible(2, 1, 0.1));
    }

    #[test]
    fn many_trials_use_the_normal_distribution() {
        // 10,000 trials: 1000 +- 30; 3.29 deviations are 98.7.
        assert!(is_plausible(1098, 10_000, 0.1) && !is_plausible(1099, 10_000, 0.1));
        assert!(is_plausible(902, 10_000, 0.1) && !is_plausible(901, 10_000, 0.1));
        assert!((chi_square(1030, 10_000, 0.1) - 1.0).abs() < 1e-9);
    }
}
