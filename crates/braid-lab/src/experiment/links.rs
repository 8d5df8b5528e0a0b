//! Links of a run: parameters, changes while it lasts, samples of their counters, results.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;
use std::time::Duration;

use super::{Job, Plan};
use crate::report::{LinkRun, PathRun, Series, SeriesKind};
use crate::scenario::{self, LinkField, Profile};
use crate::selftest::{self, Doubt};
use crate::testbed::{LinkPlan, PacketRule, RuleCounters, TestbedError, Topology};
use crate::wire;
use braid_emulator::{Direction, LinkSpec, PacketCount, PathCounters, PathSpec, Timeline};

/// MTU of every link, in bytes.
const MTU: u16 = 1500;

/// Plans of the links, with the parameters of the profile.
pub(super) fn plans(plan: &Plan, job: Job<'_>, dir: &Path) -> Vec<LinkPlan> {
    let of_link = |link: &scenario::Link| {
        let [left, right] = link.between.clone();
        let log = |ending: &str| plan.logs.then(|| dir.join(format!("{}.{ending}", link.name)));
        LinkPlan {
            name: link.name.clone(),
            left,
            right,
            shape: job.profile.links.get(&link.name).map(initial),
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
            tcp: link.tcp.clone(),
            mtu: MTU,
            keep_offloads: job.profile.offloads,
        }
    };
    plan.scenario.links.iter().map(of_link).collect()
}

/// Stops the emulated links; returns their results and the doubts about them.
pub(super) fn link_runs(topology: Topology, plan: &Plan, profile: &Profile) -> (Vec<LinkRun>, Vec<Doubt>) {
    let mut doubts: Vec<Doubt> = Vec::new();
    let lateness = plan.lateness.map(|lateness| lateness.0);
    let rules = RulesByLink::read(&topology, plan).unwrap_or_else(|error| {
        doubts.push(Doubt::from(error.to_string()));
        RulesByLink::default()
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
pub(super) struct RulesByLink(BTreeMap<String, RuleCounters>);

impl RulesByLink {
    pub(super) fn read(topology: &Topology, plan: &Plan) -> Result<Self, TestbedError> {
        let mut rules = BTreeMap::new();
        for link in &plan.scenario.links {
            if let Some(counters) = topology.rule_counters(&link.name)? {
                rules.insert(link.name.clone(), counters);
            }
        }
        Ok(Self(rules))
    }

    /// Doubts about rules that accepted packets above the MTU.
    fn doubts(&self) -> Vec<String> {
        let too_large = |accepted: PacketCount| accepted.bytes > accepted.packets * u64::from(MTU);
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

// === Changes ===

/// Initial parameters of a link, without its changes.
///
/// The timeline of the emulator begins when the network is built, before programs start. Links are therefore built with
/// their initial parameters and changed by [`Changes`] at the times of the workload.
fn initial(link: &LinkSpec) -> LinkSpec {
    let first = |timeline: &Timeline| Timeline::from(timeline.start.clone());
    LinkSpec { seed: link.seed, up: first(&link.up), down: first(&link.down) }
}

/// Changes of all links of a profile, the next one last.
#[derive(Debug)]
pub(super) struct Changes(Vec<(Duration, String, Direction, PathSpec)>);

impl Changes {
    pub(super) fn new(profile: &Profile) -> Self {
        let mut all = Vec::new();
        for (link, shape) in &profile.links {
            for direction in [Direction::Up, Direction::Down] {
                let changes = &shape.timeline(direction).changes;
                all.extend(
                    changes.iter().map(|change| (change.at, link.clone(), direction, change.path.clone())),
                );
            }
        }
        all.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
        Self(all)
    }

    /// Applies the changes that are due `since` the start of the workload; returns the time of the next one.
    pub(super) fn apply(&mut self, since: Duration, topology: &Topology) -> Option<Duration> {
        while let Some((link, direction, path)) = self.take_due(since) {
            if let Some(running) = topology.running(&link) {
                running.change(direction, path);
            }
        }
        self.0.last().map(|(at, ..)| *at)
    }

    /// Next change, if it is due.
    fn take_due(&mut self, since: Duration) -> Option<(String, Direction, PathSpec)> {
        let (_, link, direction, path) = self.0.pop_if(|(at, ..)| *at <= since)?;
        Some((link, direction, path))
    }
}

// === Samples ===

/// Counters at one time.
#[derive(Debug)]
pub(super) struct Sample {
    /// Packets of each link, up and down.
    pub(super) links: Vec<[PathCounters; 2]>,
    /// Processor time that programs have used, by name.
    pub(super) processor: BTreeMap<String, Duration>,
}

/// Samples of counters, one per second.
#[derive(Debug)]
pub(super) struct Samples {
    /// By second.
    rows: Vec<Sample>,
}

impl Samples {
    pub(super) const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Whether another sample is due, `since` the start of the run.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        since.as_secs() >= self.rows.len() as u64
    }

    pub(super) fn push(&mut self, row: Sample) {
        self.rows.push(row);
    }

    /// Counters of a direction of a link at two times, in whole seconds since the start of the run.
    pub(super) fn between(
        &self,
        link: usize,
        up: bool,
        [from, until]: [Duration; 2],
    ) -> Option<[PathCounters; 2]> {
        let row = |at: Duration| self.at(at)?.links.get(link)?.get(usize::from(!up)).copied();
        Some([row(from)?, row(until)?])
    }

    /// Processor time that a program had used at two times, in whole seconds since the start of the run.
    pub(super) fn processor(&self, program: &str, [from, until]: [Duration; 2]) -> Option<[Duration; 2]> {
        let used = |at| self.at(at)?.processor.get(program).copied();
        Some([used(from)?, used(until)?])
    }

    /// Sample of a time, or the last one.
    fn at(&self, at: Duration) -> Option<&Sample> {
        self.rows.get(usize::try_from(at.as_secs()).ok()?).or(self.rows.last())
    }

    /// Packets per second by fate; a fate that never occurred has no series.
    pub(super) fn series(&self, links: &[&str]) -> Vec<Series> {
        let mut lines = Vec::new();
        for (place, link) in links.iter().enumerate() {
            for (way, name) in ["up", "down"].into_iter().enumerate() {
                for (fate, (what, _)) in fates(&PathCounters::default()).enumerate() {
                    let counters = self.rows.iter().filter_map(|row| row.links.get(place)?.get(way));
                    let counts: Vec<u64> =
                        counters.filter_map(|counters| Some(fates(counters).nth(fate)?.1)).collect();
                    let steps = counts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64);
                    let values: Vec<f64> = steps.collect();
                    if values.iter().any(|&value| value > 0.0) {
                        lines.push(Series {
                            kind: SeriesKind::Link,
                            name: format!("{link} {name} {what}"),
                            unit: "1/s".into(),
                            start: 0.0,
                            step: 1.0,
                            values,
                        });
                    }
                }
            }
        }
        lines
    }
}

/// Packets that passed, and those that were dropped by cause.
fn fates(counters: &PathCounters) -> impl Iterator<Item = (&'static str, u64)> {
    let all = iter::once(("passed", counters.sent)).chain(counters.drops());
    all.map(|(what, tally)| (what, tally.packets))
}

// === Values of links ===

/// Field of one direction of a link over the whole run.
pub(super) fn path_value(path: &PathRun, field: LinkField) -> f64 {
    let counters = &path.counters;
    match field {
        LinkField::PolicedShare | LinkField::DroppedShare => {
            between(&PathCounters::default(), counters, field).unwrap_or(0.0)
        }
        LinkField::Packets => counters.sent.packets as f64,
        LinkField::Bytes => counters.sent.bytes as f64,
        LinkField::OfferedBytes => counters.offered.bytes as f64,
        LinkField::Duplicated => counters.duplicated.packets as f64,
        LinkField::Largest => counters.largest as f64,
    }
}

/// Field of one direction of a link between two readings of its counters; `None` if it exists for the whole run only.
pub(super) fn between(before: &PathCounters, after: &PathCounters, field: LinkField) -> Option<f64> {
    let grown = |count: fn(&PathCounters) -> u64| count(after).saturating_sub(count(before)) as f64;
    let offered = grown(|counters| counters.offered.packets + counters.duplicated.packets).max(1.0);
    match field {
        LinkField::PolicedShare => Some(grown(|counters| counters.policed.packets) / offered),
        LinkField::DroppedShare => {
            let dropped = grown(|counters| counters.drops().iter().map(|(_, drops)| drops.packets).sum());
            Some(dropped / offered)
        }
        LinkField::Packets => Some(grown(|counters| counters.sent.packets)),
        LinkField::Bytes => Some(grown(|counters| counters.sent.bytes)),
        LinkField::OfferedBytes => Some(grown(|counters| counters.offered.bytes)),
        LinkField::Duplicated => Some(grown(|counters| counters.duplicated.packets)),
        LinkField::Largest => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::jobs;
    use super::super::job::tests::plan;
    use super::*;

    /// Links of the first run of a plan.
    fn planned(plan: &Plan) -> Vec<LinkPlan> {
        let jobs = jobs(plan, &mut |_| {}).expect("something to run");
        plans(plan, jobs[0], Path::new("here"))
    }

    #[test]
    fn a_link_has_the_initial_parameters_of_its_profile_or_is_plain() {
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
    fn logs_and_rules_belong_to_their_link() {
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

    fn rules(accepted: PacketCount, dropped: PacketCount) -> RulesByLink {
        RulesByLink(BTreeMap::from([("wire".to_owned(), RuleCounters { accepted, dropped })]))
    }

    #[test]
    fn packets_dropped_by_a_rule_count_as_policed() {
        let tally = |packets, bytes| PacketCount { packets, bytes };
        let mut up = PathCounters { sent: tally(10, 1000), ..PathCounters::default() };
        let rules = rules(tally(6, 600), tally(4, 400));
        rules.add("clean", &mut up);
        assert_eq!(up.sent, tally(10, 1000), "the rule is of another link");
        rules.add("wire", &mut up);
        assert_eq!((up.sent, up.policed), (tally(6, 600), tally(4, 400)));
    }

    #[test]
    fn accepted_bytes_above_the_mtu_reveal_an_offload() {
        let accepted =
            |packets, bytes| rules(PacketCount { packets, bytes }, PacketCount::default()).doubts();
        assert!(accepted(10, 15_000).is_empty() && accepted(0, 0).is_empty());
        let [doubt] = accepted(10, 15_001).try_into().expect("one doubt");
        assert_eq!(doubt, "link wire: its rule accepted more than 1500 bytes a packet: an offload is on");
    }

    #[test]
    fn a_link_is_built_without_its_changes() {
        let link: LinkSpec = "seed=7 delay=10ms / up: loss=1% ; t=3s up: loss=2%".parse().expect("a link");
        let first = initial(&link);
        assert_eq!(first, "seed=7 delay=10ms / up: loss=1%".parse().expect("a link"));
        assert_eq!(initial(&first), first);
    }

    #[test]
    fn changes_of_all_links_are_applied_in_order_when_due() {
        let profile = r#"
            name = "p"
            title = "p"
            links = { one = "delay=1ms ; t=5s up: delay=2ms ; t=9s up: delay=3ms", two = "; t=7s down: loss=5%" }
        "#;
        let mut changes = Changes::new(&toml::from_str(profile).expect("a profile"));
        let seconds = Duration::from_secs;
        let mut due = |at| {
            let taken = changes.take_due(seconds(at));
            taken.map(|(link, direction, path)| (link, direction, path.delay))
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(due(4), None);
        assert_eq!(due(5), Some(("one".to_owned(), Direction::Up, ms(2))));
        assert_eq!(due(6), None);
        assert_eq!(due(100), Some(("two".to_owned(), Direction::Down, None)), "the earlier one first");
        assert_eq!(due(100), Some(("one".to_owned(), Direction::Up, ms(3))));
        assert_eq!(due(100), None);
    }

    /// Counters of a direction with so many passed and lost packets.
    fn counters(passed: u64, lost: u64) -> PathCounters {
        let mut counters = PathCounters::default();
        (counters.sent.packets, counters.lost.packets) = (passed, lost);
        counters
    }

    fn sample(links: Vec<[PathCounters; 2]>) -> Sample {
        Sample { links, processor: BTreeMap::new() }
    }

    #[test]
    fn a_sample_is_due_at_the_start_and_each_second() {
        let mut samples = Samples::new();
        assert!(samples.is_due(Duration::ZERO));
        samples.push(sample(Vec::new()));
        assert!(!samples.is_due(Duration::from_millis(999)));
        assert!(samples.is_due(Duration::from_secs(1)));
        samples.push(sample(Vec::new()));
        assert!(!samples.is_due(Duration::from_secs(1)));
    }

    #[test]
    fn series_are_differences_of_counters_without_those_of_zero() {
        let mut samples = Samples::new();
        for (passed, lost) in [(10, 0), (15, 0), (15, 2), (45, 2)] {
            samples.push(sample(vec![
                [counters(passed, lost), counters(0, 0)],
                [counters(3, 0), counters(passed, 0)],
            ]));
        }
        let lines = samples.series(&["bad", "good"]);
        let found: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.values.clone())).collect();
        let passed = vec![5.0, 0.0, 30.0];
        let expected = [
            ("bad up passed", passed.clone()),
            ("bad up lost", vec![0.0, 2.0, 0.0]),
            ("good down passed", passed),
        ];
        assert_eq!(found, expected);
        assert!(lines.iter().all(|line| (line.start, line.step, line.kind) == (0.0, 1.0, SeriesKind::Link)));
        assert!(Samples::new().series(&["bad"]).is_empty());
    }
}
