//! The kernel's own packet limit, as people write it with iptables.

use super::error::HouseError;
use super::namespace::Namespace;
use super::plan::PacketRule;
use super::tool::{IPTABLES, Input};
use crate::emulator::Tally;

/// Counters of a [`PacketRule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleCounters {
    /// Within the limit.
    pub accepted: Tally,
    /// Beyond it.
    pub dropped: Tally,
}

/// Lets `rule` hold for what comes into `namespace` by `device`.
pub(super) fn hold(rule: PacketRule, namespace: &Namespace, device: &str) -> Result<(), HouseError> {
    let rate = format!("{}/sec", rule.rate);
    let burst = rule.burst.to_string();
    let from = ["-A", "INPUT", "-i", device];
    let limit = ["-m", "limit", "--limit", &rate, "--limit-burst", &burst];
    let accept = [&from[..], &limit, &["-j", "ACCEPT"]].concat();
    let drop = [&from[..], &["-j", "DROP"]].concat();
    for arguments in [accept, drop] {
        IPTABLES.run(namespace, &arguments, Input::Nothing)?;
    }
    Ok(())
}

/// Reads the counters of the rule for `device`.
pub(super) fn counters(namespace: &Namespace, device: &str) -> Result<RuleCounters, HouseError> {
    let list = IPTABLES.run(namespace, &["-L", "INPUT", "-n", "-v", "-x"], Input::Nothing)?;
    Ok(RuleCounters { accepted: tally(&list, "ACCEPT", device), dropped: tally(&list, "DROP", device) })
}

/// From a line such as `  29   43500 ACCEPT  0  --  lq0r  *  0.0.0.0/0  0.0.0.0/0  limit: avg 29/sec burst 5`.
fn tally(list: &str, target: &str, device: &str) -> Tally {
    let row = list
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&target) && words.contains(&device));
    let number = |place: usize| row.as_ref().and_then(|words| words.get(place)?.parse().ok()).unwrap_or(0);
    Tally { packets: number(0), bytes: number(1) }
}
