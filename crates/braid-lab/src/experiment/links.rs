//! The links of a run: what they shall be, and what they did.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Job, Plan, changes};
use crate::emulator::{PathCounters, Tally};
use crate::house::{HouseError, LinkPlan, PacketRule, RuleCounters, Topology};
use crate::report::LinkRun;
use crate::scenario::{self, Profile};
use crate::selftest::{self, Doubt};
use crate::wire;

/// MTU of every link, in bytes.
const MTU: u16 = 1500;

/// The links as the profile shapes them.
pub(super) fn plans(plan: &Plan, job: Job<'_>, dir: &Path) -> Vec<LinkPlan> {
    let of_link = |link: &scenario::Link| {
        let [left, right] = link.between.clone();
        let log = |ending: &str| plan.logs.then(|| dir.join(format!("{}.{ending}", link.name)));
        LinkPlan {
            name: link.name.clone(),
            left,
            right,
            shape: job.profile.links.get(&link.name).map(changes::start),
            seed: job.seed,
            options: wire::Options {
                verdicts: log("verdicts"),
                pcap: log("pcapng"),
                realtime: true,
                ..wire::Options::default()
            },
            rule: job
                .profile
                .rules
                .get(&link.name)
                .map(|rule| PacketRule { rate: rule.per_second, burst: rule.burst }),
            mtu: MTU,
            keep_offloads: job.profile.offloads,
        }
    };
    plan.scenario.links.iter().map(of_link).collect()
}

/// Results of the emulated links, and doubts about them.
pub(super) fn link_runs(topology: Topology, plan: &Plan, profile: &Profile) -> (Vec<LinkRun>, Vec<Doubt>) {
    let mut doubts: Vec<Doubt> = Vec::new();
    let lateness = plan.lateness.map(|lateness| lateness.0);
    let rules = Rules::read(&topology, plan).unwrap_or_else(|error| {
        doubts.push(Doubt::from(error.to_string()));
        Rules::default()
    });
    doubts.extend(rules.doubts().into_iter().map(Doubt::from));
    let mut runs = Vec::new();
    for link in topology.stop() {
        let shape = profile.links.get(&link.name).cloned().unwrap_or_default();
        let of_link =
            selftest::validity(&link.stopped, lateness.unwrap_or_else(|| selftest::lateness_of(&shape)));
        doubts.extend(of_link.into_iter().map(|doubt| doubt.at(format_args!("link {}, ", link.name))));
        let mut run =
            LinkRun { name: link.name, up: link.stopped.up.path_run(), down: link.stopped.down.path_run() };
        rules.add(&run.name, &mut run.up.counters);
        runs.push(run);
    }
    (runs, doubts)
}

/// Counters of the kernel's packet rules, by link.
#[derive(Debug, Default)]
pub(super) struct Rules(BTreeMap<String, RuleCounters>);

impl Rules {
    pub(super) fn read(topology: &Topology, plan: &Plan) -> Result<Self, HouseError> {
        let mut rules = BTreeMap::new();
        for link in &plan.scenario.links {
            if let Some(counters) = topology.rule_counters(&link.name)? {
                rules.insert(link.name.clone(), counters);
            }
        }
        Ok(Self(rules))
    }

    /// Doubts about accepted packets that were larger than those of the network.
    fn doubts(&self) -> Vec<String> {
        let too_large = |accepted: Tally| accepted.bytes > accepted.packets * u64::from(MTU);
        let links = self.0.iter().filter(|(_, counters)| too_large(counters.accepted));
        links
            .map(|(link, _)| {
                format!("link {link}: its rule accepted more than {MTU} bytes a packet: an offload is on")
            })
            .collect()
    }

    pub(super) fn counters(&self, topology: &Topology, link: &str) -> [PathCounters; 2] {
        let mut counters = topology.counters(link).unwrap_or_default();
        let [up, _] = &mut counters;
        self.add(link, up);
        counters
    }

    fn add(&self, link: &str, up: &mut PathCounters) {
        let Some(RuleCounters { dropped, .. }) = self.0.get(link) else { return };
        up.policed.packets += dropped.packets;
        up.policed.bytes += dropped.bytes;
        up.sent.packets = up.sent.packets.saturating_sub(dropped.packets);
        up.sent.bytes = up.sent.bytes.saturating_sub(dropped.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::plan;
    use super::super::job::jobs;
    use super::*;

    /// The links of the first run of a plan.
    fn planned(plan: &Plan) -> Vec<LinkPlan> {
        let jobs = jobs(plan, &mut |_| {}).expect("something to run");
        plans(plan, jobs[0], Path::new("here"))
    }

    #[test]
    fn a_link_begins_as_its_profile_says_and_one_that_no_profile_shapes_is_plain() {
        let mut plan = plan();
        plan.seeds = Some(vec![7]);
        let [wire, clean] = planned(&plan).try_into().expect("two links");
        assert_eq!((wire.left.as_str(), wire.right.as_str(), wire.seed, wire.mtu), ("a", "b", 7, 1500));
        assert_eq!(
            wire.shape.map(|shape| shape.to_string()).as_deref(),
            Some("delay=1ms"),
            "changes come later"
        );
        assert_eq!((clean.left.as_str(), clean.right.as_str(), clean.shape), ("b", "a", None));
        assert_eq!((wire.rule, wire.options.pcap), (None, None));
    }

    #[test]
    fn logs_and_rules_are_those_of_their_link() {
        let mut plan = plan();
        plan.logs = true;
        let rule = "29/sec burst 5".parse().expect("a rule");
        plan.scenario.profiles[0].links.clear();
        plan.scenario.profiles[0].rules.insert("clean".into(), rule);
        let job = Job {
            variant: &plan.scenario.variants[0],
            profile: &plan.scenario.profiles[0],
            seed: 1,
            repetition: 1,
            attempt: 0,
        };
        let [wire, clean] = plans(&plan, job, Path::new("here")).try_into().expect("two links");
        assert_eq!(wire.options.verdicts.as_deref(), Some(Path::new("here/wire.verdicts")));
        assert_eq!(clean.options.pcap.as_deref(), Some(Path::new("here/clean.pcapng")));
        assert_eq!((wire.rule, clean.rule), (None, Some(PacketRule { rate: 29, burst: 5 })));
    }

    fn rules(accepted: Tally, dropped: Tally) -> Rules {
        Rules(BTreeMap::from([("wire".to_owned(), RuleCounters { accepted, dropped })]))
    }

    #[test]
    fn what_a_rule_drops_has_not_passed() {
        let tally = |packets, bytes| Tally { packets, bytes };
        let mut up = PathCounters { sent: tally(10, 1000), ..PathCounters::default() };
        let rules = rules(tally(6, 600), tally(4, 400));
        rules.add("clean", &mut up);
        assert_eq!(up.sent, tally(10, 1000), "it is another's rule");
        rules.add("wire", &mut up);
        assert_eq!((up.sent, up.policed), (tally(6, 600), tally(4, 400)));
    }

    #[test]
    fn a_rule_that_accepts_more_than_packets_can_hold_saw_an_offload() {
        let accepted = |packets, bytes| rules(Tally { packets, bytes }, Tally::default()).doubts();
        assert!(accepted(10, 15_000).is_empty() && accepted(0, 0).is_empty());
        let [doubt] = accepted(10, 15_001).try_into().expect("one doubt");
        assert_eq!(doubt, "link wire: its rule accepted more than 1500 bytes a packet: an offload is on");
    }
}
