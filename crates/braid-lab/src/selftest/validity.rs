//! Whether a run may be used.

use std::time::Duration;

use super::doubt::Doubt;
use super::statistics::is_plausible;
use crate::emulator::{Direction, LinkSpec, Timeline};
use crate::wire::{DirectionEnd, Stopped};

/// The lateness that is borne with any delay.
const BORNE: Duration = Duration::from_millis(1);
/// And the part of a delay that is.
const BORNE_SHARE: u32 = 20;

/// How late 99 % of the packets of a link with `delay` may be at most: 1 ms, or 5 % of the delay if that is more.
pub fn lateness_bound(delay: Duration) -> Duration {
    BORNE.max(delay / BORNE_SHARE)
}

/// The [`lateness_bound`] of a link: that of the shorter delay of its two directions, as they are at the start.
pub fn lateness_of(link: &LinkSpec) -> Duration {
    let delay = |timeline: &Timeline| timeline.start.delay.unwrap_or_default();
    lateness_bound(delay(&link.up).min(delay(&link.down)))
}

/// Why a run over a link must not be used; empty: it may. Lateness above `bound`, mostly the [`lateness_bound`], loss
/// outside the interval of 99.9 %, packets above the MTU, and packets that got lost beside the emulator.
pub fn validity(stopped: &Stopped, bound: Duration) -> Vec<Doubt> {
    let ends = [(Direction::Up, &stopped.up), (Direction::Down, &stopped.down)];
    let doubts = |(direction, end)| {
        judge(end, bound).into_iter().map(move |doubt| doubt.at(format_args!("{direction}: ")))
    };
    let log = log_gap(stopped).map(Doubt::from);
    ends.into_iter().flat_map(doubts).chain(log).collect()
}

/// What a log of every packet is lacking, where one was asked for.
fn log_gap(stopped: &Stopped) -> Option<String> {
    let unlogged = stopped.up.unlogged + stopped.down.unlogged;
    match (&stopped.log_error, unlogged) {
        (Some(error), _) => Some(format!("the log of its packets is not whole: {error}")),
        (None, 0) => None,
        (None, lines) => Some(format!("the log of its packets lacks {lines} lines: the disk was too slow")),
    }
}

fn judge(end: &DirectionEnd, bound: Duration) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> = Vec::new();
    if end.lateness.p99_us > bound.as_secs_f64() * 1e6 {
        let (late, bound) = (end.lateness.p99_us / 1e3, bound.as_secs_f64() * 1e3);
        doubts.push(Doubt::busy(format!(
            "99 % of the packets left up to {late:.2} ms late, more than {bound:.2} ms"
        )));
    }
    let counters = &end.counters;
    // What the policer drops is not asked for its loss.
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
