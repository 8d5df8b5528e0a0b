//! Whether a run may be used.

use std::time::Duration;

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
pub fn validity(stopped: &Stopped, bound: Duration) -> Vec<String> {
    let ends = [(Direction::Up, &stopped.up), (Direction::Down, &stopped.down)];
    let reasons =
        |(direction, end)| judge(end, bound).into_iter().map(move |reason| format!("{direction}: {reason}"));
    ends.into_iter().flat_map(reasons).collect()
}

fn judge(end: &DirectionEnd, bound: Duration) -> Vec<String> {
    let mut reasons = Vec::new();
    if end.lateness.p99_us > bound.as_secs_f64() * 1e6 {
        let (late, bound) = (end.lateness.p99_us / 1e3, bound.as_secs_f64() * 1e3);
        reasons.push(format!(
            "99 % of the packets left up to {late:.1} ms late, more than {bound:.1} ms: the machine is too busy"
        ));
    }
    let counters = &end.counters;
    // What the policer drops is not asked for its loss.
    let trials = counters.offered.packets - (counters.unmatched.packets + counters.policed.packets);
    let lost = counters.lost.packets;
    if let Some(share) = end.expected_loss.filter(|&share| !is_plausible(lost, trials, share)) {
        reasons.push(format!(
            "{lost} of {trials} packets were lost, which is not {}%: choose another seed or a longer run",
            share * 100.0
        ));
    }
    if end.above_mtu > 0 {
        let DirectionEnd { above_mtu, mtu, .. } = end;
        let largest = counters.largest;
        reasons.push(format!(
            "{above_mtu} packets were larger than the MTU of {mtu}, the largest {largest} bytes: an offload is on"
        ));
    }
    if end.missed > 0 {
        reasons.push(format!(
            "{} packets were lost before the emulator could read them: the machine is too busy",
            end.missed
        ));
    }
    let error = end.first_error.as_deref();
    if end.unsent.packets > 0 {
        let because = error.unwrap_or("no reason given");
        reasons.push(format!("the kernel did not take {} packets: {because}", end.unsent.packets));
    } else if let Some(error) = error {
        reasons.push(error.to_owned());
    }
    reasons
}
